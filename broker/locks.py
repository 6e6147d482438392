"""Queue locks of orderly consumers (pure). Instants are loop times in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from routekeeper.remoting.bodies import MessageQueue

#: A lock not renewed for so long is free. Source: RebalanceLockManager.
LOCK_LIFE_S: Final = 60.0
#: Queues of all groups together that are locked at a time.
LOCKS_MAX: Final = 200_000


class QueueLocks:
    """Who may consume which queue of which group in order."""

    def __init__(self) -> None:
        self._holders: dict[str, dict[MessageQueue, tuple[str, float]]] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], *, now: float
    ) -> tuple[MessageQueue, ...]:
        """Lock or renew; return the queues that the client holds now: free, its own or expired before."""
        holders = self._holders.setdefault(group, {})
        room = LOCKS_MAX - sum(map(len, self._holders.values()))
        held = []
        for queue in queues:
            if queue not in holders:
                if room <= 0:
                    continue  # not held: the client asks again
                room -= 1
            owner, renewed = holders.get(queue, (client_id, now))
            if owner == client_id or now - renewed > LOCK_LIFE_S:
                holders[queue] = (client_id, now)
                held.append(queue)
        if not holders:
            del self._holders[group]
        return tuple(held)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Free those queues that the client holds; others are left alone."""
        holders = self._holders.get(group, {})
        for queue in queues:
            if queue in holders and holders[queue][0] == client_id:
                del holders[queue]
        if not holders:
            self._holders.pop(group, None)

    def any_held(self, group: str, *, now: float) -> bool:
        """Say whether a member of the group holds a queue: whether the group consumes in order."""
        return any(now - renewed <= LOCK_LIFE_S for _, renewed in self._holders.get(group, {}).values())

    def expire(self, now: float) -> None:
        """Forget expired locks, so that dead groups take no memory."""
        for group, holders in list(self._holders.items()):
            for queue, (_, renewed) in list(holders.items()):
                if now - renewed > LOCK_LIFE_S:
                    del holders[queue]
            if not holders:
                del self._holders[group]
