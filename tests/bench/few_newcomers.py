"""A module for Locust that lets one Locust user act as all new clients.

Locust loads this module together with bench/generator.py. One user cannot start enough new clients in time,
so new clients begin later than planned.
"""

from routekeeper.bench.plan import Load

_needed = Load.users


def users(self: Load, op: str) -> int:
    return 1 if op == "newcomer" else _needed(self, op)


Load.users = users  # type: ignore[method-assign]
