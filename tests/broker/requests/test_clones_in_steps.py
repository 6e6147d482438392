"""Requests 314 (clone offsets) and 222 (reset offsets) store many offsets in steps.

Other requests are served between two steps, so they do not wait long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from routekeeper.broker.errors import Refusal
from routekeeper.broker.requests.group_requests import CLONED
from routekeeper.broker.requests.handlers import serve
from routekeeper.broker.tables.state import BrokerState, Call, Later, Stepwise
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import TopicConfig
from tests.broker.states import HOST, NOW, state_in
from tests.cost import least_cpu_s

TOPICS, QUEUES = 20, 900
NO_PERMISSION = 16


@pytest.fixture
def state(tmp_path: Path) -> Iterator[BrokerState]:
    made = state_in(tmp_path, TopicConfig(topic_name="T0", read_queue_nums=QUEUES, write_queue_nums=QUEUES))
    for number in range(TOPICS):
        topic = TopicConfig(topic_name=f"T{number}", read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        made.topics.put(topic, now_ms=NOW)
        for queue_id in range(QUEUES):
            made.offsets.commit(f"T{number}", "G", queue_id, 100 + queue_id)
    yield made
    made.store.log.close()


def clone(state: BrokerState, source: str, dest: str, topic: str = "") -> object:
    ext = {"srcGroup": source, "destGroup": dest, "topic": topic, "offline": "true"}
    return serve(
        state,
        Call(request=RemotingCommand.request(314, ext), connection=1, peer=HOST, now_ms=NOW, now=0.0),
    )


def answer(outcome: object, *, stepped: Callable[[], object] = lambda: None) -> RemotingCommand:
    """Run all steps of an outcome. Call ``stepped`` between two steps. Return the answer."""
    assert isinstance(outcome, Stepwise)
    try:
        step = next(outcome.work)
        while True:
            stepped()
            step = outcome.work.send(step())
    except StopIteration as end:
        result = end.value
    if isinstance(result, Later):
        assert result.offsets_saved
        return result.reply
    assert isinstance(result, RemotingCommand)
    return result


def copied(state: BrokerState, dest: str) -> int:
    return sum(len(state.offsets.queues(f"T{number}", dest)) for number in range(TOPICS))


def test_copy_of_a_group_to_itself_is_answered_at_once(state: BrokerState) -> None:
    before = state.offsets.changed
    for topic in ("", "T3"):
        outcome = clone(state, "G", "G", topic)
        assert isinstance(outcome, RemotingCommand)
        assert outcome.code == 0
    refused = clone(state, "bad name!", "bad name!")
    assert isinstance(refused, RemotingCommand)
    assert refused.code != 0
    assert state.offsets.changed == before


def test_copy_of_many_topics_is_made_in_steps(state: BrokerState) -> None:
    counts = [0]
    assert answer(clone(state, "G", "H"), stepped=lambda: counts.append(copied(state, "H"))).code == 0
    counts.append(copied(state, "H"))
    assert counts[-1] == TOPICS * QUEUES
    assert max(after - before for before, after in pairwise(counts)) <= CLONED
    for number in range(TOPICS):
        assert state.offsets.queues(f"T{number}", "H") == state.offsets.queues(f"T{number}", "G")


def test_commits_between_the_steps_are_neither_lost_nor_overwritten(state: BrokerState) -> None:
    def commit() -> None:
        done = [f"T{number}" for number in range(TOPICS) if state.offsets.queues(f"T{number}", "H")]
        for topic in done:
            state.offsets.commit(topic, "H", 1, 7_000)
        for topic in {f"T{number}" for number in range(TOPICS)}.difference(done):
            state.offsets.commit(topic, "G", 2, 8_000)

    assert answer(clone(state, "G", "H"), stepped=commit).code == 0
    first, last = state.offsets.queues("T0", "H"), state.offsets.queues(f"T{TOPICS - 1}", "H")
    assert (first[1], first[2]) == (7_000, 102)
    assert (last[1], last[2]) == (101, 8_000)


def test_topics_that_are_deleted_between_the_steps_get_no_offsets(state: BrokerState) -> None:
    def delete() -> None:
        for topic in ("T0", f"T{TOPICS - 1}"):
            serve(
                state,
                Call(
                    request=RemotingCommand.request(215, {"topic": topic}),
                    connection=1,
                    peer=HOST,
                    now_ms=NOW,
                    now=0.0,
                ),
            )

    assert answer(clone(state, "G", "H"), stepped=delete).code == 0
    assert state.offsets.topics_of("H") == tuple(f"T{number}" for number in range(1, TOPICS - 1))


def test_copy_that_would_need_too_many_bytes_is_refused_topic_by_topic(state: BrokerState) -> None:
    room = state.offsets.size * 3 // (2 * TOPICS)  # room for one and a half topics
    state.config = replace(state.config, offset_bytes_max=state.offsets.size + room)
    refused = answer(clone(state, "G", "H"))
    assert refused.code == NO_PERMISSION
    assert "maxConsumerOffsetBytes" in (refused.remark or "")
    assert copied(state, "H") == QUEUES, "a topic is copied as a whole, or not at all"
    assert answer(clone(state, "G", "H", "T0")).code == 0, "what needs no room is always taken"


def test_offsets_of_all_queues_cost_little_when_they_are_stored_at_once(state: BrokerState) -> None:
    offsets = {queue_id: queue_id for queue_id in range(65_536)}

    def commit() -> None:
        for queue_id, offset in offsets.items():
            state.offsets.commit("T0", "H", queue_id, offset)

    def one_by_one() -> Callable[[], object]:
        list(state.offsets.drop_group("H"))
        return commit

    def at_once() -> Callable[[], object]:
        list(state.offsets.drop_group("H"))
        return lambda: state.commit_offsets("T0", "H", offsets)

    def again() -> Callable[[], object]:
        return lambda: state.commit_offsets("T0", "H", offsets)

    allowed = least_cpu_s(one_by_one, below=0.0) / 2
    assert least_cpu_s(at_once, below=allowed) < allowed
    assert least_cpu_s(again, below=allowed) < allowed
    assert state.offsets.queues("T0", "H") == offsets


def test_stored_offsets_are_all_or_none(state: BrokerState) -> None:
    size = state.offsets.size
    state.config = replace(state.config, offset_bytes_max=size + 25)  # room for one offset, not for two
    with pytest.raises(Refusal):
        state.commit_offsets("T0", "G", {0: 1, QUEUES: 2, QUEUES + 1: 3})
    assert state.offsets.get("T0", "G", 0) == 100
    assert state.offsets.size == size
