"""A client's cached routes, and functions that compute the queues for sends and reads from a route.

This module does no I/O and reads no clock: the caller passes the time and the routes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

import msgspec

from routekeeper.remoting.bodies import MessageQueue as MessageQueue
from routekeeper.remoting.bounds import QUEUE_NUMS_MAX
from routekeeper.remoting.codes import MASTER_ID, PERM_READ, PERM_WRITE
from routekeeper.remoting.logs import shortened
from routekeeper.remoting.route import QueueData, TopicRouteData

log = logging.getLogger(__name__)

_COUNT: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


#: Largest number of queues of one topic, at all brokers together, that a client uses.
QUEUES_MAX: Final = 4 * QUEUE_NUMS_MAX


def _queue(topic: str, broker_name: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishInfo:
    """Queues to which messages of a topic may be sent.

    Attributes:
        queues: Writable queues whose broker has a master, sorted by broker name and queue id. If ``order`` is
            True, all queues of the order configuration, in the order of the configuration.
        order: True if the queues come from the topic's order configuration.
        provisional: True if the queues come from the default topic's route, because no broker has created
            this topic yet.
        several_brokers: True if the queues are at more than one broker.
    """

    topic: str
    queues: tuple[MessageQueue, ...]
    order: bool = False
    provisional: bool = False
    several_brokers: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        several = any(queue.broker_name != self.queues[0].broker_name for queue in self.queues)
        object.__setattr__(self, "several_brokers", several)


def publish_info(topic: str, route: TopicRouteData, *, provisional: bool = False) -> PublishInfo:
    """Return the queues for sends.

    If the route has an order configuration (such as ``broker-a:4;broker-b:4``), it determines the queues.
    Otherwise, use only brokers that have write permission and a master.

    Source: MQClientInstance.topicRouteData2TopicPublishInfo.
    """
    if route.order_topic_conf:
        queues: list[tuple[str, int]] = []
        ignored: list[str] = []
        for item in route.order_topic_conf.split(";"):
            broker_name, _, nums = item.strip().rpartition(":")
            if not broker_name or not _COUNT.fullmatch(nums):
                if item.strip():
                    ignored.append(item)
                continue
            queues.append((broker_name, int(nums)))
        if ignored:  # log one line for all items: there may be hundreds of thousands
            log.warning(
                "order configuration items ignored topic=%s items=%d first=%r",
                *(topic, len(ignored), shortened(ignored[0])),
            )
        return PublishInfo(topic=topic, queues=_queues(topic, queues), order=True, provisional=provisional)
    with_master = {data.broker_name for data in route.broker_datas if MASTER_ID in data.broker_addrs}
    return PublishInfo(
        topic=topic,
        queues=_queues(
            topic,
            [
                (data.broker_name, data.write_queue_nums)
                for data in _sorted(route)
                if data.perm & PERM_WRITE and data.broker_name in with_master
            ],
        ),
        provisional=provisional,
    )


def subscribe_queues(topic: str, route: TopicRouteData) -> tuple[MessageQueue, ...]:
    """Return the readable queues, sorted. Include brokers without a master, because slaves serve reads, too.

    Source: MQClientInstance.topicRouteData2TopicSubscribeInfo.
    """
    return _queues(
        topic, [(data.broker_name, data.read_queue_nums) for data in _sorted(route) if data.perm & PERM_READ]
    )


def _queues(topic: str, counts: list[tuple[str, int]]) -> tuple[MessageQueue, ...]:
    """Return at most QUEUES_MAX queues, from the number of queues of each broker name."""
    total = sum(count for _, count in counts)
    if total > QUEUES_MAX or any(count > QUEUE_NUMS_MAX for _, count in counts):
        log.warning(
            "route has too many queues, the rest is not used topic=%s queues=%s most=%s most_per_broker=%s",
            topic,
            total,
            QUEUES_MAX,
            QUEUE_NUMS_MAX,
        )
    all_queues = (
        _queue(topic, broker_name, queue_id)
        for broker_name, count in counts
        for queue_id in range(min(count, QUEUE_NUMS_MAX))
    )
    return tuple(islice(all_queues, QUEUES_MAX))


def clamp_default_route(route: TopicRouteData, queue_nums: int) -> TopicRouteData:
    """Return the default topic's route, adapted to a new topic with at most ``queue_nums`` queues."""

    def clamp(data: QueueData) -> QueueData:
        nums = min(queue_nums, data.read_queue_nums)  # also for write queues, as in Java's client
        return msgspec.structs.replace(data, read_queue_nums=nums, write_queue_nums=nums)

    return replace(route, queue_datas=tuple(clamp(data) for data in route.queue_datas))


