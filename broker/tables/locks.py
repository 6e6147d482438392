"""Queue locks of orderly consumers. Callers pass instants, in seconds of the event loop's clock.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from routekeeper.broker.tables.long_polling import HOST_PERCENT
from routekeeper.remoting.bodies import MessageQueue

#: Seconds from a lock's last renewal until the lock expires. Source: RebalanceLockManager.
LOCK_LIFE_S: Final = 60.0
#: Largest number of locked queues of all groups together.
LOCKS_MAX: Final = 200_000


class _Held(NamedTuple):
    """A lock: its client, the instant of its last renewal, and the host whose quota of locks it uses."""

    client_id: str
    renewed: float
    host: str


class QueueLocks:
    """Locks that allow one client of a group to consume a queue in order."""

    def __init__(self) -> None:
        self._holders: dict[str, dict[MessageQueue, _Held]] = {}
        self._by_host: Counter[str] = Counter()
        self._count = 0

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], *, now: float, host: str = ""
    ) -> tuple[MessageQueue, ...]:
        """Lock queues or renew their locks; return the queues that the client has locked now.

        A client gets a lock if the queue is free, if the client has the lock already, or if the lock expired.

        Args:
            host: Host whose quota new locks use; empty for loopback, which has no quota of its own.
        """
        holders = self._holders.setdefault(group, {})
        held = []
        for queue in queues:
            known = holders.get(queue)
            if known is None and not self._has_room(host):
                continue  # the number of locks is at its bound; the client will request this lock again
            if known is None or known.client_id == client_id or now - known.renewed > LOCK_LIFE_S:
                self._release(known)
                holders[queue] = _Held(client_id, now, host)
                self._by_host[host] += 1
                self._count += 1
                held.append(queue)
        if not holders:
            del self._holders[group]
        return tuple(held)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Unlock the queues that this client has locked; ignore all other queues."""
        holders = self._holders.get(group, {})
        for queue in queues:
            if queue in holders and holders[queue].client_id == client_id:
                self._release(holders.pop(queue))
        if not holders:
            self._holders.pop(group, None)

    def any_held(self, group: str, *, now: float) -> bool:
        """Return True if a member of the group has a lock, which shows that the group consumes in order."""
        return any(now - held.renewed <= LOCK_LIFE_S for held in self._holders.get(group, {}).values())

    def expire(self, now: float) -> None:
        """Remove expired locks; without this method, locks of groups without members would stay in memory."""
        for group, holders in list(self._holders.items()):
            for queue, held in list(holders.items()):
                if now - held.renewed > LOCK_LIFE_S:
                    self._release(holders.pop(queue))
            if not holders:
                del self._holders[group]

    def _has_room(self, host: str) -> bool:
        if self._count >= LOCKS_MAX:
            return False
        return not host or self._by_host[host] < LOCKS_MAX * HOST_PERCENT // 100

    def _release(self, held: _Held | None) -> None:
        if held is not None:
            self._count -= 1
            self._by_host[held.host] -= 1
            if not self._by_host[held.host]:
                del self._by_host[held.host]
