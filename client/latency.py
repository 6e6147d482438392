"""Brokers that a producer avoids for a while because they were slow or did not answer. Pure.

This is RocketMQ's latency fault tolerance. As there, it is off by default.
"""

from __future__ import annotations

from typing import Final

#: Pairs: the latency of a send in seconds from which on its broker is avoided, and the seconds for which it
#: is avoided. Source: MQFaultStrategy, 5.3.
_STEPS: Final = ((15.0, 30.0), (5.0, 10.0), (3.0, 6.0), (1.8, 5.0), (0.55, 2.0))
#: Latency in seconds that is assumed for a try without an answer. Source: MQFaultStrategy.updateFaultItem
#: (isolation), 5.3.
NO_ANSWER_S: Final = 10.0

_NONE: Final[frozenset[str]] = frozenset()


def avoid_for_s(latency_s: float) -> float:
    """Return for how long to avoid a broker that took ``latency_s`` for a send."""
    for least_s, avoid_s in _STEPS:
        if latency_s >= least_s:
            return avoid_s
    return 0.0


class SlowBrokers:
    """Brokers that are avoided, each until its own instant. The last send to a broker decides."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def sent(self, broker_name: str, latency_s: float, now_s: float) -> None:
        """Note the duration of a send that has ended now."""
        avoid_s = avoid_for_s(latency_s)
        if avoid_s:
            self._until_s[broker_name] = now_s + avoid_s
        else:
            self._until_s.pop(broker_name, None)

    def avoided(self, now_s: float) -> frozenset[str]:
        """Return the brokers to avoid now; forget those whose time is over."""
        if not self._until_s:
            return _NONE
        over = [name for name, until_s in self._until_s.items() if until_s <= now_s]
        for name in over:
            del self._until_s[name]
        return frozenset(self._until_s)
