"""Cache of answers from the production nameservers, and limits on questions to these nameservers.

The production nameservers belong to another environment, whose routes this test environment also uses.

This module does no I/O.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from routekeeper.remoting.route import TopicRouteData

MARK: Final = "askedByNameserver"
"""Name of an argument that marks a nameserver's question to another nameserver.

The other nameserver answers such a question from its own table, so two nameservers never ask each other.
"""
#: Seconds for which an answer is kept, even an answer without a route. After this time, the next client
#: request for the topic leads to a new question.
KEPT_S: Final = 30.0
#: Largest number of kept answers. Above this number, the oldest answers are dropped.
ENTRIES_MAX: Final = 8192
#: Largest size in bytes of all kept answers together: their encoded routes and topic names.
BYTES_MAX: Final = 32 * 1024 * 1024
#: Largest number of questions to production's nameservers that are under way at the same time.
ASKING_MAX: Final = 16
#: Largest number of questions that begin within one second, for all client hosts together.
QUESTIONS_PER_S: Final = 200
#: Largest number of questions that begin within one second for one client host. For clients on loopback
#: addresses, only the limit for all hosts applies.
QUESTIONS_PER_HOST_S: Final = 50
_ENTRY_BYTES: Final = 500


@dataclass(frozen=True, slots=True)
class Kept:
    """The answer of the production nameservers to one question for the route of a topic.

    Attributes:
        route: The topic's route; None if no production nameserver answered, or if none knows the topic.
        until: Time, in seconds of the caller's clock, until which the answer is used.
        size: Bytes of the answer that count against :data:`BYTES_MAX`.
    """

    route: TopicRouteData | None
    until: float
    size: int


class KeptAnswers:
    """Cache of answers by topic. The oldest answer comes first, and is dropped first."""

    def __init__(self) -> None:
        self._answers: dict[str, Kept] = {}
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, topic: str, now: float) -> Kept | None:
        """Return the kept answer for a topic; None if there is no answer, or if it is too old."""
        kept = self._answers.get(topic)
        return kept if kept is not None and now < kept.until else None

    def keep(self, topic: str, route: TopicRouteData | None, now: float, *, size: int = 0) -> None:
        """Keep an answer, and drop answers that are too old or exceed the bounds.

        Args:
            route: The topic's route; None if no production nameserver answered, or if none knows the topic.
            size: Size of the answer in bytes.
        """
        self._drop(topic)
        kept = Kept(route, now + KEPT_S, size + len(topic) + _ENTRY_BYTES)
        self._answers[topic] = kept
        self.held_bytes += kept.size
        while self._answers:
            oldest = next(iter(self._answers))
            holds = now < self._answers[oldest].until
            if holds and len(self._answers) <= ENTRIES_MAX and self.held_bytes <= BYTES_MAX:
                return
            self._drop(oldest)

    def clear(self) -> None:
        """Drop all answers."""
        self._answers.clear()
        self.held_bytes = 0

    def _drop(self, topic: str) -> None:
        kept = self._answers.pop(topic, None)
        if kept is not None:
            self.held_bytes -= kept.size


class QuestionLimit:
    """Limit on the questions that this nameserver asks the production nameservers.

    The limit counts questions under way, and questions that began in the present second.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._begun: Counter[str] = Counter()

    def allow(self, host: str, now: float, *, asking: int) -> bool:
        """Return True and count a question if it may begin; return False if there are too many.

        Args:
            host: Host of the client, in the form of :func:`routekeeper.remoting.addresses.charged_host`.
            now: Time in seconds.
            asking: Number of questions under way.
        """
        if now >= self._until:
            self._until = now + 1.0
            self._begun.clear()
        if (
            asking >= ASKING_MAX
            or self._begun.total() >= QUESTIONS_PER_S
            or (host and self._begun[host] >= QUESTIONS_PER_HOST_S)
        ):
            return False
        self._begun[host] += 1
        return True
