"""Messages that another member repeats must cause only a limited number of log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from routekeeper.nameserver.raft.consensus.messages import (
    Append,
    Greeting,
    Stale,
    TimeoutNow,
    encode,
)

Make = Callable[..., Any]
MESSAGES = 200
#: Maximum total number of log lines after MESSAGES messages of one kind.
LINES_MAX = 30


def append(term: int, *entries: tuple[int, bytes], prev: tuple[int, int] = (1, 0)) -> Append:
    index, prev_term = prev
    return Append(
        term=term,
        seq=1,
        commit=0,
        prev_index=index,
        prev_term=prev_term,
        entries=list(entries),
        last=index + len(entries),
        beat=True,
        clock=0.0,
        echo=None,
        age=None,
    )


def greeting(*, voter: bool, cluster: str) -> Greeting:
    return Greeting("i", voter, False, 1000, {}, 0, cluster)


def new_leaders(w: Any, follower: Any) -> None:
    for _ in range(MESSAGES):
        follower.receive("c:1", encode(append(follower.term + 1)))
        follower.receive("c:1", encode(Stale(follower.term + 1)))


def calls_to_stand(w: Any, follower: Any) -> None:
    for _ in range(MESSAGES):
        follower.receive("c:1", encode(append(follower.term + 1)))
        follower.receive("c:1", encode(TimeoutNow(follower.term)))
        follower.step()


def conflicts(w: Any, follower: Any) -> None:
    last = follower._log.last_index
    assert follower.commit_index == last
    prev = last - 1, follower._log.term_at(last - 1)
    for _ in range(MESSAGES):
        follower.receive("c:1", encode(append(follower.term, (follower.term + 1, b"\0other"), prev=prev)))


def doubts(w: Any, follower: Any) -> None:
    """Send one greeting from peer ``a`` and many greetings from peer ``c``.

    The greetings of ``c`` alternate between "voter" and "learner".
    """
    w.isolate("b")
    assert w.run(5, lambda: follower.leader is None)
    for peer in ("a:1", "c:1"):
        follower.link_up(peer)
    cluster = follower.shared.standing.cluster
    follower.receive("a:1", encode(greeting(voter=False, cluster=cluster)))
    for number in range(MESSAGES):
        follower.receive("c:1", encode(greeting(voter=bool(number % 2), cluster=cluster)))


@pytest.mark.parametrize("flood", [new_leaders, calls_to_stand, conflicts, doubts])
def test_what_a_member_says_again_and_again_is_logged_some_times(
    flood: Callable[[Any, Any], None], world: Make, caplog: pytest.LogCaptureFixture
) -> None:
    w = world()
    w.elect("a")
    w.submit()
    w.settle()
    caplog.set_level(logging.INFO)
    caplog.clear()
    flood(w, w.engine("b"))
    assert 1 <= len(caplog.records) <= LINES_MAX
