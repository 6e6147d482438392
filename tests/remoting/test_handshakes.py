"""Tests of TLS handshakes in progress: if there are too many, the server breaks off some of them."""

from __future__ import annotations

from routekeeper.remoting.transport.handshakes import Handshakes


def handshakes(*, count_max: int, host_max: int) -> Handshakes[str]:
    """Return a store of handshakes with names like "a1": the first letter of a name is the host."""
    return Handshakes(host=lambda name: name[0], count_max=count_max, host_max=host_max)


def test_the_oldest_of_a_host_goes_when_the_host_has_too_many() -> None:
    found = handshakes(count_max=10, host_max=2)
    assert [found.enter(name) for name in ("a1", "b1", "a2", "a3", "a4")] == [None, None, None, "a1", "a2"]
    assert len(found) == 3


def test_the_oldest_of_the_host_that_has_most_goes_when_all_have_too_many() -> None:
    found = handshakes(count_max=3, host_max=10)
    assert [found.enter(name) for name in ("a1", "b1", "b2", "a2")] == [None, None, None, "b1"]
    assert found.enter("c1") == "a1"
    assert len(found) == 3


def test_one_that_is_over_makes_room_and_may_leave_twice() -> None:
    found = handshakes(count_max=2, host_max=2)
    found.enter("a1")
    found.enter("a2")
    found.leave("a1")
    found.leave("a1")
    assert found.enter("a3") is None
    assert len(found) == 2


def test_one_that_has_said_something_is_the_last_to_go() -> None:
    found = handshakes(count_max=2, host_max=2)
    for name in ("a1", "a2"):
        found.enter(name)
    found.leave("a1")
    found.enter("a1")
    assert found.enter("a3") == "a2"
