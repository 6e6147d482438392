"""Tests of the lists of topics, which a nameserver makes only once for each state of its table."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routekeeper.nameserver.commands import TopicQueues
from routekeeper.nameserver.handlers import decide, deciding_list
from routekeeper.nameserver.routes.listings import LISTINGS_BYTES_MAX, Listings
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, Request
from routekeeper.remoting.bodies import TopicList
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.steps import STEP, Steps, finish
from tests.nameserver.routes.test_route_table import eviction, registration

FLAGS: dict[int, Callable[[int], bool]] = {
    RequestCode.GET_UNIT_TOPIC_LIST: lambda flag: bool(flag & 1),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: lambda flag: bool(flag & 2),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: lambda flag: flag & 3 == 2,
}


def listed(view: RouteView, code: int, **fields: str) -> list[str]:
    answer = decide(view, Request(code=code, ext_fields=fields), NamesrvSettings(), uptime_s=0.0)
    assert isinstance(answer, Answer)
    return list(TopicList.decode(answer.body).topics)


def topics_with(flags: dict[str, int]) -> tuple[TopicQueues, ...]:
    return tuple(
        TopicQueues(topic=topic, read_queue_nums=4, write_queue_nums=4, perm=6, topic_sys_flag=flag)
        for topic, flag in flags.items()
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("a", "b", "c")),
            st.dictionaries(st.sampled_from("tuvwxyz"), st.integers(0, 3), min_size=1, max_size=5),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_lists_are_those_of_the_table_after_every_change(
    changes: list[tuple[str, dict[str, int], bool]],
) -> None:
    table = RouteTable()
    for name, flags, leaves in changes:
        if leaves and table.view.name(name) is not None:
            table.apply(eviction(table, name))
        else:
            table.apply(replace(registration(table, name), topics=topics_with(flags)))
        entries = {topic: table.view.topic(topic) for topic in table.view.topics()}
        for _ in range(2):  # the second answer comes from a stored list
            assert listed(table.view, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == sorted(entries)
            assert listed(table.view, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="c") == sorted(entries)
            assert listed(table.view, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="d") == []
            for code, likes in FLAGS.items():
                assert listed(table.view, code) == sorted(
                    topic
                    for topic, entry in entries.items()
                    if entry is not None and any(likes(d.topic_sys_flag) for d in entry.queues.values())
                )


def large_table() -> RouteTable:
    table = RouteTable()
    table.apply(registration(table, topics=tuple(f"topic-{n:06d}" for n in range(1000))))
    return table


LISTS = {
    "206": (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, "all_topics"),
    "224": (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "c"}, "topics_of_cluster"),
}


@pytest.mark.parametrize(("code", "fields", "made_by"), LISTS.values(), ids=LISTS)
def test_list_is_made_once_for_each_state_of_the_table(
    code: int, fields: dict[str, str], made_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = large_table()
    made: list[object] = []
    make = getattr(RouteView, made_by)

    def counting(view: RouteView, *arguments: str) -> Steps[list[str]]:
        made.append(arguments)
        found: Steps[list[str]] = make(view, *arguments)
        return found

    monkeypatch.setattr(RouteView, made_by, counting)
    for _ in range(5):
        assert len(listed(table.view, code, **fields)) == 1000
    assert len(made) == 1
    table.apply(registration(table, "b", topics=("another",)))
    assert len(listed(table.view, code, **fields)) == 1001
    assert len(made) == 2


def test_table_of_another_image_has_lists_of_its_own_at_the_same_revision() -> None:
    table, other = large_table(), RouteTable()
    other.apply(registration(other, topics=tuple(f"other-{n:06d}" for n in range(1000))))
    assert table.view.revision == other.view.revision
    for one in (table, other):
        listed(one.view, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    table.adopt(other)
    assert listed(table.view, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)[0] == "other-000000"
    assert listed(other.view, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)[0] == "topic-000000"


def test_topics_without_a_flag_are_not_looked_at_for_it() -> None:
    """Topics with equal queue data share one check of a flag.

    When each of 100,000 topics had a check of its own, a list took 54 ms, even if no topic had the flag.
    """
    table = large_table()
    asked: list[int] = []

    def likes(flag: int) -> bool:
        asked.append(flag)
        return False

    assert finish(table.view.topics_by_flag(likes)) == []
    assert len(asked) == 1


@pytest.mark.parametrize("names", [1, 30])
def test_a_step_looks_at_few_topics_and_queue_data(names: int) -> None:
    """A list of topics must be made in short steps.

    An earlier version made the list of 125,000 topics of 14 broker names in one step, which took 0.25 s.
    """
    table = RouteTable()
    asked: list[int] = []
    # Each topic has its own queue data here, because equal queue data would be checked only once.
    topics = tuple(
        TopicQueues(topic=f"t{n:04d}", read_queue_nums=n, write_queue_nums=4, perm=6, topic_sys_flag=1)
        for n in range(4_000)
    )
    for name in range(names):
        table.apply(replace(registration(table, f"b{name}"), topics=topics))

    def likes(flag: int) -> bool:
        asked.append(flag)
        return False

    after_steps = [0, *(len(asked) for _ in table.view.topics_by_flag(likes)), len(asked)]
    assert len(asked) == 4_000 * names
    assert max(after - before for before, after in pairwise(after_steps)) <= STEP + names


@pytest.mark.parametrize("code", [206, 224, 311, 312, 313])
def test_long_lists_are_made_in_steps_and_have_the_usual_bytes(code: int) -> None:
    table = RouteTable()
    flags = {f"t{n:05d}": 3 if n % 3 else 2 for n in range(10 * STEP)}
    table.apply(replace(registration(table), topics=topics_with(flags)))
    request = Request(code=code, ext_fields={"cluster": "c"})
    steps = deciding_list(table.view, request, NamesrvSettings())
    count = 0
    try:
        while True:
            next(steps)
            count += 1
    except StopIteration as end:
        made = end.value
    topics = tuple(topic for topic, flag in flags.items() if code not in FLAGS or FLAGS[code](flag))
    assert made == Answer(body=TopicList(topics=topics).encode())
    assert count >= len(topics) // STEP


def test_list_has_all_changes_before_its_request_and_readers_that_wait_together_share_it() -> None:
    table, request = large_table(), Request(code=206, ext_fields={})
    made: list[int] = []
    make = RouteView.all_topics

    def counting(view: RouteView) -> Steps[list[str]]:
        made.append(view.revision)
        return make(view)

    def asked() -> Steps[Answer]:
        return deciding_list(table.view, request, NamesrvSettings())

    def topics(steps: Steps[Answer]) -> tuple[str, ...]:
        return TopicList.decode(finish(steps).body).topics

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RouteView, "all_topics", counting)
        first = asked()
        next(first)  # this step begins the list
        table.apply(registration(table, "b", topics=("u1",)))
        second, third = asked(), asked()
        table.apply(registration(table, "b", topics=("u1", "u2")))
        fourth = asked()
        assert not {"u1", "u2"} & set(topics(first))
        assert {"u1", "u2"} <= set(topics(second)), "the list was begun after both changes"
        table.apply(registration(table, "c", topics=("u3",)))
        assert topics(third) == topics(fourth)
        assert made == [1, 3], "both were asked for before the last change"
        assert {"u1", "u2", "u3"} <= set(topics(asked()))
        assert made == [1, 3, 4]


def test_list_that_is_being_made_survives_a_restored_snapshot() -> None:
    table, other = large_table(), RouteTable()
    other.apply(registration(other, topics=("other",)))
    request = Request(code=206, ext_fields={})
    begun, waits = (deciding_list(table.view, request, NamesrvSettings()) for _ in range(2))
    next(begun)
    table.adopt(other)
    assert len(TopicList.decode(finish(begun).body).topics) == 1000
    assert TopicList.decode(finish(waits).body).topics == ("other",)


def test_short_lists_are_not_kept_and_all_together_are_bounded() -> None:
    listings = Listings()

    def kept() -> list[int]:
        return [cluster for cluster in range(1000) if listings.find(cluster, revision=0) is not None]

    for cluster in range(1000):
        listings.keep(cluster, b"{}", revision=1)
    assert kept() == []
    size = LISTINGS_BYTES_MAX // 4
    for cluster in range(10):
        listings.keep(cluster, bytes(size), revision=1)
    assert kept() == [6, 7, 8, 9], "the lists that were made last"
    listings.keep(7, bytes(size), revision=2)
    assert kept() == [6, 7, 8, 9], "the new list replaces the former one of its key"
    assert listings.find(7, revision=2) == bytes(size)
    assert listings.find(7, revision=3) is None
    listings.keep(0, bytes(size), revision=2)
    assert kept() == [0, 7, 8, 9]
    listings.keep(7, b"{}", revision=3)
    listings.keep(1, bytes(size), revision=3)
    assert kept() == [0, 1, 8, 9], "a short list leaves no list of its key, and takes no room"
