"""Storms: many brokers with many topics register, leave or come back at the same time, in four systems."""
