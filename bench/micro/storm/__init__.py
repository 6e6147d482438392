"""Storms: many brokers with many topics register, leave or return at the same time, in four designs."""
