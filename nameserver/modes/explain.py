"""Why a topic or a broker is not in the routes: a bounded history, and the likely causes.

"No topic route info" is the complaint that users cannot debug. The history keeps the last few reasons per
topic and per broker, for a bounded number of each; :func:`explain_route` adds what the present table
suggests. Pure: instants are passed in (wall clock, integer ms).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from nameserver.commands import AddWritePerm, Command, WipeWritePerm
from nameserver.routes.view import RouteView
from nameserver.types import BrokerKey, LeaveReason
from nameserver.verdicts import Applied
from remoting.codes import DEFAULT_TOPIC, MASTER_ID

_Subject = TypeVar("_Subject", str, BrokerKey)

SUBJECTS_MAX: Final = 10_000
"""Topics, and brokers, that are remembered; the longest unchanged is forgotten first."""

EVENTS_MAX: Final = 8
"""Events that are remembered per topic and per broker."""

NAMES_SHOWN: Final = 3
"""Of many brokers, so many are named in a cause."""


class Note(StrEnum):
    """What is worth remembering beside departures, in the words that ``explain`` shows."""

    REGISTERED = "registered"
    LATE_UNREGISTER = "an unregistration over an older connection of the broker was ignored"
    PERMISSION_WIPED = "write permission wiped by an admin request"
    PERMISSION_ADDED = "write permission added by an admin request"


WORDS: Final[Mapping[LeaveReason, str]] = {
    LeaveReason.CONNECTION_CLOSED: "the broker's connection closed",
    LeaveReason.LEASE_EXPIRED: "the broker was not heard for its lease",
    LeaveReason.UNREGISTERED: "the broker unregistered",
    LeaveReason.DISPLACED: "another address took the broker's id",
    LeaveReason.MOVED: "the broker registered under another name or id",
    LeaveReason.FENCED: "another address holds the broker's id with a greater state version",
    LeaveReason.DELETED: "the topic was deleted here by an admin request",
    LeaveReason.ABSENT: "the broker's registration no longer had the topic",
}
"""What an operator reads."""

LEAVING: Final = frozenset(LeaveReason) - {LeaveReason.FENCED}
"""Reasons after which a topic or broker, or its part at one broker, is no longer listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change that explains what is listed."""

    at_ms: int
    reason: LeaveReason | Note
    broker: BrokerKey | None = None
    detail: str = ""


class History:
    """The last events per topic and per broker, bounded in both directions."""

    def __init__(self, *, subjects_max: int = SUBJECTS_MAX, events_max: int = EVENTS_MAX) -> None:
        self._subjects_max = subjects_max
        self._events_max = events_max
        self._topics: OrderedDict[str, deque[Event]] = OrderedDict()
        self._brokers: OrderedDict[BrokerKey, deque[Event]] = OrderedDict()

    def topics_changed(
        self,
        topics: Sequence[str],
        reason: LeaveReason | Note,
        *,
        at_ms: int,
        broker: BrokerKey | None = None,
        detail: str = "",
    ) -> None:
        """Note one reason for all of these topics; of more than can be remembered, for the last ones."""
        event = Event(at_ms=at_ms, reason=reason, broker=broker, detail=detail)
        for topic in topics[-self._subjects_max :]:
            _note(self._topics, topic, event, self._subjects_max, self._events_max)

    def broker_changed(
        self, broker: BrokerKey, reason: LeaveReason | Note, *, at_ms: int, detail: str = ""
    ) -> None:
        """Note why a broker came, left or was changed."""
        event = Event(at_ms=at_ms, reason=reason, broker=broker, detail=detail)
        _note(self._brokers, broker, event, self._subjects_max, self._events_max)

    def of_topic(self, topic: str) -> tuple[Event, ...]:
        """Return what is remembered of a topic, the oldest first."""
        return tuple(self._topics.get(topic, ()))

    def of_broker(self, broker: BrokerKey) -> tuple[Event, ...]:
        """Return what is remembered of a broker, the oldest first."""
        return tuple(self._brokers.get(broker, ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the present table says around a topic."""

    listed: bool
    """The topic has a route."""
    topic_brokers: Mapping[str, int]
    """Broker names that have the topic, with the permission bits they registered."""
    masterless: frozenset[str]
    """Broker names without a master (id 0)."""
    auto_creating: frozenset[str]
    """Broker names that have TBW102."""
    broker_names: frozenset[str]
    """All broker names known here."""
    started_ms_ago: int
    """How long this nameserver has been running."""
    heartbeat_ms: int = 30_000
    """How often brokers register; the table of a fresh process is incomplete for so long."""
    keeps_routes: bool = False
    """The table survives a restart (raft mode), so a fresh start explains nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a topic is or is not routed, for HTTP and mqadmin."""

    topic: str
    listed: bool
    summary: str
    events: tuple[Event, ...]
    likely_causes: tuple[str, ...]


