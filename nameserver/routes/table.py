"""The route table: a deterministic state machine over RocketMQ's documented tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from msgspec.structs import astuple

from nameserver.commands import (
    AddWritePerm,
    Command,
    DeleteKv,
    DeleteTopic,
    Evict,
    ImportKv,
    PutKv,
    RegisterBroker,
    RegisterTopic,
    Touch,
    UnregisterBroker,
    Update,
    WipeWritePerm,
    bases,
)
from nameserver.registration import Registration
from nameserver.types import BrokerKey, BrokerName, KvEntry, LeaveReason
from nameserver.verdicts import Applied, CountReply, Facts, Moved, NoChange, Rejected, TopicsLost, Verdict
from remoting.codes import ORDER_TOPIC_NAMESPACE, PERM_READ, PERM_WRITE, ResponseCode

from .entries import Share
from .image import Image
from .kv import KV_BYTES_MAX
from .leaving import drop
from .registrations import register, registration_moved, touch
from .store import RouteStore
from .tombstones import TOMBSTONES_MAX
from .updates import apply_update, shortened, update_moved
from .view import RouteView


class RouteTable:
    """Routes known to one nameserver, as a deterministic state machine.

    State changes only in :meth:`apply`. Equal commands in equal order give equal tables and digests: nothing
    here reads a clock, a random source or the order of a set. A rejected command is a reply, not an
    exception, because every member must reach the same verdict.
    """

    def __init__(self, *, tombstones_max: int = TOMBSTONES_MAX) -> None:
        self._store = RouteStore(tombstones_max)
        self._view = RouteView(self._store)

    @property
    def view(self) -> RouteView:
        """The read-only face of this table; always the same object."""
        return self._view

    @property
    def revision(self) -> int:
        """Number of changes applied."""
        return self._store.revision

    # -- apply ---------------------------------------------------------------------------------------------

    def apply(self, command: Command) -> Verdict:
        """Apply a command, wholly or not at all; never raises."""
        if isinstance(command, Update):  # nearly every command
            return apply_update(self._store, command)
        if isinstance(command, RegisterBroker):
            return register(self._store, command)
        if self.moved(command):
            return Moved(revision=self._store.revision)
        match command:
            case Touch():
                return touch(self._store, command)
            case UnregisterBroker():
                return self._unregister(command)
            case Evict():
                return self._evict(command)
            case WipeWritePerm():
                return self._set_perm(command.broker_name, lambda perm: perm & ~PERM_WRITE)
            case AddWritePerm():
                return self._set_perm(command.broker_name, lambda perm: PERM_READ | PERM_WRITE)
            case DeleteTopic():
                return self._delete_topic(command)
            case RegisterTopic():
                return self._register_topic(command)
            case PutKv():
                return self._put_kv(command)
            case DeleteKv():
                return self._delete_kv(command)
            case ImportKv():
                return self._import_kv(command)
        assert_never(command)

    def moved(self, command: Command) -> bool:
        """Whether something is younger than what the command was computed from."""
        store = self._store
        if isinstance(command, Update):
            return update_moved(store, command)
        if isinstance(command, RegisterBroker):
            broker = command.broker
            record, name = store.brokers.records.get(broker), store.brokers.names.get(command.broker_name)
            return registration_moved(store, command, broker, record, name)
        return any(store.moved_at(base.kind, base.key) > base.revision for base in bases(command))

    def shortened(self, said: Registration, *, delete_absent: bool) -> Update | None:
        """Return the difference that a registration makes, or None: see :func:`.updates.shortened`."""
        return shortened(self._store, said, delete_absent=delete_absent)

    # -- who leaves ----------------------------------------------------------------------------------------

    def _unregister(self, command: UnregisterBroker) -> Verdict:
        record = self._store.brokers.records.get(command.broker)
        if record is None or record.broker_name != command.broker_name:
            return NoChange(revision=self._store.revision)
        return self._remove_broker(command.broker, LeaveReason.UNREGISTERED)

    def _evict(self, command: Evict) -> Verdict:
        record = self._store.brokers.records.get(command.broker)
        if record is None or record.revision != command.revision:
            return Moved(revision=self._store.revision)
        return self._remove_broker(command.broker, command.reason)

    def _remove_broker(self, broker: BrokerKey, reason: LeaveReason) -> Applied:
        self._store.revision += 1
        facts = Facts()
        drop(self._store, broker, reason, facts)
        return facts.applied(self._store.revision)

    # -- topics and permissions ----------------------------------------------------------------------------

    def _set_perm(self, name: BrokerName, perm_of: Callable[[int], int]) -> Verdict:
        store = self._store
        reply = CountReply(count=len(store.topics.of_name(name)))
        changed = store.topics.with_other_perms(name, perm_of)
        if not changed:
            return NoChange(revision=store.revision, reply=reply)
        store.revision += 1
        store.topics.put(name, changed, store.revision)
        store.brokers.renew_name(name, store.brokers.names[name], store.revision)
        return Applied(revision=store.revision, reply=reply, topics=tuple(changed))

    def _delete_topic(self, command: DeleteTopic) -> Verdict:
        store = self._store
        entry = store.topics.entries.get(command.topic)
        if entry is None:
            return NoChange(revision=store.revision)
        if command.cluster_name is None:
            leaving = tuple(entry.queues)
        else:
            names = store.brokers.names
            leaving = tuple(
                name for name in entry.queues if command.cluster_name in names[BrokerName(name)].clusters
            )
        if not leaving:
            return NoChange(revision=store.revision)
        store.revision += 1
        for name in leaving:
            store.topics.remove((command.topic,), name, store.revision)
        lost = TopicsLost(topics=(command.topic,), reason=LeaveReason.DELETED, broker_name=None, broker=None)
        return Applied(revision=store.revision, topics=(command.topic,), lost=(lost,))

    def _register_topic(self, command: RegisterTopic) -> Verdict:
        store = self._store
        topics, names = store.topics, store.brokers.names
        if any(queues.broker_name not in names for queues in command.queues):
            return NoChange(revision=store.revision)
        after: dict[BrokerName, Share] = {}
        for queues in command.queues:  # of a name listed twice the last one counts
            after[queues.broker_name] = topics.share(*astuple(queues))
        changed = {
            name: share
            for name, share in after.items()
            if topics.of_name(name).get(command.topic) is not share
        }
        if not changed:
            return NoChange(revision=store.revision)
        store.revision += 1
        for name, share in changed.items():
            topics.put(name, {command.topic: share}, store.revision)
            # A permission came or changed, so a wipe that was decided before must look again.
            store.brokers.renew_name(name, names[name], store.revision)
        return Applied(revision=store.revision, topics=(command.topic,))

    # -- KV configuration ----------------------------------------------------------------------------------

    def _put_kv(self, command: PutKv) -> Verdict:
        store = self._store
        before = store.kv.value(command.namespace, command.key)
        if before is not None and before.value == command.value:
            return NoChange(revision=store.revision)
        size = store.kv.excess(command.namespace, command.key, command.value)
        if size:
            return Rejected(
                code=ResponseCode.SYSTEM_ERROR,
                remark=f"KV configuration would have {size} bytes, at most {KV_BYTES_MAX} are allowed; "
                f"it has {store.kv.size}",
            )
        store.revision += 1
        facts = Facts()
        self._set_kv(command.namespace, command.key, KvEntry(command.value, store.revision), facts)
        return facts.applied(store.revision)

    def _delete_kv(self, command: DeleteKv) -> Verdict:
        store = self._store
        if store.kv.value(command.namespace, command.key) is None:
            return NoChange(revision=store.revision)
        store.revision += 1
        facts = Facts()
        self._set_kv(command.namespace, command.key, None, facts)
        return facts.applied(store.revision)

    def _import_kv(self, command: ImportKv) -> Verdict:
        store = self._store
        if store.kv.seen:
            return Rejected(
                code=ResponseCode.SYSTEM_ERROR,
                remark=f"KV configuration of {len(store.kv.spaces)} namespaces exists; an import needs none",
            )
        if not command.table:
            return NoChange(revision=store.revision, reply=CountReply(count=0))
        store.revision += 1
        facts = Facts()
        count = 0
        for namespace, values in command.table.items():
            store.kv.add_namespace(namespace)
            for key, value in values.items():
                self._set_kv(namespace, key, KvEntry(value, store.revision), facts)
                count += 1
        facts.kv_changed = True
        return facts.applied(store.revision, CountReply(count=count))

    def _set_kv(self, namespace: str, key: str, entry: KvEntry | None, facts: Facts) -> None:
        store = self._store
        store.kv.put(namespace, key, entry, store.revision)
        facts.kv_changed = True
        if namespace == ORDER_TOPIC_NAMESPACE and store.topics.renew(key, store.revision):
            facts.topics[key] = None

    # -- digests, images, checks ---------------------------------------------------------------------------

    def digest(self) -> str:
        """Return the digest of what clients can read: 32 hex digits, equal for equal tables in every mode."""
        return self._store.digest()

    def state_digest(self) -> str:
        """Return the digest of all replicated state, revisions and remembered removals included."""
        return self._store.state_digest()

    def copy_for_snapshot(self) -> Image:
        """Return a copy of the state for another thread to encode; its cost is that of a few dict copies."""
        return self._store.copy()

    @classmethod
    def restore(cls, data: bytes, *, epoch: int = 0, tombstones_max: int = TOMBSTONES_MAX) -> RouteTable:
        """Build a table from an encoded image; may run in any thread.

        Raises:
            ImageError: If the image is damaged, or of a format this program does not know.
        """
        table = cls(tombstones_max=tombstones_max)
        table._store.take(data)
        table._store.epoch = epoch
        return table

    def adopt(self, other: RouteTable) -> None:
        """Exchange state with another table, at once whatever their sizes; views stay valid.

        What this table held is in the other one then, which its owner may free where time does not matter.
        """
        self._store.exchange(other._store)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken; for tests and the simulator."""
        self._store.check()
