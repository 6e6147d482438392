"""When many members leave a consumer group at once, the broker sends few notices to each remaining member."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from routekeeper.broker.server.rebalance_notices import RebalanceNotices
from routekeeper.remoting.command import RemotingCommand
from tests.broker.conftest import StartBroker, Wire
from tests.waiting import wait_until

NOTICE = 40
GROUPS = [f"G{number}" for number in range(10)]
LEAVING = 60


def join(wire: Wire, name: str) -> None:
    consumers = [
        {"groupName": group, "subscriptionDataSet": [{"topic": "T", "subString": "*"}]} for group in GROUPS
    ]
    beat = {"clientID": name, "consumerDataSet": consumers, "producerDataSet": []}
    assert wire.call(34, body=json.dumps(beat).encode()).code == 0


def members_of(wire: Wire, group: str) -> list[str]:
    found: list[str] = json.loads(wire.call(38, {"consumerGroup": group}).body)["consumerIdList"]
    return found


@pytest.mark.parametrize("leaving", [1, 60])
def test_member_gets_at_most_two_notices_of_many_that_leave_in_one_iteration(leaving: int) -> None:
    members = {group: list(range(leaving + 1)) for group in GROUPS}
    told: Counter[str] = Counter()

    def send(connection: int, request: RemotingCommand) -> None:
        if connection == 0:
            told[request.ext_fields["consumerGroup"]] += 1

    async def main() -> None:
        notices = RebalanceNotices(lambda group: tuple(members[group]), send)
        for connection in range(1, leaving + 1):
            for group in GROUPS:
                members[group].remove(connection)
            notices.tell(GROUPS)
        for _ in range(100):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert set(told) == set(GROUPS)
    assert max(told.values()) <= 2


@pytest.mark.faults
@pytest.mark.slow
def test_member_is_notified_of_many_that_leave(start_broker: StartBroker) -> None:
    broker = start_broker()
    stays = broker.wire()
    join(stays, "stays")
    others = [broker.wire() for _ in range(LEAVING)]
    for number, wire in enumerate(others):
        join(wire, f"leaves-{number}")
    assert len(members_of(stays, "G0")) == LEAVING + 1
    stays.requests.clear()
    for wire in others:
        wire.close()
    wait_until(lambda: all(members_of(stays, group) == ["stays"] for group in GROUPS), "the others have left")
    for _ in range(10):  # a notice that the broker has already sent arrives before the last of these answers
        members_of(stays, "G0")
    notices = {request.ext_fields["consumerGroup"] for request in stays.requests if request.code == NOTICE}
    assert notices == set(GROUPS)
