"""Assignment of queues to consumers: pure functions of the member list and the queue list."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

Q = TypeVar("Q")


def average_share(queues: Sequence[Q], members: Sequence[str], me: str) -> tuple[Q, ...]:
    """Return the contiguous part of ``queues`` that ``me`` consumes.

    Every member computes this on its own; the parts are disjoint and complete if all start from equal
    ``queues`` and ``members``, both sorted. The first ``len(queues) % len(members)`` members get one queue
    more.

    Source: AllocateMessageQueueAveragely.
    """
    if me not in members:
        # our heartbeat has not arrived there yet: consume nothing, because all queues belong to other members
        return ()
    index = members.index(me)
    size, extra = divmod(len(queues), len(members))
    start = index * size + min(index, extra)
    return tuple(queues[start : start + size + (index < extra)])


def reassign(current: Iterable[Q], target: Collection[Q]) -> tuple[tuple[Q, ...], tuple[Q, ...]]:
    """Return (queues to begin, queues to release) for the change from ``current`` to ``target``."""
    held = dict.fromkeys(current)
    wanted = dict.fromkeys(target)
    return (
        tuple(queue for queue in wanted if queue not in held),
        tuple(queue for queue in held if queue not in wanted),
    )
