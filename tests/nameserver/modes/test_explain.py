"""Why a topic or a broker is not listed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nameserver.modes import history as history_module
from nameserver.modes.explain import Surroundings, explain_topic
from nameserver.modes.history import WORDS, History, Note
from nameserver.types import BrokerAddr, BrokerKey, ClusterName, LeaveReason

A = BrokerKey(ClusterName("c"), BrokerAddr("10.0.0.1:10911"))

AROUND = Surroundings(
    listed=False,
    topic_brokers={},
    masterless=frozenset(),
    auto_creating=frozenset({"broker-a"}),
    broker_names=frozenset({"broker-a"}),
    started_ms_ago=3_600_000,
)


def bounded(patch: pytest.MonkeyPatch, *, subjects: int, events: int) -> History:
    patch.setattr(history_module, "SUBJECTS_MAX", subjects)
    patch.setattr(history_module, "EVENTS_MAX", events)
    return History()


def test_topic_never_seen_is_said_to_wait_for_its_first_message_where_brokers_create_topics() -> None:
    explanation = explain_topic("T", History(), AROUND)
    assert explanation.summary == "never seen by this nameserver"
    (cause,) = explanation.likely_causes
    assert cause.startswith("nobody has sent to it yet: broker-a would create it at the first send (TBW102)")
    names = frozenset(f"broker-{letter}" for letter in "edcba")
    (cause,) = explain_topic("T", History(), replace(AROUND, auto_creating=names)).likely_causes
    assert "broker-a, broker-b, broker-c and 2 more would create it" in cause


def test_topic_that_was_here_is_not_said_to_wait_for_its_first_message() -> None:
    history = History()
    history.topics_changed(["T"], LeaveReason.CONNECTION_CLOSED, at_ms=5, broker=A)
    for around in (AROUND, replace(AROUND, listed=True, topic_brokers={"broker-a": 6})):
        assert explain_topic("T", history, around).likely_causes == ()


def test_topic_that_left_says_why_and_where() -> None:
    history = History()
    history.topics_changed(["T"], LeaveReason.CONNECTION_CLOSED, at_ms=5, broker=A)
    explanation = explain_topic("T", history, AROUND)
    assert explanation.summary == "no longer listed: the broker's connection closed (10.0.0.1:10911)"
    assert [event.at_ms for event in explanation.events] == [5]


def test_notes_do_not_hide_why_a_topic_left() -> None:
    history = History()
    history.topics_changed(["T"], LeaveReason.LEASE_EXPIRED, at_ms=5, broker=A, detail="120000 ms")
    history.topics_changed(["T"], Note.PERMISSION_WIPED, at_ms=6, broker=A)
    assert explain_topic("T", history, AROUND).summary.startswith(
        "no longer listed: the broker was not heard"
    )


def test_deleted_topic_is_said_to_come_back() -> None:
    history = History()
    history.topics_changed(["T"], LeaveReason.DELETED, at_ms=5)
    causes = explain_topic("T", history, AROUND).likely_causes
    assert any("next changed registration" in cause for cause in causes)


def test_fresh_independent_nameserver_blames_the_cold_start() -> None:
    explanation = explain_topic("T", History(), replace(AROUND, started_ms_ago=1_000))
    assert explanation.summary.startswith("cold start")
    assert any("30000 ms" in cause for cause in explanation.likely_causes)


def test_raft_member_never_blames_a_cold_start() -> None:
    explanation = explain_topic("T", History(), replace(AROUND, started_ms_ago=1_000, keeps_routes=True))
    assert explanation.summary == "never seen by this nameserver"


def test_missing_auto_creation_is_a_likely_cause() -> None:
    causes = explain_topic("T", History(), replace(AROUND, auto_creating=frozenset())).likely_causes
    assert any("TBW102" in cause for cause in causes)


def test_empty_table_blames_the_brokers_not_the_topic() -> None:
    around = replace(AROUND, auto_creating=frozenset(), broker_names=frozenset())
    causes = explain_topic("T", History(), around).likely_causes
    assert any("no broker is registered" in cause for cause in causes)
    assert not any("TBW102" in cause for cause in causes)


def test_listed_topic_names_missing_masters_and_missing_permission() -> None:
    around = replace(
        AROUND, listed=True, topic_brokers={"broker-a": 6, "broker-b": 4}, masterless=frozenset({"broker-a"})
    )
    explanation = explain_topic("T", History(), around)
    assert explanation.summary == "listed by 2 broker(s)"
    assert any("broker-a has no master" in cause for cause in explanation.likely_causes)
    assert any("broker-b lists T without write permission" in cause for cause in explanation.likely_causes)


def test_history_is_bounded_per_subject_and_in_subjects(monkeypatch: pytest.MonkeyPatch) -> None:
    history = bounded(monkeypatch, subjects=2, events=3)
    for at in range(5):
        history.topics_changed(["T"], Note.PERMISSION_ADDED, at_ms=at)
    assert [event.at_ms for event in history.of_topic("T")] == [2, 3, 4]
    history.topics_changed(["U"], Note.PERMISSION_ADDED, at_ms=6)
    history.topics_changed(["T"], Note.PERMISSION_ADDED, at_ms=7)
    history.topics_changed(["V"], Note.PERMISSION_ADDED, at_ms=8)
    assert history.of_topic("U") == (), "the longest unchanged is forgotten first"
    assert history.of_topic("T") != ()


def test_every_reason_to_leave_has_words() -> None:
    assert set(WORDS) == set(LeaveReason)


def test_of_more_topics_than_can_be_remembered_the_last_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    history = bounded(monkeypatch, subjects=3, events=2)
    history.topics_changed(["old", "T3"], Note.PERMISSION_ADDED, at_ms=1)
    history.topics_changed([f"T{i}" for i in range(5)], LeaveReason.LEASE_EXPIRED, at_ms=2)
    assert [len(history.of_topic(f"T{i}")) for i in range(5)] == [0, 0, 1, 2, 1]
    assert history.of_topic("old") == ()
