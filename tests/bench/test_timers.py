"""The divisor of the benchmark's timers shortens periods, but no timeout."""

from __future__ import annotations

from dataclasses import fields

from routekeeper.bench.timers import divide_periods
from routekeeper.client.config import ClientConfig


def test_the_divisor_shortens_periods_only() -> None:
    documented = ClientConfig(nameservers=("a:1",))
    divided = divide_periods(documented, 10)
    changed = {
        field.name: getattr(documented, field.name) / getattr(divided, field.name)
        for field in fields(ClientConfig)
        if getattr(documented, field.name) != getattr(divided, field.name)
    }
    assert set(changed) == {
        "route_refresh_s",
        "nameserver_refresh_s",
        "nameserver_avoid_s",
        "heartbeat_s",
        "rebalance_s",
        "offset_persist_s",
        "lock_s",
    }
    assert {round(ratio, 6) for ratio in changed.values()} == {10}
