"""Functions that make raft messages, for tests in which the leader or a follower is only simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from routekeeper.nameserver.raft.consensus.engine import Engine
from routekeeper.nameserver.raft.consensus.messages import (
    MATCH,
    Append,
    AppendReply,
)

TIMEOUT_S = 0.3  # election timeout of the simulated members

Make = Callable[..., Any]


def settled(make: Make, **settings: Any) -> Any:
    """Return three simulated members that have exchanged some heartbeats. Member ``a`` is the leader."""
    w = make(**settings)
    w.elect("a")
    w.settle()
    w.run(2 * TIMEOUT_S)
    return w


def follower_of(w: Any) -> Engine:
    """Return a follower that receives only the messages of the test."""
    w.drop_filter = lambda *_: True
    engine: Engine = w.engine("b")
    return engine


def from_leader(follower: Engine, entries: Sequence[tuple[int, bytes]] = (), **changes: Any) -> Append:
    """Return the leader's next message, with ``entries`` that follow the end of the follower's log."""
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
    """Return the answer of a voter whose log contains all entries of the leader's log."""
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
