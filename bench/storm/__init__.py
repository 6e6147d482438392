"""Storms: many brokers with many topics register, leave or return at once, with servers of any design.

One process runs all brokers. A second process, the bystander, asks for routes at the same time.
"""
