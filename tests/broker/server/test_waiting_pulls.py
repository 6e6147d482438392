"""Waiting pulls when the disk cannot read the messages of one pull.

This pull gets an error. The other pulls get their messages.
"""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from routekeeper.broker.requests.pulling import Pull
from routekeeper.broker.server.delay import DelayService
from routekeeper.broker.server.waiting_pulls import WaitingPulls
from routekeeper.broker.store.files import DISK
from routekeeper.broker.store.messages import Draft
from routekeeper.broker.tables.state import BrokerState
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import decode_messages
from tests.broker.states import HOST, NOW


@pytest.fixture
def first_read_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    read, failed = DISK.read, False

    def failing(fd: int, size: int, at: int) -> bytes:
        nonlocal failed
        if not failed:
            failed = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(fd, size, at)

    monkeypatch.setattr(DISK, "read", failing)


def pull(number: int) -> Pull:
    return Pull(
        request=RemotingCommand.request(11).with_opaque(number),
        connection=number,
        topic="T",
        queue_id=0,
        first_offset=0,
        offset=0,
        count_max=32,
        bytes_max=1 << 20,
        codes=None,
        suspend_ms=10_000,
        parked=True,
    )


def parked(state: BrokerState, sent: list[tuple[int, RemotingCommand]]) -> WaitingPulls:
    """Park the pulls 1 and 2 of one queue, then store a message in the queue. Return the waiting pulls.

    The list ``sent`` gets each answer, with the number of the connection to which it is sent.
    """

    def send(of: Pull, answer: RemotingCommand) -> None:
        sent.append((of.connection, answer))

    pulls = WaitingPulls(state, delay=DelayService(state, delivered=lambda: None), send=send)
    deadline = asyncio.get_running_loop().time() + 3600
    assert all(pulls.park(pull(number), deadline=deadline) for number in (1, 2))
    state.store.put(
        Draft(topic="T", queue_id=0, body=b"x", properties="", tags_code=0, born_host=HOST), now_ms=NOW
    )
    return pulls


def check(sent: list[tuple[int, RemotingCommand]]) -> None:
    (_, unread), (_, found) = sent
    assert [connection for connection, _ in sent] == [unread.opaque, found.opaque] == [1, 2]
    assert (unread.code, unread.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "the disk refused: Input/output error",
    )
    assert (found.code, [message.body for message in decode_messages(found.body)]) == (0, [b"x"])


@pytest.mark.usefixtures("first_read_fails")
def test_pull_whose_messages_cannot_be_read_is_answered_and_those_behind_it_are_served(
    state: BrokerState,
) -> None:
    sent: list[tuple[int, RemotingCommand]] = []

    async def main() -> None:
        pulls = parked(state, sent)
        pulls.arrived({("T", 0)})
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    check(sent)


def test_pulls_of_deleted_topics_and_no_others_are_tried_again(state: BrokerState) -> None:
    sent: list[tuple[int, RemotingCommand]] = []

    async def main() -> None:
        pulls = parked(state, sent)
        pulls.deleted({"Other"})
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sent == []
        pulls.deleted({"Other", "T"})
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert [connection for connection, _ in sent] == [1, 2]


@pytest.mark.usefixtures("first_read_fails")
def test_every_pull_is_answered_at_the_end_of_its_time_though_one_cannot_be_read(state: BrokerState) -> None:
    sent: list[tuple[int, RemotingCommand]] = []

    async def main() -> None:
        parked(state, sent).end()

    asyncio.run(main())
    check(sent)
