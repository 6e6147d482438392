"""A broker requests a shorter lease only if ``timerDivisor`` shortens its timers."""

from __future__ import annotations

import pytest

from routekeeper.broker.server.registrar import asked_lease_ms


@pytest.mark.parametrize(("divisor", "lease_ms"), [(1.0, None), (10.0, 12_000), (60.0, 2_000)])
def test_lease_is_divided_as_the_period_is(divisor: float, lease_ms: int | None) -> None:
    assert asked_lease_ms(divisor) == lease_ms
