"""Assignment of queues to consumers, computed only from the list of members and the list of queues."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

Q = TypeVar("Q")


def average_share(queues: Sequence[Q], members: Sequence[str], me: str) -> tuple[Q, ...]:
    """Return the contiguous part of ``queues`` that the member ``me`` consumes.

    Every member computes its own part. If all members use equal sorted ``queues`` and ``members``, the parts
    cover all queues and do not overlap. The first ``len(queues) % len(members)`` members get one queue more
    than the others.

    Source: AllocateMessageQueueAveragely.
    """
    if me not in members:
        # The broker has not received this member's heartbeat yet. Until then, all queues belong to the other
        # members.
        return ()
    index = members.index(me)
    size, extra = divmod(len(queues), len(members))
    start = index * size + min(index, extra)
    return tuple(queues[start : start + size + (index < extra)])


def reassign(current: Iterable[Q], target: Collection[Q]) -> tuple[tuple[Q, ...], tuple[Q, ...]]:
    """Return the queues to add and the queues to release, to get from ``current`` to ``target``."""
    held = dict.fromkeys(current)
    wanted = dict.fromkeys(target)
    return (
        tuple(queue for queue in wanted if queue not in held),
        tuple(queue for queue in held if queue not in wanted),
    )
