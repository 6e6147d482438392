"""Each request reads only the parts of the log that it needs, and its handler works in short steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from routekeeper.broker.requests.handlers import serve
from routekeeper.broker.store.files import DISK
from routekeeper.broker.store.messages import Draft
from routekeeper.broker.store.steps import run_here
from routekeeper.broker.tables.state import BrokerState, Call, Later, Stepwise
from routekeeper.remoting.bodies import QueueOffsets, SubscriptionGroupConfig
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import decode_messages
from routekeeper.remoting.route import TopicConfig
from tests.broker.states import HOST, NOW, state_in

QUEUES, MESSAGES, BODY = 40, 5, 64 << 10
TOPIC = "T"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[BrokerState]:
    config = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
    made = state_in(tmp_path, config, log_file_size=64 << 20)
    made.groups.put(SubscriptionGroupConfig(group_name="G"), now_ms=NOW)
    for queue_id in range(QUEUES):
        for number in range(MESSAGES):
            message = Draft(
                topic=TOPIC, queue_id=queue_id, body=bytes(BODY), properties="", tags_code=0, born_host=HOST
            )
            made.store.put(message, now_ms=NOW + 10 * number)
            made.offsets.commit(TOPIC, "G", queue_id, number)
    yield made
    made.store.log.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the size in bytes of each read from a file."""
    read, sizes = DISK.read, []

    def noting(fd: int, size: int, at: int) -> bytes:
        sizes.append(size)
        return read(fd, size, at)

    monkeypatch.setattr(DISK, "read", noting)
    return sizes


def answer(
    state: BrokerState, code: int, ext: dict[str, str], *, stepped: Callable[[], object] = lambda: None
) -> RemotingCommand:
    """Serve a request. Call ``stepped`` before each part of the disk work, and after the last part."""
    request = RemotingCommand.request(code, ext)
    outcome = serve(state, Call(request=request, connection=1, peer=HOST, now_ms=NOW + 1000, now=0.0))
    while isinstance(outcome, Stepwise):
        try:
            step = outcome.work.send(None)
            while True:
                stepped()
                step = outcome.work.send(step())
        except StopIteration as end:
            stepped()
            outcome = end.value
    reply = outcome.reply if isinstance(outcome, Later) else outcome
    assert isinstance(reply, RemotingCommand)
    assert reply.code == 0, reply.remark
    return reply


QUEUE = {"topic": TOPIC, "queueId": "3"}


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (29, QUEUE | {"timestamp": str(NOW + 15)}),
        (32, QUEUE),
        (222, {"topic": TOPIC, "group": "G", "timestamp": str(NOW + 15), "isForce": "true"}),
        (202, {"topic": TOPIC}),
        (208, {"topic": TOPIC, "consumerGroup": "G"}),
        (303, {"topic": TOPIC, "group": "G"}),
        (28, {}),
    ],
)
def test_no_request_for_times_reads_a_body(
    state: BrokerState, reads: list[int], code: int, ext: dict[str, str]
) -> None:
    answer(state, code, ext)
    assert reads, "the times are in the files"
    assert max(reads) < BODY


def test_search_by_time_of_many_queues_is_done_queue_by_queue(state: BrokerState, reads: list[int]) -> None:
    counts = [0]
    ext = {"topic": TOPIC, "group": "G", "timestamp": str(NOW + 15), "isForce": "true"}
    reply = answer(state, 222, ext, stepped=lambda: counts.append(len(reads)))
    found = QueueOffsets.decode(reply.body).offsets
    assert list(found.values()) == [2] * QUEUES
    most = max(after - before for before, after in itertools.pairwise(counts))
    assert most <= 2 * (MESSAGES.bit_length() + 2), "two reads of each message that the search looks at"


def test_times_are_the_same_from_memory_and_from_files(state: BrokerState) -> None:
    def times() -> list[int | None]:
        places = [(queue_id, number) for queue_id in range(QUEUES) for number in range(MESSAGES)]
        return state.store.stored_times(TOPIC, places)()

    before = times()
    assert before == [NOW + 10 * number for number in range(MESSAGES)] * QUEUES
    run_here(state.store.checkpoint())
    assert times() == before
    assert state.store.earliest_log_time() == NOW


def test_query_by_key_reads_a_bounded_size_in_a_step_and_no_message_of_a_deleted_topic(
    tmp_path: Path, reads: list[int]
) -> None:
    state = state_in(tmp_path, TopicConfig(topic_name=TOPIC), log_file_size=64 << 20)
    size = 300 << 10

    def put(count: int) -> None:
        for _ in range(count):
            message = Draft(
                topic=TOPIC,
                queue_id=0,
                body=bytes(size),
                properties="KEYS\x01k\x02",
                tags_code=0,
                born_host=HOST,
            )
            state.store.put(message, now_ms=NOW)

    state.topics.follow_log(lambda: state.store.log.max_offset, {}, now_ms=NOW)
    put(40)
    answer(state, 215, {"topic": TOPIC})
    answer(state, 17, {"topic": TOPIC, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"})
    put(10)
    totals = [0]
    ext = {"topic": TOPIC, "key": "k", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(NOW + 1)}
    reads.clear()
    reply = answer(state, 12, ext, stepped=lambda: totals.append(sum(reads)))
    state.store.log.close()
    assert len(list(decode_messages(reply.body))) == 10
    assert len([read for read in reads if read > size]) == 10
    assert max(after - before for before, after in itertools.pairwise(totals)) < (1 << 20) + 2 * size
