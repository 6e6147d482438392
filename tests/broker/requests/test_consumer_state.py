"""The state that a broker keeps for consumers: offsets, queue locks, waiting pulls and group settings."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.broker.tables.group_configs import GroupConfigs
from routekeeper.broker.tables.locks import QueueLocks
from routekeeper.broker.tables.long_polling import ParkedPulls
from routekeeper.broker.tables.offsets import ConsumerOffsets
from routekeeper.remoting.bodies import MessageQueue, SubscriptionGroupConfig
from tests.cost import least_cpu_s


def test_offsets_are_written_as_rocketmq_writes_them() -> None:
    offsets = ConsumerOffsets()
    offsets.commit("T", "G", 0, 5)
    offsets.commit("T", "G", 1, 7)
    assert offsets.to_json() == b'{"offsetTable":{"T@G":{0:5,1:7}}}'
    again = ConsumerOffsets()
    again.load(offsets.to_json().decode())
    assert again.get("T", "G", 1) == 7
    assert again.get("T", "G", 2) is None


def test_equal_commit_is_no_change() -> None:
    offsets = ConsumerOffsets()
    offsets.commit("T", "G", 0, 5)
    before = offsets.changed
    offsets.commit("T", "G", 0, 5)
    assert offsets.changed == before
    offsets.commit("T", "G", 0, 4)
    assert offsets.changed == before + 1


def test_offsets_are_dropped_by_topic_and_by_group() -> None:
    offsets = ConsumerOffsets()
    for topic, group in (("T", "G"), ("T", "H"), ("U", "G")):
        offsets.commit(topic, group, 0, 1)
    assert offsets.groups_of("T") == ("G", "H")
    offsets.drop_topic("T")
    assert offsets.topics_of("G") == ("U",)
    list(offsets.drop_group("G"))
    assert offsets.to_json() == b'{"offsetTable":{}}'


def test_offsets_that_did_not_change_are_not_encoded_again() -> None:
    offsets = ConsumerOffsets()

    def committed() -> Callable[[], bytes]:
        nonlocal offsets
        offsets = ConsumerOffsets()
        for number in range(60_000):
            offsets.commit(f"T{number // 4}", "G", number % 4, number)
        return offsets.to_json

    all_s = least_cpu_s(committed, below=0.0)
    text = b""

    def some_more() -> None:
        nonlocal text
        for number in range(5):
            offsets.commit("T0", "G", 0, 1_000_000 + number)
            text = offsets.to_json()

    assert least_cpu_s(lambda: some_more, below=all_s) < all_s
    assert text.startswith(b'{"offsetTable":{"T0@G":{0:1000004,1:1,2:2,3:3},"T1@G":')
    list(offsets.drop_group("G"))
    offsets.commit("T", "H", 1, 2)
    assert offsets.to_json() == b'{"offsetTable":{"T@H":{1:2}}}'


@pytest.mark.parametrize("text", ["", "[1]", '{"offsetTable":{"T":{0:1}}}', '{"offsetTable":{"T@G":5}}'])
def test_broken_offset_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        ConsumerOffsets().load(text)


QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=0)


def test_lock_is_held_until_it_expires_or_is_freed_by_its_owner() -> None:
    locks = QueueLocks()
    assert locks.lock("G", "c1", [QUEUE], now=0.0) == (QUEUE,)
    assert locks.lock("G", "c2", [QUEUE], now=60.0) == ()
    assert locks.lock("G", "c1", [QUEUE], now=60.0) == (QUEUE,)
    locks.unlock("G", "c2", [QUEUE])
    assert locks.lock("G", "c2", [QUEUE], now=61.0) == ()
    assert locks.lock("G", "c2", [QUEUE], now=120.5) == (QUEUE,)
    locks.unlock("G", "c2", [QUEUE])
    assert locks.lock("G", "c1", [QUEUE], now=121.0) == (QUEUE,)


def test_groups_lock_independently() -> None:
    locks = QueueLocks()
    assert locks.lock("G", "c1", [QUEUE], now=0.0)
    assert locks.lock("H", "c2", [QUEUE], now=0.0)


def test_woken_pull_leaves_with_its_deadline_and_only_its_queue() -> None:
    parked: ParkedPulls[str] = ParkedPulls()
    assert parked.park("a", owner=1, topic="T", queue_id=0, deadline=10.0)
    assert parked.park("b", owner=1, topic="T", queue_id=1, deadline=11.0)
    assert list(parked.wake("T", 0, up_to=parked.parked, most=1_000)) == [("a", 10.0)]
    assert list(parked.wake("T", 0, up_to=parked.parked, most=1_000)) == []
    assert parked.next_deadline() == 11.0
    assert list(parked.expire(10.9)) == []
    assert list(parked.expire(11.0)) == ["b"]
    assert len(parked) == 0
    assert parked.next_deadline() is None


def test_pulls_of_a_closed_connection_are_dropped() -> None:
    parked: ParkedPulls[str] = ParkedPulls()
    parked.park("a", owner=1, topic="T", queue_id=0, deadline=10.0)
    parked.park("b", owner=2, topic="T", queue_id=0, deadline=10.0)
    assert parked.drop(1) == 1
    assert list(parked.wake("T", 0, up_to=parked.parked, most=1_000)) == [("b", 10.0)]


def test_parking_is_bounded() -> None:
    parked: ParkedPulls[str] = ParkedPulls(limit=1)
    assert parked.park("a", owner=1, topic="T", queue_id=0, deadline=10.0)
    assert not parked.park("b", owner=1, topic="T", queue_id=0, deadline=10.0)


def test_bytes_of_parked_pulls_are_bounded_until_some_leave() -> None:
    parked: ParkedPulls[str] = ParkedPulls(bytes_max=100)
    for name, owner in (("a", 1), ("b", 2)):
        assert parked.park(name, owner=owner, topic="T", queue_id=owner, deadline=10.0, size=45)
    assert not parked.park("c", owner=3, topic="T", queue_id=3, deadline=10.0, size=11)
    assert parked.park("d", owner=3, topic="T", queue_id=3, deadline=11.0, size=10)
    assert parked.drop(1) == 1
    assert parked.park("e", owner=3, topic="T", queue_id=3, deadline=12.0, size=45)
    assert [pull for pull, _ in parked.wake("T", 2, up_to=parked.parked, most=1_000)] == ["b"]
    assert list(parked.expire(11.0)) == ["d"]
    assert parked.park("f", owner=3, topic="T", queue_id=3, deadline=12.0, size=55)
    assert not parked.park("g", owner=3, topic="T", queue_id=3, deadline=12.0, size=1)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("park"), st.integers(0, 3), st.integers(0, 3), st.integers(0, 20)),
            st.tuples(st.just("wake"), st.integers(0, 3), st.just(0), st.just(0)),
            st.tuples(st.just("expire"), st.just(0), st.just(0), st.integers(0, 20)),
            st.tuples(st.just("drop"), st.just(0), st.integers(0, 3), st.just(0)),
        ),
        max_size=60,
    )
)
def test_every_parked_pull_leaves_exactly_once(steps: list[tuple[str, int, int, int]]) -> None:
    parked: ParkedPulls[int] = ParkedPulls()
    model: dict[int, tuple[int, int, float]] = {}
    for number, (step, queue, owner, at) in enumerate(steps):
        if step == "park":
            assert parked.park(number, owner=owner, topic="T", queue_id=queue, deadline=float(at))
            model[number] = (queue, owner, float(at))
            continue
        if step == "wake":
            left = {pull for pull, _ in parked.wake("T", queue, up_to=parked.parked, most=1_000)}
            expected = {pull for pull, entry in model.items() if entry[0] == queue}
        elif step == "expire":
            left = set(parked.expire(float(at)))
            expected = {pull for pull, entry in model.items() if entry[2] <= at}
        else:
            expected = {pull for pull, entry in model.items() if entry[1] == owner}
            assert parked.drop(owner) == len(expected)
            left = expected
        assert left == expected
        for pull in left:
            del model[pull]
        assert len(parked) == len(model)


def test_group_configs_round_trip_and_keep_the_predefined() -> None:
    groups = GroupConfigs()
    config = SubscriptionGroupConfig(group_name="G", retry_max_times=3)
    assert groups.put(config, now_ms=5)
    assert not groups.put(config, now_ms=6)
    again = GroupConfigs()
    again.load(groups.to_json().decode())
    assert again.get("G") == config
    assert again.get("TOOLS_CONSUMER") is not None
    assert again.delete("G", now_ms=7)
    assert again.get("G") is None


@pytest.mark.parametrize("text", ["", "[]", '{"subscriptionGroupTable":{"G":{}}}'])
def test_broken_group_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        GroupConfigs().load(text)


def test_stored_group_with_numbers_outside_their_range_is_served_within_it() -> None:
    groups = GroupConfigs()
    table = {
        name: SubscriptionGroupConfig(group_name=name, retry_queue_nums=count).to_json()
        for name, count in (("Many", 2_000_000_000), ("Few", -7), ("Good", 5))
    }
    groups.load(json.dumps({"subscriptionGroupTable": table}))
    found = {name: groups.get(name) for name in table}
    assert {name: config.retry_queue_nums for name, config in found.items() if config} == {
        "Many": 1024,
        "Few": 0,
        "Good": 5,
    }
