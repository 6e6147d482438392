"""A registration as the difference that it makes: how it is found, and how it applies."""

from __future__ import annotations

from nameserver.commands import TopicQueues, Update, bases
from nameserver.registration import Registration
from nameserver.verdicts import Applied, Moved, RegisterReply, Verdict
from remoting.codes import MASTER_ID, ORDER_TOPIC_NAMESPACE

from .entries import Share
from .registrations import owns_topics, perm_mask, register_reply
from .store import RouteStore


def shortened(store: RouteStore, said: Registration, *, delete_absent: bool) -> Update | None:
    """Return the difference that a registration makes to the table as it is.

    None if that is not all there is to it: it changes nothing, or its sender says something new of
    itself, or it has more than topics to put.

    Args:
        delete_absent: As of :class:`RegisterBroker`.
    """
    broker, name_key = said.broker, said.broker_name
    brokers = store.brokers
    record, name = brokers.records.get(broker), brokers.names.get(name_key)
    table = said.table
    incremental = len(table) == 1
    if (
        record is None
        or name is None
        or record.broker_name != name_key  # so it is listed there, and in its cluster
        or record.broker_id != said.broker_id
        or record.ha_server_addr != said.ha_server_addr
        or record.lease_ms != said.lease_ms
        or name.enable_acting_master != bool(said.enable_acting_master)
        or name.zone_name != said.zone_name
        or said.mappings
        or (delete_absent and not incremental)
        or not (said.filter_servers is None or said.filter_servers == record.filter_servers)
    ):
        return None
    complete, version = record.complete, said.data_version
    if incremental and complete and version.contained_in(record.data_version):
        return None
    addrs = name.addrs
    owns = owns_topics(said, addrs)
    news = version != record.data_version or complete == incremental
    if not news and (complete or not owns):
        return None
    listed = store.topics.of_name(name_key)
    changed = []
    if owns:
        mask = perm_mask(said, addrs)
        for topic, numbers in table.items():
            share = listed.get(topic)
            perm = numbers.perm & mask
            if (
                share is None
                or (data := share.data).read_queue_nums != numbers.read_queue_nums
                or data.write_queue_nums != numbers.write_queue_nums
                or data.perm != perm
                or data.topic_sys_flag != numbers.topic_sys_flag
            ):
                changed.append(
                    TopicQueues(
                        topic, numbers.read_queue_nums, numbers.write_queue_nums, perm, numbers.topic_sys_flag
                    )
                )
        if not news and not changed:
            return None
    return Update(
        cluster_name=broker.cluster_name,
        broker_name=name_key,
        broker_addr=broker.broker_addr,
        data_version=version,
        topics=tuple(changed),
        incremental=incremental,
        enable_acting_master=name.enable_acting_master,
        zone_name=name.zone_name,
        topic_count=len(listed),
        record_revision=record.revision,
        name_revision=name.revision,
    )


def apply_update(store: RouteStore, command: Update) -> Verdict:
    """Apply what :func:`shortened` made, to just what it was made of.

    Nearly every entry of a log comes through here, at each member: so it is one function.
    """
    name_key = command.broker_name
    brokers, kept = store.brokers, store.topics
    record = brokers.records.get((command.cluster_name, command.broker_addr))  # type: ignore[call-overload]
    name, pool = brokers.names.get(name_key), kept.pools.get(name_key)
    if (
        record is None
        or name is None
        or record.revision != command.record_revision
        or name.revision != command.name_revision
        or record.broker_name != name_key
        or name.enable_acting_master != command.enable_acting_master
        or name.zone_name != command.zone_name
        or (0 if pool is None else len(pool.topics)) != command.topic_count
    ):
        return Moved(revision=store.revision)
    revision = store.revision = store.revision + 1
    topics: tuple[str, ...] = ()
    if command.topics:
        if pool is None:
            pool = kept.pool(name_key)
        taken: dict[str, Share] = {}
        for queues in command.topics:
            key = queues.read_queue_nums, queues.write_queue_nums, queues.perm, queues.topic_sys_flag
            taken[queues.topic] = pool.shares.get(key) or kept.share(name_key, *key)
        topics = tuple(taken)
        if len(taken) > 1 or not kept.put_share(pool, topics[0], taken[topics[0]], revision):
            kept.put(name_key, taken, revision)
        brokers.renew_name(name_key, name, revision)
    broker = record.broker
    brokers.renew_record(record, command.data_version, revision, complete=not command.incremental)
    if record.broker_id == MASTER_ID:
        reply = RegisterReply(order_topics=store.kv.spaces.get(ORDER_TOPIC_NAMESPACE), revision=revision)
    else:
        reply = register_reply(store, name_key, broker, record.broker_id)
    return Applied(revision=revision, reply=reply, topics=topics)


def update_moved(store: RouteStore, command: Update) -> bool:
    """Whether a difference has moved; the table may be behind the one on which it was decided."""
    brokers, name_key = store.brokers, command.broker_name
    record = brokers.records.get((command.cluster_name, command.broker_addr))  # type: ignore[call-overload]
    name = brokers.names.get(name_key)
    if record is None or name is None:
        return any(store.moved_at(base.kind, base.key) > base.revision for base in bases(command))
    if record.revision > command.record_revision or name.revision > command.name_revision:
        return True
    return (
        name.revision == command.name_revision and len(store.topics.of_name(name_key)) < command.topic_count
    )
