"""The broker serves requests about all groups or many queues in steps, and other requests between steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from routekeeper.broker.requests.handlers import serve
from routekeeper.broker.requests.inspection import PRODUCERS_MAX
from routekeeper.broker.store.consume_queue import ConsumeQueue
from routekeeper.broker.tables.groups import Client
from routekeeper.broker.tables.state import BrokerState, Call, Later, Stepwise
from routekeeper.remoting.bodies import HeartbeatData, SubscriptionGroupConfig
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import TopicConfig
from tests.broker.states import HOST, NOW
from tests.cost import TRIES, least_cpu_s

GROUPS, QUEUES = 30_000, 8
#: Largest number of queues of a topic.
MOST = 65_536
TURN_S = 0.05


@pytest.mark.slow
def test_comparing_many_groups_leaves_turns_to_others(state: BrokerState) -> None:
    for group in range(GROUPS):
        for queue_id in range(QUEUES):
            state.offsets.commit("T", f"G{group}", queue_id, 100 + group)
    for queue_id in range(QUEUES):
        state.offsets.commit("T", "Compared", queue_id, 50)
    request = RemotingCommand.request(
        308, {"topic": "T", "compareGroup": "Compared", "filterGroups": "Compared"}
    )
    call = Call(request=request, connection=1, peer=HOST, now_ms=NOW, now=0.0)
    longest = []
    # Another process may slow a step once. A step that is too long by itself is too long in every try.
    for _ in range(TRIES):
        outcome, turns = in_turns(state, call)
        longest.append(turns)
        if max(turns) < TURN_S:
            break
    assert max(min(same) for same in zip(*longest, strict=True)) < TURN_S
    pairs = b",".join(b"%d:%d" % (queue_id, 2**63 - 1) for queue_id in range(QUEUES))
    assert outcome.body == b'{"correctionOffsets":{' + pairs + b"}}"


@pytest.mark.slow
def test_listing_many_producers_leaves_turns_to_others(state: BrokerState) -> None:
    groups = tuple(f"p{number}" for number in range(1000))
    for connection in range(50):
        data = HeartbeatData(client_id=f"c{connection}", consumers=(), producer_groups=groups)
        beat = RemotingCommand.request(34, body=data.encode())
        serve(state, Call(request=beat, connection=connection, peer=HOST, now_ms=NOW, now=0.0))
    call = Call(request=RemotingCommand.request(328), connection=1, peer=HOST, now_ms=NOW, now=0.0)
    longest = []
    for _ in range(TRIES):
        outcome, turns = in_turns(state, call)
        longest.append(turns)
        if max(turns) < TURN_S:
            break
    assert max(min(same) for same in zip(*longest, strict=True)) < TURN_S
    data = orjson.loads(outcome.body)["data"]
    assert list(data) == list(groups)
    assert all([row["clientId"] for row in rows] == [f"c{n}" for n in range(50)] for rows in data.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (222, {"topic": "T", "group": "G", "timestamp": "-1", "isForce": "true"}),
        (314, {"topic": "T", "srcGroup": "G", "destGroup": "H", "offline": "true"}),
        (308, {"topic": "T", "compareGroup": "G"}),
        (43, {}),
    ],
    ids=["reset", "clone", "compare", "all"],
)
def test_a_topic_with_many_queues_leaves_turns_to_others(
    state: BrokerState, code: int, ext: dict[str, str]
) -> None:
    state.topics.put(TopicConfig(topic_name="T", read_queue_nums=MOST, write_queue_nums=MOST), now_ms=NOW)
    state.groups.put(SubscriptionGroupConfig(group_name="G"), now_ms=NOW)
    call = Call(request=RemotingCommand.request(code, ext), connection=1, peer=HOST, now_ms=NOW, now=0.0)

    def commit_one_by_one() -> None:
        for queue_id in range(MOST):
            state.offsets.commit("T", "One by one", queue_id, 1)

    def first_commits() -> Callable[[], object]:
        state.offsets.drop_topic("T")
        return commit_one_by_one

    # The limit of a step is about 35 ms: two thirds of the time in which all offsets are committed one by
    # one. A request that was served in a single step would take longer.
    allowed = least_cpu_s(first_commits, below=0.0) * 2 / 3
    longest = []
    for number in range(TRIES):
        state.offsets.drop_topic("T")
        for group in ("G",) if code == 314 else ("G", "I", "J", "K"):
            state.offsets.commit_all("T", group, dict.fromkeys(range(MOST), 1 + number))
        outcome, turns = in_turns(state, call)
        assert outcome.code == 0
        longest.append(turns)
        if max(turns) < allowed:
            break
    assert max(min(same) for same in zip(*longest, strict=True)) < allowed


def test_refused_list_of_producers_copies_none_of_them(
    state: BrokerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = tuple(f"p{number}" for number in range(PRODUCERS_MAX // 50))
    for connection in range(51):
        data = HeartbeatData(client_id=f"c{connection}", producer_groups=groups)
        client = Client(
            connection=connection, client_id=data.client_id, client_addr="", language=None, version=479
        )
        state.clients.heartbeat(client, data, now=0.0)
    monkeypatch.setattr(state.clients, "producer_groups", None)
    call = Call(request=RemotingCommand.request(328), connection=1, peer=HOST, now_ms=NOW, now=0.0)
    refused, _ = in_turns(state, call)
    assert refused.remark == "51000 producers are above 50000: ask group by group"
    state.clients.closed(7)
    assert state.clients.producer_count() == 50_000


@pytest.mark.slow
@pytest.mark.parametrize(("topics", "queues"), [(30_000, 1), (5, MOST)], ids=["topics", "queues"])
def test_deletion_of_a_group_with_many_offsets_leaves_turns_to_others(
    state: BrokerState, topics: int, queues: int
) -> None:
    def remove() -> Callable[[], object]:
        for number in range(topics):
            state.offsets.commit_all(f"T{number}", "G", dict.fromkeys(range(queues), 1))
        return lambda: list(state.offsets.drop_group("G"))

    # A step may take half of the CPU time that this machine needs to remove all offsets in one step.
    allowed = least_cpu_s(remove, below=0.0) / 2
    request = RemotingCommand.request(207, {"groupName": "G", "removeOffset": "true"})
    call = Call(request=request, connection=1, peer=HOST, now_ms=NOW, now=0.0)
    longest = []
    for _ in range(TRIES):
        remove()
        outcome, turns = in_turns(state, call)
        assert outcome.code == 0
        assert (state.offsets.topics_of("G"), state.offsets.size) == ((), 0)
        longest.append(turns)
        if max(turns) < allowed:
            break
    assert max(min(same) for same in zip(*longest, strict=True)) < allowed


@pytest.mark.slow
def test_deletion_of_a_topic_with_many_queues_leaves_turns_to_others(state: BrokerState) -> None:
    config = TopicConfig(topic_name="Wide", read_queue_nums=MOST, write_queue_nums=MOST)
    call = Call(
        request=RemotingCommand.request(215, {"topic": "Wide"}), connection=1, peer=HOST, now_ms=NOW, now=0.0
    )

    def fill() -> None:
        state.topics.put(config, now_ms=NOW)
        for queue_id in range(MOST):
            state.store.reserve_queue("Wide", queue_id)

    def filled() -> Callable[[], object]:
        fill()
        return lambda: in_turns(state, call)

    # The limit of the deletion is about 5 ms: a hundredth of the time in which the queues are made. To remove
    # the queues one by one, or to make a list of them, would take longer.
    allowed = least_cpu_s(lambda: fill, below=0.0) / 100
    assert least_cpu_s(filled, below=allowed) < allowed
    assert not any(topic == "Wide" for topic, _ in state.store.queue_keys())


@pytest.mark.slow
def test_memory_of_many_deleted_queues_is_freed_in_steps(state: BrokerState, tmp_path: Path) -> None:
    def made() -> Callable[[], object]:
        return [ConsumeQueue(tmp_path / "T" / str(number), file_size=2000) for number in range(MOST)].clear

    def longest_turn_s() -> float:
        for queue_id in range(MOST):
            state.store.reserve_queue("T", queue_id)
        state.store.delete_topic("T")
        state.store.confirm_topics(0, state.store.deletions)
        turns = []
        begun = time.thread_time()
        for step in state.store.checkpoint():
            turns.append(time.thread_time() - begun)
            step()
            begun = time.thread_time()
        return max(*turns, time.thread_time() - begun)

    # The limit of a step is about 20 ms: half of the time in which the memory of so many queues is freed at
    # once.
    allowed = least_cpu_s(made, below=0.0) / 2
    assert min(longest_turn_s() for _ in range(TRIES)) < allowed


def in_turns(state: BrokerState, call: Call) -> tuple[RemotingCommand, list[float]]:
    """Serve a request, and return its answer and the CPU time in s of each of its steps."""
    turns = []
    begun = time.thread_time()
    outcome, done = serve(state, call), None
    while isinstance(outcome, Stepwise):
        try:
            step = outcome.work.send(done)
        except StopIteration as end:
            outcome = end.value
        else:
            turns.append(time.thread_time() - begun)
            done = step()
            begun = time.thread_time()
    turns.append(time.thread_time() - begun)
    reply = outcome.reply if isinstance(outcome, Later) else outcome
    assert isinstance(reply, RemotingCommand)
    return reply, turns
