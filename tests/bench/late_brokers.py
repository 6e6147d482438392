"""A module for Locust that delays the registrations of simulated brokers by up to 3 s.

Locust loads this module together with bench/generator.py. A busy machine can delay registrations in the same
way.
"""

import time

import gevent

from routekeeper.bench.arms.interface import Listing, Told
from routekeeper.bench.arms.remoting import RemotingBroker

LATE_S = 3.0
_announce = RemotingBroker.announce
_due_s: list[float] = []


def announce(self: RemotingBroker, listing: Listing) -> list[Told]:
    if not _due_s:
        _due_s.append(time.monotonic() + LATE_S)
    gevent.sleep(max(0.0, _due_s[0] - time.monotonic()))
    return _announce(self, listing)


RemotingBroker.announce = announce  # type: ignore[method-assign]
