"""A simulated operator of the group of nameservers.

The operator adds and removes members, hands over leadership, and repeats changes that failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from routekeeper.nameserver.raft.links.transport import LESSER_DIALS_AFTER_S
from routekeeper.nameserver.raft.types import ChangeRefused, ChangeUnknown, NotLeader, RaftStartError

from .oracles import Oracle
from .truth import TURNS_S

if TYPE_CHECKING:
    from .members import Member, Watched
    from .world import World

ASK_S = 4.0
"""Seconds that the operator gives a leader to make one attempt at a change."""
PATIENCE_S = 6.0
"""Seconds after which the operator stops waiting for an answer, because the member must be dead or paused."""
AGAIN_S = (0.05, 0.6)
STOPS_S = 2 * LESSER_DIALS_AFTER_S + 1.0
"""Seconds within which a removed member that can reach a leader must stop.

The other members do not dial a removed member, so the removed member must dial one of them. In each pair of
members, the member with the lesser identity (compared as text) waits LESSER_DIALS_AFTER_S seconds before it
dials. If a link existed when the wait began, this member waits a second time.
"""
LOOKS_S = 0.5
MEMBERS_MAX = 6
MEMBERS_MIN = 3

Ask = Callable[["Watched", float], Coroutine[Any, Any, object]]
"""Function that asks a leader for a change until a deadline, and raises the engine's errors."""


@dataclass(slots=True)
class _Change:
    """One change that the operator is making.

    Attributes:
        again: True to repeat the change until it is done, False to make only one attempt.
        newcomer: The member that is added, if any.
        leaver: The member that is removed, if any.
    """

    what: str
    ask: Ask
    done: Callable[[], None]
    again: bool = True
    newcomer: Member | None = None
    leaver: Member | None = None
    attempt: int = 0


