"""This nameserver's own data for the console. This module does no I/O."""

from __future__ import annotations

from typing import Final

import msgspec

from routekeeper.nameserver.handlers import route_of
from routekeeper.nameserver.http.answers import EventAnswer, TopicRouteData, Version
from routekeeper.nameserver.modes.interface import Consistency, Freshness
from routekeeper.nameserver.modes.timeline import EventKind
from routekeeper.nameserver.routes.entries import Record
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.remoting.codes import ORDER_TOPIC_NAMESPACE
from routekeeper.remoting.route import RouteDialect, encode_route
from routekeeper.remoting.steps import Steps

from .bodies import Own, OwnBroker, OwnTopic

BROKERS_MAX: Final = 2_000
"""Largest number of one nameserver's brokers that the console compares."""
EVENTS_MAX: Final = 100
"""Largest number of events in one answer to another nameserver; the newest events are sent."""
CHANGES_MAX: Final = 20
"""Largest number of a topic's changes that the console shows; the newest changes are shown."""
_STEP: Final = 100


def own_part(consistency: Consistency, *, version: str, wire_port: int, after: int) -> Steps[Own]:
    """Return the console's data about this nameserver, in steps.

    Args:
        after: Number of the last event that the requesting peer knows.
    """
    view = consistency.view(Freshness.STALE)
    records = sorted(view.records(), key=lambda record: record.broker)
    brokers = []
    for start in range(0, min(len(records), BROKERS_MAX), _STEP):
        for record in records[start : min(start + _STEP, BROKERS_MAX)]:
            brokers.append(_broker(consistency, view, record))
        yield
    status, operations, timeline = consistency.status(), consistency.operations, consistency.timeline
    group = None if operations is None else operations.raft_status()
    return Own(
        mode=status.mode,
        role=status.role,
        term=status.term,
        leader=status.leader,
        commit_index=status.commit_index,
        applied_index=status.applied_index,
        last_contact_ms=status.last_contact_ms,
        wire_port=wire_port,
        me="" if group is None else group.me,
        voters=(() if group is None else group.voters or group.members) or (),
        linked=(() if group is None else group.linked) or (),
        ready=status.reads_ready and status.writes_ready,
        waiting_for=status.waiting_for,
        version=version,
        boot_id=status.boot_id,
        digest=status.digest,
        topics=view.topic_count,
        brokers=tuple(brokers),
        brokers_in_all=len(records),
        number=timeline.number,
        events=tuple(timeline.after(after)[-EVENTS_MAX:]),
    )


def _broker(consistency: Consistency, view: RouteView, record: Record) -> OwnBroker:
    age_s = consistency.last_seen_s(record.broker)
    return OwnBroker(
        cluster=record.broker.cluster_name,
        broker_name=record.broker_name,
        broker_id=record.broker_id,
        broker_addr=record.broker.broker_addr,
        ha_server_addr=record.ha_server_addr,
        data_version=msgspec.convert(record.data_version, Version, from_attributes=True),
        topics=len(view.topics_of_name(record.broker_name)),
        lease_ms=record.lease_ms,
        last_seen_ms=None if age_s is None else round(age_s * 1000),
    )


def own_topic(consistency: Consistency, settings: NamesrvSettings, topic: str) -> OwnTopic:
    """Return this nameserver's data about a topic."""
    view = consistency.view(Freshness.STALE)
    route = route_of(view, topic, settings)
    explanation = consistency.explain(topic)
    order = view.kv_value(ORDER_TOPIC_NAMESPACE, topic)
    changes = [
        event
        for event in consistency.timeline.after(0)
        if event.kind == EventKind.CHANGED and event.subject == topic
    ]
    return OwnTopic(
        topic=topic,
        listed=explanation.listed,
        index=view.topic_revision(topic),
        route=None
        if route is None
        else msgspec.json.decode(encode_route(route, RouteDialect.QUOTED), type=TopicRouteData),
        order_configuration=None if order is None else order.value,
        summary=explanation.summary,
        events=tuple(map(EventAnswer.of, explanation.events)),
        likely_causes=explanation.likely_causes,
        changes=tuple(changes[-CHANGES_MAX:]),
    )
