"""What must hold of a route table whenever a command has been applied; no server looks at it."""

from __future__ import annotations

from routekeeper.nameserver.routes.image import encode_image
from routekeeper.nameserver.routes.store import RouteStore
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.types import BrokerKey, BrokerName


def check_table(table: RouteStore) -> None:
    """Raise AssertionError if an invariant is broken."""
    _check_brokers(table)
    _check_topics(table)
    floor = table.tombstones.floor
    for kind, removals in table.tombstones.by_kind.items():
        for key, removed_at in removals.items():
            assert table.present(kind, key) is None, f"{kind} {key} is both there and removed"
            # At the floor: removed by the very change that raised it.
            assert floor <= removed_at <= table.revision, f"{kind} {key} removed at {removed_at}"
    data = encode_image(table.copy_for_snapshot())
    again = RouteTable.restore(data, tombstones_max=table.tombstones.max)
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
    derived = {name: set(pool.topics) for name, pool in topics.pools.items() if pool.topics}
    assert derived == members, "topics by broker name differ from the topics"
    for name, pool in topics.pools.items():
        for topic, share in pool.topics.items():
            assert topics.entries[topic].queues[name] == share.data, f"{name} has other queues of {topic}"
