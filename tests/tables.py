"""Checks of a route table's invariants, which tests make after each applied command."""

from __future__ import annotations

from collections import Counter, defaultdict

from routekeeper.nameserver.routes.image import encode_image
from routekeeper.nameserver.routes.room import Held
from routekeeper.nameserver.routes.store import RouteStore
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.types import BrokerKey, BrokerName


def check_table(table: RouteStore) -> None:
    """Raise AssertionError if the table breaks an invariant."""
    _check_brokers(table)
    _check_topics(table)
    _check_ledger(table)
    floor = table.tombstones.floor
    for kind, removals in table.tombstones.by_kind.items():
        for key, removed_at in removals.items():
            assert table.present(kind, key) is None, f"{kind} {key} is both there and removed"
            # A table forgets removals before the revision ``floor``. A new removal may raise ``floor`` to the
            # removal's own revision, so ``removed_at`` may be equal to ``floor``.
            assert floor <= removed_at <= table.revision, f"{kind} {key} removed at {removed_at}"
    data = encode_image(table.copy_for_snapshot())
    again = RouteTable.restore(data, tombstones_max=table.tombstones.max)
    assert again.ledger.by_host == table.ledger.by_host, "a restored table charges otherwise"
    assert again.state_digest() == table.state_digest(), "the digest kept differs from the digest made anew"


def _check_brokers(table: RouteStore) -> None:
    brokers = table.brokers
    listed: dict[BrokerKey, tuple[BrokerName, int]] = {}
    for name, entry in brokers.names.items():
        assert entry.addrs, f"{name} has no address"
        addresses = [key.broker_addr for key in entry.addrs.values()]
        assert len(set(addresses)) == len(addresses), f"{name} has an address under two ids"
        assert entry.cluster in entry.clusters, f"{name} is not listed in its own cluster"
        for broker_id, key in entry.addrs.items():
            assert key not in listed, f"{key} is listed twice"
            listed[key] = (name, broker_id)
    for key, record in brokers.records.items():
        assert listed.get(key) == (record.broker_name, record.broker_id), f"{key} is listed elsewhere"
        assert record.revision <= table.revision, f"{key} is of the future"
    assert len(listed) == len(brokers.records), "an address has no record"


def _check_ledger(table: RouteStore) -> None:
    counted: dict[str, Counter[str]] = defaultdict(Counter)

    def count(host: str, **things: int) -> None:
        counted[host].update(things)

    def size(*texts: str | None) -> int:
        return sum(len((text or "").encode()) for text in texts)

    names = table.brokers.names
    for topic, kept in table.topics.entries.items():
        count(kept.host, topics=1, size=size(topic))
        for name in kept.queues:
            count(names[BrokerName(name)].host, pairs=1)
        for name, mapping in kept.mappings.items():
            count(names[BrokerName(name)].host, size=size(mapping.info))
    for name, entry in names.items():
        count(entry.host, size=size(name, entry.zone_name, *entry.clusters))
    for record in table.brokers.records.values():
        texts = (*record.broker, record.ha_server_addr, *record.filter_servers)
        count(record.host, brokers=1, size=size(*texts))
    recounted = {host: Held(**things) for host, things in counted.items()}
    assert table.ledger.by_host == recounted, "what hosts are charged for differs from a recount"
    total: Counter[str] = sum(counted.values(), Counter())
    assert table.ledger.whole == Held(**total), "what the table holds differs from a recount"


def _check_topics(table: RouteStore) -> None:
    topics = table.topics
    members: dict[str, set[str]] = {}
    for topic, kept in topics.entries.items():
        assert kept.queues, f"{topic} has no queue data"
        assert set(kept.mappings) <= set(kept.queues), f"{topic} has a mapping without queue data"
        for name, data in kept.queues.items():
            assert name in table.brokers.names, f"{topic} names {name}, which is not registered"
            assert data.broker_name == name, f"{topic} has {data} under {name}"
            members.setdefault(name, set()).add(topic)
        assert topics._sets.get(kept.queue_set.mark) is kept.queue_set, f"{topic} has a set of its own"
    assert topics.names.keys() == topics.marks.keys() == topics.entries.keys()
    assert all(topic is name for topic, name in topics.names.items()), "a name is kept twice"
    derived = {name: set(pool.topics) for name, pool in topics.pools.items() if pool.topics}
    assert derived == members, "topics by broker name differ from the topics"
    for name, pool in topics.pools.items():
        for topic, share in pool.topics.items():
            assert topics.entries[topic].queues[name] == share.data, f"{name} has other queues of {topic}"
