"""Protocols of clients and brokers as bytes, for programs that have thousands of connections each."""
