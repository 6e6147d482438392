"""The brokers of a route table: broker records, and broker names with their addresses.

This module also computes the brokers' part of the digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from msgspec.structs import astuple, replace

from routekeeper.nameserver.types import BrokerKey, BrokerName

from .entries import NameEntry, Record, host_mark, mark_of
from .room import Ledger, size_of
from .tombstones import Tombstones


class BrokerStore:
    """Records of brokers, and broker names with their addresses. The caller passes each change's revision.

    Invariants after each applied command:
        - Each broker name has at least one address.
        - Within a broker name, an address has one broker id.
        - Each (cluster, address) in a name's address table has exactly one record, and each record is in
          exactly one address table. If another address registers with a broker's id, the broker's record is
          removed. The broker's next registration then counts as its first registration.

    Attributes:
        records: Records by cluster and address.
        names: Entries by broker name.
        shown: Number that the brokers add to the digest of the state that clients see.
    """

    __slots__ = ("_ledger", "_record_marks", "_rest", "_tombstones", "names", "records", "shown")

    def __init__(
        self,
        names: Mapping[BrokerName, NameEntry],
        records: Mapping[BrokerKey, Record],
        tombstones: Tombstones,
        ledger: Ledger,
    ) -> None:
        self._tombstones = tombstones
        self._ledger = ledger
        self.names = dict(names)
        self.records = dict(records)
        # For each record, the number that it adds to the digest. The number of a changed record is computed
        # only when the digest is read. To compute it at each registration would take too much time.
        self._record_marks: dict[BrokerKey, int] = {}
        self.shown = sum(map(_filter_mark, records.values()))
        self._rest = 0
        for record in records.values():
            ledger.add(record.host, brokers=1, size=size_of_record(record))
        for name, entry in names.items():
            self._count_name(name, entry, 1)

    def rest(self) -> int:
        """Return the number that the brokers add to the digest of the state that clients do not see.

        Removed brokers are not counted here.
        """
        for broker in self.records.keys() - self._record_marks.keys():
            mark = self._record_marks[broker] = _record_mark(self.records[broker])
            self._rest += mark
        return self._rest

    def shown_at(self, names: Iterable[str]) -> int:
        """Return the largest ``route_revision`` of these broker names (see :class:`NameEntry`)."""
        return max([self.names[BrokerName(name)].route_revision for name in names])

    def put_record(self, broker: BrokerKey, record: Record | None, revision: int) -> None:
        """Store a record, or remove the broker's record if ``record`` is None."""
        before = self.records.get(broker)
        self._rest -= self._record_marks.pop(broker, 0)
        self.shown += _filter_mark(record) - _filter_mark(before)
        if (
            before is None
            or record is None
            or before.filter_servers is not record.filter_servers
            or before.ha_server_addr is not record.ha_server_addr
            or before.host is not record.host
        ):
            self._charge(before, record)
        if record is not None:
            self.records[broker] = record
        else:
            del self.records[broker]
        if before is None or record is None:
            self._tombstones.note("record", broker, revision, present=record is not None)

    def _charge(self, before: Record | None, record: Record | None) -> None:
        if before is not None:
            self._ledger.add(before.host, brokers=-1, size=-size_of_record(before))
        if record is not None:
            self._ledger.add(record.host, brokers=1, size=size_of_record(record))

    def renew_name(self, name: BrokerName, entry: NameEntry, revision: int) -> None:
        """Give a broker name's entry a new revision after permissions of its queues have changed."""
        self._rest += _revision_mark(name) * (revision - entry.revision)
        self.names[name] = replace(entry, revision=revision)

    def put_name(self, name: BrokerName, entry: NameEntry | None, revision: int) -> None:
        """Store a broker name's entry, or remove the name if ``entry`` is None."""
        before = self.names.get(name)
        if before is not None:
            self._count_name(name, before, -1)
        if entry is not None:
            self._count_name(name, entry, 1)
            self.names[name] = entry
        else:
            del self.names[name]
        if before is None or entry is None:
            self._tombstones.note("name", name, revision, present=entry is not None)

    def _count_name(self, name: BrokerName, entry: NameEntry, sign: int) -> None:
        self._ledger.add(entry.host, size=sign * size_of_name(name, entry))
        self.shown += sign * _name_mark(name, entry)
        revisions = _revision_mark(name) * (entry.revision + host_mark(entry.host))
        revisions += mark_of("r", name) * entry.route_revision
        self._rest += sign * (revisions + (mark_of("p", name) if entry.perms_set else 0))


@lru_cache(maxsize=10_000)
def _revision_mark(name: str) -> int:
    return mark_of("N", name)


def _name_mark(name: str, entry: NameEntry) -> int:
    cluster, clusters, addrs, acting_master, zone_name, *_not_shown = astuple(entry)
    return mark_of("n", name, cluster, clusters, tuple(sorted(addrs.items())), acting_master, zone_name)


def _filter_mark(record: Record | None) -> int:
    if record is None or not record.filter_servers:
        return 0
    return mark_of("f", record.broker, record.filter_servers)


def _record_mark(record: Record) -> int:
    *who_and_where, version, complete, lease_ms, _filter_servers, revision, host = astuple(record)
    return mark_of("R", *who_and_where, astuple(version), complete, lease_ms, revision) + host_mark(host)


def size_of_record(record: Record) -> int:
    """Return the number of bytes that a record counts against the table's limits."""
    return size_of((*record.broker, record.ha_server_addr, *record.filter_servers))


def size_of_name(name: str, entry: NameEntry) -> int:
    """Return the number of bytes that a broker name counts against the table's limits."""
    return size_of((name, entry.zone_name, *entry.clusters))