def pick_read_addr(addrs: Mapping[int, str], suggested: int) -> str | None:
    """Return the address to pull from: broker id ``suggested``, else the master, else the lowest broker id.

    The result is None if there is no address.
    """
    if not addrs:
        return None
    for broker_id in (suggested, MASTER_ID):
        if broker_id in addrs:
            return addrs[broker_id]
    return addrs[min(addrs)]


def _sorted(route: TopicRouteData) -> list[QueueData]:
    return sorted(route.queue_datas, key=lambda data: data.broker_name)


@dataclass(slots=True)
class _Entry:
    route: TopicRouteData
    publish: PublishInfo
    subscribe: tuple[MessageQueue, ...]
    fetched_s: float


class RouteCache:
    """The routes of a client's topics, each with the time at which a nameserver last sent the route.

    If the nameservers have no route for a topic any more, the last known route stays in the cache, as in
    RocketMQ. The client still sends requests to the brokers of this route, which accept or refuse them.
    """

    def __init__(self, *, refresh_s: float) -> None:
        self._refresh_s = refresh_s
        self._entries: dict[str, _Entry] = {}
        self._asked_s: dict[str, float] = {}
        self._brokers: dict[str, Mapping[int, str]] = {}

    def use(self, topic: str) -> None:
        """Record a topic whose route the client must keep fresh."""
        self._asked_s.setdefault(topic, -float("inf"))

    def topics(self) -> tuple[str, ...]:
        """Return the topics in use."""
        return tuple(self._asked_s)

    def due(self, now_s: float) -> tuple[str, ...]:
        """Return the topics whose last query was a refresh period ago or longer."""
        return tuple(topic for topic, asked in self._asked_s.items() if now_s - asked >= self._refresh_s)

    def asked(self, topic: str, now_s: float) -> None:
        """Record the time of a query for a topic's route, even if the query returned no route."""
        self._asked_s[topic] = now_s

    def put(self, topic: str, route: TopicRouteData, now_s: float, *, provisional: bool = False) -> bool:
        """Store a route, and return True if it is new or different.

        A provisional route, made from the default topic's route, never replaces a route of the topic itself.
        """
        self._asked_s[topic] = now_s
        entry = self._entries.get(topic)
        if entry is not None:
            if provisional and not entry.publish.provisional:
                return False
            if entry.publish.provisional == provisional and _same(entry.route, route):
                entry.fetched_s = now_s
                return False
        self._entries[topic] = _Entry(
            route,
            publish_info(topic, route, provisional=provisional),
            () if provisional else subscribe_queues(topic, route),
            now_s,
        )
        self._brokers = {
            data.broker_name: data.broker_addrs
            for known in sorted(self._entries.values(), key=lambda item: item.fetched_s)
            for data in known.route.broker_datas
        }
        return True

    def route(self, topic: str) -> TopicRouteData | None:
        """Return the last known route, or None."""
        entry = self._entries.get(topic)
        return entry.route if entry else None

    def publish(self, topic: str) -> PublishInfo | None:
        """Return the queues for sends, or None when no route is known."""
        entry = self._entries.get(topic)
        return entry.publish if entry else None

    def subscribe(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues; empty when no route is known."""
        entry = self._entries.get(topic)
        return entry.subscribe if entry else ()

    def addrs(self, broker_name: str) -> Mapping[int, str]:
        """Return a broker name's addresses by broker id; empty when no known route has the broker name."""
        return self._brokers.get(broker_name, {})

    def master(self, broker_name: str) -> str | None:
        """Return the address of a broker name's master, or None."""
        return self.addrs(broker_name).get(MASTER_ID)

    def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """Return the addresses of every broker name in the known routes, by broker id."""
        return self._brokers


def _same(one: TopicRouteData, other: TopicRouteData) -> bool:
    def key(route: TopicRouteData) -> object:
        return (
            sorted(route.queue_datas, key=lambda data: data.broker_name),
            sorted(route.broker_datas, key=lambda data: data.broker_name),
            route.order_topic_conf,
        )

    return key(one) == key(other)
