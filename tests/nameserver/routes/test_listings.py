"""Tests of lists of topics: they equal the table's content, and each is made once per state of the table."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routekeeper.nameserver.commands import TopicQueues
from routekeeper.nameserver.handlers import decide
from routekeeper.nameserver.routes.listings import LISTINGS_BYTES_MAX, Listings
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, Request
from routekeeper.remoting.bodies import TopicList
from routekeeper.remoting.codes import RequestCode
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
        for _ in range(2):  # the second time from a stored list
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
    "206": (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, "topics"),
    "224": (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "c"}, "topics_of_cluster"),
}


@pytest.mark.parametrize(("code", "fields", "made_by"), LISTS.values(), ids=LISTS)
def test_list_is_made_once_for_each_state_of_the_table(
    code: int, fields: dict[str, str], made_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = large_table()
    made: list[object] = []
    make = getattr(RouteView, made_by)

    def counting(view: RouteView, *arguments: str) -> list[str]:
        made.append(arguments)
        found: list[str] = make(view, *arguments)
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
    """Check a flag once for all topics with equal queue data of a broker name, not for each topic.

    A check of each of 100,000 topics took 54 ms, even if no topic had the flag.
    """
    table = large_table()
    asked: list[int] = []

    def likes(flag: int) -> bool:
        asked.append(flag)
        return False

    assert table.view.topics_by_flag(likes) == []
    assert len(asked) == 1


def test_short_lists_are_not_kept_and_all_together_are_bounded() -> None:
    listings = Listings()
    for cluster in range(1000):
        listings.get(1, cluster, lambda: b"{}")
    assert not listings._kept
    size = LISTINGS_BYTES_MAX // 4
    for cluster in range(10):
        assert len(listings.get(1, cluster, lambda: bytes(size))) == size
    assert len(listings._kept) == 4
    listings.get(2, 0, lambda: bytes(size))
    assert len(listings._kept) == 1
