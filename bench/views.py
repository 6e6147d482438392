"""Turns readings of the listed brokers and topics into rows, one for each change (pure)."""

from collections.abc import Iterator
from dataclasses import dataclass

from routekeeper.bench.events import Observer, View, ViewState


@dataclass(slots=True)
class _Shown:
    value: tuple[ViewState, list[int] | None, int | None]
    sent_ns: int
    seen_ns: int


class Views:
    """One observer's last view of each topic."""

    def __init__(self, observer: Observer, index: int) -> None:
        self._observer = observer
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
        """Take one reading; return the row to record if it differs from the one before."""
        value = (state, brokers, version)
        before = self._shown.get(topic)
        if before is not None and before.value == value:
            before.sent_ns, before.seen_ns = sent_ns, seen_ns
            return None
        self._shown[topic] = _Shown(value, sent_ns, seen_ns)
        return View(
            observer=self._observer,
            index=self._index,
            topic=topic,
            state=state,
            brokers=brokers,
            version=version,
            unseen_ns=None if before is None else before.sent_ns,
            seen_ns=seen_ns,
        )

    def end(self) -> Iterator[View]:
        """Yield the rows that say how far each topic was observed."""
        for topic, shown in self._shown.items():
            yield View(
                observer=self._observer, index=self._index, topic=topic, state="end", seen_ns=shown.seen_ns
            )
