"""Functions that compute the difference between a registration and the table, and apply this difference.

The command :class:`Update` contains such a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from msgspec.structs import replace

from routekeeper.nameserver.commands import TableLimits, TopicQueues, Update
from routekeeper.nameserver.registration import Registration
from routekeeper.nameserver.types import BrokerName
from routekeeper.nameserver.verdicts import Applied, Moved, Rejected, Verdict
from routekeeper.remoting.steps import STEP, Steps, finish, in_steps

from .entries import NameEntry, Record, Share
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
from .topics import TOPIC, Difference, Draft, Numbers, TopicStore


def shortened(
    store: RouteStore,
    said: Registration,
    *,
    delete_absent: bool,
    limits: Callable[[], TableLimits | None],
) -> Steps[Update | None]:
    """Return the difference between a registration and the present table.

    Return None if the registration changes nothing, or changes more than the broker's topics.

    Args:
        delete_absent: Value of the setting ``deleteTopicWithBrokerRegistration``.
        limits: Function that returns the bounds of the table. It is called only if topics are added.
    """
    if len(said.table) <= STEP:
        return shorten_few(store, said, delete_absent=delete_absent, limits=limits)
    made_of = _to_compare(store, said, delete_absent=delete_absent)
    if made_of is None:
        return None
    record, name, mask = made_of
    # Count the topics now, because other changes may be applied between the steps below. The command's count
    # must belong to the same table as its revisions.
    topic_count = len(store.topics.of_name(said.broker_name))
    difference = Difference()
    if mask is not None:
        table = (yield from with_set_perms(store, said)).table if name.perms_set else said.table
        yield from in_steps(store.topics.find_differing, table.items(), difference, said.broker_name, mask)
    return _update(record, name, said, difference, topic_count, limits)


def shorten_few(
    store: RouteStore,
    said: Registration,
    *,
    delete_absent: bool,
    limits: Callable[[], TableLimits | None],
) -> Update | None:
    """Return the difference for a registration of few topics, in one step (see :func:`shortened`)."""
    made_of = _to_compare(store, said, delete_absent=delete_absent)
    if made_of is None:
        return None
    record, name, mask = made_of
    difference = Difference()
    if mask is not None:
        table = finish(with_set_perms(store, said)).table if name.perms_set else said.table
        store.topics.find_differing(table.items(), difference, said.broker_name, mask)
    return _update(record, name, said, difference, len(store.topics.of_name(said.broker_name)), limits)


def _to_compare(
    store: RouteStore, said: Registration, *, delete_absent: bool
) -> tuple[Record, NameEntry, int | None] | None:
    """Return the table's record and name entry for a registration, and its mask of permissions.

    Return None if the registration changes nothing, or changes more than topics. The mask is the result of
    :func:`perm_mask`. It is None if topics need not be compared.
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
    mask = perm_mask(said, name.addrs)
    if (record.complete or mask is None) and not _has_news(record, said, incremental=incremental):
        return None
    return record, name, mask


def _has_news(record: Record, said: Registration, *, incremental: bool) -> bool:
    """Return True if a registration changes the broker's record. This function does not compare topics."""
    return said.data_version != record.data_version or record.complete == incremental


def _update(
    record: Record,
    name: NameEntry,
    said: Registration,
    difference: Difference,
    topic_count: int,
    limits: Callable[[], TableLimits | None],
) -> Update | None:
    incremental, broker = len(said.table) == 1, said.broker
    if not difference.topics and not _has_news(record, said, incremental=incremental):
        return None
    return Update(
        cluster_name=broker.cluster_name,
        broker_name=said.broker_name,
        broker_addr=broker.broker_addr,
        data_version=said.data_version,
        topics=tuple(difference.topics),
        incremental=incremental,
        enable_acting_master=name.enable_acting_master,
        zone_name=name.zone_name,
        topic_count=topic_count,
        record_revision=record.revision,
        name_revision=name.revision,
        limits=limits() if difference.adds_topics else None,
    )


