"""Kept answers of the production environment, and bounds on questions to it. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from routekeeper.remoting.route import TopicRouteData

MARK: Final = "askedByNameserver"
"""Argument of a question. It makes a nameserver answer from its own table, so that two never ask each other.
"""
#: Seconds for which an answer, or its absence, is kept: the time after which a client asks again.
KEPT_S: Final = 30.0
#: Bound of the kept answers; the oldest is dropped first.
ENTRIES_MAX: Final = 8192
#: Bound of the kept bytes: encoded answers and names.
BYTES_MAX: Final = 32 * 1024 * 1024
#: Bound of the questions under way at once.
ASKING_MAX: Final = 16
#: Bound of the questions that begin in a second, for all hosts.
QUESTIONS_PER_S: Final = 200
#: Bound of the questions that begin in a second for one host. Loopback may use the bound of all hosts.
QUESTIONS_PER_HOST_S: Final = 50
_ENTRY_BYTES: Final = 500


@dataclass(frozen=True, slots=True)
class Kept:
    """The answer to one question.

    Attributes:
        route: None if the topic is unknown there, or no nameserver answered.
        until: Instant in seconds up to which it is used.
        size: Bytes that it counts against the bound.
    """

    route: TopicRouteData | None
    until: float
    size: int


class KeptAnswers:
    """Answers by topic, the oldest first."""

    def __init__(self) -> None:
        self._answers: dict[str, Kept] = {}
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, topic: str, now: float) -> Kept | None:
        """Return the kept answer for a topic, if its time is not over."""
        kept = self._answers.get(topic)
        return kept if kept is not None and now < kept.until else None

    def keep(self, topic: str, route: TopicRouteData | None, now: float, *, size: int = 0) -> None:
        """Keep an answer; drop answers that are too old or beyond the bounds.

        Args:
            size: Bytes of the answer.
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
        """Forget everything."""
        self._answers.clear()
        self.held_bytes = 0

    def _drop(self, topic: str) -> None:
        kept = self._answers.pop(topic, None)
        if kept is not None:
            self.held_bytes -= kept.size


class QuestionLimit:
    """Decides whether one more question may be asked.

    It counts those under way and those begun in this second.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._begun: Counter[str] = Counter()

    def allow(self, host: str, now: float, *, asking: int) -> bool:
        """Count a question and return True, unless there are too many.

        Args:
            host: Host of the client, in the form of :func:`routekeeper.remoting.addresses.charged_host`.
            now: Instant in seconds.
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
