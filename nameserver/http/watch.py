"""One watch: it makes server-sent events for all changes of a table, beginning after a given event id.

This module does no I/O. An id names a revision of the table, so in a raft group a watcher can continue at any
member. An event without an id is one part of a larger change. If the connection ends after such an event, the
watcher continues from the last id that it received.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from routekeeper.nameserver.modes.changes import Change, ChangeLog
from routekeeper.nameserver.modes.group import MemberAddress, said
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.types import BrokerKey
from routekeeper.remoting.steps import STEP, Steps, in_chunks

from . import answers
from .lists import InCluster, broker_answers
from .order import TopicOrder

KINDS: Final = ("topics", "brokers", "members")
"""Kinds of events that a watcher gets if its request names no kind."""
ALL_KINDS: Final = (*KINDS, "console")
"""Kinds of events that a request may name."""
COMMENT_S: Final = 15.0
"""Seconds without events after which a comment is sent, so that proxies do not close the connection."""
COMMENT: Final = b":\n\n"
PAUSE_MIN_S: Final = 0.1
"""Shortest time in seconds between two reads of the table's change log.

An entry that changes twice in this time is sent once.
"""
PAUSE_PER_NAME_S: Final = 0.000_02
"""Seconds by which each name in a read prolongs the pause before the next read.

So a watch costs at most a few percent of one core, no matter how many changes come. During a long pause, the
change log may forget changes that the watch has not read yet. The watch then sends a ``reset`` event, and the
whole state if the watcher wants it.
"""
LOOK_MAX: Final = 5 * STEP
"""Largest number of changed topics that one read handles. The next reads handle further topics."""

_ID: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,18})")


class Place(NamedTuple):
    """A watcher's progress: the watcher has received all changes up to this revision of this epoch."""

    life: int
    epoch: int
    revision: int

    @classmethod
    def read(cls, text: str) -> Place | None:
        """Return the progress that an event id names, or None if the id has another form."""
        match = _ID.fullmatch(text)
        return None if match is None else cls(*map(int, match.groups()))

    def __str__(self) -> str:
        return f"{self.life}-{self.epoch}-{self.revision}"