class Operator:
    """An operator that makes only one change of members at a time, as the documentation demands."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._change: _Change | None = None
        self._leaving: list[Member] = []

    @property
    def busy(self) -> bool:
        """True if a change is in progress or a removed member still has its data."""
        return self._change is not None or bool(self._leaving)

    @property
    def leaving(self) -> list[Member]:
        """Members that were removed from the group and still have their data."""
        return self._leaving

    def removes(self, member: Member) -> bool:
        """Return True if the operator is removing a member, or has not deleted a removed member's data."""
        return member in self._leaving or (self._change is not None and self._change.leaver is member)

    # -- changes

    def add(self) -> str:
        """Start a nameserver with an empty disk and add it.

        Return its name, or "" if this is not possible now.
        """
        world = self._world
        if self.busy or world.leader() is None or len(world.members) >= MEMBERS_MAX:
            return ""
        member = world.new_member()
        member.start()
        name = member.name

        def done() -> None:
            world.truth.count["members added"] += 1

        self._begin(
            _Change(
                f"add {name}",
                lambda mode, deadline: mode.operations.member.changes.add_member(name, deadline=deadline),
                done,
                newcomer=member,
            )
        )
        return name

    def remove(self) -> str:
        """Remove a random member; return its name, or "" if this is not possible now."""
        world = self._world
        if self.busy or world.leader() is None or len(world.members) <= MEMBERS_MIN:
            return ""
        member = world.clock.rng.choice(world.members)
        name = member.name

        def done() -> None:
            world.truth.count["members removed"] += 1
            world.members.remove(member)
            self._leaving.append(member)
            world.clock.at(LOOKS_S, self._look_at_removed, member)

        self._begin(
            _Change(
                f"remove {name}",
                lambda mode, deadline: mode.operations.member.changes.remove_member(name, deadline=deadline),
                done,
                leaver=member,
            )
        )
        return name

    def transfer(self) -> str:
        """Hand over leadership to a random member, or to a member that the leader chooses.

        Return the random member's name, "anybody" if the leader chooses, or "" if this is not possible now.
        """
        world = self._world
        if self.busy or world.leader() is None:
            return ""
        to = world.clock.rng.choice((None, world.clock.rng.choice(world.members).name))

        def done() -> None:
            world.truth.count["leadership transferred"] += 1

        self._begin(
            _Change(
                "transfer",
                lambda mode, deadline: mode.operations.member.changes.transfer_leadership(
                    to, deadline=deadline
                ),
                done,
                again=False,
            )
        )
        return to or "anybody"

    # -- attempts

    def _begin(self, change: _Change) -> None:
        self._change = change
        self._world.disturbed()
        self._try(change)

    def _try(self, change: _Change) -> None:
        world = self._world
        if self._change is not change:
            return
        if change.newcomer is not None and change.newcomer.removed:
            # The leader failed before it committed the addition. So the next leader took the new member for a
            # removed member, and sent it the message "you were removed". After this message, a member starts
            # only with an empty disk.
            world.truth.count["newcomers begun anew"] += 1
            change.newcomer.begin_anew()
        leader = world.leader()
        if leader is None or leader.loop.paused:
            self._later(change)
            return
        change.attempt += 1
        leader.deliver(leader.life, self._ask, change, change.attempt, leader)
        world.clock.at(PATIENCE_S, self._no_answer, change, change.attempt)

    def _ask(self, change: _Change, attempt: int, leader: Member) -> None:
        if leader.ready:
            leader.loop.create_task(self._attempt(change, attempt, leader), name=change.what)

    async def _attempt(self, change: _Change, attempt: int, leader: Member) -> None:
        world, begun = self._world, self._world.clock.now
        try:
            await change.ask(leader.running, leader.loop.time() + ASK_S)
        except (NotLeader, ChangeRefused, ChangeUnknown) as error:
            world.truth.count[f"change: {type(error).__name__}"] += 1
            done = False
        except asyncio.CancelledError:
            raise
        except Exception as error:
            world.truth.fail(Oracle.PROCESS, f"{change.what} raises at {leader.name}: {error!r}")
            return
        else:
            done = True
        took = world.clock.now - begun
        if took > ASK_S + TURNS_S and leader.paused_at_last < begun:
            world.truth.fail(Oracle.ANSWERS, f"{change.what} is answered by {leader.name} after {took:.3f} s")
        if self._change is not change or change.attempt != attempt:
            return
        if done or not change.again:
            self._change = None
            world.disturbed()
            if done:
                change.done()
        else:
            self._later(change)

    def _no_answer(self, change: _Change, attempt: int) -> None:
        if self._change is change and change.attempt == attempt:
            if change.again:
                self._try(change)
            else:
                self._change = None

    def _later(self, change: _Change) -> None:
        clock = self._world.clock
        if change.again:
            clock.at(clock.rng.uniform(*AGAIN_S), self._try, change)
        else:
            self._change = None

    # -- removed members

    def _look_at_removed(self, member: Member) -> None:
        """Check that a removed member stops by itself and does not start again with its data.

        A member that no leader could reach does not know of its removal, so it may start again.
        """
        world, rng = self._world, self._world.clock.rng
        if member.up and member.ready and member.running.waits_to_be_added:
            self._take_away(member)  # its disk is empty, so it never learns of its removal and never stops
        elif member.up:
            if world.calm_for() > STOPS_S:
                world.truth.fail(
                    Oracle.PROCESS,
                    f"{member.name} was removed, could be told for {STOPS_S:g} s, and goes on",
                )
            else:
                world.clock.at(LOOKS_S, self._look_at_removed, member)
        elif world.durability == "memory" or rng.random() < 0.4:
            self._take_away(member)
        elif member.removed:
            member.expects_refusal = True
            member.start()
            world.clock.at(LOOKS_S, self._take_away, member)
        else:
            # The member does not know of its removal yet, so it starts again. This must not disturb the
            # group.
            member.start()
            world.disturbed()
            world.clock.at(LOOKS_S, self._look_at_removed, member)

    def _take_away(self, member: Member) -> None:
        """End the member's process and empty its disk."""
        if member.expects_refusal and not member.refused and not self._world.truth.violations:
            self._world.truth.fail(Oracle.STARTS, f"{member.name} was removed, and starts on its data")
        member.kill(wipe=True)
        self._world.gone.append(member)
        self._leaving.remove(member)


def is_refusal(error: RaftStartError) -> bool:
    """Return True if the error says that a member refuses to start because it was removed."""
    return "was removed" in str(error)
