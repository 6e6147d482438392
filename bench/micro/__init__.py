"""Benchmarks of single parts; a command runs each of them, and no test does."""
