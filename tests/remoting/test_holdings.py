"""Tests of the choice of connections to close when all connections together hold too many bytes."""

from __future__ import annotations

import logging

import pytest

from routekeeper.remoting.line_limit import LINES_PER_PEER, WINDOW_S, LimitedLog, LineLimit
from routekeeper.remoting.logs import TEXT_CHARACTERS_MAX, shortened
from routekeeper.remoting.transport.holdings import Holdings


def held(*sizes: tuple[str, int], bytes_max: int = 1000) -> Holdings[str]:
    """Return holdings of connections with names of the form "host/number", and their sizes in bytes."""
    holdings: Holdings[str] = Holdings(bytes_max=bytes_max, host=lambda holder: holder.partition("/")[0])
    for holder, size in sizes:
        holdings.set(holder, size)
    return holdings


def test_nobody_goes_while_the_sum_stays_within_the_bound() -> None:
    holdings = held(("a/1", 600), ("a/2", 399), ("b/1", 1))
    assert not holdings.exceeded
    assert holdings.largest() == []


def test_the_largest_of_the_address_that_holds_most_goes_first() -> None:
    """The largest single connection stays, because several connections of another host hold more together."""
    holdings = held(("innocent/1", 300), *((f"many/{n}", 100 + 3 * n % 7) for n in range(7)))
    assert holdings.exceeded
    assert holdings.largest() == ["many/2", "many/4"]


def test_connections_of_a_network_of_64_bits_are_added_up() -> None:
    holdings = held(("192.0.2.1/0", 400), *((f"2001:db8::{number:x}/0", 100) for number in range(7)))
    assert {holder.partition(":")[0] for holder in holdings.largest()} == {"2001"}


def test_it_goes_down_far_enough_not_to_look_again_at_once() -> None:
    holdings = held(*((f"{n}/1", 10) for n in range(101)))
    chosen = holdings.largest()
    assert len(chosen) == 14
    for holder in chosen:
        holdings.set(holder, 0)
    assert holdings.total == 870
    assert len(holdings.holders()) == 87


def test_sizes_are_replaced_not_added() -> None:
    holdings = held(("a/1", 5), ("a/1", 7))
    assert (holdings.total, holdings.size("a/1"), holdings.size("b/1")) == (7, 7, 0)
    holdings.set("a/1", 0)
    assert (holdings.total, holdings.holders()) == (0, [])


def test_lines_are_limited_per_peer_and_overall_and_the_rest_is_counted_once() -> None:
    limit = LineLimit(per_peer=2, overall=3, window_s=60.0)
    assert limit.turn(1000.0) == 0
    assert [limit.allow(peer) for peer in ("a", "a", "a", "b", "b", "c")] == [
        True, True, False, True, False, False,
    ]  # fmt: skip
    assert limit.turn(1059.9) == 0
    assert not limit.allow("d")
    assert limit.turn(1060.0) == 4
    assert limit.allow("a")
    assert limit.turn(1120.0) == 0


def test_what_a_limit_leaves_out_of_a_log_is_told_when_its_window_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 1000.0
    limited = LimitedLog(logging.getLogger("peers"), lambda: now)
    for peer in "a" * (LINES_PER_PEER + 2) + "b":
        limited.write(logging.WARNING, peer, "peer message refused member=%s", peer)
    assert [record.args for record in caplog.records] == [("a",)] * LINES_PER_PEER + [("b",)]
    caplog.clear()
    now += WINDOW_S
    limited.tell_suppressed()
    limited.tell_suppressed()
    limited.write(logging.WARNING, "a", "peer message refused member=%s", "a")
    assert [record.getMessage() for record in caplog.records] == [
        "lines about peers not written count=2",
        "peer message refused member=a",
    ]


def test_what_a_peer_wrote_is_cut_in_lines() -> None:
    assert shortened("x" * TEXT_CHARACTERS_MAX) == "x" * TEXT_CHARACTERS_MAX
    assert shortened("x" * 8_000_000) == "x" * TEXT_CHARACTERS_MAX + "... (7999800 more characters)"