def apply_few(store: RouteStore, command: Update) -> Verdict | None:
    """Apply a difference of few topics that the table has already. Most differences are of this kind.

    For any other difference, do nothing and return None.
    """
    topics, kept = command.topics, store.topics
    if command.limits is not None or len(topics) > STEP:
        return None
    names = tuple(map(TOPIC, topics))
    if not all(map(kept.entries.__contains__, names)):
        return None
    made_of = _made_of(store, command)
    if made_of is None:
        return Moved(revision=store.revision)
    record, name = made_of
    revision = store.revision = store.revision + 1
    if topics:
        kept.put_known(command.broker_name, topics, revision)
        store.brokers.renew_name(command.broker_name, name, revision)
    return _note(store, command, record, name, names)


def apply_update(store: RouteStore, command: Update) -> Steps[Verdict]:
    """Apply a difference of :func:`shortened`.

    Return Moved if the state from which the difference was computed has changed.
    """
    verdict = apply_few(store, command)
    if verdict is not None:
        return verdict
    made_of = _made_of(store, command)
    if made_of is None:
        return Moved(revision=store.revision)
    record, name = made_of
    name_key, brokers, kept = command.broker_name, store.brokers, store.topics
    limits, host = command.limits, None
    if limits is not None:
        rejected = yield from excess_of_update(store, command)
        if rejected is not None:
            return rejected
        if name.host != limits.host and new_topics(store, name_key, map(TOPIC, command.topics)):
            host = limits.host
    names: list[str] = []
    taken: dict[str, Share] = {}
    yield from in_steps(_find, command.topics, names, taken, {}, kept, name_key)
    draft = Draft(kept, name_key, store.revision + 1, host=host)
    yield from draft.put(taken)
    store.limited = store.limited or limits is not None
    if host is not None:
        kept.charge(name_key, host)
        name = replace(name, host=host)
        brokers.put_name(name_key, name, store.revision)
    revision = store.revision = store.revision + 1
    if command.topics:
        draft.commit()
        brokers.renew_name(name_key, name, revision)
    return _note(store, command, record, name, tuple(names))


def _find(
    topics: Collection[TopicQueues],
    names: list[str],
    taken: dict[str, Share],
    made: dict[Numbers, Share],
    kept: TopicStore,
    name: BrokerName,
) -> None:
    """Put the names of all topics into ``names``, and only topics with changed queue data into ``taken``.

    Args:
        taken: Receives the new queue data of the changed topics, by topic.
        made: Receives queue data objects that the store does not have yet, by content.
        kept: The store to compare with.
    """
    names += map(TOPIC, topics)
    kept.find_shares(topics, taken, made, name)


def _made_of(store: RouteStore, command: Update) -> tuple[Record, NameEntry] | None:
    """Return the record and the name entry from which a difference was computed; None if they changed."""
    name_key, brokers = command.broker_name, store.brokers
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
        or len(store.topics.of_name(name_key)) != command.topic_count
    ):
        return None
    return record, name


def _note(
    store: RouteStore, command: Update, record: Record, name: NameEntry, topics: tuple[str, ...]
) -> Applied:
    """Update the broker's record after a difference was applied at the present revision."""
    brokers, revision = store.brokers, store.revision
    if name.perms_set and brings_all_perms(command, record.broker_id, record.data_version):
        name_after = replace(brokers.names[command.broker_name], perms_set=False)
        brokers.put_name(command.broker_name, name_after, revision)
    record = replace(
        record, data_version=command.data_version, complete=not command.incremental, revision=revision
    )
    brokers.put_record(record.broker, record, revision)
    return Applied(revision=revision, reply=register_reply(store, record), topics=topics)


def excess_of_update(store: RouteStore, command: Update) -> Steps[Rejected | None]:
    """Return the refusal of a difference that would exceed a limit; None if it exceeds no limit."""
    added = new_topics(store, command.broker_name, list(map(TOPIC, command.topics)))
    if len(added) > STEP:
        yield
    more = room_for(store, added)
    return excess_of(store, command.broker_name, command.limits, more, adds_topics=bool(added))


def topic_dropped(store: RouteStore, command: Update) -> bool:
    """Return True if a topic was deleted after a difference was computed. No revision shows such a deletion.

    The result is False if this table is older than the table from which the difference was computed. The
    broker name then has an older revision in this table.
    """
    name = store.brokers.names.get(command.broker_name)
    return (
        name is not None
        and name.revision == command.name_revision
        and len(store.topics.of_name(command.broker_name)) < command.topic_count
    )
