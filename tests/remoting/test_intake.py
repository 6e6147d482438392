"""Tests, without sockets, of the limit on large frames that a server reads at the same time."""

from __future__ import annotations

from routekeeper.remoting.transport.intake import Intake


def intake(bytes_max: int = 100) -> Intake[str]:
    """Return an intake for connections with names of the form "host/number"."""
    return Intake(bytes_max=bytes_max, host=lambda peer: peer.partition("/")[0])


def test_frames_are_read_at_once_as_far_as_the_bound_allows_and_then_in_order() -> None:
    places = intake()
    assert [places.enter(f"a/{number}", 40) for number in range(5)] == [True, True, False, False, False]
    assert places.next() == []
    places.leave("a/0")
    assert places.next() == ["a/2"]
    places.leave("a/1")
    places.leave("a/2")
    assert places.next() == ["a/3", "a/4"]
    assert places.waiting == 0


def test_a_frame_above_the_bound_is_read_alone() -> None:
    places = intake()
    assert places.enter("a/1", 500)
    assert not places.enter("a/2", 1)
    places.leave("a/1")
    assert places.next() == ["a/2"]


def test_a_small_frame_does_not_overtake_a_larger_one_that_waits() -> None:
    places = intake()
    assert places.enter("a/1", 60)
    assert not places.enter("a/2", 60)
    assert not places.enter("a/3", 1)
    assert places.next() == []
    places.leave("a/1")
    assert places.next() == ["a/2", "a/3"]


def test_hosts_take_turns_however_many_connections_one_has() -> None:
    places = intake()
    assert places.enter("a/0", 100)
    for number in range(1, 50):
        places.enter(f"a/{number}", 100)
    places.enter("b/0", 100)
    places.enter("c/0", 100)
    order = []
    last = "a/0"
    for _ in range(5):
        places.leave(last)
        (last,) = places.next()
        order.append(last)
    assert order == ["a/1", "b/0", "c/0", "a/2", "a/3"]


def test_a_network_of_64_bits_has_one_turn_like_a_host() -> None:
    places = intake()
    assert places.enter("192.0.2.1/0", 100)
    for number in range(100):
        places.enter(f"2001:db8::{number:x}/0", 100)
    places.enter("192.0.2.2/0", 100)
    places.leave("192.0.2.1/0")
    (first,) = places.next()
    assert first == "2001:db8::0/0"
    places.leave(first)
    assert places.next() == ["192.0.2.2/0"]


def test_who_does_not_finish_goes_to_the_end_of_the_line_while_others_wait() -> None:
    places, received = intake(), {"a/0": 1, "a/1": 1, "b/0": 1}

    def look(*, waits_for_peer: bool = True) -> tuple[list[str], list[str]]:
        return places.look(lambda peer: waits_for_peer, received.__getitem__)

    assert places.enter("a/0", 100)
    assert look() == ([], []), "nobody waits"
    assert not places.enter("a/1", 100)
    assert not places.enter("b/0", 100)
    received["a/0"] = 2
    assert look() == (["a/0"], [])
    assert places.next() == ["a/1"]
    assert places.waits("a/0")
    assert look() == ([], []), "it has had its place for a moment only"
    received["a/1"] = 2
    assert look(waits_for_peer=False) == ([], [])
    received["a/1"] = 3
    assert look() == (["a/1"], [])
    assert places.next() == ["b/0"]


def test_who_sends_nothing_is_out_and_comes_again_once_it_sends() -> None:
    places = intake()
    assert places.enter("a/0", 100)
    assert not places.enter("b/0", 100)
    places.look(lambda peer: True, lambda peer: 7)
    assert places.look(lambda peer: True, lambda peer: 7) == ([], ["a/0"])
    assert places.next() == ["b/0"]
    assert not places.waits("a/0")
    assert not places.enter("a/0", 100)
    places.leave("b/0")
    assert places.next() == ["a/0"]


def test_who_is_gone_neither_waits_nor_has_a_place() -> None:
    places = intake()
    for peer in ("a/0", "a/1", "b/0"):
        places.enter(peer, 100)
    places.leave("a/1")
    places.leave("a/0")
    places.leave("a/0")
    assert places.next() == ["b/0"]
    places.leave("b/0")
    assert places.enter("a/5", 100)
    assert places.waiting == 0
