"""Test of the tests: each bug planted here must be caught by the simulator within a few seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from nameserver.raft.consensus.contact import Contact
from nameserver.raft.consensus.effects import Effects
from nameserver.raft.consensus.elections import Elections
from nameserver.raft.consensus.following import Following
from nameserver.raft.consensus.images import Images
from nameserver.raft.consensus.log import RaftLog
from nameserver.raft.consensus.messages import Append, PreVote, RequestVote, SnapshotPart

pytestmark = pytest.mark.sim

Plant = Callable[[pytest.MonkeyPatch], None]


def _acknowledge_before_durable(patch: pytest.MonkeyPatch) -> None:
    always = property(lambda log: log.last_index, lambda log, value: None)
    patch.setattr(RaftLog, "durable_index", always, raising=False)


def _promises_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Effects, "store_vote", lambda effects: None)


def _snapshots_commit(patch: pytest.MonkeyPatch) -> None:
    """D2, as the library has it."""
    original = Images.on_part

    def on_part(images: Any, peer: str, m: SnapshotPart) -> None:
        if m.term >= images._library.term:
            images._following.follow(peer, m.term, min(m.last, images._log.last_index))
        original(images, peer, m)

    patch.setattr(Images, "on_part", on_part)


def _contact_dated_by_arrival(patch: pytest.MonkeyPatch) -> None:
    original = Following._take_statement

    def heard(following: Any, leader: str, m: Append) -> None:
        original(following, leader, m)
        if m.age is not None:
            following._contact.stated_by_leader(
                leader, clock=m.clock, echo=following._clock(), age=m.age, commit=m.commit
            )

    patch.setattr(Following, "_take_statement", heard)


def _contact_before_the_commit_index_is_applied(patch: pytest.MonkeyPatch) -> None:
    original = Contact.applied
    patch.setattr(Contact, "applied", lambda contact, index: original(contact, 1 << 60))


def _vote_for_a_shorter_log(patch: pytest.MonkeyPatch) -> None:
    """Every candidate's log looks complete."""

    def plant(name: str) -> None:
        original = getattr(Elections, name)

        def asked(elections: Any, peer: str, m: PreVote | RequestVote) -> None:
            original(elections, peer, msgspec.structs.replace(m, last_index=1 << 40, last_term=1 << 40))

        patch.setattr(Elections, name, asked)

    plant("on_pre_vote")
    plant("on_request_vote")


#: Plant, faults, and the seed that caught it last: tried first, so that the test is quick.
PLANTS: list[tuple[Plant, tuple[str, ...], int]] = [
    (_acknowledge_before_durable, ("killall", "kill", "disk"), 6),
    (_promises_are_not_stored, ("kill", "part", "killall"), 1),
    (_snapshots_commit, ("part", "kill"), 56),
    (_contact_dated_by_arrival, ("pause", "part", "oneway"), 1),
    (_contact_before_the_commit_index_is_applied, ("part", "pause", "kill"), 30),
    (_vote_for_a_shorter_log, ("part", "kill"), 3),
]
SEEDS = 100


@pytest.mark.parametrize(
    ("plant", "faults", "likely"), PLANTS, ids=[plant.__name__.strip("_") for plant, _, _ in PLANTS]
)
def test_a_planted_bug_is_caught(
    world: Callable[..., Any],
    run_faults: Callable[..., None],
    plant: Plant,
    faults: tuple[str, ...],
    likely: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    for seed in (likely, *range(1, SEEDS + 1)):
        made = world(
            seed, started=False, members=3 + 2 * (seed % 2), compact_bytes=4000, write_delay_max=0.02
        )
        try:
            run_faults(made, 8, faults)
        except AssertionError:
            return
    pytest.fail(f"not caught within {SEEDS} seeds")
