"""The state that the playground's page shows, the function that applies a change, and the log of changes.

The log has a maximum length. The page applies the same changes in the same way, so the page can compute its
state at any instant in the log. This module does no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from routekeeper.bench.play.model import (
    Broker,
    Change,
    Client,
    Counters,
    Design,
    Link,
    Log,
    Server,
    State,
)

#: Highest number of changes in the log. The log also has the page's state before these changes. Older changes
#: are merged into this state.
KEPT_MAX: Final = 20_000

T = TypeVar("T", Server, Broker, Client)


def apply(state: State, change: Change) -> None:
    """Apply a change to the page's state, and alter ``state`` itself."""
    state.id, state.at_ms = change.id, change.at_ms
    if change.designs is not None:
        state.designs = [copied(design) for design in change.designs]
    if change.divisor is not None:
        state.divisor, state.mark = change.divisor, None  # the designs start again, and count from there
    if change.mark is not None:
        state.mark = change.mark
        for each in state.designs:
            each.counters = Counters(since_ms=change.mark.at_ms)
    design = next((each for each in state.designs if each.name == change.design), None)
    if design is None:
        return
    if change.phase is not None:
        design.phase, design.reason = change.phase, change.reason
    if change.server is not None:
        design.servers = replaced(design.servers, change.server)
    if change.broker is not None:
        design.brokers = replaced(design.brokers, change.broker)
    if change.client is not None:
        design.clients = replaced(design.clients, change.client)
    if change.counters is not None:
        design.counters = msgspec.structs.replace(change.counters)
    if change.topics is not None:
        design.topics = list(change.topics)
    if change.links is not None:
        design.links = with_links(design.links, change.links)


def replaced(things: Sequence[T], thing: T) -> list[T]:
    """Return ``things`` and ``thing``, sorted by name. ``thing`` replaces an element with the same name."""
    found = [each for each in things if each.name != thing.name]
    found.append(thing)
    return sorted(found, key=lambda each: each.name)


def with_links(links: Sequence[Link], changed: Sequence[Link]) -> list[Link]:
    """Return the links, sorted by the names of their two processes. Changed links replace old links."""
    found = {(link.dialler, link.acceptor): link for link in [*links, *changed]}
    return [found[ends] for ends in sorted(found)]


def copied(design: Design) -> Design:
    """Return a copy of a design with new lists.

    The copy and the original share the elements of the lists, because nothing alters the elements.
    """
    return msgspec.structs.replace(
        design,
        servers=list(design.servers),
        brokers=list(design.brokers),
        clients=list(design.clients),
        links=list(design.links),
        topics=list(design.topics),
        counters=msgspec.structs.replace(design.counters),
    )


def copied_state(state: State) -> State:
    """Return a copy of the page's state. A change that is applied to the copy does not alter the original."""
    return msgspec.structs.replace(state, designs=[copied(design) for design in state.designs])


class ChangeLog:
    """The latest changes of a session, at most ``kept_max``, and the page's state before the oldest of them.

    Attributes:
        now: The page's present state.
    """

    def __init__(self, begin: State, *, kept_max: int = KEPT_MAX) -> None:
        self.now = copied_state(begin)
        self._base = copied_state(begin)
        self._kept: deque[Change] = deque()
        self._kept_max = kept_max
        self._whole = True

    def add(self, change: Change) -> None:
        """Add a change. If the log then has more than ``kept_max`` changes, remove its oldest change."""
        apply(self.now, change)
        self._kept.append(change)
        if len(self._kept) > self._kept_max:
            apply(self._base, self._kept.popleft())
            self._whole = False

    def after(self, last: int) -> list[Change] | None:
        """Return the changes after the change with the id ``last``.

        Return None if the log does not keep all of these changes any more, or if no change has the id
        ``last``.
        """
        if not self._base.id <= last <= self.now.id:
            return None
        return [change for change in self._kept if change.id > last]

    def log(self) -> Log:
        return Log(base=copied_state(self._base), changes=list(self._kept), whole=self._whole)
