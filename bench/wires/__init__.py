"""Protocols and connections of clients and brokers, for load programs with thousands of connections each."""
