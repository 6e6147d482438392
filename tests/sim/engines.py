"""Groups of raft engines without servers, for scripted tests on the simulator's time and links.

Tests can inspect, delay and drop the engines' messages. This module simulates the links, the disk and the
state machine of each engine. The simulated disk stores a frame completely or not at all. Snapshots and log
entries are Python values.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from routekeeper.nameserver.raft.consensus import effects, messages
from routekeeper.nameserver.raft.consensus.engine import Engine
from routekeeper.nameserver.raft.consensus.log import OP_RESET, Op
from routekeeper.nameserver.raft.consensus.members import (
    MemberState,
    cluster_id,
    decode_configuration,
    founding,
)
from routekeeper.nameserver.raft.consensus.part import Shared
from routekeeper.nameserver.raft.node.applier import Applier
from routekeeper.nameserver.raft.node.recovery import join
from routekeeper.nameserver.raft.storage.images import SnapshotFile
from routekeeper.nameserver.raft.storage.journal import Replay
from routekeeper.nameserver.raft.types import RaftConfig, Role, StopMember

from .clock import Clock
from .net import End, Net

TIMEOUT_MS = 300
TIMEOUT_S = TIMEOUT_MS / 1000


@dataclass
class Disk:
    """The stored data of a member: journal frames in order, and the vote.

    The vote is durable at once. Only the first ``written`` frames are durable, so a crash may lose the other
    frames.
    """

    frames: list[list[Op]] = field(default_factory=list)
    written: int = 0  # number of durable frames
    vote: tuple[int, str | None] = (0, None)
    standing: MemberState | None = None
    images: list[tuple[SnapshotFile, bytes]] = field(default_factory=list)


class Machine:
    """A state machine whose state is the list of applied payloads.

    The world checks that all members apply the same payload at an index.
    """

    def __init__(self, member: SimMember) -> None:
        self.member = member
        self.applied: list[tuple[int, bytes]] = []

    def apply(self, payload: bytes, *, index: int, term: int, live: bool) -> None:
        self.applied.append((index, payload))
        self.member.world.applied(self.member, index, payload)

    def snapshot(self) -> Callable[[], bytes]:
        copy = list(self.applied)
        return lambda: msgspec.msgpack.encode(copy)

    def prepare(self, image: bytes | bytearray) -> Callable[[], None]:
        applied = msgspec.msgpack.decode(image, type=list[tuple[int, bytes]])
        return lambda: setattr(self, "applied", applied)

    def restored(self, image: bytes | bytearray) -> bytes:
        return bytes(image)


class SimMember:
    """One member, including its restarts. It carries out the effects that its engine requests."""

    def __init__(self, world: World, name: str, offset: float) -> None:
        self.world = world
        self.name = name
        self.offset = offset  # seconds by which this member's clock differs from the virtual time
        self.disk = Disk()
        self.engine: Engine | None = None
        self.machine = Machine(self)
        self.life = 0
        self.paused_until = 0.0
        self.write_delay: float | None = None  # in s; None for short random delays, inf for a disk that hangs
        self._step_due = False
        self._timer_at = math.inf
        self.stopped = ""
        self.was_removed = ""
        self.peers = world.names  # --peers: the members that the operator names at the start
        self._waiting: list[tuple[int, int]] = []
        self._links: dict[str, End] = {}

    @property
    def up(self) -> bool:
        return self.engine is not None

    @property
    def running(self) -> Engine:
        assert self.engine is not None
        return self.engine

    def clock(self) -> float:
        return self.world.now + self.offset

    # ---- methods of the interface Host

    def deliver(self, life: int, call: Callable[..., object], *arguments: Any) -> None:
        """Call a function now, or at the end of the member's pause.

        Drop the call if ``life`` is the number of an earlier start of the member.
        """
        if life != self.life or not self.up:
            return
        wait = self.paused_until - self.world.now
        if wait > 0:
            self.world.at(wait + 1e-6, self.deliver, life, call, *arguments)
        else:
            call(*arguments)

    def _later(self, delay: float, call: Callable[..., object], *arguments: Any) -> None:
        self.world.at(delay, self.deliver, self.life, call, *arguments)

    # ---- links

    def dial(self, life: int, name: str) -> None:
        """Connect with another member if that member is up and not linked.

        If messages to or from it are blocked, try again later.
        """
        net, other = self.world.net, self.world.members[name]
        if life != self.life or not self.up or not other.up or name in self._links:
            return
        blocked = net.is_blocked(self.name, name) or net.is_blocked(name, self.name)
        if blocked or max(self.paused_until, other.paused_until) > self.world.now:
            self.world.at(self.world.rng.uniform(0.1, 0.5), self.dial, life, name)
            return
        end = net.connect(self, name)
        assert end is not None
        self._linked(name, end)

    def _linked(self, name: str, end: End) -> None:
        former = self._links.get(name)
        if former is not None:
            former.abort()
            self._unlink(name)
        self._links[name] = end
        end.receive = partial(self._received, name, end)
        end.lost = lambda _: self._lost(name, end)
        self.running.link_up(name)

    def _received(self, name: str, end: End, message: bytes) -> None:
        if self._links.get(name) is not end:
            return
        self.world.stat["messages"] += 1
        try:
            self.running.receive(name, message)
        except messages.MessageError as error:
            self.world.refusals.append((name, self.name, str(error)))
            end.abort()
            self._lost(name, end)

    def _lost(self, name: str, end: End) -> None:
        if self._links.get(name) is end:
            self._unlink(name)
            self.world.at(self.world.rng.uniform(0.05, 0.3), self.dial, self.life, name)

    def _unlink(self, name: str) -> None:
        del self._links[name]
        self.running.link_down(name)

    # ---- start, stop and crash of the member

    def start(self) -> None:
        world = self.world
        assert not self.was_removed, "started on the data of a removed member"
        self.life += 1
        self._links = {}
        self.machine = Machine(self)
        self.stopped, self._step_due, self._timer_at = "", False, math.inf
        self._waiting.clear()
        disk = self.disk
        if disk.standing is None or world.volatile:
            disk.standing = MemberState(instance=f"{self.name}.{self.life}", cluster=cluster_id(self.peers))
        replay = Replay()
        for op in itertools.chain.from_iterable(disk.frames):
            replay.apply(list(op))
        image, configuration = None, founding(self.peers)
        if disk.images:
            image, data = disk.images[-1]
            configuration = decode_configuration(image.configuration)
            self.machine.prepare(data)()
        joined = join(image, replay)
        assert joined is not None
        if joined.replaced:
            disk.frames.append([(OP_RESET, joined.base_index, joined.base_term)])
            disk.written = len(disk.frames)
        config = RaftConfig(
            me=self.name,
            peers=self.peers,
            listen=None,
            data_dir=Path("none"),
            durability="memory" if world.volatile else "journal",
            election_timeout_ms=TIMEOUT_MS,
            compact_bytes=world.compact_bytes,
            entry_size_max=1 << 20,
        )
        shared = Shared(
            config,
            held_image=self,
            clock=self.clock,
            rng=random.Random(world.rng.getrandbits(64)),
            standing=disk.standing,
            recovered=replace(joined, term=disk.vote[0], vote=disk.vote[1], configuration=configuration),
        )
        self.engine = engine = Engine(shared)
        self.applier = Applier(self.machine, self.clock)
        self._perform_after_each_call(engine)
        while entries := engine.replay():
            engine.replayed(self.applier.apply(entries), within=self.applier.within)
            if self.applier.failure:
                raise StopMember(self.applier.failure)
        engine.start()
        self.arm()
        accepted: Callable[[End], None] = lambda end: self._linked(end.peer.host.name, end)  # noqa: E731
        world.net.listeners[self.name] = (self, accepted)
        for other in world.names:
            if other != self.name and world.members[other].up:
                world.at(world.rng.uniform(0.001, 0.02), self.dial, self.life, other)

    def _perform_after_each_call(self, engine: Engine) -> None:
        """Wrap the engine's methods, so that each call also carries out the effects that it requests.

        Otherwise, the effects of a call by a test would not be carried out.
        """
        depth = 0

        def performing(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                nonlocal depth
                depth += 1
                try:
                    return method(*arguments, **named)
                finally:
                    depth -= 1
                    if not depth:
                        self._perform(engine)

            return call

        for part, names in (
            (engine, ("start", "link_up", "link_down", "receive", "append", "durable", "step")),
            (engine.membership, ("add_member", "remove_member", "hand_over")),
            (engine.images, ("save", "made", "failed", "installed", "install_failed", "restored")),
        ):
            for name in names:
                setattr(part, name, performing(getattr(part, name)))

    def _perform(self, engine: Engine) -> None:
        while wanted := engine.effects.take():
            for effect in wanted:
                match effect:
                    case effects.Send():
                        self.send(effect.peer, messages.encode(effect.message))
                    case effects.WriteJournal():
                        self.write(effect.position, effect.ops)
                    case effects.StoreVote():
                        self.store_vote(effect.term, effect.vote)
                    case effects.StoreStanding():
                        self.disk.standing = effect.standing
                    case effects.Apply():
                        self.apply(engine, effect)
                    case effects.MakeImage():
                        self.make_image(effect)
                    case effects.InstallImage():
                        self.install_image(effect)
                    case effects.Leave():
                        self.leave(effect.reason)
                    case effects.Fail():
                        self.stopped = effect.reason
                    case effects.Wake():
                        self.wake()
                    case effects.Changed():
                        self.changed()
                    case effects.Trim() | effects.KeepLinks():
                        pass  # this simulation keeps all frames and all links

    def apply(self, engine: Engine, effect: effects.Apply) -> None:
        began = self.clock()
        done = self.applier.apply(effect.entries)
        if self.applier.failure:
            engine.apply_failed(done, self.applier.failure)
        else:
            engine.applied(done, within=self.applier.within, took=self.clock() - began)

    def kill(self) -> None:
        """Kill the member, like SIGKILL.

        A random number of the frames that are not durable is lost.
        """
        self.world.net.listeners.pop(self.name)
        self.world.net.died(self, power=False)
        self.engine = None
        self.life += 1
        disk = self.disk
        if self.world.volatile:
            disk.frames, disk.images, disk.written = [], [], 0
        else:
            keep = self.world.rng.randint(disk.written, len(disk.frames))
            del disk.frames[keep:]
            disk.written = keep

    def arm(self) -> None:
        """Set the timer for the engine's next step."""
        engine = self.engine
        if engine is not None:
            at = max(engine.next_wake() - self.offset, self.world.now + 1e-4)
            if at < self._timer_at - 1e-9:
                self._timer_at = at
                self._later(at - self.world.now, self._timer, at)

    def _timer(self, at: float) -> None:
        if at == self._timer_at:
            self._timer_at = math.inf
            self.step()

    def step(self) -> None:
        if self.engine is not None:
            self.engine.step()
            self.world.look(self)
            self.arm()

    def _soon(self) -> None:
        self._step_due = False
        self.step()

    # ---- methods that carry out the effects of the engine

    def send(self, member: str, message: bytes) -> bool:
        match messages.decode(message) if len(message) < 32 else None:
            case messages.RequestVote(term=term):
                assert self.disk.vote == (term, self.name), "a vote is asked for before it is stored"
            case messages.VoteReply(term=term):
                assert self.disk.vote == (term, member), "a vote is given before it is stored"
        end = self._links.get(member)
        if end is None or end.closed:
            return False
        if not self.world.drops(self.name, member, message):
            end.send(message)
        return True

    def write(self, position: int, ops: list[Op]) -> None:
        self.disk.frames.append(ops)
        frames = len(self.disk.frames)
        if self.write_delay == math.inf:
            self._waiting.append((position, frames))
            return
        delay = self.world.rng.uniform(1e-4, 3e-3) if self.write_delay is None else self.write_delay
        self._later(delay, self._written, position, frames)

    def resume_disk(self) -> None:
        self.write_delay = None
        for position, frames in self._waiting:
            self._later(1e-4, self._written, position, frames)
        self._waiting.clear()

    def _written(self, position: int, frames: int) -> None:
        self.disk.written = max(self.disk.written, frames)
        self.running.durable(position)

    def store_vote(self, term: int, vote: str | None) -> None:
        assert term >= self.disk.vote[0], "the term fell"
        if term == self.disk.vote[0] and self.disk.vote[1] is not None:
            assert vote == self.disk.vote[1], "two votes in one term"
        self.disk.vote = (term, vote)

    def make_image(self, wanted: effects.MakeImage) -> None:
        self.world.stat["images"] += 1
        delay = self.world.rng.uniform(0.001, 0.3)
        self._later(delay, self._image_made, wanted, self.machine.snapshot())

    def _store(self, index: int, term: int, configuration: bytes, data: bytes) -> None:
        if not self.disk.images or self.disk.images[-1][0].index < index:
            image = SnapshotFile(index, term, len(data), None, configuration)  # type: ignore[arg-type]
            self.disk.images.append((image, data))
            del self.disk.images[:-2]

    def _image_made(self, wanted: effects.MakeImage, encode_state: Callable[[], bytes]) -> None:
        self._store(wanted.index, wanted.term, wanted.configuration, encode_state())
        self.running.images.made(wanted.index)

    def install_image(self, wanted: effects.InstallImage) -> None:
        self.world.stat["installs"] += 1
        delay = self.world.rng.uniform(0.001, 0.1)
        image = bytes(wanted.image)
        self._later(delay, self._installed, wanted.index, wanted.term, wanted.configuration, image)

    def _installed(self, index: int, term: int, configuration: bytes, image: bytes) -> None:
        self._store(index, term, configuration, image)
        replace_state = self.machine.prepare(image)

        def install() -> None:
            self.applier.replaced()
            replace_state()

        self.running.images.installed(index, term, configuration, install)

    def image(self) -> tuple[int, int, int, bytes] | None:
        if not self.disk.images:
            return None
        newest = self.disk.images[-1][0]
        return newest.index, newest.term, newest.size, newest.configuration

    def read_image(self, index: int, offset: int, size: int) -> bytes | None:
        for image, data in self.disk.images:
            if image.index == index:
                return data[offset : offset + size]
        return None

    def wake(self) -> None:
        if not self._step_due:
            self._step_due = True
            self._later(self.world.rng.uniform(1e-6, 3e-4), self._soon)

    def changed(self) -> None:
        """Do nothing. Tests replace this method."""

    def leave(self, reason: str) -> None:
        """Mark the member as removed from the group, and end its process."""
        assert self.disk.standing is not None
        assert self.disk.standing.removed
        self.was_removed = reason
        self._later(0.0, self.world.crash, self)


