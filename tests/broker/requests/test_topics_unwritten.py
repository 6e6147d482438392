"""Sends while the broker can write its log, but not its topic table.

Code 14 tells a producer that nothing was stored, so Java's producer sends the message again. Code 10 says
that the message is stored, but that a power cut may remove it.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from routekeeper.broker.tables.topics import SCHEDULE_TOPIC
from routekeeper.remoting.codes import RETRY_PREFIX
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import decode_messages, parse_offset_message_id
from tests.broker.server.test_sync_flush import Broker, running_broker, settings
from tests.waiting import WITHIN_S

pytestmark = pytest.mark.slow

FLUSH_DISK_TIMEOUT = 10
SERVICE_NOT_AVAILABLE = 14
UNWRITTEN = (SERVICE_NOT_AVAILABLE, "cannot write topics.json: Is a directory")


class Obstacles:
    """Folders that make every write of the topic table fail, until they are removed."""

    def __init__(self, store: Path) -> None:
        folder = store / "config"
        (journal,) = folder.glob("topics-*.journal")
        self._journal, self._former = journal, journal.read_bytes()
        self._temporary = folder / "topics.json.tmp"
        self._temporary.mkdir()
        journal.unlink()
        journal.mkdir()

    def remove(self) -> None:
        """Remove the folders. The broker writes the table within about a second."""
        self._journal.rmdir()
        self._journal.write_bytes(self._former)
        self._temporary.rmdir()


async def stored(broker: Broker, topic: str) -> list[bytes]:
    """Return the bodies of the messages that a consumer gets from the first queue of a topic."""
    ext = {"consumerGroup": "G", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32"}
    ext |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"}
    answer = await broker.call(11, ext | {"subVersion": "0", "expressionType": "TAG"})
    return [message.body for message in decode_messages(answer.body)]


async def end_of(broker: Broker, topic: str) -> int:
    return int((await broker.call(30, {"topic": topic, "queueId": "0"})).ext_fields["offset"])


async def until_taken(broker: Broker, topic: str, body: bytes) -> int:
    """Send a message again as long as it is refused. Return the last answer's code."""
    deadline = time.monotonic() + WITHIN_S
    while (code := (await broker.send(body, topic)).code) == SERVICE_NOT_AVAILABLE:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    return code


async def sent(broker: Broker, body: bytes, topic: str) -> RemotingCommand:
    """Send as a producer does, again after code 14. Return the last of at most four answers."""
    for _ in range(4):
        answer = await broker.send(body, topic)
        if answer.code != SERVICE_NOT_AVAILABLE:
            break
    return answer


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_send_that_creates_a_topic_is_stored_once_and_later_sends_are_refused_before_they_are_stored(
    tmp_path: Path, flush: str
) -> None:
    async with running_broker(tmp_path, settings(flush_disk_type=flush)) as broker:
        assert (await broker.send(b"x")).code == 0
        obstacles = Obstacles(tmp_path)
        first = await sent(broker, b"first", "New")
        assert (first.code, await stored(broker, "New")) == (FLUSH_DISK_TIMEOUT, [b"first"])
        assert first.ext_fields["queueOffset"] == "0"
        for topic in ("New", "Newer"):
            refused = await broker.send(b"second", topic)
            assert (refused.code, refused.remark) == UNWRITTEN
            assert refused.ext_fields["TRACE_ON"] == "true"
            assert (await broker.send(b"delayed", topic, "DELAY\x011\x02")).code == SERVICE_NOT_AVAILABLE
        assert await stored(broker, "New") == [b"first"]
        assert [await end_of(broker, topic) for topic in ("Newer", SCHEDULE_TOPIC)] == [0, 0]
        assert (await broker.send(b"x")).code == 0, "a topic that is in the file"
        obstacles.remove()
        assert await until_taken(broker, "New", b"second") == 0
        assert await stored(broker, "New") == [b"first", b"second"]


async def test_message_that_is_sent_back_while_its_retry_topic_cannot_be_written_is_stored_once(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, settings()) as broker:
        message = await broker.send(b"x")
        assert message.code == 0
        obstacles = Obstacles(tmp_path)
        offset = parse_offset_message_id(message.ext_fields["msgId"])[1]
        back = {"group": "G", "offset": str(offset), "delayLevel": "3"}
        assert (await broker.call(36, back)).code == FLUSH_DISK_TIMEOUT
        refused = await broker.call(36, back)
        assert (refused.code, refused.remark) == UNWRITTEN
        ext = {"topic": SCHEDULE_TOPIC, "queueId": "2"}
        assert (await broker.call(30, ext)).ext_fields == {"offset": "1"}
        obstacles.remove()
        assert await until_taken(broker, f"{RETRY_PREFIX}G", b"y") == 0
