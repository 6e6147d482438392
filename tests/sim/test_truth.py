"""Tests of the simulator's checks, which must report wrong behaviour and accept correct behaviour."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.nameserver.liveness import CLOCK_PERIOD_S
from routekeeper.nameserver.replicated.failure_detector import FailureDetector
from routekeeper.nameserver.replicated.reporter import REPORT_PERIOD_S

from .members import Watched
from .scenario import run_seed
from .seams import installed
from .truth import Truth
from .world import World

HELD_UP_S = 2.5
"""Seconds by which a report is delayed: less than a lease, so that the broker is still listed on arrival."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with installed():
        world = World(1, tmp_path)
        world.open()
        try:
            world.begin()
            yield world
        finally:
            world.close()


def test_a_report_that_was_held_up_may_keep_a_dead_broker_listed(world: World) -> None:
    """The checks accept that a dead broker stays listed for longer because of a delayed report.

    A report says how long ago a broker was last seen, and the leader counts from the arrival of the report.
    So a delay of the report lengthens the broker's lease.
    """
    leader, broker = world.leader(), world.brokers[0]
    assert leader is not None
    late = next(member for member in world.members if member is not leader)
    cut = {(late.name, leader.name)}
    reporter, liveness = late.running.reports.reporter, late.running.liveness

    def tells_next() -> bool:  # True if the next tick sends a report
        since = -1.0 if reporter._last_at is None else liveness.clock - reporter._last_at
        return since > REPORT_PERIOD_S - CLOCK_PERIOD_S - 1e-6

    assert world.run(2.0, tells_next)
    world.net.blocked |= cut
    die_silently(world)
    died_at = world.clock.now
    world.run(HELD_UP_S)
    world.net.heal(cut)
    world.run(10.0, lambda: leader.running.view_now().record(broker.key) is None)
    assert not world.truth.violations
    assert leader.running.view_now().record(broker.key) is None
    assert world.clock.now - died_at > HELD_UP_S - CLOCK_PERIOD_S + world.lease_s


def test_a_cut_behind_the_report_excuses_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks do not accept that a dead broker stays listed if no report about it was delayed.

    In this test, a link is cut, but only after the report has arrived.
    """
    monkeypatch.setattr(FailureDetector, "judge", lambda *_, **__: ())
    leader = world.leader()
    assert leader is not None
    die_silently(world)
    world.run(1.5)
    world.net.blocked.add((next(m.name for m in world.members if m is not leader), leader.name))
    assert not world.run(4.0)
    assert any("is dead and listed after" in violation for violation in world.truth.violations)


def die_silently(world: World) -> None:
    """Let the first broker register with all members, then cut the broker's power."""
    for member in world.members:
        world.brokers[0].register_at(member)
    world.run(0.01)
    world.brokers[0].die(power=True)


def test_who_was_emptied_counts_as_a_voter_once_its_disk_holds_that_it_is_one(world: World) -> None:
    """A member whose disk was emptied counts as a voter only after its disk has stored this role.

    Before, a crash would make it a learner again. If the simulator then stopped another member, too, the
    group would have no majority.
    """
    leader = world.leader()
    emptied, other = (member for member in world.members if member is not leader)
    emptied.kill(wipe=True)
    emptied.start()
    assert world.run(10.0, lambda: emptied.ready and emptied.running.member.votes)
    assert not world.may_lose(other)
    assert not world.may_lose_power(other)
    assert world.run(1.0, lambda: world.may_lose_power(other))
    assert not world.truth.violations


def test_members_are_in_contact_as_long_as_their_contact_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast check of contact, which each batch of reads makes, must agree with the contact's exact age."""
    answers = {True: 0, False: 0}

    def compare(truth: Truth, mode: Watched) -> None:
        loop, engine = mode.host.loop, mode.engine
        before = loop.offset
        for later in (0.0, 0.2):  # now, and as if no message had arrived for 0.2 s
            loop.offset = before + later
            answer = engine.in_contact()
            assert answer is (engine.contact_age() < engine.greetings.contact_limit)
            answers[answer] += 1
        loop.offset = before

    monkeypatch.setattr(Truth, "look", compare)
    run_seed(1, members=3, seconds=3.0, faults=("partition", "one way", "kill", "pause", "slow"))
    assert min(answers.values()) > 300


def test_a_barrier_that_reads_join_again_behind_another_is_told_twice(world: World) -> None:
    """A callback that joins the same barrier twice, with another callback between, is called twice.

    The simulated server must accept the second call, although the first call has answered all reads.
    """
    member = world.leader()
    assert member is not None
    server = member.server
    assert server is not None
    told: list[int] = []

    def join() -> None:
        for passed in (server._told, lambda number, error: told.append(number), server._told):
            server._needed[member.running.join_barrier(passed)] = world.truth.acknowledged_index

    member.look(lambda mode: join())
    assert world.run(2.0, lambda: bool(told))
    world.run(0.1)
    assert not world.truth.violations
