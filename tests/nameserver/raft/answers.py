"""Messages of a leader and its followers, made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from routekeeper.nameserver.raft.consensus.engine import Engine
from routekeeper.nameserver.raft.consensus.messages import (
    MATCH,
    Append,
    AppendReply,
)

TIMEOUT_S = 0.3  # N of the simulated members

Make = Callable[..., Any]


def settled(make: Make, **settings: Any) -> Any:
    """Three members that ``a`` leads and that have had some heartbeats."""
    w = make(**settings)
    w.elect("a")
    w.settle()
    w.run(2 * TIMEOUT_S)
    return w


def follower_of(w: Any) -> Engine:
    """A follower to which only the test speaks."""
    w.drop_filter = lambda *_: True
    engine: Engine = w.engine("b")
    return engine


def from_leader(follower: Engine, entries: Sequence[tuple[int, bytes]] = (), **changes: Any) -> Append:
    """Return the leader's next message, with entries of its own term."""
    log = follower.shared.log
    values: dict[str, Any] = {
        "term": follower.term,
        "seq": 10**6,
        "commit": follower.commit_index,
        "prev_index": log.last_index,
        "prev_term": log.last_term,
        "entries": list(entries),
        "last": log.last_index + len(entries),
        "beat": True,
        "clock": 0.0,
        "echo": None,
        "age": None,
    }
    return Append(**(values | changes))


def from_voter(leader: Engine, **changes: Any) -> AppendReply:
    """Return the answer of a voter that has all entries."""
    values: dict[str, Any] = {
        "term": leader.term,
        "seq": 10**6,
        "state": MATCH,
        "index": leader.shared.log.last_index,
        "learner": False,
        "clock": 0.0,
        "echo": leader.shared.clock(),
    }
    return AppendReply(**(values | changes))
