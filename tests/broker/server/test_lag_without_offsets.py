"""The lag in ``/metrics`` counts queues in which a group has no offset yet, as request 208 does."""

from __future__ import annotations

import pytest

from routekeeper.broker.requests.handlers import serve
from routekeeper.broker.server.lag import oldest_messages
from routekeeper.broker.server.metrics import Samples, gather
from routekeeper.broker.store.messages import Draft
from routekeeper.broker.tables.state import BrokerState, Call, Stepwise
from routekeeper.remoting.bodies import ConsumeStats
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import TopicConfig
from tests.broker.server.test_http import HOST, figure, gathered, state
from tests.broker.server.test_metrics_in_steps import STEP_MAX, Work

__all__ = ["state"]


def put(state: BrokerState, queue_id: int, *, now_ms: int = 1) -> None:
    draft = Draft(topic="T", queue_id=queue_id, body=b"", properties="", tags_code=0, born_host=HOST)
    state.store.put(draft, now_ms=now_ms)


def queues(state: BrokerState, count: int) -> None:
    state.topics.put(TopicConfig(topic_name="T", read_queue_nums=count, write_queue_nums=count), now_ms=1)


def samples(state: BrokerState) -> Samples:
    work = gather(state)
    try:
        while True:
            next(work)
    except StopIteration as end:
        found: Samples = end.value
        return found


def diff(state: BrokerState, group: str = "G") -> float:
    labels = {"group": group, "topic": "T", "countOfOnlineConsumers": "0", "msgModel": "1"}
    return figure(gathered(state), "rocketmq_group_diff", **labels)


def diff_in_208(state: BrokerState) -> int:
    request = RemotingCommand.request(208, {"consumerGroup": "G", "topic": "T"})
    outcome = serve(state, Call(request=request, connection=1, peer=HOST, now_ms=1, now=0.0))
    assert isinstance(outcome, Stepwise)
    try:
        step = next(outcome.work)
        while True:
            step = outcome.work.send(step())
    except StopIteration as end:
        listed = ConsumeStats.decode(end.value.body).offsets.values()
        return sum(each.broker_offset - each.consumer_offset for each in listed)


def test_lag_counts_the_queues_that_a_topic_got_later(state: BrokerState) -> None:
    queues(state, 4)
    for queue_id in range(4):
        put(state, queue_id)
        state.offsets.commit("T", "G", queue_id, 1)
    assert diff(state) == diff_in_208(state) == 0
    queues(state, 16)
    for queue_id in range(16):
        for _ in range(3):
            put(state, queue_id)
    assert diff(state) == diff_in_208(state) == 48
    found = gathered(state)
    assert figure(found, "mqbroker_consumer_lag_messages", topic="T", group="G") == 48
    assert figure(found, "mqbroker_consumer_lag_all_messages") == 48
    queues(state, 8)
    assert diff(state) == diff_in_208(state) == 24, "consumers read no other queues"


def test_age_of_the_oldest_message_counts_queues_without_an_offset(state: BrokerState) -> None:
    queues(state, 3)
    for queue_id, now_ms in ((0, 1_000), (2, 2_000), (0, 3_000)):
        put(state, queue_id, now_ms=now_ms)
    state.offsets.commit("T", "G", 0, 1)
    (lag,) = samples(state).behind
    assert lag.queues == ((0, 1), (2, 0))
    assert oldest_messages(state.store, [lag])() == {("T", "G"): 2_000}


@pytest.mark.parametrize("removed_at", range(8))
def test_group_whose_offsets_are_removed_during_a_scrape_has_no_lag(
    state: BrokerState, removed_at: int
) -> None:
    queues(state, 2_000)
    for queue_id in (0, 1_500):
        put(state, queue_id)
    for group in ("G", "H"):
        state.offsets.commit_all("T", group, dict.fromkeys(range(1_500 if group == "H" else 1_501), 1))
    work, lags = gather(state), []
    try:
        for step in range(100):
            next(work)
            if step == removed_at:
                list(state.offsets.drop_group("H"))
    except StopIteration as end:
        lags = end.value.behind
    found = {lag.group: (lag.messages, lag.queues) for lag in lags}
    assert found in ({}, {"H": (1, ())}), "H is removed before, or after its lag of 1 was counted"


def test_lag_of_many_groups_reads_no_queue_for_each_group(
    state: BrokerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues(state, 2_000)
    for queue_id in range(2_000):
        put(state, queue_id)
    for number in range(900):
        state.offsets.commit("T", f"G{number}", 0, 0)
    state.offsets.commit_all("T", "G", dict.fromkeys(range(1_500), 1))
    work = Work(state, monkeypatch)
    steps, in_all = [], 0
    for _ in gather(state):
        steps.append(work.queues + work.samples)
        in_all += work.queues
        work.queues = work.samples = 0
    assert max(*steps, work.queues + work.samples) <= STEP_MAX
    assert in_all < 10_000
    assert (diff(state), diff(state, "G7")) == (500, 2_000)
