"""Benchmarks of single parts of RouteKeeper; each has a command of its own, and the tests do not run them."""