class Reset(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a ``reset`` event: the client must discard all earlier data.

    If the client requested the whole state, further events contain it.
    """

    reason: str
    epoch: answers.Epoch
    index: int


class TopicChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a ``topics`` event: names of topics with new or changed routes, and of removed topics."""

    index: int
    changed: list[str] = []
    removed: Annotated[list[str], said("Topics that are no longer listed, or no longer watched.")] = []
    broker_names: Annotated[
        list[str], said("Names of brokers whose change shows in the routes of all their topics.")
    ] = []


class BrokerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Cluster and address of a broker that the table no longer lists."""

    cluster: str
    broker_addr: str


class BrokerChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a ``brokers`` event: changed brokers in their present state, and removed brokers."""

    index: int
    changed: list[answers.Broker] = []
    removed: list[BrokerAddress] = []


class GroupMembers(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a ``members`` event: the group as this nameserver sees it. These events have no ids."""

    mode: answers.Mode
    role: str
    term: int
    leader: str | None
    members: tuple[MemberAddress, ...]
    learners: tuple[MemberAddress, ...] | UnsetType = UNSET
    linked: tuple[MemberAddress, ...] | UnsetType = UNSET
    ready: bool


class ConsoleChange(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a ``console`` event: the comparison of all nameservers, or the history, has changed."""

    tag: Annotated[str, said("Tag of the picture; empty before other nameservers were asked.")]
    happened: int


class Complete(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a ``complete`` event: the whole state was sent.

    Entries that were not sent since the ``reset`` event do not exist.
    """

    index: int


class Filter(NamedTuple):
    """The kinds of changes that a watcher wants."""

    kinds: Collection[str] = KINDS
    prefix: str = ""
    cluster: str | None = None
    with_state: bool = True


class Watch:
    """Source of one watcher's events.

    Args:
        life: Number of the process or raft group that has the table; see :attr:`.reads.Reads.life`.
        order: The sorted topics.
        place: Progress of the watcher over an earlier connection; None for a new watcher.
    """

    def __init__(
        self, log: ChangeLog, order: TopicOrder, *, life: int, wanted: Filter, place: Place | None
    ) -> None:
        self._log = log
        self._order = order
        self._life = life
        self._wanted = wanted
        self._begins = place is None
        self._place = place
        self._told_until: str | None = None  # while the whole state is being sent: last topic that was sent
        # While the whole state is being sent: progress of the watcher after the last event of the state.
        self._state: Place | None = None
        # Number of topics that were already sent, of a change that is too large for one call of look(). It is
        # 0 if there is no such change.
        self._told_of = 0
        self._members: GroupMembers | None = None
        self._console: ConsoleChange | None = None
        self._looked_at = 0

    @property
    def revision(self) -> int:
        """Revision up to which the watcher has received all changes; -1 if it has received none yet."""
        return self._place.revision if self._place is not None else -1

    @property
    def is_telling(self) -> bool:
        """True if more events are ready now."""
        return self._state is not None or self._told_of > 0

    def take_pause(self) -> float:
        """Return the pause in seconds before the next call of :meth:`look`.

        The pause grows with the number of names that :meth:`look` has read since the last call of this
        method.
        """
        looked_at, self._looked_at = self._looked_at, 0
        return PAUSE_MIN_S + looked_at * PAUSE_PER_NAME_S

    def look(
        self, view: RouteView, members: GroupMembers, console: ConsoleChange | None = None
    ) -> Steps[bytes]:
        """Return the next events, encoded: a part of the table, or the changes since the last call.

        ``members`` and ``console`` are the present values of these kinds. Each becomes an event if it has
        changed since the last call.
        """
        events = []
        if "members" in self._wanted.kinds and members != self._members:
            self._members = members
            events.append(event("members", members))
        if "console" in self._wanted.kinds and console is not None and console != self._console:
            self._console = console
            events.append(event("console", console))
        log, place = self._log, self._place
        here = Place(self._life, log.epoch, log.revision)
        if self._state is not None and self._state[:2] == here[:2]:
            events += yield from self._more_state(view)
            return b"".join(events)
        known = place is not None and place[:2] == here[:2]
        changes = log.since(place.revision) if place is not None and known else None
        if changes is None:
            events += self._reset(here)
        elif changes:
            events += yield from self._changes(view, changes)
        return b"".join(events)

    def _reset(self, here: Place) -> list[bytes]:
        reason = "the id is too old, or of another table"
        if self._begins:
            reason, self._begins = "the watch begins", False
        self._told_of = 0
        reset = Reset(reason=reason, epoch=here.epoch, index=here.revision)
        if not self._wanted.with_state:
            self._place = here
            return [event("reset", reset, here)]
        self._state, self._told_until = here, None
        self._place = None
        return [event("reset", reset)]

    def _more_state(self, view: RouteView) -> Steps[list[bytes]]:
        """Return events that list the table's next topics; after the last topic, also events of all brokers.

        A new watcher gets the whole table in several calls of this method.
        """
        state, kinds = self._state, self._wanted.kinds
        assert state is not None
        events = []
        if "topics" in kinds:
            yield from self._order.catching_up()
            accept = self._accept(view)
            names: list[str] = []
            for chunk in in_chunks(self._order.after(self._told_until, self._wanted.prefix)):
                self._looked_at += len(chunk)
                self._told_until = chunk[-1]
                names += filter(accept, chunk)
                yield
                if len(names) >= STEP:
                    break
            if names:
                events.append(event("topics", TopicChanges(index=state.revision, changed=names)))
            if len(names) >= STEP:
                return events
        if "brokers" in kinds:
            events += self._brokers(view, above=-1, removed=(), index=state.revision)
        self._place, self._state = state, None
        events.append(event("complete", Complete(index=state.revision), state))
        return events

    def _changes(self, view: RouteView, changes: list[Change]) -> Steps[list[bytes]]:
        """Return events for these changes. An entry that changed several times appears only once.

        Handle at most :data:`LOOK_MAX` topics.
        """
        kinds, place = self._wanted.kinds, self._place
        assert place is not None
        topics: dict[str, None] = {}
        names: dict[str, None] = {}
        left: dict[BrokerKey, None] = {}
        room = LOOK_MAX
        above = place.revision
        for change in changes:
            if "topics" in kinds:
                part = change.topics[self._told_of : self._told_of + room]
                topics.update(dict.fromkeys(part))
                self._looked_at += len(part)
                room -= len(part)
                self._told_of += len(part)
                if self._told_of < len(change.topics):
                    break
                self._told_of = 0
            names.update(dict.fromkeys(change.names))
            left.update(dict.fromkeys(change.left))
            place = place._replace(revision=change.revision)
            yield
        tolds: list[TopicChanges] = []
        accept, prefix = self._accept(view), self._wanted.prefix
        for chunk in in_chunks(topics):
            told = TopicChanges(index=place.revision, changed=[], removed=[], broker_names=[])
            for topic in chunk:
                if topic.startswith(prefix):
                    (told.changed if accept(topic) else told.removed).append(topic)
            if told.changed or told.removed:
                tolds.append(told)
            yield
        if "topics" in kinds and names:
            tolds = tolds or [TopicChanges(index=place.revision, broker_names=[])]
            tolds[-1].broker_names.extend(names)
        events = [event("topics", told) for told in tolds]
        if "brokers" in kinds:
            events += self._brokers(view, above=above, removed=left, index=place.revision)
            yield
        self._place = place
        if events:  # Only the last event gets an id: before it, the watcher has only a part of the change.
            events[-1] = b"id: %b\n%b" % (str(place).encode(), events[-1])
        return events

    def _accept(self, view: RouteView) -> Callable[[str], bool]:
        if self._wanted.cluster is not None:
            return InCluster(view, self._wanted.cluster)
        return lambda topic: view.topic(topic) is not None

    def _brokers(
        self, view: RouteView, *, above: int, removed: Iterable[BrokerKey], index: int
    ) -> list[bytes]:
        cluster = self._wanted.cluster
        changed = []
        for record in sorted(view.records(), key=lambda record: record.broker):
            name = view.name(record.broker_name)
            moved_at = record.revision if name is None else max(record.revision, name.revision)
            if moved_at > above and cluster in (None, record.broker.cluster_name):
                changed.append(record)
        gone = [
            BrokerAddress(cluster=broker.cluster_name, broker_addr=broker.broker_addr)
            for broker in removed
            if cluster in (None, broker.cluster_name) and view.record(broker) is None
        ]
        if not changed and not gone:
            return []
        told = BrokerChanges(index=index, changed=list(broker_answers(view, changed)), removed=gone)
        return [event("brokers", told)]


def event(name: str, data: msgspec.Struct, place: Place | None = None) -> bytes:
    """Encode an event. JSON text contains no line breaks, so one data line is enough."""
    head = b"" if place is None else b"id: %b\n" % str(place).encode()
    return b"%bevent: %b\ndata: %b\n\n" % (head, name.encode(), msgspec.json.encode(data))
