"""Concurrent calls for Locust users, which run as greenlets."""

from __future__ import annotations

from collections.abc import Callable

import gevent

from routekeeper.bench.arms.interface import Told


def at_once(calls: list[Callable[[], Told]]) -> list[Told]:
    """Run the calls concurrently and return their results in the order of the calls."""
    running = [gevent.spawn(call) for call in calls]
    gevent.joinall(running, raise_error=True)
    return [greenlet.value for greenlet in running]
