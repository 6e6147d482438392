"""Faults of members and of links between hosts.

The faults do not depend on the program that the members run: RouteKeeper, or the published PySyncObj.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Protocol, TypeVar

from .clock import Clock
from .disk import Disk
from .net import Net

MEMBER_FAULTS = (
    "partition",
    "one way",
    "slow",
    "reset",
    "kill",
    "kill leader",
    "kill all",
    "power",
    "power all",
    "crash in a call",
    "disk breaks",
    "pause",
    "pause leader",
    "disk hangs",
    "disk full",
    "wipe",
)
"""Faults of members and of links between members."""


class Victim(Protocol):
    """The properties and methods of a member that :class:`Faults` uses."""

    @property
    def name(self) -> str: ...
    @property
    def up(self) -> bool: ...

    disk: Disk
    expects_end: bool

    def start(self) -> None: ...
    def kill(self, *, power: bool = False, wipe: bool = False) -> None: ...
    def pause(self, seconds: float) -> None: ...


class Faulty(Protocol):
    """The properties and methods of a simulated world that :class:`Faults` uses."""

    clock: Clock
    net: Net
    durability: str
    troubled_until: float

    @property
    def victims(self) -> Sequence[Victim]: ...
    @property
    def others(self) -> Sequence[str]:
        """Names of the hosts that are not members.

        A partition puts each of these hosts on a random side.
        """

    def leader(self) -> Victim | None: ...
    def may_lose(self, member: Victim) -> bool:
        """Return True if the group keeps all acknowledged changes even if this member loses its data now."""

    def may_lose_power(self, member: Victim) -> bool:
        """Return True if the group keeps all acknowledged changes even if this member loses power now."""


_Some = TypeVar("_Some")


class Faults:
    """A source of random faults in a simulated world.

    Args:
        kinds: Names of faults, from :data:`MEMBER_FAULTS`.
    """

    def __init__(self, world: Faulty, kinds: Sequence[str]) -> None:
        self.kinds = tuple(kinds)
        self.done: list[str] = []
        self.caused: Counter[str] = Counter()
        self._faulty = world
        self._ends = 0.0

    def begin(self, seconds: float) -> None:
        """Cause faults for this number of seconds, and start killed members again."""
        self._ends = self._faulty.clock.now + seconds
        self._trouble()
        self._restart()

    def note(self, text: str) -> None:
        self.done.append(f"{self._faulty.clock.now:.3f} {text}")

    def over(self, margin: float = 0.0) -> bool:
        return self._faulty.clock.now >= self._ends - margin

    def some(self, of: Iterable[_Some]) -> list[_Some]:
        """Return some of the items, chosen at random: at least one, if there are any."""
        found = list(of)
        rng = self._faulty.clock.rng
        return rng.sample(found, rng.randint(1, len(found))) if found else []

    def _trouble(self) -> None:
        world, rng = self._faulty, self._faulty.clock.rng
        if self.over(1.0) or not self.kinds:
            return
        # Sometimes make a long pause between two faults, so that all members recover.
        pause = rng.uniform(0.05, 1.2) if rng.random() < 0.8 else rng.uniform(3.0, 5.0)
        world.clock.at(pause, self._trouble)
        what = rng.choice(self.kinds)
        lasts = rng.uniform(0.1, 3.0)
        world.troubled_until = max(world.troubled_until, world.clock.now + lasts)
        note = self.cause(what, lasts)
        if note:
            self.caused[f"fault {what}"] += 1
            self.note(f"{what} {note} for {lasts:.2f} s")

    def cause(self, what: str, lasts: float) -> str:
        """Cause the fault ``what`` for ``lasts`` seconds.

        Return the targets of the fault, or an empty text if the fault is not possible now.
        """
        world, rng = self._faulty, self._faulty.clock.rng
        up = [member for member in world.victims if member.up]
        leader = world.leader()
        names = [member.name for member in world.victims]
        match what:
            case "partition":
                side = set(rng.sample(names, rng.randint(1, len(names) // 2)))
                if leader is not None and rng.random() < 0.5:
                    side = {leader.name}
                side |= {name for name in world.others if rng.random() < 0.3}
                every = [*names, *world.others]
                self.block({(a, b) for a, b in permutations(every, 2) if (a in side) != (b in side)}, lasts)
                return ",".join(sorted(side))
            case "one way":
                pairs = {pair for pair in permutations(names, 2) if rng.random() < 0.3}
                self.block(pairs, lasts)
                return str(sorted(pairs))
            case "slow":
                world.net.slow = rng.choice((0.02, 0.1, 0.3))
                world.clock.at(lasts, self._quick)
                return str(world.net.slow)
            case "reset":
                ends = [end for member in up for end in world.net.ends[member.name] if not end.closed]
                for end in ends:
                    if rng.random() < 0.5:
                        end.reset()
                return f"{len(ends)} ends"
            case "kill" | "power":
                victim = rng.choice(up) if up else None
                if what == "power" and victim is not None and not world.may_lose_power(victim):
                    return ""  # a power cut could lose acknowledged changes now
                return self._kill(victim, power=what == "power")
            case "power all":
                if world.durability != "fsync":
                    return ""  # without fsync, a power cut of all members may lose acknowledged changes
                for member in up:
                    self._kill(member, power=True)
                return "all"
            case "crash in a call":
                victim = rng.choice(up) if up else None
                if victim is None or world.durability == "memory":
                    return ""
                victim.disk.crash_cuts_power = rng.random() < 0.5
                victim.disk.crash_in = rng.randint(1, 30)
                return f"{victim.name} in {victim.disk.crash_in} calls"
            case "disk breaks":
                victim = rng.choice(up) if up else None
                if victim is None or world.durability == "memory":
                    return ""
                victim.expects_end = True
                victim.disk.fail_in = rng.randint(1, 30)
                return f"{victim.name} in {victim.disk.fail_in} calls"
            case "kill leader":
                return self._kill(leader)
            case "kill all":
                if world.durability == "memory":
                    return ""  # without a journal, changes may be lost if all members are killed
                for member in up:
                    self._kill(member)
                return "all"
            case "pause":
                for member in self.some(up)[:2]:
                    member.pause(lasts)
                return "some"
            case "pause leader":
                if leader is not None:
                    leader.pause(lasts)
                return "leader"
            case "disk hangs":
                if up:
                    rng.choice(up).disk.hangs_until = world.clock.now + lasts
                return "one"
            case "disk full":
                if up:
                    disk = rng.choice(up).disk
                    disk.full = True
                    world.clock.at(lasts, lambda: setattr(disk, "full", False))
                return "one"
            case "wipe":
                victim = rng.choice(up) if up else None
                if victim is None or not world.may_lose(victim):
                    return ""
                victim.kill(wipe=True)
                return victim.name
        raise AssertionError(what)

    def block(self, pairs: set[tuple[str, str]], lasts: float) -> None:
        """Block messages in these directions for ``lasts`` seconds."""
        world = self._faulty
        world.net.blocked |= pairs
        world.clock.at(lasts, world.net.heal, pairs)

    def _quick(self) -> None:
        self._faulty.net.slow = 0.0

    def _kill(self, member: Victim | None, *, power: bool = False) -> str:
        if member is None or (self._faulty.durability == "memory" and not self._faulty.may_lose(member)):
            return ""
        member.kill(power=power)
        return member.name

    def _restart(self) -> None:
        world, rng = self._faulty, self._faulty.clock.rng
        for member in world.victims:
            if not member.up and rng.random() < 0.5:
                self.note(f"start {member.name}")
                member.start()
        if not self.over():
            world.clock.at(rng.uniform(0.1, 1.0), self._restart)
