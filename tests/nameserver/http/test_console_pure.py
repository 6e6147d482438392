"""Tests of decisions of the console, without sockets.

The console decides:

- which nameservers and brokers it asks, and when
- which members the group cannot lose without losing its majority
- which events it shows
"""

from __future__ import annotations

import itertools

import pytest

from routekeeper.nameserver.http.console.addresses import (
    BROKERS_PER_ROUND,
    NAMED_MAX,
    NamedByBrokers,
    Pace,
    named_in,
    registers_from,
    why_not_asked,
)
from routekeeper.nameserver.http.console.asking import PEER_LIMITS
from routekeeper.nameserver.http.console.picture import members_to_keep
from routekeeper.nameserver.modes.timeline import EVENTS_PER_KIND, EventKind, GroupNotes, Timeline
from routekeeper.nameserver.types import BrokerAddr, BrokerKey, ClusterName
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.route import decode_cluster_info


def broker(number: int, host: str = "") -> BrokerKey:
    return BrokerKey(ClusterName("C"), BrokerAddr(f"{host or f'10.0.0.{number}'}:{10_000 + number}"))


@pytest.mark.parametrize(
    ("host", "on_loopback", "asked"),
    [
        ("10.0.0.1", False, True),
        ("192.0.2.7", False, True),
        ("fd00::1", False, True),
        ("127.0.0.1", True, True),
        ("127.0.0.1", False, False),
        ("::1", False, False),
        ("::ffff:127.0.0.1", False, False),
        ("169.254.169.254", True, False),
        ("fe80::1%eth0", True, False),
        ("224.0.0.1", True, False),
        ("0.0.0.0", True, False),
        ("::", True, False),
        ("255.255.255.255", True, False),
        ("240.0.0.1", True, False),
        ("", True, False),
        ("name", True, False),
    ],
)
def test_address_that_a_broker_names_is_asked_only_if_it_is_of_one_machine(
    host: str, on_loopback: bool, asked: bool
) -> None:
    assert (why_not_asked(host, on_loopback=on_loopback) == "") is asked


def test_broker_is_at_the_host_that_it_registers_from() -> None:
    assert registers_from("10.0.0.1:10911", "10.0.0.1")
    assert registers_from("10.0.0.1:10911", "[::ffff:10.0.0.1]")
    assert not registers_from("10.0.0.1:10911", "10.0.0.2")
    assert not registers_from("10.0.0.1", "10.0.0.1")
    assert not registers_from("10.0.0.1:0", "10.0.0.1")


def test_settings_name_addresses_in_bounds() -> None:
    assert named_in(b"namesrvAddr=a:1;b:2; a:1 ;x;:3;c:0\n") == ("a:1", "b:2")
    assert named_in(b"namesrvAddr=" + b";".join(b"a:%d" % n for n in range(1, 50))) == tuple(
        f"a:{n}" for n in range(1, 9)
    )
    assert named_in(b"namesrvAddr=a:1\n" + b"x" * 70_000) == ()
    assert named_in(b"namesrvAddr=\\u00") == ()
    assert named_in(b"\xff\xfe") == ()


def test_one_host_with_many_brokers_does_not_push_out_what_others_name() -> None:
    named = NamedByBrokers()
    for number in range(1, 4):
        named.take(broker(number), ("right:9876",), host=f"10.0.0.{number}", now=0.0)
    for number in range(100):
        addrs = tuple(f"wrong-{number}-{n}:1" for n in range(8))
        named.take(broker(number, "10.9.9.9"), addrs, host="10.9.9.9", now=0.0)
    chosen = named.chosen()
    assert len(chosen) == NAMED_MAX
    (right,) = [each for each in chosen if each.addr == "right:9876"]
    assert (right.named_by, right.on_loopback) == (3, False)


def test_brokers_are_asked_a_few_at_a_time_and_again_after_a_minute() -> None:
    named, brokers = NamedByBrokers(), [broker(number) for number in range(10)]
    asked = []
    for _ in range(3):
        due = named.due(brokers, 0.0)
        assert len(due) <= BROKERS_PER_ROUND
        asked += due
        for each in due:
            named.take(each, ("a:1",), host="10.0.0.1", now=0.0)
    assert sorted(asked) == sorted(brokers)
    assert named.due(brokers, 59.0) == []
    assert len(named.due(brokers, 60.0)) == BROKERS_PER_ROUND
    # The broker does not answer, so its earlier answer stays valid.
    named.take(brokers[0], None, host="10.0.0.1", now=61.0)
    assert [each.named_by for each in named.chosen()] == [10]
    named.due(brokers[:1], 62.0)  # the other brokers are no longer registered
    assert [each.named_by for each in named.chosen()] == [1]


