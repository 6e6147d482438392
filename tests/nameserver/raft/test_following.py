"""Tests of a follower's answers to matching and conflicting entries, and to messages of invalid senders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from routekeeper.nameserver.raft.consensus.log import CONFIGURATION, REGULAR
from routekeeper.nameserver.raft.consensus.members import Configuration, encode_configuration
from routekeeper.nameserver.raft.consensus.messages import (
    ALIVE,
    RESET,
    RequestVote,
    Stale,
    TimeoutNow,
    encode,
)
from tests.nameserver.raft.answers import Make, follower_of, from_leader, settled


@pytest.mark.parametrize(
    "changes",
    [
        {"prev_index": 1, "prev_term": 0},
        {"term": 10**6},
        {"prev_term": 0},
    ],
    ids=["from the beginning", "newer term", "other entry before"],
)
def test_entries_that_do_not_fit_are_not_added(world: Make, changes: dict[str, Any]) -> None:
    follower = follower_of(settled(world))
    last = follower.shared.log.last_index
    said = from_leader(follower, **changes)
    follower.receive("a:1", encode(said))
    assert (follower.shared.log.last_index, follower.term) == (last, said.term)


def test_entries_behind_a_gap_are_asked_for_from_its_beginning(world: Make) -> None:
    w = settled(world)
    follower = follower_of(w)
    last, term = follower.shared.log.last_index, follower.term
    w.log.clear()
    follower.receive(
        "a:1", encode(from_leader(follower, [(term, REGULAR)], prev_index=last + 1, prev_term=term))
    )
    assert follower.shared.log.last_index == last
    assert [(m.state, m.index) for _, _, m in w.log] == [(RESET, last + 1)]


def test_entries_that_come_again_are_kept_once(world: Make) -> None:
    follower = follower_of(settled(world))
    term = follower.term
    twice = from_leader(follower, [(term, REGULAR + b"1")])
    for _ in range(2):
        follower.receive("a:1", encode(twice))
    assert follower.shared.log.last_index == twice.prev_index + 1


def test_a_tail_that_differs_is_replaced(world: Make) -> None:
    follower = follower_of(settled(world))
    term, last = follower.term, follower.shared.log.last_index
    follower.receive("a:1", encode(from_leader(follower, [(term, REGULAR + b"1"), (term, REGULAR + b"2")])))
    other = from_leader(
        follower, [(term + 1, REGULAR + b"3")], term=term + 1, prev_index=last, prev_term=term
    )
    for said in (msgspec.structs.replace(other, entries=[]), other, other):
        follower.receive("c:1", encode(said))
    assert follower.shared.log.read(last + 1, bytes_max=1000) == [(term + 1, REGULAR + b"3")]


def test_whoever_leads_in_this_term_is_followed(world: Make) -> None:
    follower = follower_of(settled(world))
    before = follower.following.leader_changes
    follower.receive("c:1", encode(from_leader(follower)))
    assert (follower.leader, follower.following.leader_changes) == ("c:1", before + 1)


@pytest.mark.parametrize("say", ["old leader", "leader that is new in this term"])
def test_only_the_leader_of_this_term_is_believed(world: Make, say: str) -> None:
    w = settled(world)
    follower = follower_of(w)
    old = follower.term
    follower.elections.on_stale("c:1", Stale(old + 1))
    w.log.clear()
    last = follower.shared.log.last_index
    if say == "old leader":
        follower.receive("a:1", encode(from_leader(follower, [(old, REGULAR)], term=old)))
        assert follower.shared.log.last_index == last
        assert [m for _, _, m in w.log] == [Stale(old + 1)]
    else:
        follower.receive("c:1", encode(from_leader(follower, [(old + 1, REGULAR)])))
        assert (follower.shared.log.last_index, follower.leader) == (last + 1, "c:1")
        assert follower.following.leader_changes > 0


def test_a_configuration_among_the_entries_is_in_force_at_once(world: Make) -> None:
    follower = follower_of(settled(world))
    changed = Configuration(follower.voters, ("d:1",))
    configuration = CONFIGURATION + encode_configuration(changed)
    term = follower.term
    follower.receive("a:1", encode(from_leader(follower, [(term, REGULAR), (term, configuration)])))
    assert follower.shared.configuration == changed
    follower.receive("a:1", encode(from_leader(follower)))  # the new learner must not make this call fail


def test_a_follower_that_was_asked_to_stand_does_not_wait_for_its_leader(world: Make) -> None:
    w = settled(world)
    follower = follower_of(w)
    follower.receive("a:1", encode(TimeoutNow(follower.term)))
    w.log.clear()
    follower.receive("a:1", encode(from_leader(follower)))
    assert [m.transfer for _, _, m in w.log if isinstance(m, RequestVote)] == [True, True]


def test_nothing_is_added_while_an_image_is_being_installed(world: Make) -> None:
    w = settled(world)
    follower = follower_of(w)
    follower.images.installing = last = follower.shared.log.last_index
    w.log.clear()
    follower.receive("a:1", encode(from_leader(follower, [(follower.term, REGULAR)])))
    assert follower.shared.log.last_index == last
    assert [m.state for _, _, m in w.log] == [ALIVE]


def test_a_voter_that_is_none_yet_becomes_one(world: Make) -> None:
    w = settled(world)
    follower = follower_of(w)
    follower.shared.standing = replace(follower.shared.standing, voter=False)
    follower.receive("a:1", encode(from_leader(follower)))
    follower.receive("a:1", encode(from_leader(follower, [(follower.term, REGULAR)])))
    w.run(0.1)
    assert not follower.shared.standing.voter
    follower.receive("a:1", encode(from_leader(follower, commit=follower.shared.log.last_index)))
    w.run(0.1)
    follower.receive("a:1", encode(from_leader(follower, commit=follower.shared.log.last_index)))
    assert follower.shared.standing.voter
