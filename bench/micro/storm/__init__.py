"""Storms: many brokers with many topics register, leave or come back at once, before four systems."""
