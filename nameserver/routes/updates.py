"""A registration as the difference that it makes: how it is found, and how it applies."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from routekeeper.nameserver.commands import TableLimits, Update
from routekeeper.nameserver.registration import Registration
from routekeeper.nameserver.verdicts import Applied, Moved, Rejected, Verdict
from routekeeper.remoting.steps import STEP, Steps, in_steps

from .entries import Share
from .registrations import (
    brings_all_perms,
    excess_of,
    is_contained,
    new_topics,
    perm_mask,
    register_reply,
    room_for,
    says_the_same,
    with_set_perms,
)
from .store import RouteStore
from .topics import TOPIC, Difference, Draft


def shortened(
    store: RouteStore,
    said: Registration,
    *,
    delete_absent: bool,
    limits: Callable[[], TableLimits | None],
) -> Steps[Update | None]:
    """Return the difference that a registration makes to the table as it is.

    None if that is not all there is to it: it changes nothing, or its sender says something new of
    itself, or it has more than topics to put.

    Args:
        delete_absent, limits: As of :class:`RegisterBroker`. Most differences need no limits.
    """
    broker, name_key = said.broker, said.broker_name
    record, name = store.brokers.records.get(broker), store.brokers.names.get(name_key)
    incremental = len(said.table) == 1
    if (
        record is None
        or name is None
        or not says_the_same(said, record, name)
        or said.mappings
        or (delete_absent and not incremental)
        or is_contained(record, said.data_version, incremental=incremental)
    ):
        return None
    version, mask = said.data_version, perm_mask(said, name.addrs)
    news = version != record.data_version or record.complete == incremental
    if not news and (record.complete or mask is None):
        return None
    topic_count = len(store.topics.of_name(name_key))  # as it is before anybody else may change it
    difference = Difference()
    if mask is not None:
        table = with_set_perms(store, said).table if name.perms_set else said.table
        yield from in_steps(store.topics.find_differing, table.items(), difference, name_key, mask)
    if not news and not difference.topics:
        return None
    return Update(
        cluster_name=broker.cluster_name,
        broker_name=name_key,
        broker_addr=broker.broker_addr,
        data_version=version,
        topics=tuple(difference.topics),
        incremental=incremental,
        enable_acting_master=name.enable_acting_master,
        zone_name=name.zone_name,
        topic_count=topic_count,
        record_revision=record.revision,
        name_revision=name.revision,
        limits=limits() if difference.adds_topics else None,
    )


def apply_update(store: RouteStore, command: Update) -> Steps[Verdict]:
    """Apply what :func:`shortened` made, to just what it was made of."""
    name_key = command.broker_name
    brokers, kept = store.brokers, store.topics
    record = brokers.records.get((command.cluster_name, command.broker_addr))  # type: ignore[call-overload]
    name = brokers.names.get(name_key)
    if (
        record is None
        or name is None
        or record.revision != command.record_revision
        or name.revision != command.name_revision
        or record.broker_name != name_key
        or name.enable_acting_master != command.enable_acting_master
        or name.zone_name != command.zone_name
        or len(kept.of_name(name_key)) != command.topic_count
    ):
        return Moved(revision=store.revision)
    limits, host = command.limits, None
    if limits is not None:
        rejected = yield from excess_of_update(store, command)
        if rejected is not None:
            return rejected
        if name.host != limits.host and new_topics(store, name_key, map(TOPIC, command.topics)):
            host = limits.host
    topics, draft = command.topics, None
    names = tuple(map(TOPIC, topics))
    # Mostly they are few, and known.
    if len(topics) > STEP or not all(map(kept.entries.__contains__, names)):
        taken: dict[str, Share] = {}
        yield from in_steps(kept.find_shares, topics, taken, {}, name_key)
        draft = Draft(kept, name_key, store.revision + 1, host=host)
        yield from draft.put(taken)
    store.limited = store.limited or limits is not None
    if host is not None:
        kept.charge(name_key, host)
        name = replace(name, host=host)
        brokers.put_name(name_key, name, store.revision)
    revision = store.revision = store.revision + 1
    if topics:
        if draft is not None:
            draft.commit()
        else:
            kept.put_known(name_key, topics, revision)
        brokers.renew_name(name_key, name, revision)
    if name.perms_set and brings_all_perms(command, record.broker_id, record.data_version):
        brokers.put_name(name_key, replace(brokers.names[name_key], perms_set=False), revision)
    record = replace(
        record, data_version=command.data_version, complete=not command.incremental, revision=revision
    )
    brokers.put_record(record.broker, record, revision)
    return Applied(revision=revision, reply=register_reply(store, record), topics=names)


def excess_of_update(store: RouteStore, command: Update) -> Steps[Rejected | None]:
    """Return why a difference may not make the table grow so much, None if it may."""
    added = new_topics(store, command.broker_name, list(map(TOPIC, command.topics)))
    if len(added) > STEP:
        yield
    more = room_for(store, added)
    return excess_of(store, command.broker_name, command.limits, more, adds_topics=bool(added))


def topic_dropped(store: RouteStore, command: Update) -> bool:
    """Return whether a topic was dropped since a difference was decided; only that leaves its bases alone.

    The table may be behind the one on which it was decided: its broker name is of an older revision then.
    """
    name = store.brokers.names.get(command.broker_name)
    return (
        name is not None
        and name.revision == command.name_revision
        and len(store.topics.of_name(command.broker_name)) < command.topic_count
    )
