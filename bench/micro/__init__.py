"""Benchmarks of single parts, run by command and never by tests."""
