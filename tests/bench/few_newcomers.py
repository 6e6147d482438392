"""Loaded by Locust together with bench/generator.py: new clients get one user, however many they need."""

from routekeeper.bench.plan import Load

_needed = Load.users


def users(self: Load, op: str) -> int:
    return 1 if op == "newcomer" else _needed(self, op)


Load.users = users  # type: ignore[method-assign]
