"""A cluster of real engines on virtual time, for scripted cases of single rules.

What they send each other can be looked at, held and dropped. Whole nameservers under faults are tests/sim's.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

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

TIMEOUT_MS = 300
TIMEOUT_S = TIMEOUT_MS / 1000


@dataclass
class Disk:
    """Surviving content: frames in order, of which the last ones may be lost; promises are synced at once."""

    frames: list[list[Op]] = field(default_factory=list)
    written: int = 0  # frames that are certainly there
    vote: tuple[int, str | None] = (0, None)
    standing: MemberState | None = None
    images: list[tuple[SnapshotFile, bytes]] = field(default_factory=list)


class Machine:
    """The list of applied payloads; each is compared with the first one applied at that index anywhere."""

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
    """One member across its lives; performs what its engine wants done."""

    def __init__(self, world: World, name: str, offset: float) -> None:
        self.world = world
        self.name = name
        self.offset = offset  # its clock differs from everyone else's
        self.disk = Disk()
        self.engine: Engine | None = None
        self.machine = Machine(self)
        self.life = 0
        self.paused_until = 0.0
        self.write_delay: float | None = None  # None: a random short one; inf: the disk hangs
        self._step_due = False
        self._timer_at = math.inf
        self.stopped = ""
        self.was_removed = ""
        self.peers = world.names  # as the operator names them
        self._waiting: list[tuple[int, int, list[Op]]] = []

    @property
    def up(self) -> bool:
        return self.engine is not None

    def clock(self) -> float:
        return self.world.now + self.offset

    # ---- life

    def start(self) -> None:
        world = self.world
        assert not self.was_removed, "started on the data of a removed member"
        self.life += 1
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

    def _perform_after_each_call(self, engine: Engine) -> None:
        """Tests call the engine themselves, too."""
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
        while wanted := engine.take_effects():
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
                        pass  # frames are kept, and everyone is linked to everyone here

    def apply(self, engine: Engine, effect: effects.Apply) -> None:
        began = self.clock()
        done = self.applier.apply(effect.entries)
        if self.applier.failure:
            engine.apply_failed(done, self.applier.failure)
        else:
            engine.applied(done, within=self.applier.within, took=self.clock() - began)

    def kill(self) -> None:
        """As SIGKILL: what was being written is there up to some frame."""
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
        """Set the timer that the engine asks for."""
        engine = self.engine
        if engine is not None:
            at = max(engine.next_wake() - self.offset, self.world.now + 1e-4)
            if at < self._timer_at - 1e-9:
                self._timer_at = at
                self.world.at(at - self.world.now, self._timer, self.life, at)

    def _timer(self, life: int, at: float) -> None:
        if life == self.life and at == self._timer_at:
            if self.world.now < self.paused_until:
                self.world.at(self.paused_until - self.world.now + 1e-6, self._timer, life, at)
                return
            self._timer_at = math.inf
            self.step()

    def step(self) -> None:
        if self.engine is not None:
            self.engine.step()
            self.world.look(self)
            self.arm()

    def _soon(self, life: int) -> None:
        if life != self.life:
            return
        if self.world.now < self.paused_until:
            self.world.at(self.paused_until - self.world.now + 1e-6, self._soon, life)
            return
        self._step_due = False
        self.step()

    # ---- effects

    def send(self, member: str, message: bytes) -> bool:
        match messages.decode(message) if len(message) < 32 else None:
            case messages.RequestVote(term=term):
                assert self.disk.vote == (term, self.name), "a vote is asked for before it is stored"
            case messages.VoteReply(term=term):
                assert self.disk.vote == (term, member), "a vote is given before it is stored"
        return self.world.send(self.name, member, message)

    def write(self, position: int, ops: list[Op]) -> None:
        self.disk.frames.append(ops)
        frames = len(self.disk.frames)
        if self.write_delay == math.inf:
            self._waiting.append((position, frames, ops))
            return
        delay = self.world.rng.uniform(1e-4, 3e-3) if self.write_delay is None else self.write_delay
        self.world.at(delay, self._written, self.life, position, frames)

    def resume_disk(self) -> None:
        self.write_delay = None
        for position, frames, _ in self._waiting:
            self.world.at(1e-4, self._written, self.life, position, frames)
        self._waiting.clear()

    def _written(self, life: int, position: int, frames: int) -> None:
        if life == self.life and self.engine is not None:
            if self.world.now < self.paused_until:
                self.world.at(
                    self.paused_until - self.world.now + 1e-6, self._written, life, position, frames
                )
                return
            self.disk.written = max(self.disk.written, frames)
            self.engine.durable(position)

    def store_vote(self, term: int, vote: str | None) -> None:
        assert term >= self.disk.vote[0], "the term fell"
        if term == self.disk.vote[0] and self.disk.vote[1] is not None:
            assert vote == self.disk.vote[1], "two votes in one term"
        self.disk.vote = (term, vote)

    def make_image(self, wanted: effects.MakeImage) -> None:
        self.world.stat["images"] += 1
        delay = self.world.rng.uniform(0.001, 0.3)
        self.world.at(delay, self._image_made, self.life, wanted, self.machine.snapshot())

    def _store(self, index: int, term: int, configuration: bytes, data: bytes) -> None:
        if not self.disk.images or self.disk.images[-1][0].index < index:
            image = SnapshotFile(index, term, len(data), None, configuration)  # type: ignore[arg-type]
            self.disk.images.append((image, data))
            del self.disk.images[:-2]

    def _image_made(self, life: int, wanted: effects.MakeImage, encode_state: Callable[[], bytes]) -> None:
        if life == self.life and self.engine is not None:
            self._store(wanted.index, wanted.term, wanted.configuration, encode_state())
            self.engine.images.made(wanted.index)

    def install_image(self, wanted: effects.InstallImage) -> None:
        self.world.stat["installs"] += 1
        delay = self.world.rng.uniform(0.001, 0.1)
        image = bytes(wanted.image)
        self.world.at(
            delay, self._installed, self.life, wanted.index, wanted.term, wanted.configuration, image
        )

    def _installed(self, life: int, index: int, term: int, configuration: bytes, image: bytes) -> None:
        if life == self.life and self.engine is not None:
            self._store(index, term, configuration, image)
            replace_state = self.machine.prepare(image)

            def install() -> None:
                self.applier.replaced()
                replace_state()

            self.engine.images.installed(index, term, configuration, install)

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
            self.world.at(self.world.rng.uniform(1e-6, 3e-4), self._soon, self.life)

    def changed(self) -> None:
        """Tests listen here."""

    def leave(self, reason: str) -> None:
        """The process ends; its data must not be used again."""
        assert self.disk.standing is not None
        assert self.disk.standing.removed
        self.was_removed = reason
        self.world.at(0.0, self._end, self.life)

    def _end(self, life: int) -> None:
        if life == self.life:
            self.world.crash(self)


class World:
    """Members, links, clock, and what must always hold."""

    def __init__(
        self,
        seed: int,
        *,
        members: int = 3,
        volatile: bool = False,
        compact_bytes: int = 1 << 30,
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.volatile = volatile
        self.compact_bytes = compact_bytes
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = itertools.count()
        self.names = tuple(f"{chr(97 + i)}:1" for i in range(members))
        self.members = {name: SimMember(self, name, self.rng.uniform(-500, 5000)) for name in self.names}
        self.stat: Counter[str] = Counter()
        self.refusals: list[tuple[str, str, str]] = []
        # links: what each side believes, as connection ids; order kept per direction
        self._connection = itertools.count(1)
        self._view: dict[tuple[str, str], int] = {}
        self._last_arrival: dict[tuple[str, str, int], float] = {}
        self.blocked: set[tuple[str, str]] = set()  # directions in which nothing passes (held, not lost)
        self._held: dict[tuple[str, str], list[tuple[int, bytes]]] = defaultdict(list)
        self.drop_filter: Callable[[str, str, messages.Message], bool] | None = None
        self.log: list[tuple[str, str, messages.Message]] = []
        self.logging = False
        # what was seen
        self.first: dict[int, bytes] = {}
        self.leaders: dict[int, str] = {}
        self._payload = itertools.count(1)

    # ---- time

    def at(self, delay: float, call: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._count), call, arguments))

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass; True as soon as ``until`` holds."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            at, _, call, arguments = heapq.heappop(self._events)
            self.now = max(self.now, at)
            call(*arguments)
            if until is not None and until():
                return True
        self.now = end
        return until() if until is not None else True

    # ---- members

    def __getitem__(self, name: str) -> SimMember:
        return self.members[name if ":" in name else f"{name}:1"]

    def engine(self, name: str) -> Engine:
        engine = self[name].engine
        assert engine is not None
        return engine

    def add(self, name: str, *peers: str) -> SimMember:
        """A process with an empty disk, told of the current members and itself; the cluster is not told."""
        name = name if ":" in name else f"{name}:1"
        if name not in self.members:
            self.members[name] = SimMember(self, name, self.rng.uniform(-500, 5000))
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
                for other in self.names:
                    if other != member.name and self.members[other].up:
                        self.at(self.rng.uniform(0.001, 0.02), self._dial, member.name, other)

    def crash(self, member: SimMember, *, wipe: bool = False) -> None:
        if not member.up:
            return
        member.kill()
        if wipe:
            member.disk = Disk()
        for other in self.names:
            connection = self._view.pop((member.name, other), 0)
            if connection and self._view.get((other, member.name)) == connection:
                late = self.rng.random() < 0.2 or (member.name, other) in self.blocked
                delay = self.rng.uniform(0.1, 1.0) if late else self.rng.uniform(0.0005, 0.01)
                self.at(delay, self._drop, other, member.name, connection)

    @property
    def leader(self) -> SimMember | None:
        """The newest leader that can commit."""
        leading = [m for m in self.members.values() if m.engine is not None and m.engine.leads]
        return max(leading, key=lambda m: m.engine.term if m.engine else 0, default=None)

    def elect(self, name: str) -> SimMember:
        """Make ``name`` the leader by letting it ask first."""
        for _ in range(200):
            if self.leader is self[name]:
                return self[name]
            leader = self.leader
            if leader is not None and leader.engine is not None:
                target = self[name].name
                leader.engine._effects.send(target, messages.TimeoutNow(leader.engine.term))
                leader.step()
            self.run(0.05)
        raise AssertionError(f"{name} was not elected")

    def settle(self, seconds: float = 5.0) -> None:
        """Until there is a leader and everything is applied everywhere."""

        def done() -> bool:
            leader = self.leader
            taking_part = leader.engine.members if leader is not None and leader.engine else ()
            engines = [m.engine for m in self.members.values() if m.engine and m.name in taking_part]
            return (
                leader is not None
                and len({e.applied_index for e in engines}) == 1
                and all(e.applied_index == e._log.last_index for e in engines)
            )

        assert self.run(seconds, done), {n: m.engine.status() for n, m in self.members.items() if m.engine}

    # ---- links

    def up(self, a: str, b: str) -> bool:
        return (a, b) not in self.blocked

    def _dial(self, a: str, b: str) -> None:
        if not (self.members[a].up and self.members[b].up):
            return
        mine, theirs = self._view.get((a, b)), self._view.get((b, a))
        if mine and mine == theirs:
            return
        paused = max(self.members[a].paused_until, self.members[b].paused_until) > self.now
        if paused or not (self.up(a, b) and self.up(b, a)):
            self.at(self.rng.uniform(0.1, 0.5), self._dial, a, b)
            return
        for x, y in ((a, b), (b, a)):
            if self._view.get((x, y)):
                self._drop(x, y, self._view[(x, y)], redial=False)
        connection = next(self._connection)
        for x, y in ((a, b), (b, a)):
            self._view[(x, y)] = connection
            self._held.pop((x, y), None)
        for x, y in ((a, b), (b, a)):
            engine = self.members[x].engine
            assert engine is not None
            engine.link_up(y)

    def _drop(self, x: str, y: str, connection: int, redial: bool = True) -> None:
        """``x`` notices that its connection to ``y`` is dead."""
        if self._view.get((x, y)) != connection:
            return
        del self._view[(x, y)]
        engine = self.members[x].engine
        if engine is None:
            return
        engine.link_down(y)
        if self._view.get((y, x)) == connection and self.up(x, y):
            self.at(self.rng.uniform(0.0005, 0.005), self._drop, y, x, connection)
        if redial:
            self.at(self.rng.uniform(0.05, 0.3), self._dial, x, y)

    def cut(self, a: str, b: str) -> None:
        """Reset the connection; it is dialled anew soon."""
        x, y = self[a].name, self[b].name
        if connection := self._view.get((x, y)):
            self._drop(x, y, connection)

    def send(self, a: str, b: str, message: bytes) -> bool:
        connection = self._view.get((a, b))
        if not connection:
            return False
        if self.logging or self.drop_filter is not None:
            decoded = messages.decode(message)
            self.log.append((a, b, decoded))
            if self.drop_filter is not None and self.drop_filter(a, b, decoded):
                return True
        delay = self.rng.uniform(0.0002, 0.002)
        arrival = max(self._last_arrival.get((a, b, connection), 0.0), self.now + delay)
        self._last_arrival[(a, b, connection)] = arrival
        self.at(arrival - self.now, self._arrive, a, b, connection, message)
        return True

    def _arrive(self, a: str, b: str, connection: int, message: bytes) -> None:
        if not self.up(a, b) or self._held.get((a, b)):
            self._held[(a, b)].append((connection, message))
            return
        self._deliver(a, b, connection, message)

    def _deliver(self, a: str, b: str, connection: int, message: bytes) -> None:
        member = self.members[b]
        if self._view.get((b, a)) != connection or member.engine is None:
            return
        if self.now < member.paused_until:
            self.at(member.paused_until - self.now + 1e-9, self._deliver, a, b, connection, message)
            return
        self.stat["messages"] += 1
        try:
            member.engine.receive(a, message)
        except messages.MessageError as error:
            self.stat["refused"] += 1
            self.refusals.append((a, b, str(error)))
            self._drop(b, a, connection)

    def block(self, *directions: tuple[str, str]) -> None:
        """Nothing passes in these directions; after a while those concerned notice."""
        for a, b in directions:
            x, y = self[a].name, self[b].name
            self.blocked.add((x, y))
            for p, q in ((x, y), (y, x)):
                if connection := self._view.get((p, q)):
                    self.at(self.rng.uniform(0.5, 4.0), self._timeout, p, q, connection)

    def _timeout(self, x: str, y: str, connection: int) -> None:
        if not (self.up(x, y) and self.up(y, x)):
            self._drop(x, y, connection)

    def isolate(self, name: str) -> None:
        others = [other for other in self.names if other != self[name].name]
        self.block(*((name, o) for o in others), *((o, name) for o in others))

    def heal(self) -> None:
        self.blocked.clear()
        for (a, b), held in list(self._held.items()):
            del self._held[(a, b)]
            for connection, message in held:
                arrival = max(
                    self._last_arrival.get((a, b, connection), 0.0), self.now + self.rng.uniform(0, 0.1)
                )
                self._last_arrival[(a, b, connection)] = arrival
                self.at(arrival - self.now, self._deliver, a, b, connection, message)
        for a, b in itertools.combinations(self.names, 2):
            self.at(self.rng.uniform(0.01, 0.3), self._dial, a, b)

    # ---- load and checks

    def submit(self, name: str | None = None, size: int = 8) -> int | None:
        """Append at the leader (or at ``name``, if it leads); the acknowledgement is its own apply."""
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


@pytest.fixture
def world() -> Callable[..., World]:
    """Make worlds; a scripted one is started and has a leader."""

    def make(seed: int = 1, *, started: bool = True, **settings: object) -> World:
        made = World(seed, **settings)  # type: ignore[arg-type]
        if started:
            made.start()
            made.settle()
        return made

    return make


@pytest.fixture
def find_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Play a scenario on a directory with a fix switched off: it must be found wrong."""

    def find(
        switch_off: Callable[[pytest.MonkeyPatch], None],
        scenario: Callable[[Path, pytest.MonkeyPatch], None],
        *,
        also: tuple[type[Exception], ...] = (),
    ) -> None:
        switch_off(monkeypatch)
        with pytest.raises((AssertionError, pytest.fail.Exception, *also)):
            scenario(tmp_path, monkeypatch)

    return find
