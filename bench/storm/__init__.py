"""Storms: many brokers with many topics register, leave or come back at once, before servers of any design.

The brokers and the bystander that asks for routes meanwhile are a process each.
"""
