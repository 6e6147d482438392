"""Tests of the explanations of why a topic or a broker is not in the route table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.nameserver.commands import RegisterBroker, TopicQueues
from routekeeper.nameserver.modes import history as history_module
from routekeeper.nameserver.modes.explain import Explanation, explain_route
from routekeeper.nameserver.modes.history import WORDS, Event, History, Note
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.types import BrokerAddr, BrokerKey, BrokerName, ClusterName, LeaveReason
from routekeeper.nameserver.verdicts import Applied
from routekeeper.remoting.route import DataVersion
from tests.cost import least_cpu_s, on_this_machine

A = BrokerKey(ClusterName("c"), BrokerAddr("10.0.0.1:10911"))


def broker(name: str, *, broker_id: int = 0, **topics: int) -> RegisterBroker:
    """Return the registration of a broker with these topics; a topic's value is its permission.

    A broker that has the topic ``TBW102`` creates any missing topic when the first message for it arrives.
    """
    return RegisterBroker(
        cluster_name=ClusterName("c"),
        broker_name=BrokerName(name),
        broker_addr=BrokerAddr(f"{name}:10911"),
        broker_id=broker_id,
        ha_server_addr="",
        data_version=DataVersion(),
        topics=tuple(TopicQueues(topic, 4, 4, perm) for topic, perm in topics.items()),
        incremental=False,
        filter_servers=None,
        mappings=(),
        lease_ms=120_000,
        enable_acting_master=broker_id > 0,  # a slave's topics count only if it sent this field
        zone_name=None,
        delete_absent=False,
        record_revision=0,
        name_revision=0,
    )


CREATES = broker("broker-a", TBW102=7)


def explain(
    history: History,
    *brokers: RegisterBroker,
    started_ms_ago: int = 3_600_000,
    keeps_routes: bool = False,
) -> Explanation:
    """Explain why topic T is listed or not, in a table with these brokers.

    Args:
        history: The events that the nameserver remembers.
        started_ms_ago: Time since the start of the nameserver.
        keeps_routes: True if the table survives a restart, as in raft mode.
    """
    table = RouteTable()
    for command in brokers:
        assert isinstance(table.apply(command), Applied)
    return explain_route(table.view, "T", history, started_ms_ago=started_ms_ago, keeps_routes=keeps_routes)


def bounded(patch: pytest.MonkeyPatch, *, subjects: int, events: int, names: int) -> History:
    patch.setattr(history_module, "SUBJECTS_MAX", subjects)
    patch.setattr(history_module, "NAMES_MAX", names)
    patch.setattr(history_module, "EVENTS_MAX", events)
    return History()


def test_topic_never_seen_is_said_to_wait_for_its_first_message_where_brokers_create_topics() -> None:
    explanation = explain(History(), CREATES)
    assert explanation.summary == "never seen by this nameserver"
    (cause,) = explanation.likely_causes
    assert cause.startswith("nobody has sent to it yet: broker-a would create it at the first send (TBW102)")
    five = [broker(f"broker-{letter}", TBW102=7) for letter in "edcba"]
    (cause,) = explain(History(), *five).likely_causes
    assert "broker-a, broker-b, broker-c and 2 more would create it" in cause


def test_topic_that_was_here_is_not_said_to_wait_for_its_first_message() -> None:
    history = History()
    history.topics_changed(["T"], Event(reason=LeaveReason.CONNECTION_CLOSED, at_ms=5, broker=A))
    for around in (CREATES, broker("broker-a", TBW102=7, T=6)):
        assert explain(history, around).likely_causes == ()


def test_topic_that_left_says_why_and_where() -> None:
    history = History()
    history.topics_changed(["T"], Event(reason=LeaveReason.CONNECTION_CLOSED, at_ms=5, broker=A))
    explanation = explain(history, CREATES)
    assert explanation.summary == "no longer listed: the broker's connection closed (10.0.0.1:10911)"
    assert [event.at_ms for event in explanation.events] == [5]


def test_notes_do_not_hide_why_a_topic_left() -> None:
    history = History()
    history.topics_changed(
        ["T"], Event(reason=LeaveReason.LEASE_EXPIRED, at_ms=5, broker=A, detail="120000 ms")
    )
    history.topics_changed(["T"], Event(reason=Note.PERMISSION_WIPED, at_ms=6, broker=A))
    assert explain(history, CREATES).summary.startswith("no longer listed: the broker was silent")


def test_deleted_topic_is_said_to_come_back() -> None:
    history = History()
    history.topics_changed(["T"], Event(reason=LeaveReason.DELETED, at_ms=5))
    causes = explain(history, CREATES).likely_causes
    assert any("next changed registration" in cause for cause in causes)


def test_fresh_independent_nameserver_blames_the_cold_start() -> None:
    explanation = explain(History(), CREATES, started_ms_ago=1_000)
    assert explanation.summary.startswith("cold start")
    assert any("30000 ms" in cause for cause in explanation.likely_causes)


def test_raft_member_never_blames_a_cold_start() -> None:
    explanation = explain(History(), CREATES, started_ms_ago=1_000, keeps_routes=True)
    assert explanation.summary == "never seen by this nameserver"


def test_missing_auto_creation_is_a_likely_cause() -> None:
    causes = explain(History(), broker("broker-a")).likely_causes
    assert any("TBW102" in cause for cause in causes)


def test_empty_table_blames_the_brokers_not_the_topic() -> None:
    causes = explain(History()).likely_causes
    assert any("no broker is registered" in cause for cause in causes)
    assert not any("TBW102" in cause for cause in causes)


def test_listed_topic_names_missing_masters_and_missing_permission() -> None:
    explanation = explain(History(), broker("broker-a", broker_id=1, T=6), broker("broker-b", T=4))
    assert explanation.summary == "listed by 2 broker(s)"
    assert any("broker-a has no master" in cause for cause in explanation.likely_causes)
    assert any("broker-b lists T without write permission" in cause for cause in explanation.likely_causes)


def test_history_is_bounded_per_topic_and_in_names(monkeypatch: pytest.MonkeyPatch) -> None:
    history = bounded(monkeypatch, subjects=2, events=3, names=5)
    for at in range(5):
        history.topics_changed(["T"], Event(reason=Note.PERMISSION_ADDED, at_ms=at))
    assert [event.at_ms for event in history.of_topic("T")] == [2, 3, 4]
    history.topics_changed(["U"], Event(reason=Note.PERMISSION_ADDED, at_ms=6))
    history.topics_changed(["T"], Event(reason=Note.PERMISSION_ADDED, at_ms=7))
    for at in range(8, 12):
        history.topics_changed(["V"], Event(reason=Note.PERMISSION_ADDED, at_ms=at))
    assert history.of_topic("U") == (), "the oldest change is forgotten first"
    assert history.of_topic("T") != ()


@pytest.mark.parametrize("topics", [1, 100, 10_000])
def test_search_in_a_full_history_takes_little_time(topics: int) -> None:
    """A search in a full history must be fast, because any client can search for any topic.

    When the search still compared 100,000 names, it blocked the event loop for 2 to 3 ms.
    """
    history = History()
    for number in range(2 * history_module.NAMES_MAX // topics):
        names = [f"topic-{number}-{one}" for one in range(topics)]
        history.topics_changed(names, Event(reason=LeaveReason.LEASE_EXPIRED, at_ms=number))

    def search() -> None:
        for _ in range(100):
            assert history.of_topic("unknown") == ()

    allowed = on_this_machine(0.05)
    assert least_cpu_s(lambda: search, below=allowed) < allowed


@given(st.lists(st.sets(st.sampled_from("abcdefgh"), max_size=6), max_size=60))
def test_history_finds_what_a_search_through_all_changes_finds(changes: list[set[str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        history = bounded(patch, subjects=5, events=3, names=20)
        patch.setattr(history_module, "_SMALL", 2)
        kept: list[tuple[list[str], int]] = []
        for at, names in enumerate(changes):
            topics = sorted(names)
            history.topics_changed(topics, Event(reason=LeaveReason.LEASE_EXPIRED, at_ms=at))
            kept.append((topics[-5:], at))
            while sum(len(topics) for topics, _ in kept) > 20:
                del kept[0]
            for topic in "abcdefgh":
                found = [at for topics, at in kept if topic in topics][-3:]
                assert [event.at_ms for event in history.of_topic(topic)] == found


def test_changes_without_topics_are_not_remembered() -> None:
    history = History()
    for at in range(1000):
        history.topics_changed([], Event(reason=LeaveReason.UNREGISTERED, at_ms=at))
    assert history.remembered == 0


def test_every_reason_to_leave_has_words() -> None:
    assert set(WORDS) == set(LeaveReason)


def test_of_more_topics_than_can_be_remembered_the_last_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    history = bounded(monkeypatch, subjects=3, events=2, names=5)
    history.topics_changed(["old", "T3"], Event(reason=Note.PERMISSION_ADDED, at_ms=1))
    history.topics_changed([f"T{i}" for i in range(5)], Event(reason=LeaveReason.LEASE_EXPIRED, at_ms=2))
    assert [len(history.of_topic(f"T{i}")) for i in range(5)] == [0, 0, 1, 2, 1]
    history.topics_changed(["T9"], Event(reason=LeaveReason.LEASE_EXPIRED, at_ms=3))
    assert history.of_topic("old") == ()
