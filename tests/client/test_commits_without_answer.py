"""After a commit without an answer, the broker may have the new offset, so the next commit stores again."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from routekeeper.client.errors import PartlyUnknown
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from tests.client.test_consumer_sim import QUEUES, Broker, Member, World
from tests.client.test_released_commits import KEPT, PullMember, append, stored


@dataclass
class LateBroker(Broker):
    """A broker that stores offsets, and answers only after the timeout while ``late`` is True."""

    late: bool = False

    def serve(self, member: Member, request: RemotingCommand) -> tuple[float, RemotingCommand]:
        held_s, response = super().serve(member, request)
        if self.late and request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            held_s = 3600.0
        return held_s, response


def test_offset_from_before_a_commit_without_an_answer_can_be_committed_again() -> None:
    world = World(1, loss=0.0)
    broker = world.broker = LateBroker(world)
    member = PullMember(world, 1)
    member.await_queues(QUEUES)
    append(member, KEPT, 3)
    member.poll(3)
    member.run(member.puller.commit())
    append(member, KEPT, 3)
    member.poll(3)
    broker.late = True
    with pytest.raises(PartlyUnknown):
        member.run(member.puller.commit())
    assert stored(member, KEPT) == 6
    broker.late = False
    member.run(member.puller.seek(KEPT, 3))
    member.run(member.puller.commit())
    assert stored(member, KEPT) == 3
