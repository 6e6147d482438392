"""Lists of the table's content, page by page and in steps.

This module does no I/O. The index of an answer is a revision of the table. The list contains all changes up
to this revision, and may contain later changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from routekeeper.nameserver.routes.entries import QueueSet, Record
from routekeeper.nameserver.routes.sorting import sorting
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.types import BrokerKey
from routekeeper.remoting.steps import Steps, in_chunks

from . import answers
from .coding import Parts, array_of, cursor_of, object_of
from .order import TopicOrder

LIMIT_MAX: Final = 10_000
"""Largest number of entries that a request may ask for in one page."""
_RECORDS_STEP: Final = 200
"""Number of brokers, or of clusters, that one step handles."""


class Wanted(NamedTuple):
    """The requested part of a list.

    Attributes:
        contains: Text in lower case that the names, converted to lower case, must contain.
        after: The last entry of the previous page, or None for the first page.
        limit: Largest number of entries; None requests all remaining entries.
    """

    prefix: str = ""
    contains: str = ""
    cluster: str | None = None
    limit: int | None = None
    after: tuple[str, ...] | None = None


class Page(NamedTuple):
    """Encoded entries of a list, and the cursor of the next page if there is a next page."""

    things: Parts
    next_cursor: str | UnsetType


class InCluster:
    """A test for topics of one cluster: a broker of the cluster must have the topic.

    Most topics have the same queues at the same brokers, so they share a few queue sets. Therefore the test
    stores one result for each queue set.

    Attributes:
        names: Broker names of the cluster.
    """

    def __init__(self, view: RouteView, cluster: str) -> None:
        self._view = view
        self.names = frozenset(name for name, entry in view.names() if cluster in entry.clusters)
        self._known: dict[QueueSet, bool] = {}

    def __call__(self, topic: str) -> bool:
        entry = self._view.topic(topic)
        if entry is None:
            return False
        found = self._known.get(entry.queue_set)
        if found is None:
            found = self._known[entry.queue_set] = not self.names.isdisjoint(entry.queues)
        return found


def topics_page(view: RouteView, order: TopicOrder, wanted: Wanted) -> Steps[Page]:
    """List topics by name. A topic belongs to a cluster if a broker of the cluster has the topic."""
    yield from order.catching_up()
    if wanted == Wanted():
        return Page((yield from array_of(order.names())), UNSET)
    accept: Callable[[str], bool] | None = None
    if wanted.cluster is not None:
        accept = in_cluster = InCluster(view, wanted.cluster)
        if not in_cluster.names:
            return Page((yield from array_of(())), UNSET)
    if wanted.contains:
        accept = _containing(wanted.contains, accept)
    after = None if wanted.after is None else wanted.after[0]
    names, more = yield from _some(order.after(after, wanted.prefix), wanted.limit, accept)
    return Page((yield from array_of(names)), cursor_of(names[-1]) if more else UNSET)


def _some(
    names: Iterable[str], limit: int | None, accept: Callable[[str], bool] | None = None
) -> Steps[tuple[list[str], bool]]:
    """Return the first accepted names, up to the limit, and True if there are more accepted names."""
    found: list[str] = []
    for chunk in in_chunks(names):
        found += chunk if accept is None else filter(accept, chunk)
        if limit is not None and len(found) > limit:
            return found[:limit], True
        yield
    return found, False


def _containing(part: str, accept: Callable[[str], bool] | None) -> Callable[[str], bool]:
    if accept is None:
        return lambda name: part in name.lower()
    return lambda name: part in name.lower() and accept(name)


def brokers_page(
    view: RouteView, wanted: Wanted, last_seen_s: Callable[[BrokerKey], float | None]
) -> Steps[Page]:
    """List brokers by cluster and address.

    ``wanted.prefix`` filters by broker name, ``wanted.contains`` by broker name or address.
    """
    records = sorted(
        (
            record
            for record in view.records()
            if record.broker_name.startswith(wanted.prefix)
            and (
                wanted.contains in record.broker_name.lower()
                or wanted.contains in record.broker.broker_addr.lower()
            )
            and wanted.cluster in (None, record.broker.cluster_name)
            and (wanted.after is None or tuple(record.broker) > wanted.after)
        ),
        key=lambda record: record.broker,
    )
    more = wanted.limit is not None and len(records) > wanted.limit
    records = records[: wanted.limit]
    things = yield from array_of(broker_answers(view, records, last_seen_s), step=_RECORDS_STEP)
    return Page(things, cursor_of(*records[-1].broker) if more else UNSET)


def broker_answers(
    view: RouteView,
    records: Iterable[Record],
    last_seen_s: Callable[[BrokerKey], float | None] | None = None,
) -> Iterator[answers.Broker]:
    """Yield the public data of each broker.

    Args:
        last_seen_s: Function that returns the age of a broker's last message in seconds. With None, the data
            do not contain the age.
    """
    for record in records:
        age_s = None if last_seen_s is None else last_seen_s(record.broker)
        yield answers.Broker(
            cluster=record.broker.cluster_name,
            broker_name=record.broker_name,
            broker_id=record.broker_id,
            broker_addr=record.broker.broker_addr,
            ha_server_addr=record.ha_server_addr,
            data_version=msgspec.convert(record.data_version, answers.Version, from_attributes=True),
            complete=record.complete,
            lease_ms=record.lease_ms,
            topics=len(view.topics_of_name(record.broker_name)),
            last_seen_ms=UNSET if last_seen_s is None else None if age_s is None else round(age_s * 1000),
            index=record.revision,
        )


def clusters_page(view: RouteView, wanted: Wanted) -> Steps[Page]:
    """List clusters by name, with their broker names."""
    info = view.cluster_info()
    names = [
        cluster
        for cluster in info.cluster_addr_table
        if cluster.startswith(wanted.prefix)
        and wanted.cluster in (None, cluster)
        and (wanted.after is None or cluster > wanted.after[0])
    ]
    yield
    more = wanted.limit is not None and len(names) > wanted.limit
    names = names[: wanted.limit]
    brokers = {
        name: answers.BrokerName(
            broker_name=name,
            addresses={str(broker_id): addr for broker_id, addr in sorted(data.broker_addrs.items())},
        )
        for name, data in info.broker_addr_table.items()
    }
    yield
    clusters = (
        answers.Cluster(cluster=cluster, brokers=[brokers[name] for name in info.cluster_addr_table[cluster]])
        for cluster in names
    )
    things = yield from array_of(clusters, step=_RECORDS_STEP)
    return Page(things, cursor_of(names[-1]) if more else UNSET)


def namespaces_page(view: RouteView, wanted: Wanted) -> Steps[Page]:
    """List namespaces of the KV configuration by name."""
    names = yield from _names_page(view.kv_namespaces(), wanted)
    return Page((yield from array_of(names.names)), names.next_cursor)


def keys_page(view: RouteView, namespace: str, wanted: Wanted) -> Steps[Page | None]:
    """List a namespace's keys and values by key; return None if the namespace never existed."""
    entries = view.kv_entries(namespace)
    if entries is None:
        return None
    keys = yield from _names_page(entries, wanted)
    table = yield from object_of((key, entries[key].value) for key in keys.names)
    return Page(table, keys.next_cursor)


class _Names(NamedTuple):
    names: list[str]
    next_cursor: str | UnsetType


def _names_page(names: Iterable[str], wanted: Wanted) -> Steps[_Names]:
    after = "" if wanted.after is None else wanted.after[0]
    left = [
        name for name in names if name.startswith(wanted.prefix) and (wanted.after is None or name > after)
    ]
    yield
    ordered = yield from sorting(left)
    if wanted.limit is None or len(ordered) <= wanted.limit:
        return _Names(ordered, UNSET)
    del ordered[wanted.limit :]
    return _Names(ordered, cursor_of(ordered[-1]))
