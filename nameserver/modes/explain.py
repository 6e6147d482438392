"""Why a topic is not in the routes: a bounded history, and the likely causes.

"No topic route info" is the complaint that users cannot debug. The history keeps the last few reasons per
topic, for a bounded number of topics; :func:`explain_route` adds what the present table
suggests. Pure: instants are passed in (wall clock, integer ms).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nameserver.modes.history import LEAVING, Event, History, in_words
from nameserver.routes.view import RouteView
from nameserver.types import LeaveReason
from remoting.codes import DEFAULT_TOPIC, MASTER_ID

HEARTBEAT_MS: Final = 30_000
"""How often brokers register; the table of a fresh process is incomplete for so long."""
NAMES_SHOWN: Final = 3
"""Of many brokers, so many are named in a cause."""


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


def explain_topic(topic: str, history: History, around: Surroundings) -> Explanation:
    """Say why a topic is missing, or what is wrong with the route it has."""
    events = history.of_topic(topic)
    return Explanation(
        topic=topic,
        listed=around.listed,
        summary=_summary(around, events),
        events=events,
        likely_causes=_causes(topic, around, events),
    )


def explain_route(
    view: RouteView, topic: str, history: History, *, started_ms_ago: int, keeps_routes: bool
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
            causes.append(f"brokers report every {HEARTBEAT_MS} ms; wait that long after a start")
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
    return not around.keeps_routes and around.started_ms_ago < HEARTBEAT_MS
