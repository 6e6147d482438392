"""A read-only view of a route table, with its routes, brokers and KV configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import orjson

from routekeeper.nameserver.commands import BaseKind, RegisterBroker
from routekeeper.nameserver.registration import Registration
from routekeeper.nameserver.types import BrokerKey, BrokerName, KvEntry
from routekeeper.nameserver.verdicts import Applied, RegisterReply
from routekeeper.remoting.codes import MASTER_ID, ORDER_TOPIC_NAMESPACE, PERM_WRITE
from routekeeper.remoting.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from routekeeper.remoting.steps import STEP, Steps

from .entries import NameEntry, QueueSet, Record, TopicEntry
from .listings import Listings
from .registrations import register_reply, says_the_same, with_set_perms, would_change
from .room import Held
from .sorting import sorting
from .store import RouteStore

ACTING_MASTER_EXEMPT: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Prefix of topics that never show an acting master. Source: TopicValidator, pickupTopicRouteData 5.x."""


class RouteView:
    """A read-only view of the live table, valid until the caller's next await. All values are immutable."""

    __slots__ = ("_store",)

    def __init__(self, store: RouteStore) -> None:
        self._store = store

    @property
    def revision(self) -> int:
        """Number of applied changes."""
        return self._store.revision

    @property
    def epoch(self) -> int:
        """Number that grows when an operator restores a snapshot.

        The restored table may use revision numbers again, so compare only revisions of one epoch.
        """
        return self._store.epoch

    def digest(self) -> str:
        """Return the digest of the state that clients can read, as 32 hex digits."""
        return self._store.digest()

    def state_digest(self) -> str:
        """Return the digest of all replicated state, as 32 hex digits."""
        return self._store.state_digest()

    # -- topics and routes

    def topic_revision(self, topic: str) -> int:
        """Return the revision of the last change of a topic's route (request 105), or of the topic's removal.

        For an unknown topic, the removal may be forgotten. The result is then the revision of the newest
        forgotten removal, or 0 if the table has forgotten no removal.
        """
        return self._store.moved_at("topic", topic)

    def route(
        self, topic: str, *, acting_master: bool = False, order_conf: bool = False
    ) -> TopicRouteData | None:
        """Return a topic's route; None if the topic does not exist. Lists are in order of broker names.

        Args:
            acting_master: Setting ``supportActingMaster``. True concerns broker names with enableActingMaster
                that have neither a master nor write permission for the topic. The route shows the smallest
                broker id of such a name as id 0.
            order_conf: Setting ``orderMessageEnable``. True adds the topic's KV value in
                ``ORDER_TOPIC_CONFIG``.

        Source: RouteInfoManager.pickupTopicRouteData. As in 4.9, filter servers are listed only for addresses
        that have filter servers. RocketMQ 5.x lists the other addresses with null as soon as any broker has
        filter servers. No client can notice the difference.
        """
        store = self._store
        entry = store.topics.entries.get(topic)
        if entry is None:
            return None
        names, records = store.brokers.names, store.brokers.records
        brokers = []
        filters: dict[str, tuple[str, ...] | None] = {}
        acting = acting_master and not topic.startswith(ACTING_MASTER_EXEMPT)
        listed = sorted(entry.queues)
        for name in listed:
            kept = names[BrokerName(name)]
            data = self._broker_data(BrokerName(name), kept)
            for key in kept.addrs.values():
                servers = records[key].filter_servers
                if servers:
                    filters[key.broker_addr] = servers
            if (
                acting
                and data.enable_acting_master
                and MASTER_ID not in data.broker_addrs
                and not entry.queues[name].perm & PERM_WRITE
            ):
                smallest = min(data.broker_addrs)
                addrs = {MASTER_ID if i == smallest else i: addr for i, addr in data.broker_addrs.items()}
                data = replace(data, broker_addrs=addrs)
            brokers.append(data)
        order = self.kv_value(ORDER_TOPIC_NAMESPACE, topic) if order_conf else None
        mappings = {name: orjson.loads(entry.mappings[name].info) for name in sorted(entry.mappings)}
        return TopicRouteData(
            queue_datas=tuple(entry.queues[name] for name in listed),
            broker_datas=tuple(brokers),
            filter_server_table=filters,
            order_topic_conf=None if order is None else order.value,
            topic_queue_mapping_by_broker=mappings or None,
        )

    def shape(self, topic: str, *, order_conf: bool = False) -> Hashable | None:
        """Return the values that determine a topic's route (its shape); None if there is no route.

        If two shapes are equal, the two routes are equal, even at different times. Shapes refer to values of
        this table, so they must not be compared with shapes of another table.

        Args:
            order_conf: True if the route contains the topic's order configuration, as in :meth:`route`.
                Compare only shapes of routes with the same argument ``acting_master``.
        """
        entry = self._store.topics.entries.get(topic)
        if entry is None:
            return None
        if entry.mappings:
            return topic, self.topic_revision(topic)
        order = self.kv_value(ORDER_TOPIC_NAMESPACE, topic) if order_conf else None
        # Each change that affects the routes of all topics of a broker name gives that name a larger
        # ``route_revision``. ``latest`` is the largest of these numbers among the topic's broker names.
        latest = self._store.brokers.shown_at(entry.queues)
        exempt = topic.startswith(ACTING_MASTER_EXEMPT)
        return entry.queue_set, latest, exempt, None if order is None else order.value

    def topics(self) -> list[str]:
        """Return all topics, sorted."""
        return sorted(self._store.topics.entries)

    def topic_names(self) -> list[str]:
        """Return all topics, unsorted."""
        return list(self._store.topics.entries)

    def topic(self, topic: str) -> TopicEntry | None:
        """Return a topic's entry; None if the topic does not exist."""
        return self._store.topics.entries.get(topic)

    @property
    def topic_count(self) -> int:
        return len(self._store.topics.entries)

    @property
    def held(self) -> Held:
        """The sizes of the table's content, valid until the caller's next await."""
        return self._store.ledger.whole

    def topics_of_name(self, name: str) -> Collection[str]:
        """Return the topics of which a broker name has queue data, unsorted."""
        return self._store.topics.of_name(name).keys()

    def all_topics(self) -> Steps[list[str]]:
        """Return all topics, sorted, in steps. The list shows the table before the first step."""
        return sorting(list(self._store.topics.entries))

    def topics_of_cluster(self, cluster: str) -> Steps[list[str]]:
        """Return the topics that any broker of a cluster has, sorted; empty if the cluster is unknown.

        The list is made in steps and shows the table before the first step.
        """
        names = {name for name, entry in self._store.brokers.names.items() if cluster in entry.clusters}
        if not names:
            return sorting(())
        return _chosen(self._store.topics.entries.copy(), lambda queues: not names.isdisjoint(queues))

    def topics_by_flag(self, accept: Callable[[int], bool]) -> Steps[list[str]]:
        """Return all topics, sorted, whose topicSysFlag at any broker name is accepted by ``accept``.

        The list is made in steps and shows the table before the first step.
        """
        return _chosen(
            self._store.topics.entries.copy(),
            lambda queues: any(accept(data.topic_sys_flag) for data in queues.values()),
        )

    def listing(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Return an encoded list of this table's content.

        Call ``make`` only if no list for this key was made at this revision.

        Args:
            key: Name of the list.
            make: Function that makes the list. Its result must depend on the table alone.
        """
        listings, revision = self._store.listings, self._store.revision
        found = listings.find(key, revision=revision)
        if found is None:
            found = make()
            listings.keep(key, found, revision=revision)
        return found

    def making(self, key: Hashable, make: Callable[[], Steps[bytes]]) -> Steps[bytes]:
        """Return an encoded list of this table's content, in steps.

        The list contains all changes that were applied before the call, and may contain later changes.
        Therefore readers that wait at the same time can share one list.

        Args:
            key: Name of the list.
            make: Function that makes the list. It must read the table when it is called, and not earlier.
        """
        return self._making(key, make, self._store.listings, self._store.revision)

    def _making(
        self, key: Hashable, make: Callable[[], Steps[bytes]], known: Listings, wanted: int
    ) -> Steps[bytes]:
        # A snapshot may have replaced the table after the call of making(). Then every list of the new table
        # is new enough.
        listings, revision = self._store.listings, self._store.revision
        found = listings.find(key, revision=wanted if listings is known else 0)
        if found is None:
            found = yield from make()
            listings.keep(key, found, revision=revision)
        return found

    # -- brokers

    def name(self, name: str) -> NameEntry | None:
        """Return the entry of a broker name; None if the name is unknown."""
        return self._store.brokers.names.get(BrokerName(name))

    def names(self) -> list[tuple[BrokerName, NameEntry]]:
        """Return broker names and entries, sorted by name."""
        return sorted(self._store.brokers.names.items(), key=lambda pair: pair[0])

    def record(self, broker: BrokerKey) -> Record | None:
        """Return a broker's record; None if the broker is not registered."""
        return self._store.brokers.records.get(broker)

    def records(self) -> Collection[Record]:
        """Return all records, unsorted. The result is valid until the caller's next await."""
        return self._store.brokers.records.values()

    def broker_data(self, name: str) -> BrokerData | None:
        """Return the addresses of a broker name; None if the name is unknown."""
        entry = self._store.brokers.names.get(BrokerName(name))
        return None if entry is None else self._broker_data(BrokerName(name), entry)

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers and clusters, sorted, as the answer to request 106 (cluster list)."""
        brokers: dict[str, BrokerData] = {n: self._broker_data(n, entry) for n, entry in self.names()}
        clusters: dict[str, list[str]] = {}
        for name, entry in self.names():
            for cluster in entry.clusters:
                clusters.setdefault(cluster, []).append(name)
        return ClusterInfo(
            broker_addr_table=brokers,
            cluster_addr_table={cluster: tuple(clusters[cluster]) for cluster in sorted(clusters)},
        )

    @staticmethod
    def _broker_data(name: BrokerName, entry: NameEntry) -> BrokerData:
        return BrokerData(
            cluster=entry.cluster,
            broker_name=name,
            broker_addrs={i: key.broker_addr for i, key in entry.addrs.items()},
            enable_acting_master=entry.enable_acting_master,
            zone_name=entry.zone_name,
        )

    # -- KV configuration

    def kv(self, namespace: str) -> Mapping[str, str | None] | None:
        """Return a namespace's values by key; None if the namespace never existed."""
        values = self._store.kv.spaces.get(namespace)
        return None if values is None else {key: values[key].value for key in sorted(values)}

    def kv_namespaces(self) -> list[str]:
        """Return all namespaces, unsorted."""
        return list(self._store.kv.spaces)

    def kv_entries(self, namespace: str) -> Mapping[str, KvEntry] | None:
        """Return a namespace's entries by key, unsorted; None if the namespace never existed.

        The returned map never changes.
        """
        return self._store.kv.spaces.get(namespace)

    def kv_value(self, namespace: str, key: str) -> KvEntry | None:
        """Return one value; None if the key does not exist."""
        return self._store.kv.value(namespace, key)

    def kv_table(self) -> dict[str, dict[str, str | None]]:
        """Return the whole KV configuration, sorted, as the content of the KV file."""
        return {namespace: dict(self.kv(namespace) or {}) for namespace in sorted(self._store.kv.spaces)}

    # -- values from which commands are computed

    def base(self, kind: BaseKind, key: Hashable) -> int:
        """Return the revision that a command names for an entry.

        This is the entry's own revision, or the table's revision if the entry is absent.
        """
        present = self._store.present(kind, key)
        return self._store.revision if present is None else present

    def would_change(self, command: RegisterBroker) -> Steps[bool]:
        """Return True if applying a registration would change the table."""
        return would_change(self._store, command)

    def with_set_perms(self, said: Registration) -> Steps[Registration]:
        """Return ``said``. If its broker may not change permissions, take the permissions from the table."""
        return with_set_perms(self._store, said)

    def is_repeated_by(self, said: Registration) -> bool:
        """Return True if a full registration repeats the broker's last full registration.

        Nearly every registration is such a repetition. It changes nothing, so call this method before you
        make a command, which would be wasted work.
        """
        store = self._store
        record, name = store.brokers.records.get(said.broker), store.brokers.names.get(said.broker_name)
        return (
            record is not None
            and name is not None
            and record.complete
            and len(said.table) != 1
            and record.data_version == said.data_version
            and says_the_same(said, record, name)
        )

    def register_reply(self, of: Record) -> RegisterReply:
        """Return the content of the answer to a registration that succeeds on the present table."""
        return register_reply(self._store, of)

    def affected(self, applied: Applied, waiting: Collection[str]) -> Iterator[str]:
        """Yield each topic of ``waiting`` whose route was changed by ``applied``.

        Args:
            waiting: Topics for whose changes an HTTP client or another caller waits.
        """
        if not waiting:
            return
        yield from (topic for topic in applied.topics if topic in waiting)
        for name in applied.names:
            smaller, larger = sorted((waiting, self.topics_of_name(name)), key=len)
            yield from (topic for topic in smaller if topic in larger)


def _chosen(
    entries: Mapping[str, TopicEntry], accept: Callable[[Mapping[str, QueueData]], bool]
) -> Steps[list[str]]:
    """Return the sorted topics whose queue data ``accept`` accepts, in steps.

    Most topics share a few queue sets, so ``accept`` is called once for each queue set. In the worst case,
    each topic has its own queue set. Therefore a step is bounded to about :data:`STEP` topics and queue data.
    """
    chosen: list[str] = []
    known: dict[QueueSet, bool] = {}
    left = STEP
    for topic, entry in entries.items():
        queue_set = entry.queue_set
        accepted = known.get(queue_set)
        if accepted is None:
            accepted = known[queue_set] = accept(queue_set.by_name)
            left -= len(queue_set.by_name)
        if accepted:
            chosen.append(topic)
        left -= 1
        if left <= 0:
            yield
            left = STEP
    return (yield from sorting(chosen))
