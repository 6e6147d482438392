"""Benchmark of storms: many brokers with many topics register, leave or return at once, in four designs."""
