"""Queue locks of orderly consumers.

This module does no I/O and reads no clock. Callers pass instants, in seconds of the event loop's clock. A
later call must not pass an earlier instant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from routekeeper.broker.tables.groups import bytes_of
from routekeeper.broker.tables.long_polling import HOST_PERCENT
from routekeeper.remoting.bodies import MessageQueue

#: Seconds from a lock's last renewal until the lock expires. Source: RebalanceLockManager.
LOCK_LIFE_S: Final = 60.0
#: Largest number of locked queues of all groups together.
LOCKS_MAX: Final = 200_000
#: Largest memory of these locks in bytes. As in RocketMQ, a client may lock queues that do not exist. So the
#: client chooses the names, and 200,000 locks with the longest names would take more than 1 GiB.
LOCK_BYTES_MAX: Final = 128 * 1024 * 1024
#: Number of locks that :meth:`QueueLocks.expire` checks in one step. A step takes a few ms.
EXPIRY_STEP: Final = 1000
#: Approximate memory of one lock in bytes, without the characters of its names.
_LOCK_BYTES: Final = 500


class _Held(NamedTuple):
    """A lock of one queue.

    Attributes:
        renewed: Instant of the last renewal.
        host: Host whose quota of locks this lock uses.
        size: Approximate memory in bytes.
    """

    client_id: str
    renewed: float
    host: str
    size: int


@dataclass(slots=True)
class _Filled:
    """Number and memory in bytes of all locks, or of the locks of one host."""

    count: int = 0
    size: int = 0

    def has_room(self, size: int, *, percent: int = 100) -> bool:
        """Return True if one more lock of this size would stay below a percentage of the bounds."""
        if self.count >= LOCKS_MAX * percent // 100:
            return False
        return self.size + size <= LOCK_BYTES_MAX * percent // 100

    def add(self, held: _Held, sign: int) -> None:
        """Add a lock (``sign`` is 1) or subtract it (-1)."""
        self.count += sign
        self.size += sign * held.size


class QueueLocks:
    """Locks that allow one client of a group to consume a queue in order.

    The locks of a group are in the order of their last renewals. So the last lock shows if any lock is valid.
    """

    def __init__(self) -> None:
        self._holders: dict[str, dict[MessageQueue, _Held]] = {}
        self._by_host: dict[str, _Filled] = {}
        self._all = _Filled()

    @property
    def size(self) -> int:
        """Approximate memory of all locks in bytes."""
        return self._all.size

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], *, now: float, host: str = ""
    ) -> tuple[MessageQueue, ...]:
        """Lock queues or renew their locks, and return the queues that the client has locked now.

        A client gets a lock if the queue is free, if the client has the lock already, or if the lock expired.

        Args:
            host: Host whose quota new locks use, or empty for loopback, which has no quota of its own.
        """
        holders = self._holders.setdefault(group, {})
        own_size = _LOCK_BYTES + bytes_of(group) + bytes_of(client_id)
        held = []
        for queue in queues:
            known = holders.get(queue)
            if known is not None:
                if known.client_id != client_id and now - known.renewed <= LOCK_LIFE_S:
                    continue
                # Remove the old entry, because the dict must stay in the order of the renewals.
                self._release(holders.pop(queue))
            size = own_size + bytes_of(queue.topic) + bytes_of(queue.broker_name)
            is_renewal = known is not None and known.client_id == client_id
            if not is_renewal and not self._has_room(host, size):
                continue  # The locks are at a bound. The client will request this lock again.
            new = _Held(client_id, now, host, size)
            holders[queue] = new
            self._all.add(new, 1)
            self._by_host.setdefault(host, _Filled()).add(new, 1)
            held.append(queue)
        if not holders:
            del self._holders[group]
        return tuple(held)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Unlock the queues that this client has locked. Ignore all other queues."""
        holders = self._holders.get(group, {})
        for queue in queues:
            if queue in holders and holders[queue].client_id == client_id:
                self._release(holders.pop(queue))
        if not holders:
            self._holders.pop(group, None)

    def any_held(self, group: str, *, now: float) -> bool:
        """Return True if a member of the group has a lock. A lock shows that the group consumes in order."""
        newest = next(reversed(self._holders.get(group, {}).values()), None)
        return newest is not None and now - newest.renewed <= LOCK_LIFE_S

    def expire(self, now: float) -> Iterator[None]:
        """Remove expired locks. Otherwise locks of groups without members would stay in memory.

        Other methods may be called between the steps.
        """
        looked = 0
        for group in list(self._holders):
            for queue in list(self._holders.get(group, {})):
                looked += 1
                if looked % EXPIRY_STEP == 0:
                    yield
                holders = self._holders.get(group, {})
                held = holders.get(queue)
                if held is None:
                    continue  # Between two steps, a client unlocked the queue.
                if now - held.renewed <= LOCK_LIFE_S:
                    # The later locks of the group were renewed after this lock. If this lock was renewed
                    # between two steps, later locks may have expired, but the next call removes them.
                    break
                self._release(holders.pop(queue))
                if not holders:
                    del self._holders[group]

    def _has_room(self, host: str, size: int) -> bool:
        if not self._all.has_room(size):
            return False
        return not host or self._by_host.get(host, _Filled()).has_room(size, percent=HOST_PERCENT)

    def _release(self, held: _Held) -> None:
        self._all.add(held, -1)
        filled = self._by_host[held.host]
        filled.add(held, -1)
        if not filled.count:
            del self._by_host[held.host]
