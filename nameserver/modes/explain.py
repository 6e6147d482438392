"""Reasons why a topic has no route: a bounded history of events, and the likely causes.

Clients only see the error "No topic route info", without its cause. The history stores the last few reasons
for each topic, for a bounded number of topics. :func:`explain_route` adds likely causes that the present
table shows. This module does no I/O and reads no clock. Callers pass Unix times in integer ms.
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
"""Time in ms between two registrations of a broker.

For this time after its start, a nameserver's table may be incomplete.
"""
NAMES_SHOWN: Final = 3
"""Largest number of broker names in the text of one likely cause.

For all further names, the text gives only their number.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Explanation of a topic's route, or of a missing route, for HTTP and mqadmin."""

    listed: bool
    summary: str
    events: tuple[Event, ...]
    likely_causes: tuple[str, ...]


def explain_route(
    view: RouteView, topic: str, history: History, *, started_ms_ago: int, keeps_routes: bool
) -> Explanation:
    """Explain from the table and the history why a topic has a route or has no route.

    Args:
        started_ms_ago: Milliseconds since this nameserver started.
        keeps_routes: True if the table survives a restart (raft mode). A recent start is then no cause.
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
    """Return the first :data:`NAMES_SHOWN` names as text, and the number of further names."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:NAMES_SHOWN])
    return shown if len(ordered) <= NAMES_SHOWN else f"{shown} and {len(ordered) - NAMES_SHOWN} more"
