"""A scrape of ``/metrics`` works in short steps. Queues without messages do not add to its work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from routekeeper.broker.server.metrics import Samples, gather
from routekeeper.broker.store.messages import Draft
from routekeeper.broker.tables.groups import Client
from routekeeper.broker.tables.state import BrokerState
from routekeeper.remoting.bodies import ConsumerData, HeartbeatData
from routekeeper.remoting.codes import LanguageCode
from routekeeper.remoting.route import TopicConfig
from tests.broker.server.test_http import BROKER, HOST, figure, gathered, state

__all__ = ["state"]

#: Largest number of table entries that one step may handle in these tests. The broker ends a step after 500
#: entries, but not within the entries of one group. So a step may handle more than 500 entries.
STEP_MAX = 1_500


class Work:
    """Counter of the queues that a scrape reads, and of the samples that it adds."""

    def __init__(self, state: BrokerState, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queues = self.samples = 0
        bounds: Callable[[str, int], tuple[int, int]] = state.store.bounds
        add = Samples.add_one_of_many

        def read(topic: str, queue_id: int) -> tuple[int, int]:
            self.queues += 1
            return bounds(topic, queue_id)

        def added(samples: Samples, name: str, value: float, labels: dict[str, str]) -> None:
            self.samples += 1
            add(samples, name, value, labels)

        monkeypatch.setattr(state.store, "bounds", read)
        monkeypatch.setattr(Samples, "add_one_of_many", added)


def put(state: BrokerState, topic: str, queue_id: int) -> None:
    draft = Draft(topic=topic, queue_id=queue_id, body=b"", properties="", tags_code=0, born_host=HOST)
    state.store.put(draft, now_ms=1)


def test_scrape_reads_only_queues_that_have_messages(
    state: BrokerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        config = TopicConfig(topic_name=f"T{number}", read_queue_nums=65_536, write_queue_nums=65_536)
        state.topics.put(config, now_ms=1)
    for queue_id in (0, 7, 65_535):
        put(state, "T3", queue_id)
    work = Work(state, monkeypatch)
    found = gathered(state)
    assert work.queues <= 3
    assert figure(found, "rocketmq_producer_offset", **BROKER, topic="T3") == 3
    assert figure(found, "rocketmq_producer_offset", **BROKER, topic="T4") == 0


def test_scrape_leaves_out_queues_that_a_topic_no_longer_has(state: BrokerState) -> None:
    for count in (8, 4):
        state.topics.put(TopicConfig(topic_name="T", read_queue_nums=count, write_queue_nums=2), now_ms=1)
        put(state, "T", count - 1)
    assert figure(gathered(state), "rocketmq_producer_offset", **BROKER, topic="T") == 1


def test_every_step_of_a_scrape_is_short(state: BrokerState, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [f"G{number}" for number in range(4_000)]
    client = Client(connection=1, client_id="c", client_addr="h:1", language=LanguageCode.JAVA, version=479)
    data = HeartbeatData(
        client_id="c",
        consumers=tuple(ConsumerData(group_name=group) for group in groups),
        producer_groups=tuple(groups),
    )
    state.clients.heartbeat(client, data, now=0.0)
    state.topics.put(TopicConfig(topic_name="T", read_queue_nums=5_000, write_queue_nums=5_000), now_ms=1)
    for queue_id in (0, 4_000):
        put(state, "T", queue_id)
    state.offsets.commit_all("T", "G0", dict.fromkeys(range(5_000), 0))
    for group in groups[1:]:
        state.offsets.commit("T", group, 0, 1)
    work = Work(state, monkeypatch)
    steps = []
    for _ in gather(state):
        steps.append(work.queues + work.samples)
        work.queues = work.samples = 0
    assert max(*steps, work.queues + work.samples) <= STEP_MAX
    assert sum(steps) > 4 * len(groups)
    found = gathered(state)
    assert (
        figure(found, "rocketmq_group_diff", group="G0", topic="T", countOfOnlineConsumers="1", msgModel="1")
        == 2
    )
    assert figure(found, "rocketmq_group_count", caddr="h:1", localaddr="c", group="G0") == 1
    assert figure(found, "mqbroker_series_left_out", family="rocketmq_producer_count") == 3_000
    assert figure(found, "mqbroker_consumer_lag_messages", topic="T", group="G0") == 2
