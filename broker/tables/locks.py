"""Queue locks of orderly consumers (pure). Instants are loop times in seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from routekeeper.broker.tables.long_polling import HOST_PERCENT
from routekeeper.remoting.bodies import MessageQueue

#: A lock not renewed for so long is free. Source: RebalanceLockManager.
LOCK_LIFE_S: Final = 60.0
#: Bound of the locked queues of all groups together.
LOCKS_MAX: Final = 200_000


class _Held(NamedTuple):
    """A lock: its client, the instant of its last renewal, and the host against whose share it counts."""

    client_id: str
    renewed: float
    host: str


class QueueLocks:
    """The clients that may consume queues of a group in order."""

    def __init__(self) -> None:
        self._holders: dict[str, dict[MessageQueue, _Held]] = {}
        self._by_host: Counter[str] = Counter()
        self._count = 0

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], *, now: float, host: str = ""
    ) -> tuple[MessageQueue, ...]:
        """Lock or renew; return the queues that the client holds now: they were free, its own or expired.

        Args:
            host: Host against whose share new locks count; empty for loopback, which may use all.
        """
        holders = self._holders.setdefault(group, {})
        held = []
        for queue in queues:
            known = holders.get(queue)
            if known is None and not self._has_room(host):
                continue  # do not grant the lock; the client will ask again
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
        """Free those of the queues that the client holds."""
        holders = self._holders.get(group, {})
        for queue in queues:
            if queue in holders and holders[queue].client_id == client_id:
                self._release(holders.pop(queue))
        if not holders:
            self._holders.pop(group, None)

    def any_held(self, group: str, *, now: float) -> bool:
        """Return whether a member of the group holds a queue, so that the group consumes in order."""
        return any(now - held.renewed <= LOCK_LIFE_S for held in self._holders.get(group, {}).values())

    def expire(self, now: float) -> None:
        """Forget expired locks, so that dead groups take no memory."""
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