class World:
    """Simulated members, links, a clock, and checks of the rules of raft."""

    def __init__(
        self,
        seed: int,
        *,
        members: int = 3,
        volatile: bool = False,
        compact_bytes: int = 1 << 30,
    ) -> None:
        self.clock = Clock(seed)
        self.rng = self.clock.rng
        self.net = Net(self.clock)
        self.volatile = volatile
        self.compact_bytes = compact_bytes
        self.names = tuple(f"{chr(97 + i)}:1" for i in range(members))
        self.members = {name: SimMember(self, name, self.rng.uniform(500, 6000)) for name in self.names}
        self.stat: Counter[str] = Counter()
        self.refusals: list[tuple[str, str, str]] = []
        self.drop_filter: Callable[[str, str, messages.Message], bool] | None = None
        self.log: list[tuple[str, str, messages.Message]] = []
        self.logging = False
        # The payload that was first applied at each index, and the first leader of each term. The checks fail
        # if a later event shows another payload or another leader.
        self.first: dict[int, bytes] = {}
        self.leaders: dict[int, str] = {}
        self._payload = itertools.count(1)

    # ---- time

    @property
    def now(self) -> float:
        return self.clock.now

    def at(self, delay: float, call: Callable[..., None], *arguments: object) -> None:
        self.clock.at(delay, call, *arguments)

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let ``seconds`` pass, or less if ``until`` returns True earlier.

        Return False if ``until`` is given and did not return True in this time, else True.
        """
        return self.clock.run(seconds, until) or until is None

    # ---- members

    def __getitem__(self, name: str) -> SimMember:
        return self.members[name if ":" in name else f"{name}:1"]

    def engine(self, name: str) -> Engine:
        engine = self[name].engine
        assert engine is not None
        return engine

    def add(self, name: str, *peers: str) -> SimMember:
        """Start a member with an empty disk.

        The new member's list of peers contains the new member and ``peers`` (default: the current members).
        This method does not ask the leader to add the new member to the group.
        """
        name = name if ":" in name else f"{name}:1"
        if name not in self.members:
            self.members[name] = SimMember(self, name, self.rng.uniform(500, 6000))
            self.names = tuple(sorted((*self.names, name)))
        member = self.members[name]
        self.crash(member)
        member.disk, member.was_removed = Disk(), ""
        leader = self.leader
        known = peers or (leader.engine.members if leader is not None and leader.engine else self.names)
        member.peers = tuple(sorted({*known, name}))
        self.start(name)
        return member

    def start(self, *names: str) -> None:
        for name in names or self.names:
            member = self[name]
            if not member.up and not member.was_removed:
                member.start()

    def crash(self, member: SimMember, *, wipe: bool = False) -> None:
        if member.up:
            member.kill()
            if wipe:
                member.disk = Disk()

    @property
    def leader(self) -> SimMember | None:
        """Return the leader with the highest term, among the leaders that can commit."""
        leading = [m for m in self.members.values() if m.engine is not None and m.engine.leads]
        return max(leading, key=lambda m: m.engine.term if m.engine else 0, default=None)

    def elect(self, name: str) -> SimMember:
        """Make ``name`` the leader.

        The current leader sends it TimeoutNow, the message that makes a member ask for votes at once.
        """
        for _ in range(200):
            if self.leader is self[name]:
                return self[name]
            leader = self.leader
            if leader is not None and leader.engine is not None:
                target = self[name].name
                leader.engine.shared.effects.send(target, messages.TimeoutNow(leader.engine.term))
                leader.step()
            self.run(0.05)
        raise AssertionError(f"{name} was not elected")

    def settle(self, seconds: float = 5.0) -> None:
        """Wait until there is a leader and all running members of the group have applied all entries."""

        def done() -> bool:
            leader = self.leader
            taking_part = leader.engine.members if leader is not None and leader.engine else ()
            engines = [m.engine for m in self.members.values() if m.engine and m.name in taking_part]
            return (
                leader is not None
                and len({e.applied_index for e in engines}) == 1
                and all(e.applied_index == e.shared.log.last_index for e in engines)
            )

        assert self.run(seconds, done), {n: m.engine.status() for n, m in self.members.items() if m.engine}

    # ---- links

    def cut(self, a: str, b: str) -> None:
        """Reset the connection between two members. They connect again soon."""
        self.net.reset_between(self[a], self[b])

    def drops(self, a: str, b: str, message: bytes) -> bool:
        """Record a message if a test asked for this. Return True if the message must be dropped."""
        if not self.logging and self.drop_filter is None:
            return False
        decoded = messages.decode(message)
        self.log.append((a, b, decoded))
        return self.drop_filter is not None and self.drop_filter(a, b, decoded)

    def block(self, *directions: tuple[str, str]) -> None:
        """Block messages in these directions.

        If a direction stays blocked, the sender closes its link after some seconds.
        """
        self.net.blocked |= {(self[a].name, self[b].name) for a, b in directions}

    def isolate(self, name: str) -> None:
        others = [other for other in self.names if other != self[name].name]
        self.block(*((name, o) for o in others), *((o, name) for o in others))

    def heal(self) -> None:
        self.net.heal()

    # ---- load and checks

    def submit(self, name: str | None = None, size: int = 8) -> int | None:
        """Append an entry at the leader, or at member ``name``; return its index, or None if this fails."""
        member = self[name] if name is not None else self.leader
        if member is None or member.engine is None or self.now < member.paused_until:
            return None
        payload = b"%d." % next(self._payload) + b"x" * size
        return member.engine.append(payload, term=member.engine.term)

    def applied(self, member: SimMember, index: int, payload: bytes) -> None:
        first = self.first.setdefault(index, payload)
        assert first == payload, f"{member.name} applies {payload!r} at {index}, another applied {first!r}"

    def look(self, member: SimMember) -> None:
        engine = member.engine
        if engine is None:
            return
        if engine.role is Role.LEADER:
            holder = self.leaders.setdefault(engine.term, member.name)
            assert holder == member.name, f"two leaders in term {engine.term}: {holder}, {member.name}"
        if engine.voters == (member.name,):
            applied, durable = engine.applied_index, engine.shared.log.durable_index
            assert applied <= durable, f"{member.name} alone applies {applied}, durable up to {durable}"