def test_address_without_an_answer_is_asked_ever_less_often() -> None:
    pace, asked = Pace(2.0), []
    for now in range(0, 600, 2):
        if pace.is_due("a:1", float(now)):
            asked.append(now)
            pace.failed("a:1", float(now))
    gaps = [after - before for before, after in itertools.pairwise(asked)]
    assert gaps[:5] == [2, 4, 8, 16, 32]
    assert set(gaps[5:]) == {60}
    pace.answered("a:1")
    assert pace.is_due("a:1", 600.0)


@pytest.mark.parametrize(
    ("voters", "up", "kept"),
    [
        ("abc", "abc", ""),
        ("abc", "ab", "ab"),
        ("abc", "a", ""),  # only one of three voters is up, so there is no majority to keep
        ("abcde", "abcd", ""),
        ("abcde", "abc", "abc"),
        ("abcd", "abc", "abc"),
        ("ab", "ab", "ab"),
        ("a", "a", "a"),
    ],
)
def test_group_cannot_lose_a_member_of_a_bare_majority(voters: str, up: str, kept: str) -> None:
    assert members_to_keep(voters, up) == frozenset(kept)


def test_flood_of_one_kind_pushes_out_no_other_kind() -> None:
    timeline = Timeline()
    timeline.note(EventKind.LEADER, at_ms=1, subject="a")
    for number in range(10_000):
        timeline.note(EventKind.JOINED, at_ms=2, subject=f"b{number}" + "x" * 1000)
    events = timeline.after(0)
    assert len(events) == EVENTS_PER_KIND + 1
    assert events[0].kind == EventKind.LEADER
    assert max(len(event.subject) for event in events) == 200
    assert timeline.after(timeline.number) == []
    assert len(timeline.after(timeline.number - 3)) == 3


def test_repeated_event_is_counted_in_its_place() -> None:
    timeline = Timeline()
    for at_ms in (0, 5_000, 14_000):
        timeline.note(EventKind.REFUSED, at_ms=at_ms, subject="request 100", by="10.0.0.1")
    timeline.note(EventKind.REFUSED, at_ms=14_500, subject="request 100", by="10.0.0.2")
    timeline.note(EventKind.REFUSED, at_ms=90_000, subject="request 100", by="10.0.0.2")
    assert [(event.at_ms, event.until_ms, event.count) for event in timeline.after(0)] == [
        (0, 14_000, 3),
        (14_500, 14_500, 1),
        (90_000, 90_000, 1),
    ]


def test_group_notes_what_differs() -> None:
    timeline = Timeline()
    notes = GroupNotes(timeline)

    def look(at_ms: int, leader: str | None, term: int, in_contact: bool, refused: int = 0) -> None:
        notes.look(at_ms=at_ms, leader=leader, term=term, in_contact=in_contact, refused=(refused, 0))

    look(0, None, 0, in_contact=False)  # a member that never had contact has not lost contact
    look(1, "a", 1, in_contact=True)
    look(2, "a", 1, in_contact=True)
    look(3, "a", 1, in_contact=False)
    look(4, "a", 1, in_contact=False, refused=7)
    look(5, "b", 2, in_contact=True, refused=7)
    assert [(event.kind, event.subject, event.count) for event in timeline.after(0)] == [
        ("leader", "a", 1),
        ("contact", "a", 1),
        ("contact", "a", 1),
        ("refused", "reads", 7),
        ("leader", "b", 1),
        ("contact", "b", 1),
    ]


def test_answer_of_a_peer_must_have_the_forms_that_nameservers_send() -> None:
    """A stranger may have named the peer, and forms that only consumers send cost much more time to read."""
    assert decode_cluster_info(b'{"brokerAddrTable":{},"clusterAddrTable":{"c":["b"]}}', PEER_LIMITS)
    for body in (b'{"clusterAddrTable":{"c":["b\n"]}}', b'{"clusterAddrTable":{{"c":1}:["b"]}}'):
        assert decode_cluster_info(body) is not None
        with pytest.raises(RemoteProtocolError):
            decode_cluster_info(body, PEER_LIMITS)
