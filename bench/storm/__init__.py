"""Storms: many brokers with many topics register, leave or come back at once, at servers of any design.

One process runs all brokers. A second one, the bystander, asks for routes meanwhile.
"""