def note_applied(history: History, command: Command, applied: Applied, *, at_ms: int) -> None:
    """Keep in the history what a change did to brokers and topics."""
    if applied.joined is not None:
        history.broker_changed(applied.joined, Note.REGISTERED, at_ms=at_ms)
    for gone in applied.left:
        history.broker_changed(
            gone.broker, gone.reason, at_ms=at_ms, detail=f"broker name {gone.broker_name}"
        )
    for lost in applied.lost:
        history.topics_changed(
            lost.topics,
            lost.reason,
            at_ms=at_ms,
            broker=lost.broker,
            detail="" if lost.broker_name is None else f"broker name {lost.broker_name}",
        )
    if isinstance(command, WipeWritePerm | AddWritePerm):
        history.topics_changed(
            applied.topics,
            Note.PERMISSION_WIPED if isinstance(command, WipeWritePerm) else Note.PERMISSION_ADDED,
            at_ms=at_ms,
            detail=f"broker name {command.broker_name}",
        )


def in_words(reason: LeaveReason | Note) -> str:
    """Return the words for a reason."""
    return WORDS[reason] if isinstance(reason, LeaveReason) else reason.value


def explain_topic(topic: str, history: History, around: Surroundings) -> Explanation:
    """Say why a topic is missing, or what is wrong with the route it has."""
    events = history.of_topic(topic)
    causes = _causes(topic, around, events)
    return Explanation(
        topic=topic,
        listed=around.listed,
        summary=_summary(around, events),
        events=events,
        likely_causes=causes,
    )


def explain_route(
    view: RouteView,
    topic: str,
    history: History,
    *,
    started_ms_ago: int,
    keeps_routes: bool,
) -> Explanation:
    """Say why a topic has a route or none, from the table and what is remembered."""
    entry = view.topic(topic)
    names = dict(view.names())
    auto = view.topic(DEFAULT_TOPIC)
    return explain_topic(
        topic,
        history,
        Surroundings(
            listed=entry is not None,
            topic_brokers={} if entry is None else {name: data.perm for name, data in entry.queues.items()},
            masterless=frozenset(name for name, kept in names.items() if MASTER_ID not in kept.addrs),
            auto_creating=frozenset() if auto is None else frozenset(auto.queues),
            broker_names=frozenset(names),
            started_ms_ago=started_ms_ago,
            keeps_routes=keeps_routes,
        ),
    )


def _summary(around: Surroundings, events: tuple[Event, ...]) -> str:
    if around.listed:
        return f"listed by {len(around.topic_brokers)} broker(s)"
    leaving = [event for event in events if event.reason in LEAVING]
    if leaving:
        last = leaving[-1]
        where = f" ({last.broker.broker_addr})" if last.broker is not None else ""
        detail = f": {last.detail}" if last.detail else ""
        return f"no longer listed: {in_words(last.reason)}{where}{detail}"
    if _cold(around):
        return "cold start: this nameserver started recently and brokers have yet to report"
    return "never seen by this nameserver"


def _causes(topic: str, around: Surroundings, events: tuple[Event, ...]) -> tuple[str, ...]:
    causes: list[str] = []
    if not around.broker_names:
        causes.append("no broker is registered here: none knows this nameserver's address, or none runs")
    if not around.listed:
        if _cold(around):
            causes.append(f"brokers report every {around.heartbeat_ms} ms; wait that long after a start")
        if around.broker_names and not around.auto_creating:
            causes.append(
                f"no broker has {DEFAULT_TOPIC} (autoCreateTopicEnable=false): create the topic first"
            )
        if around.auto_creating and not events:
            causes.append(
                f"nobody has sent to it yet: {_some(around.auto_creating)} would create it at the first send "
                f"({DEFAULT_TOPIC}), a consumer creates none; or the name is misspelt"
            )
        if events and events[-1].reason is LeaveReason.DELETED:
            causes.append("deleted here only: it returns with a broker's next changed registration")
    for name in sorted(set(around.topic_brokers) & around.masterless):
        causes.append(f"{name} has no master registered: reads may work, sends fail")
    for name, permission in sorted(around.topic_brokers.items()):
        if not permission & 2:
            causes.append(f"{name} lists {topic} without write permission ({permission})")
    return tuple(causes)


def _some(names: frozenset[str]) -> str:
    """Return the first few of some names, and how many more there are."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:NAMES_SHOWN])
    return shown if len(ordered) <= NAMES_SHOWN else f"{shown} and {len(ordered) - NAMES_SHOWN} more"


def _cold(around: Surroundings) -> bool:
    return not around.keeps_routes and around.started_ms_ago < around.heartbeat_ms


def _note(
    subjects: OrderedDict[_Subject, deque[Event]],
    subject: _Subject,
    event: Event,
    subjects_max: int,
    events_max: int,
) -> None:
    events = subjects.get(subject)
    if events is None:
        if len(subjects) >= subjects_max:
            subjects.popitem(last=False)
        events = subjects[subject] = deque(maxlen=events_max)
    else:
        subjects.move_to_end(subject)
    events.append(event)
