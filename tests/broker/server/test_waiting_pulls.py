"""Waiting pulls: the disk cannot read the messages of one pull, or many messages do not match a pull."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace

import msgspec
import pytest

from routekeeper.broker.requests.pulling import Pull, look
from routekeeper.broker.server.delay import DelayService
from routekeeper.broker.server.waiting_pulls import WaitingPulls
from routekeeper.broker.store.files import DISK
from routekeeper.broker.store.messages import Draft
from routekeeper.broker.tables.state import BrokerState
from routekeeper.remoting.bodies import SubscriptionGroupConfig
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import decode_messages
from routekeeper.remoting.route import TopicConfig
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


def store(state: BrokerState, bodies: list[bytes], tags_code: int) -> None:
    drafts = [
        Draft(topic="T", queue_id=0, body=body, properties="", tags_code=tags_code, born_host=HOST)
        for body in bodies
    ]
    state.store.put_all(drafts, now_ms=NOW)


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


@pytest.mark.parametrize("others", [1, 900])
def test_pull_with_a_tag_is_answered_at_once_though_many_messages_with_other_tags_came_first(
    state: BrokerState, others: int
) -> None:
    """One search reads at most 800 entries, so the wanted message may lie behind the end of the search."""
    sent: list[RemotingCommand] = []
    tag_a, tag_b = 65, 66
    waiting = msgspec.structs.replace(pull(1), codes=frozenset({tag_a}))

    async def main() -> None:
        pulls = WaitingPulls(
            state,
            delay=DelayService(state, delivered=lambda: None),
            send=lambda _, answer: sent.append(answer),
        )
        deadline = asyncio.get_running_loop().time() + 3600
        assert pulls.park(waiting, deadline=deadline)
        store(state, [b"b"] * 3, tag_b)
        pulls.arrived({("T", 0)})
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sent == [], "no message has the tag, so the pull waits"
        store(state, [b"b"] * others, tag_b)
        store(state, [b"a"], tag_a)
        pulls.arrived({("T", 0)})
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    (answer,) = sent
    while answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:  # a consumer then pulls again at once
        offset = int(answer.ext_fields["nextBeginOffset"])
        again = look(state, msgspec.structs.replace(waiting, offset=offset, parked=False))
        assert isinstance(again, RemotingCommand)
        answer = again
    assert (answer.code, [message.body for message in decode_messages(answer.body)]) == (0, [b"a"])
    assert answer.ext_fields["nextBeginOffset"] == str(3 + others + 1)


@pytest.mark.parametrize("withdrawn", ["group", "topic", "broker"])
def test_held_pull_gets_no_message_after_its_permission_was_withdrawn(
    state: BrokerState, withdrawn: str
) -> None:
    sent: list[RemotingCommand] = []
    state.topics.put(TopicConfig(topic_name="T"), now_ms=NOW)
    request = RemotingCommand.request(11, {"consumerGroup": "G"}).with_opaque(1)
    waiting = msgspec.structs.replace(pull(1), request=request)

    async def main() -> None:
        pulls = WaitingPulls(
            state,
            delay=DelayService(state, delivered=lambda: None),
            send=lambda _, answer: sent.append(answer),
        )
        assert pulls.park(waiting, deadline=asyncio.get_running_loop().time() + 3600)
        if withdrawn == "group":
            state.groups.put(SubscriptionGroupConfig(group_name="G", consume_enable=False), now_ms=NOW)
        elif withdrawn == "topic":
            state.topics.put(TopicConfig(topic_name="T", perm=2), now_ms=NOW)
        else:
            state.config = replace(state.config, broker_permission=2)
        store(state, [b"x"], 0)
        pulls.arrived({("T", 0)})
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    (answer,) = sent
    assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b"")


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
