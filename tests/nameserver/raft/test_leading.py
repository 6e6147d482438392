"""Tests of a leader: which answers from followers it counts, and which entries it then commits."""

from __future__ import annotations

from typing import Any

import pytest

from routekeeper.nameserver.raft.consensus.engine import Engine
from routekeeper.nameserver.raft.consensus.messages import (
    ALIVE,
    RESET,
    Append,
    MessageError,
    encode,
)
from routekeeper.nameserver.raft.consensus.replication import Transfer
from tests.nameserver.raft.answers import Make, from_voter, settled


def _unanswered(w: Any) -> tuple[Engine, int]:
    """Return the leader and the index of an entry that no follower has acknowledged."""
    w.drop_filter = lambda *_: True
    index = w.submit("a")
    w.run(0.02)
    leader = w.engine("a")
    assert leader.shared.log.durable_index == index > leader.commit_index
    return leader, index


def test_an_answer_commits_and_a_repeated_or_older_one_takes_nothing_back(world: Make) -> None:
    leader, index = _unanswered(settled(world))
    for said in (index, index, index - 1):
        leader.receive("b:1", encode(from_voter(leader, index=said)))
        assert leader.commit_index == leader.leading.progress["b:1"].match == index


@pytest.mark.parametrize(
    "changes",
    [{"state": RESET}, {"state": ALIVE}, {"learner": True}, {"term": 0}, {"term": 10**6}],
    ids=["reset", "alive", "learner", "older term", "newer term"],
)
def test_an_answer_that_is_no_match_of_a_voter_commits_nothing(world: Make, changes: dict[str, Any]) -> None:
    leader, index = _unanswered(settled(world))
    leader.receive("b:1", encode(from_voter(leader, **changes)))
    assert leader.commit_index < index


def test_whoever_is_no_member_or_has_not_greeted_commits_nothing(world: Make) -> None:
    leader, index = _unanswered(settled(world))
    greeting = leader.shared.effects.greeted.pop("b:1")
    with pytest.raises(MessageError, match="before a greeting"):
        leader.receive("b:1", encode(from_voter(leader)))
    leader.shared.effects.links.add("z:1")
    leader.shared.effects.greeted["z:1"] = greeting
    leader.receive("z:1", encode(from_voter(leader)))
    assert leader.commit_index < index


def test_a_learner_does_not_keep_a_voters_answer_from_counting(world: Make) -> None:
    w = settled(world)
    w.engine("a").membership.add_member("d:1")
    w.settle()
    leader, index = _unanswered(w)
    leader.receive("d:1", encode(from_voter(leader)))  # the answer of a learner (member d) must not count
    assert leader.commit_index < index
    leader.receive("b:1", encode(from_voter(leader)))
    w.run(0.01)
    assert leader.commit_index == index


def test_an_answer_during_a_hand_over_commits_and_nothing_is_appended(world: Make) -> None:
    w = settled(world)
    leader, index = _unanswered(w)
    leader.membership.hand_over()
    leader.receive("b:1", encode(from_voter(leader)))
    assert leader.commit_index == leader.applied_index == index
    assert w.submit("a") is None


def test_an_answer_that_ends_the_transfer_of_an_image_has_the_rest_sent(world: Make) -> None:
    w = settled(world)
    leader, index = _unanswered(w)
    progress = leader.leading.progress["b:1"]
    progress.transfer, progress.next = (
        Transfer(index - 1, leader.term, 10, b"", moved_at=leader.shared.clock()),
        index,
    )
    w.log.clear()
    leader.receive("b:1", encode(from_voter(leader, index=index - 1)))
    assert progress.transfer is None
    assert [len(m.entries) for _, b, m in w.log if b == "b:1" and isinstance(m, Append)] == [1]
