"""Rebalance notices when a connection with tens of thousands of groups closes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from routekeeper.broker.server.rebalance_notices import NOTICES_MAX, RebalanceNotices
from routekeeper.remoting.command import RemotingCommand
from tests.cost import least_cpu_s, on_this_machine


class Groups:
    """A fake of a broker's consumer groups, each with a given number of members.

    It counts the groups whose members were looked up, and records the notices to members.
    """

    def __init__(self, members: Callable[[int], int]) -> None:
        self._members = members
        self.looked = 0
        self.told: list[tuple[str, int]] = []
        self.notices = RebalanceNotices(self._members_of, self._send)

    def _members_of(self, group: str) -> range:
        self.looked += 1
        return range(self._members(int(group)))

    def _send(self, connection: int, request: RemotingCommand) -> None:
        self.told.append((request.ext_fields["consumerGroup"], connection))

    async def tell(self, count: int) -> list[tuple[int, int]]:
        """Notify all groups. Return the numbers of groups and notices after each iteration of the loop."""
        turns = [(0, 0)]
        self.notices.tell(map(str, range(count)))
        wanted = sum(map(self._members, range(count)))
        while True:
            turns.append((self.looked, len(self.told)))
            if (self.looked, len(self.told)) == (count, wanted):
                return turns
            assert len(turns) < 10 * (count + wanted) / NOTICES_MAX + 10
            await asyncio.sleep(0)


@pytest.mark.parametrize("members", [lambda _: 0, lambda group: group % 3 * 100], ids=["none", "some"])
def test_many_changed_groups_leave_the_loop_to_others(members: Callable[[int], int]) -> None:
    count = 3 * NOTICES_MAX + 1
    groups = Groups(members)
    turns = asyncio.run(groups.tell(count))
    for (looked, told), (looked_after, told_after) in itertools.pairwise(turns):
        assert looked_after - looked <= NOTICES_MAX
        assert told_after - told <= NOTICES_MAX
    wanted = [(str(group), member) for group in range(count) for member in range(members(group))]
    assert groups.told == wanted, "each member is notified once, in the order of the changes"


def test_each_of_many_groups_costs_the_same() -> None:
    def tell() -> None:
        asyncio.run(Groups(lambda _: 0).tell(100_000))

    # If the cost of a group grew with the number of earlier groups, this would take several seconds.
    allowed = on_this_machine(1.5)
    assert least_cpu_s(lambda: tell, below=allowed) < allowed
