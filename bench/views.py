"""Changes of routes in an observer's readings, with one row for each change.

This module does no I/O and reads no clock.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from routekeeper.bench.events import View, ViewState


@dataclass(slots=True)
class _Shown:
    value: tuple[ViewState, list[int] | None, int | None]
    sent_ns: int
    seen_ns: int


class Views:
    """The last route that was read from one nameserver for each topic, and the time of this reading."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._shown: dict[str, _Shown] = {}

    def reading(
        self,
        topic: str,
        state: ViewState,
        *,
        brokers: list[int] | None = None,
        version: int | None = None,
        sent_ns: int,
        seen_ns: int,
    ) -> View | None:
        """Store a reading of a topic's route. Return a row if the route has changed, else None."""
        value = (state, brokers, version)
        before = self._shown.get(topic)
        if before is not None and before.value == value:
            before.sent_ns, before.seen_ns = sent_ns, seen_ns
            return None
        self._shown[topic] = _Shown(value, sent_ns, seen_ns)
        return View(
            observer="nameserver",
            index=self._index,
            topic=topic,
            state=state,
            brokers=brokers,
            version=version,
            unseen_ns=None if before is None else before.sent_ns,
            seen_ns=seen_ns,
        )

    def end(self) -> Iterator[View]:
        """Yield one row for each topic, with the time of the topic's last reading."""
        for topic, shown in self._shown.items():
            yield View(
                observer="nameserver", index=self._index, topic=topic, state="end", seen_ns=shown.seen_ns
            )
