"""Protocols and connections of clients and brokers, for programs that load servers over many connections."""
