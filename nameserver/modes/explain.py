"""Why a topic is not in the routes: a bounded history, and the likely causes.

"No topic route info" is the complaint that users cannot debug. The history keeps the last few reasons per
topic, for a bounded number of topics; :func:`explain_route` adds what the present table
suggests. Pure: instants are passed in (wall clock, integer ms).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from routekeeper.nameserver.routes.entries import TopicEntry
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.types import BrokerName, LeaveReason
from routekeeper.remoting.codes import DEFAULT_TOPIC, MASTER_ID, PERM_WRITE

from .history import LEAVING, Event, History, in_words

HEARTBEAT_MS: Final = 30_000
"""Time between two registrations of a broker; the table of a new process is incomplete for that long."""
NAMES_SHOWN: Final = 3
"""Number of brokers that a cause names at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a topic is or is not routed, for HTTP and mqadmin."""

    listed: bool
    summary: str
    events: tuple[Event, ...]
    likely_causes: tuple[str, ...]


def explain_route(
    view: RouteView, topic: str, history: History, *, started_ms_ago: int, keeps_routes: bool
) -> Explanation:
    """Explain why a topic has a route or none, from the table and the history.

    Args:
        started_ms_ago: How long this nameserver has been running.
        keeps_routes: The table survives a restart (raft mode), so a fresh start explains nothing.
    """
    events, entry = history.of_topic(topic), view.topic(topic)
    cold = not keeps_routes and started_ms_ago < HEARTBEAT_MS
    return Explanation(
        listed=entry is not None,
        summary=_summary(entry, events, cold=cold),
        events=events,
        likely_causes=tuple(_causes(view, topic, events, cold=cold)),
    )


def _summary(entry: TopicEntry | None, events: tuple[Event, ...], *, cold: bool) -> str:
    if entry is not None:
        return f"listed by {len(entry.queues)} broker(s)"
    leaving = [event for event in events if event.reason in LEAVING]
    if leaving:
        last = leaving[-1]
        where = f" ({last.broker.broker_addr})" if last.broker is not None else ""
        detail = f": {last.detail}" if last.detail else ""
        return f"no longer listed: {in_words(last.reason)}{where}{detail}"
    if cold:
        return "cold start: this nameserver started recently and brokers have yet to report"
    return "never seen by this nameserver"


def _causes(view: RouteView, topic: str, events: tuple[Event, ...], *, cold: bool) -> Iterator[str]:
    entry, names, creating = view.topic(topic), dict(view.names()), view.topic(DEFAULT_TOPIC)
    if not names:
        yield "no broker is registered here: none knows this nameserver's address, or none runs"
    if entry is None:
        if cold:
            yield f"brokers report every {HEARTBEAT_MS} ms; wait that long after a start"
        if names and creating is None:
            yield f"no broker has {DEFAULT_TOPIC} (autoCreateTopicEnable=false): create the topic first"
        if creating is not None and not events:
            yield (
                f"nobody has sent to it yet: {_some(creating.queues)} would create it at the first send "
                f"({DEFAULT_TOPIC}), a consumer creates none; or the name is misspelt"
            )
        if events and events[-1].reason is LeaveReason.DELETED:
            yield "deleted here only: it returns with a broker's next changed registration"
        return
    for name in sorted(entry.queues):
        if MASTER_ID not in names[BrokerName(name)].addrs:
            yield f"{name} has no master registered: reads may work, sends fail"
    for name, data in sorted(entry.queues.items()):
        if not data.perm & PERM_WRITE:
            yield f"{name} lists {topic} without write permission ({data.perm})"


def _some(names: Iterable[str]) -> str:
    """Return the first few names, and the number of the others."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:NAMES_SHOWN])
    return shown if len(ordered) <= NAMES_SHOWN else f"{shown} and {len(ordered) - NAMES_SHOWN} more"
