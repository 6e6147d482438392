"""Tests of the calls by which the raft engine reports changes of its state."""

from __future__ import annotations

import math

import pytest

from routekeeper.nameserver.raft.consensus.messages import (
    encode,
)
from tests.nameserver.raft.answers import TIMEOUT_S, Make, from_leader, from_voter, settled


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_member_that_is_in_contact_again_says_so(world: Make, name: str) -> None:
    w = settled(world)
    w.drop_filter = lambda *_: True
    engine = w.engine(name)
    engine.shared.library.election_deadline = math.inf
    assert w.run(2 * TIMEOUT_S, lambda: not engine.in_contact())
    w.run(0.05)
    assert engine._seen[:1] == (False,)
    told: list[bool] = []
    w[name].changed = lambda: told.append(engine.in_contact())
    now = engine.shared.clock()
    if name == "a":
        engine.receive("b:1", encode(from_voter(engine, echo=now)))
    else:
        engine.receive("a:1", encode(from_leader(engine, echo=now, age=0.0)))
    assert told == [True]
