"""A member that hung reads the waiting messages before it judges that other members are silent."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest

from routekeeper.nameserver.raft.consensus.messages import Message, PreVote, encode
from routekeeper.nameserver.raft.consensus.watch import GAP, LISTEN, LISTEN_MAX, LOOK, WINDOW_S, Watch
from routekeeper.nameserver.raft.types import Role

Make = Callable[..., Any]
PERIOD = 0.05
TIMEOUT_S = 6 * PERIOD


def test_looks_in_time_are_no_gap() -> None:
    watch = Watch(PERIOD)
    now = 1000.0
    for _ in range(50):
        assert watch.look(now) == pytest.approx(0.0)
        assert watch.due == pytest.approx(now + LOOK * PERIOD)
        now = watch.due
    assert now > watch.listening_until
    assert watch.longest == pytest.approx(LOOK * PERIOD)


def test_after_a_gap_it_listens_for_a_while() -> None:
    watch = Watch(PERIOD)
    watch.look(10.0)
    assert watch.look(10.4) == pytest.approx(0.4 - LOOK * PERIOD)
    assert watch.listening_until == pytest.approx(10.4 + LISTEN * PERIOD)
    until = watch.listening_until
    assert watch.look(10.4 + GAP * PERIOD - 0.001) == pytest.approx((GAP - LOOK) * PERIOD - 0.001)
    assert watch.listening_until == until  # a short delay does not count as a hang


def test_whoever_is_late_again_and_again_still_sees_time_pass() -> None:
    """Timeouts still expire in a member whose calls of ``look`` are always late.

    ``look`` returns the seconds by which a call is late. The member moves its deadlines later by this time.
    So each call counts for at most :data:`LOOK` periods, even if more time has passed since the last call.
    """
    watch = Watch(PERIOD)
    watch.look(0.0)
    late = sum(watch.look(turn * 0.7) for turn in range(1, 11))
    assert 7.0 - late == pytest.approx(10 * LOOK * PERIOD)


def test_gap_after_gap_without_a_leader_ends_the_listening() -> None:
    watch = Watch(PERIOD)
    now = 0.0
    watch.look(now)
    for _ in range(LISTEN_MAX + 2):
        now += 0.2
        watch.look(now)
    assert watch.listening_until == pytest.approx(0.2 * LISTEN_MAX + LISTEN * PERIOD)
    watch.heard()
    now += 0.2
    watch.look(now)
    assert watch.listening_until > now


def test_a_replay_is_no_gap() -> None:
    watch = Watch(PERIOD)
    watch.look(0.0)
    watch.restart(30.0)
    assert watch.look(30.0 + PERIOD) == 0.0


def test_the_longest_gap_is_forgotten_after_a_while() -> None:
    watch = Watch(PERIOD)
    watch.look(0.0)
    watch.look(0.5)
    assert watch.longest == pytest.approx(0.5)
    now = 0.5
    while now < 0.5 + 2 * WINDOW_S + 3 * PERIOD:
        assert watch.longest >= PERIOD
        now += PERIOD
        watch.look(now)
    assert watch.longest == pytest.approx(PERIOD)


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("seconds", [0.2, 0.35, 0.5, 0.9, 3.0])
def test_a_machine_that_stood_still_has_the_same_leader_afterwards(
    world: Make, seed: int, seconds: float
) -> None:
    """If all members hang at the same time, the leader must not change.

    Their messages wait in the sockets, so no member may be judged silent.
    """
    w = world(seed)
    leader = w.leader
    term = leader.engine.term
    w.run(w.rng.uniform(0.3, 1.0))
    until = w.now + seconds
    for member in w.members.values():
        # Members resume at different times. The leader may resume last.
        member.paused_until = until + w.rng.uniform(0.0, PERIOD / 2)
    w.run(seconds + 2.0)
    assert w.leader is leader
    assert {member.engine.term for member in w.members.values()} == {term}


def test_what_waits_in_the_sockets_is_read_before_a_leader_is_replaced(world: Make) -> None:
    """A follower must read the messages in its sockets before it asks for votes.

    When the election timer is due, messages may wait in the sockets, but the event loop runs the timer first.
    """
    w = world()
    w.elect("a")
    follower = w["b"]
    engine = follower.engine
    sent: list[str] = []
    deadline = engine.shared.library.election_deadline
    w.block(("a", "b"))  # from now on, b receives no message from the leader a
    send = engine.shared.effects.send

    def noted(peer: str, m: Message) -> bool:
        sent.append(type(m).__name__)
        return bool(send(peer, m))

    engine.shared.effects.send = noted
    w.run(deadline - follower.offset - w.now + PERIOD / 10)
    assert w.now + follower.offset > deadline
    assert "PreVote" not in sent
    w.run(2 * TIMEOUT_S)
    assert "PreVote" in sent


def test_a_voter_that_stood_still_gives_no_vote_against_its_leader(world: Make) -> None:
    """A voter that hung must not vote against its leader.

    In this test, it reads a vote request before it reads the leader's heartbeats from another socket.
    """
    w = world()
    leader = w.elect("a")
    voter = w["c"]
    engine = voter.engine
    w.run(0.5)
    sent: list[str] = []
    send = voter.send

    def noted(peer: str, data: bytes) -> bool:
        sent.append(peer)
        return bool(send(peer, data))

    voter.send = noted
    w.clock.skip(TIMEOUT_S + 0.02)  # all members hang for this time; then the voter reads the request first
    engine.receive("b:1", encode(PreVote(engine.term + 1, engine.shared.log.last_index, engine.term)))
    assert sent == []
    # Check that the test works: without the hang, the voter would grant its vote after the same silence.
    engine.shared.watch.listening_until = -1.0
    engine.shared.heard -= TIMEOUT_S
    engine.receive("b:1", encode(PreVote(engine.term + 1, engine.shared.log.last_index, engine.term)))
    assert sent == ["b:1"]
    assert leader.engine.leads


def test_a_leader_that_stood_still_waits_for_answers_before_it_steps_down(world: Make) -> None:
    w = world()
    leader = w.elect("a")
    engine = leader.engine
    for _ in range(LISTEN_MAX + 2):
        w.run(0.5)
        w.clock.skip(5 * TIMEOUT_S)
        engine.step()
        assert engine.leads
    for name in ("b", "c"):
        w[name].paused_until = w.now + 10.0
    w.run(3 * PERIOD + 2 * TIMEOUT_S)
    assert not engine.leads  # a leader that hung waits only a short time for answers


def test_a_starved_leader_keeps_its_starved_followers(world: Make) -> None:
    """The leader must not change if all members wait for the CPU most of the time.

    The members have sent their messages, which only wait in sockets until the receivers run.
    """
    w = world()
    leader = w.elect("a")
    w.run(0.5)
    term = leader.engine.term
    for _ in range(4):  # no member runs long enough to read all answers
        for name in ("b", "c"):
            w[name].paused_until = w.now + 1.9 * TIMEOUT_S
        leader.paused_until = w.now + 1.3 * TIMEOUT_S
        w.run(1.8 * TIMEOUT_S)
        assert leader.engine.leads
        w.run(0.3 * TIMEOUT_S)
    w.run(2.0)
    assert w.leader is leader
    assert leader.engine.term == term
    assert leader.engine.status()["elections"] == 1


def test_a_journal_does_not_stall_because_its_member_stood_still(world: Make) -> None:
    """A member that hung must not report that its journal stalls.

    The disk has finished the write long ago, but the member has not noticed this yet.
    """
    w = world()
    leader = w.elect("a")
    w.run(0.5)
    written: list[int] = []
    leader.write = lambda position, ops: written.append(position)
    assert w.submit() is not None
    w.clock.skip(5.0)
    leader.engine.step()  # the timer runs before the member reads the result
    assert leader.engine.leads
    assert leader.engine.status()["storage_stalls"] == 0
    del leader.write
    leader.engine.durable(written[-1])
    w.run(2.0)
    assert w.leader is leader
    assert leader.engine.status()["storage_stalls"] == 0


def test_the_only_member_notices_a_stalled_journal_in_time(world: Make) -> None:
    """The waits of the only member are no pauses, although it sends no heartbeats and receives none."""
    w = world(members=1)
    member = w.leader
    w.run(1.0)
    lost = member.engine.shared.watch.lost
    member.write_delay = math.inf
    w.submit()
    assert w.run(1.3, lambda: member.engine.status()["storage_stalled"])
    w.run(1.0)
    assert member.engine.role is Role.FOLLOWER
    assert member.engine.shared.watch.lost == pytest.approx(lost, abs=0.001)


def test_a_leader_that_is_late_at_each_look_steps_down_at_last(world: Make) -> None:
    w = world()
    leader = w.elect("a")
    w.run(0.5)
    for name in ("b", "c"):
        w[name].paused_until = w.now + 60.0
    looks = 0
    while leader.engine.leads:
        w.clock.skip(2 * TIMEOUT_S)
        leader.engine.step()
        looks += 1
        assert looks < 10
    assert looks > 3


def test_a_follower_that_is_late_at_each_look_asks_at_last(world: Make) -> None:
    """A follower that runs only for short moments must finally ask for votes if its leader hangs.

    The leader's links stay open, so only its silence shows that it hangs.
    """
    w = world()
    w.elect("a")
    w.run(0.5)
    follower = w["b"]
    for name in ("a", "c"):
        w[name].paused_until = w.now + 60.0
    looks = 0
    while follower.engine.leader is not None:
        w.clock.skip(2 * TIMEOUT_S)
        follower.engine.step()
        looks += 1
        assert looks < 16
    assert looks > 3


def test_each_election_and_each_fall_says_why(world: Make, caplog: pytest.LogCaptureFixture) -> None:
    w = world()
    w.elect("a")
    with caplog.at_level(logging.INFO, "routekeeper.nameserver.raft"):
        w.isolate("a")
        assert w.run(3.0, lambda: w.leader is not None and w.leader.name != "a:1")
        w.run(2.0)
    text = caplog.text
    assert "asking for votes me=" in text
    assert "leader=a:1 link=up last_heard_ms=" in text
    assert "election begun me=" in text
    assert "would vote last_heard_ms=" in text
    assert "leader steps down me=a:1 term=1 reason=no majority answered in time answers_ms=b:1:" in text


@pytest.mark.parametrize("slowest", ["leader", "followers"])
def test_who_was_long_in_apply_waits_for_those_that_are_in_it_still(world: Make, slowest: str) -> None:
    """No election may begin while members apply a large entry, even if this takes several election timeouts.

    On a busy machine, a registration of 100,000 topics takes so long. In this test, some members need longer
    than others.
    """
    for seed in range(1, 9):
        w = world(seed)
        leader = w.elect("a")
        w.run(0.5)
        before = leader.engine.term
        done: list[str] = []

        def slow(member: Any, *, still: bool, w: Any = w, done: list[str] = done) -> None:
            apply = member.machine.apply

            def applied(payload: bytes, *, index: int, term: int, live: bool) -> None:
                apply(payload, index=index, term=term, live=live)
                done.append(member.name)
                if still:
                    member.paused_until = w.now + 3.5 * TIMEOUT_S
                else:  # virtual time does not pass during a call, so advance this member's clock
                    member.offset += 3.0 * TIMEOUT_S

            member.machine.apply = applied

        for member in w.members.values():
            slow(member, still=(member is leader) == (slowest == "leader"))
        w.submit(size=5000)
        w.run(5 * TIMEOUT_S)
        assert len(done) == 3
        assert w.leader is leader, f"seed {seed}"
        assert {member.engine.term for member in w.members.values()} == {before}


def test_two_that_ask_at_once_do_not_split_the_votes(world: Make) -> None:
    for seed in range(1, 13):
        w = world(seed)
        w.elect("a")
        w.run(0.5)
        w.crash(w["a"])
        engines = [w.engine(name) for name in ("b", "c")]
        for engine in engines:  # prevent an election until the links to the dead leader have ended
            engine.shared.library.election_deadline = math.inf
            engine.shared.rng.uniform = lambda least, most: 9.0
        assert w.run(
            1.0, lambda w=w: not any("a:1" in w.engine(name).shared.effects.links for name in ("b", "c"))
        )
        for engine, name in zip(engines, ("b", "c"), strict=True):
            del engine.shared.rng.uniform
            soon = engine.shared.clock() + PERIOD / 5
            engine.shared.library.election_deadline = engine.shared.last_look_at = soon
            w[name].arm()
        before = sum(engine.elections.count for engine in engines)
        assert w.run(1.5 * PERIOD, lambda w=w: w.leader is not None), f"seed {seed}: nobody was elected"
        assert sum(engine.elections.count for engine in engines) == before + 1


@pytest.mark.parametrize("members", [3, 5])
def test_a_leader_that_hears_nobody_but_is_heard_is_replaced_soon(world: Make, members: int) -> None:
    """A leader that receives nothing must step down and ask one follower to become the leader.

    Without this request, its followers would wait longer, because the leader's heartbeats still arrived.
    """
    took = []
    for seed in range(1, 9):
        w = world(seed, members=members)
        deaf = w.leader.name
        w.run(0.5)
        cut_at = w.now
        w.block(*((name, deaf) for name in w.names if name != deaf))
        assert w.run(5.0, lambda w=w, deaf=deaf: w.leader is not None and w.leader.name != deaf)
        took.append(w.now - cut_at)
        w.heal()
        w.run(1.0)
        assert len({member.engine.term for member in w.members.values()}) == 1
    assert max(took) < 2 * TIMEOUT_S


def test_no_election_slips_in_between_two_looks_at_the_clock(world: Make) -> None:
    """A member must not raise its term before a majority has promised votes (pre-vote).

    In this test, the election deadline passes between two readings of the clock in the same tick.
    """
    w = world()
    w.elect("a")
    engine = w.engine("b")
    term = engine.shared.library.term
    for looks in range(12):
        now: float = engine.shared.library.election_deadline - looks * 1e-3

        def ticking() -> float:
            nonlocal now
            now += 1e-3
            return now

        for part in (engine, engine.elections):
            part._clock = ticking
        engine.shared.look()
        engine._tick()
        assert engine.shared.library.term == term
