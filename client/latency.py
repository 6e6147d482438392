"""Brokers that a producer avoids for some seconds because they were slow or did not answer.

This module does no I/O and reads no clock.

This is RocketMQ's latency fault tolerance. As in RocketMQ, it is off by default.
"""

from __future__ import annotations

from typing import Final

#: Pairs of seconds. If a send to a broker takes at least the first number, the producer avoids the broker for
#: the second number. The first pair that matches counts. Source: MQFaultStrategy, 5.3.
_STEPS: Final = ((15.0, 30.0), (5.0, 10.0), (3.0, 6.0), (1.8, 5.0), (0.55, 2.0))
#: Latency in seconds that is recorded for a try without an answer. Source: MQFaultStrategy.updateFaultItem
#: (isolation), 5.3.
NO_ANSWER_S: Final = 10.0

_NONE: Final[frozenset[str]] = frozenset()


def avoid_for_s(latency_s: float) -> float:
    """Return the seconds for which to avoid a broker after a send that took ``latency_s`` seconds."""
    for least_s, avoid_s in _STEPS:
        if latency_s >= least_s:
            return avoid_s
    return 0.0


class SlowBrokers:
    """The brokers that a producer avoids, each with the instant until which it is avoided.

    Only the latency of the last send to a broker counts.
    """

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def sent(self, broker_name: str, latency_s: float, now_s: float) -> None:
        """Record the latency of a send that has just ended."""
        avoid_s = avoid_for_s(latency_s)
        if avoid_s:
            self._until_s[broker_name] = now_s + avoid_s
        else:
            self._until_s.pop(broker_name, None)

    def avoided(self, now_s: float) -> frozenset[str]:
        """Return the brokers to avoid now, and forget the brokers that need not be avoided any more."""
        if not self._until_s:
            return _NONE
        over = [name for name, until_s in self._until_s.items() if until_s <= now_s]
        for name in over:
            del self._until_s[name]
        return frozenset(self._until_s)
