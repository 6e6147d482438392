"""The brokers of a route table: records, names with their addresses, and their part of the digests."""

from __future__ import annotations

from collections.abc import Mapping

from nameserver.types import BrokerKey, BrokerName
from remoting.route import DataVersion

from .entries import NameEntry, Record, mark_of
from .tombstones import Tombstones


class BrokerStore:
    """Records and broker names; who changes them names the revision of the change.

    Invariants, checked by :meth:`check`, whenever a command has been applied:
        - each broker name has an address;
        - within a broker name, an address has one broker id;
        - each (cluster, address) in a name's address table has exactly one record, and each record is
          in exactly one of them (so an address whose id was taken has none, and its next registration
          counts as its first).

    Attributes:
        records: By cluster and address.
        names: By broker name.
        shown: Part of the digest of what clients see.
    """

    __slots__ = (
        "_name_marks",
        "_record_marks",
        "_rest",
        "_tombstones",
        "_unmarked",
        "names",
        "records",
        "shown",
    )

    def __init__(self, tombstones: Tombstones) -> None:
        self._tombstones = tombstones
        self.records: dict[BrokerKey, Record] = {}
        self.names: dict[BrokerName, NameEntry] = {}
        # Parts of digests, so that what is replaced need not be hashed again: of a record; of what clients
        # see of a name, and what its two revisions are multiplied by. A record that changed has none until
        # somebody asks for the digest: it changes with each registration.
        self._record_marks: dict[BrokerKey, int] = {}
        self._unmarked: dict[BrokerKey, None] = {}
        self._name_marks: dict[BrokerName, tuple[int, int, int]] = {}
        self.shown = 0
        self._rest = 0

    def rest(self) -> int:
        """Return the part of the digest of what is replicated beside what is shown, but for removals."""
        for broker in self._unmarked:
            mark = self._record_marks[broker] = _record_mark(self.records[broker])
            self._rest += mark
        self._unmarked.clear()
        return self._rest

    def put_record(self, broker: BrokerKey, record: Record | None, revision: int) -> None:
        """Put a record, or with None remove it."""
        before = self.records.get(broker)
        self._rest -= self._record_marks.pop(broker, 0)
        if before is not None and before.filter_servers:
            self.shown -= _filter_mark(before)
        if record is not None:
            if record.filter_servers:
                self.shown += _filter_mark(record)
            self.records[broker] = record
            self._unmarked[broker] = None
        elif before is not None:
            del self.records[broker]
            self._unmarked.pop(broker, None)
        if before is None or record is None:
            self._tombstones.note("record", broker, revision, present=record is not None)

    def renew_record(self, record: Record, version: DataVersion, revision: int, *, complete: bool) -> None:
        """Put a record that is otherwise of another data version at most."""
        broker = record.broker
        self._rest -= self._record_marks.pop(broker, 0)
        self._unmarked[broker] = None
        self.records[broker] = Record(
            broker=broker,
            broker_name=record.broker_name,
            broker_id=record.broker_id,
            ha_server_addr=record.ha_server_addr,
            data_version=version,
            complete=complete,
            lease_ms=record.lease_ms,
            filter_servers=record.filter_servers,
            revision=revision,
        )

    def renew_name(self, name: BrokerName, entry: NameEntry, revision: int) -> None:
        """Put a name that is otherwise as it was: some permission of its queues changed."""
        self._rest += self._name_marks[name][1] * (revision - entry.revision)
        self.names[name] = NameEntry(
            cluster=entry.cluster,
            clusters=entry.clusters,
            addrs=entry.addrs,
            enable_acting_master=entry.enable_acting_master,
            zone_name=entry.zone_name,
            revision=revision,
            route_revision=entry.route_revision,
        )

    def put_name(self, name: BrokerName, entry: NameEntry | None, revision: int) -> None:
        """Put a name, or with None remove it."""
        before = self.names.get(name)
        if before is not None and entry is not None and _shows_the_same(before, entry):
            _, first, second = self._name_marks[name]
            self._rest += first * (entry.revision - before.revision)
            if entry.route_revision != before.route_revision:
                self._rest += second * (entry.route_revision - before.route_revision)
            self.names[name] = entry
            return
        if before is not None:
            shown, first, second = self._name_marks[name]
            self.shown -= shown
            self._rest -= first * before.revision + second * before.route_revision
        else:
            first, second = mark_of("N", name), mark_of("r", name)
        if entry is not None:
            shown = _name_mark(name, entry)
            self._name_marks[name] = shown, first, second
            self.shown += shown
            self._rest += first * entry.revision + second * entry.route_revision
            self.names[name] = entry
        elif before is not None:
            del self.names[name], self._name_marks[name]
        if before is None or entry is None:
            self._tombstones.note("name", name, revision, present=entry is not None)

    def take(
        self, names: Mapping[BrokerName, NameEntry], records: Mapping[BrokerKey, Record], revision: int
    ) -> None:
        """Take over what an image has; there is nothing yet."""
        for name, entry in names.items():
            self.put_name(name, entry, revision)
        for broker, record in records.items():
            self.put_record(broker, record, revision)

    def check(self, revision: int) -> None:
        """Raise AssertionError if an invariant is broken."""
        listed: dict[BrokerKey, tuple[BrokerName, int]] = {}
        for name, entry in self.names.items():
            assert entry.addrs, f"{name} has no address"
            addresses = [key.broker_addr for key in entry.addrs.values()]
            assert len(set(addresses)) == len(addresses), f"{name} has an address under two ids"
            assert entry.cluster in entry.clusters, f"{name} is not listed in its own cluster"
            for broker_id, key in entry.addrs.items():
                assert key not in listed, f"{key} is listed twice"
                listed[key] = (name, broker_id)
        for key, record in self.records.items():
            assert listed.get(key) == (record.broker_name, record.broker_id), f"{key} is listed elsewhere"
            assert record.revision <= revision, f"{key} is of the future"
        assert len(listed) == len(self.records), "an address has no record"


def _shows_the_same(one: NameEntry, other: NameEntry) -> bool:
    return (
        one.addrs == other.addrs
        and one.clusters == other.clusters
        and one.cluster == other.cluster
        and one.enable_acting_master == other.enable_acting_master
        and one.zone_name == other.zone_name
    )


def _name_mark(name: str, entry: NameEntry) -> int:
    return mark_of(
        "n",
        name,
        entry.cluster,
        entry.clusters,
        tuple(sorted(entry.addrs.items())),
        entry.enable_acting_master,
        entry.zone_name,
    )


def _filter_mark(record: Record) -> int:
    return mark_of("f", record.broker, record.filter_servers) if record.filter_servers else 0


def _record_mark(record: Record) -> int:
    version = record.data_version
    return mark_of(
        "R",
        record.broker,
        record.broker_name,
        record.broker_id,
        record.ha_server_addr,
        (version.state_version, version.timestamp, version.counter),
        record.complete,
        record.lease_ms,
        record.revision,
    )
