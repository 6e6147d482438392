"""The table of offsets: removal of topics and groups, and pairs (topic, group) with many queues."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from routekeeper.broker.tables.offsets import DROPPED, LARGE, SWEPT, ConsumerOffsets
from tests.cost import least_cpu_s, on_this_machine

GROUPS = 30_000
QUEUES = 65_536


def loaded(offsets: ConsumerOffsets) -> ConsumerOffsets:
    """Return the table that a broker would have after a restart."""
    again = ConsumerOffsets()
    again.load(offsets.to_json().decode())
    return again


@pytest.mark.parametrize("seed", range(5))
def test_table_is_as_if_each_removal_were_done_at_once(seed: int) -> None:
    rng = random.Random(seed)
    offsets = ConsumerOffsets()
    model: dict[tuple[str, str], dict[int, int]] = {}
    topics, groups = [f"T{number}" for number in range(6)], [f"G{number}" for number in range(60)]
    for _ in range(3_000):
        topic, group = rng.choice(topics), rng.choice(groups)
        draw = rng.random()
        if draw < 0.02:
            offsets.drop_topic(topic)
            model = {pair: queues for pair, queues in model.items() if pair[0] != topic}
        elif draw < 0.04:
            list(offsets.drop_group(group))
            model = {pair: queues for pair, queues in model.items() if pair[1] != group}
        elif draw < 0.06:
            offsets.snapshot()
        else:
            some = {rng.randrange(LARGE * 2): rng.randrange(10**12) for _ in range(rng.randrange(3))}
            assert offsets.commit_all(topic, group, some)
            if some:
                model.setdefault((topic, group), {}).update(some)
        assert set(offsets.topics_of(group)) == {name for name, each in model if each == group}
        assert set(offsets.groups_of(topic)) == {name for each, name in model if each == topic}
    assert {pair: offsets.queues(*pair) for pair in offsets.pairs()} == model
    again = loaded(offsets)
    assert {pair: again.queues(*pair) for pair in again.pairs()} == model
    assert again.size == offsets.size


def with_groups(count: int) -> ConsumerOffsets:
    offsets = ConsumerOffsets()
    for number in range(count):
        offsets.commit("T", f"G{number}", 0, 1)
    offsets.snapshot()
    return offsets


def test_deletion_of_a_topic_costs_the_same_with_few_and_with_many_groups() -> None:
    tables: list[ConsumerOffsets] = []

    def drop() -> Callable[[], object]:
        tables.append(with_groups(GROUPS))
        return lambda: tables[-1].drop_topic("T")

    # A removal of one group after the other would take 50 ms.
    allowed = on_this_machine(0.005)
    assert least_cpu_s(drop, below=allowed) < allowed
    offsets = tables[-1]
    assert (tuple(offsets.pairs()), offsets.size) == ((), 0)
    assert offsets.topics_of("G7") == ()
    assert offsets.to_json() == b'{"offsetTable":{}}'


def test_deleted_offsets_stay_deleted_when_the_topic_is_created_again() -> None:
    offsets = with_groups(10 * SWEPT)
    offsets.drop_topic("T")
    offsets.commit("T", "G3", 5, 6)
    for number in range(20):  # each commit removes some deleted pairs from the index
        offsets.commit("U", "H", 0, number)
        assert offsets.topics_of("G3") == ("T",)
        assert offsets.topics_of("G4") == ()
    assert offsets.to_json() == b'{"offsetTable":{"T@G3":{5:6},"U@H":{0:19}}}'
    assert loaded(offsets).size == offsets.size


def test_large_pairs_are_encoded_later_but_as_they_were() -> None:
    offsets = ConsumerOffsets()
    offsets.commit_all("T", "G", dict.fromkeys(range(QUEUES), 1))
    first = offsets.snapshot()
    offsets.commit("T", "G", 0, 2)
    second = offsets.snapshot()
    offsets.commit("T", "G", 0, 3)
    texts = [second(), first(), first(), offsets.to_json()]
    assert [text[:23] for text in texts] == [b'{"offsetTable":{"T@G":{' for _ in texts]
    assert [text[23:26] for text in texts] == [b"0:2", b"0:1", b"0:1", b"0:3"]
    assert {len(text) for text in texts} == {len(first())}

    def change() -> Callable[[], object]:
        offsets.commit("T", "G", 0, offsets.changed)
        return offsets.snapshot

    def encode() -> Callable[[], object]:
        offsets.commit("T", "G", 0, offsets.changed)
        return offsets.snapshot()

    allowed = least_cpu_s(encode, below=0.0) / 2
    assert least_cpu_s(change, below=allowed) < allowed


def test_topics_and_commits_may_come_and_go_while_a_group_is_removed() -> None:
    offsets = ConsumerOffsets()
    for number in range(3 * DROPPED):
        offsets.commit(f"T{number}", "G", 0, 1)
    offsets.commit("T5", "H", 0, 1)
    removal = offsets.drop_group("G")
    next(removal)
    offsets.commit("T0", "G", 0, 7)  # this topic's offset was removed already
    offsets.drop_topic(f"T{3 * DROPPED - 1}")
    list(removal)
    assert offsets.to_json() == b'{"offsetTable":{"T0@G":{0:7},"T5@H":{0:1}}}'
    assert offsets.topics_of("G") == ("T0",)
    assert loaded(offsets).size == offsets.size
