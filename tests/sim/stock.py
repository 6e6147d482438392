"""The published PySyncObj in the simulator, as the evidence for docs/pysyncobj-defects.md.

The classes SyncObj, FileJournal and Serializer are the library's. Clock, randomness, links and faults are the
simulator's. To write a dump, the library forks a child process. This child is simulated: some time after the
fork, the library's code writes the state that the member had at the fork. It does so even if the member has
ended in the meantime. Commands are short texts that fit into one batch.

The checks find these wrong steps of members (the numbers are from docs/pysyncobj-defects.md):

D1
    A member drops entries that it has acknowledged, and that the received message does not contradict.
D2
    A member takes its commit index from a snapshot message, although its own entry at this index differs
    from the committed entry.
D14
    A member that starts drops the journal entries after its dump.

Wrong steps have these effects:

diverged
    Two members applied different entries at one index.
lost
    A command was acknowledged with SUCCESS and is in no member's state at the end.
twice
    A command is in a member's state more than once.
stuck
    The members do not reach a common state after all faults have ended.
"""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import pickle
import random
import shutil
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pysyncobj.config import FAIL_REASON, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from .clock import Clock
from .disk import Disk
from .faults import Faults, Victim
from .net import End, Net
from .scenario import Result

LOOK_S: Final = 2e-4
"""Seconds of virtual time that each reading of the clock takes.

If readings took no time, some loops of the library would never end, because they wait for a time. This is
defect D20.
"""
TICK_S: Final = (0.024, 0.036)
DUMP_S: Final = (0.05, 0.8)
"""Shortest and longest time in s that the forked child takes to write a dump."""
COMMANDS_PER_S: Final = (15.0, 60.0)
SETTLE_S: Final = 20.0
EVENTS_MAX: Final = 60_000
"""Maximum number of events in a run.

Without this limit, a run could take very long: the library can flood a peer with messages (defect D20), or
go back in a log by only one entry per heartbeat (defect D18).
"""
STOCK_FAULTS: Final = (
    "partition",
    "one way",
    "slow",
    "reset",
    "kill",
    "kill leader",
    "kill all",
    "pause",
    "pause leader",
)
"""Faults that the library claims to survive.

Three kinds of faults are left out:

- Power cuts: the library never syncs (defect D7).
- A full disk: the library stops.
- A wiped disk: a wiped member votes (defect D25).
"""


def _load(name: str) -> ModuleType:
    """Load a second copy of a module, whose globals can be replaced without an effect on the first copy."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_syncobj: Any = _load("pysyncobj.syncobj")
_serializer: Any = _load("pysyncobj.serializer")
_inside: list[StockMember] = []
"""Stack of the members whose code runs now. The code of the last member was entered last."""


class _Chance:
    @staticmethod
    def random() -> float:
        return _inside[-1].rng.random()


class _NoPoller:
    def subscribe(self, *_: object) -> None: ...
    def unsubscribe(self, *_: object) -> None: ...
    def poll(self, _: float) -> None: ...


class _ForkOs:
    """A replacement of ``os`` in the serializer. Its ``waitpid`` waits for simulated children."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    @staticmethod
    def waitpid(child: int, _: int) -> tuple[int, int]:
        return (child, 0) if child in _inside[-1].children_done else (0, 0)


class _Serializer(_serializer.Serializer):  # type: ignore[misc]
    """The library's serializer with a simulated ``fork``: it copies the state, and its child ends later."""

    _Serializer__pid: int

    def serialize(self, data: Any, id: int) -> None:
        if self._Serializer__pid:
            return
        self._Serializer__currentID = id
        self._Serializer__pid = _inside[-1].fork(self._Serializer__fileName, pickle.dumps(data), id)


_serializer.os = _ForkOs()
_syncobj.Serializer = _Serializer
_syncobj.monotonicTime = lambda: _inside[-1].time()
_syncobj.random = _Chance
_syncobj.createPoller = lambda _: _NoPoller()


class _Node(Node):  # type: ignore[misc]
    """A node whose hash is the same in every process, so that a seed always gives the same run."""

    def __hash__(self) -> int:
        return zlib.crc32(self.id.encode())


class _Links(Transport):  # type: ignore[misc]
    def __init__(self, member: StockMember) -> None:
        super().__init__(None, None, [])
        self._member = member

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        return self._member.send(node.id, message)


class _State(_syncobj.SyncObj):  # type: ignore[misc]
    """The replicated state: all commands in the order in which they were applied."""

    def __init__(self, member: StockMember, *arguments: Any, **named: Any) -> None:
        self._member = member  # set before the library's constructor, so that the state does not include it
        super().__init__(*arguments, **named)
        self.commands: list[str] = []

    @_syncobj.replicated  # type: ignore[untyped-decorator]
    def put(self, command: str) -> None:
        index = self._SyncObj__raftLastApplied + 1
        self.commands.append(command)
        self._member.world.applied(self._member, index, command)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the library's log."""

    command: bytes
    index: int
    term: int


class StockMember:
    """One member, including its restarts.

    It is a host of the simulated network and has one SyncObj.
    """

    def __init__(self, world: StockWorld, number: int, folder: Path) -> None:
        self.world = world
        self.name = f"member-{number}"
        self.folder = folder
        self.rng = random.Random(world.clock.rng.getrandbits(64))
        # This disk is unused, because the library writes real files.
        self.disk = Disk(folder.parent, self, self.rng)
        self.expects_end = False
        self.life = 0
        self.up = False
        self.node: Any = None
        self.children_done: set[int] = set()
        self.truncated: list[tuple[str, int, int]] = []
        """Wrong steps of the member: the defect's name, and the first and the last affected log index."""
        self._children = 0
        self._links: dict[str, End] = {}
        self._paused_until = 0.0
        self._now = 0.0
        self._acknowledged = 0  # last index that this member has acknowledged to a leader
        self._dropped: list[Entry] = []
        self._counted = 0

    # -- methods of the interface Host

    def deliver(self, life: int, call: Callable[..., object], *arguments: Any) -> None:
        if life != self.life or not self.up:
            return
        wait = self._paused_until - self.world.clock.now
        if wait > 0:
            self.world.clock.at(wait, self.deliver, life, call, *arguments)
            return
        call(*arguments)

    # -- methods of the interface Victim, which the simulated faults call

    def crashed(self, *, power: bool) -> None:
        raise AssertionError("it does not use that disk")

    def complain(self, text: str) -> None:
        raise AssertionError("it does not use that disk")

    def start(self) -> None:
        world = self.world
        self.life += 1
        self.up = True
        self._links = {}
        self._acknowledged = self._counted = 0
        self._paused_until = 0.0
        self.folder.mkdir(exist_ok=True)
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,
            appendEntriesPeriod=0.05,
            raftMinTimeout=0.3,
            raftMaxTimeout=0.9,
            connectionTimeout=2.0,
            appendEntriesBatchSizeBytes=world.batch_bytes,
            logCompactionMinEntries=world.compact_entries,
            logCompactionMinTime=10**6,
            logCompactionBatchSize=200,
            useFork=True,
            journalFile=str(self.folder / "journal"),
            fullDumpFile=str(self.folder / "dump"),
        )
        with self._running():
            others = [_Node(name) for name in world.names if name != self.name]
            self.node = _State(self, _Node(self.name), others, conf=conf, transport=_Links(self))
        log = self.node._SyncObj__raftLog
        real = log.deleteEntriesFrom

        def delete(position: int) -> None:
            self._dropped += self.entries(position)
            real(position)

        log.deleteEntriesFrom = delete
        world.net.listeners[self.name] = (self, lambda end: self.deliver(end.life, self._accept, end))
        self._tick(self.life)
        for name in world.names:
            if name < self.name:
                world.clock.at(world.clock.rng.uniform(0.001, 0.3), self._dial, self.life, name)

    def kill(self, *, power: bool = False, wipe: bool = False) -> None:
        assert not power, "it never syncs: nothing is promised"
        assert not wipe, "a wiped member votes: nothing is promised"
        if self.up:
            self.node._SyncObj__raftLog._destroy()  # written bytes stay in the mapped file, as after a kill
            self.node = None
            self.up = False
            self.life += 1
            self.world.net.listeners.pop(self.name, None)
            self.world.net.died(self, power=False)

    def pause(self, seconds: float) -> None:
        self._paused_until = max(self._paused_until, self.world.clock.now + seconds)

    def mend(self) -> None:
        """End the member's pause."""
        self._paused_until = 0.0

    # -- time

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._now = max(self._now, self.world.clock.now)
        _inside.append(self)
        try:
            yield
        finally:
            _inside.pop()

    def time(self) -> float:
        """Return the library's time in seconds; each call takes :data:`LOOK_S` seconds of virtual time."""
        self._now += LOOK_S
        return 1000.0 + self._now

    def _tick(self, life: int) -> None:
        if life != self.life or not self.up:
            return
        world = self.world
        wait = self._paused_until - world.clock.now
        if wait > 0:
            # After a pause, the tick comes before the waiting messages or after them, at random.
            world.clock.at(wait + world.clock.rng.choice((0.0, 1e-6)), self._tick, life)
            return
        self._do_tick()
        busy = max(0.0, self._now - world.clock.now)
        world.clock.at(busy + world.clock.rng.uniform(*TICK_S), self._tick, life)

    def _do_tick(self) -> None:
        loads = self.node._SyncObj__needLoadDumpFile
        before = self.entries() if loads else []
        with self._running(), self.world.watched(self):
            self.node.doTick(0)
        if loads:
            self._look_at_what_was_loaded(before)
        if self.node._SyncObj__raftState == 2:
            self.world.leads(self)

    def _soon(self, life: int) -> None:
        if life == self.life and self.up and self._paused_until <= self.world.clock.now:
            self._do_tick()

    def fork(self, file: str, state: bytes, index: int) -> int:
        """Begin to write a dump; return the child's number.

        The child continues even if its parent ends. This is defect D29 in docs/pysyncobj-defects.md.
        """
        self._children += 1
        child, life = self._children, self.life

        def end() -> None:
            _serializer.Serializer(file, 0, False, None, None, None).serialize(pickle.loads(state), index)
            if life == self.life:
                self.children_done.add(child)

        self.world.clock.at(self.world.clock.rng.uniform(*DUMP_S), end)
        return child

    # -- links

    def _dial(self, life: int, name: str) -> None:
        world = self.world
        if life != self.life or not self.up or name in self._links:
            return
        blocked = world.net.is_blocked(self.name, name) or world.net.is_blocked(name, self.name)
        end = None if blocked else world.net.connect(self, name)
        if end is None:
            world.clock.at(world.clock.rng.uniform(0.05, 0.5), self._dial, life, name)
        else:
            self._linked(name, end)

    def _accept(self, end: End) -> None:
        if not end.closed:
            name = end.peer.host.name
            if (old := self._links.get(name)) is not None:
                old.abort()
            self._linked(name, end)

    def _linked(self, name: str, end: End) -> None:
        self._links[name] = end
        end.receive = lambda data: self._received(name, end, data)
        end.lost = lambda _: self._lost(name, end)
        with self._running():
            self.node._SyncObj__transport._onNodeConnected(_Node(name))

    def _lost(self, name: str, end: End) -> None:
        if self._links.get(name) is not end:
            return
        del self._links[name]
        with self._running():
            self.node._SyncObj__transport._onNodeDisconnected(_Node(name))
        if name < self.name:
            wait = self.world.clock.rng.uniform(0.05, 0.5)
            self.world.clock.at(wait, self._dial, self.life, name)

    def send(self, name: str, message: dict[str, Any]) -> bool:
        end = self._links.get(name)
        if end is None or end.closed:
            return False
        if message["type"] == "next_node_idx" and message["success"]:
            self._acknowledged = max(self._acknowledged, message["next_node_idx"] - 1)
        end.send(pickle.dumps(message))
        return True

    def _received(self, name: str, end: End, data: bytes) -> None:
        if self._links.get(name) is not end:
            return
        message = pickle.loads(data)
        commit, applied = self.commit_index, self.node._SyncObj__raftLastApplied
        self._dropped.clear()
        with self._running(), self.world.watched(self):
            self.node._SyncObj__transport._onMessageReceived(_Node(name), message)
        if message["type"] == "append_entries":
            if "prevLogIdx" in message:
                self._look_at_what_was_dropped(message, applied)
            elif self.node._SyncObj__raftLastApplied == applied and self.commit_index > commit:
                self._look_at_what_was_committed(commit)
        self.world.clock.at(self.world.clock.rng.uniform(0, 5e-4), self._soon, self.life)

    # -- detection of the library's wrong steps (see the docstring of this module)

    def entries(self, position: int = 0) -> list[Entry]:
        """Return the log's entries from a position on."""
        log = self.node._SyncObj__raftLog
        return [Entry(*found) for found in log[position:]]

    @property
    def commit_index(self) -> int:
        return int(self.node._SyncObj__raftCommitIndex)

    def _look_at_what_was_dropped(self, message: dict[str, Any], applied: int) -> None:
        """Record D1 if the member dropped acknowledged entries that the message does not contradict."""
        if not self._dropped:
            return
        said = {entry[1]: entry[2] for entry in message.get("entries") or ()}
        contradicted = any(said.get(entry.index, entry.term) != entry.term for entry in self._dropped)
        gone = [entry.index for entry in self._dropped if entry.index not in said]
        acknowledged = [index for index in gone if index <= self._acknowledged]
        if acknowledged and not contradicted:
            first, last = min(acknowledged), max(acknowledged)
            self.truncated.append(("D1", first, last))
            self.world.show(
                "D1",
                f"{self.name} drops entries {first}-{last}, which it has acknowledged and which nothing "
                f"contradicts; {sum(index <= applied for index in acknowledged)} of them are applied",
            )
        self._acknowledged = min([self._acknowledged, *(index - 1 for index in gone)])

    def _look_at_what_was_committed(self, before: int) -> None:
        """Record D2 if the member commits an entry that differs from the group's committed entry."""
        for entry in self.entries():
            true = self.world.committed.get(entry.index)
            if before < entry.index <= self.commit_index and true is not None and true != entry:
                self.truncated.append(("D2", entry.index, self.commit_index))
                self.world.show(
                    "D2",
                    f"{self.name} takes commit index {self.commit_index} from a snapshot message: its entry "
                    f"{entry.index} is of term {entry.term}, the committed one of term {true.term}",
                )
                return

    def newly_committed(self) -> list[Entry]:
        """Return the entries that this leader has committed since the last call of this method."""
        base = self.node._SyncObj__raftLog[0][1]
        begin = max(self._counted + 1, base)
        self._counted = self.commit_index
        return [entry for entry in self.entries(begin - base) if entry.index <= self._counted]

    def _look_at_what_was_loaded(self, before: Sequence[Entry]) -> None:
        """Record D14 if the member dropped the journal entries after its dump when it started."""
        last = self.entries()[-1].index
        if before[-1].index > last:
            self.truncated.append(("D14", last + 1, before[-1].index))
            self.world.show(
                "D14",
                f"{self.name} starts and throws entries {last + 1}-{before[-1].index} of its journal away: "
                f"its dump ends at {last}, the journal began at {before[0].index}",
            )


class StockWorld:
    """The members, the clients that submit commands, and the checks of a run."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        members: int,
        compact_entries: int,
        batch_bytes: int,
        commands_per_s: float,
    ) -> None:
        self.clock = Clock(seed)
        self.net = Net(self.clock)
        self.durability = "journal"
        self.troubled_until = 0.0
        self.compact_entries = compact_entries
        self.batch_bytes = batch_bytes
        self.commands_per_s = commands_per_s
        self.names = tuple(f"member-{number}" for number in range(members))
        self.members = [StockMember(self, number, folder / str(number)) for number in range(members)]
        self.shown: dict[str, list[str]] = {}
        self.count: Counter[str] = Counter()
        self.committed: dict[int, Entry] = {}
        """Entries that a leader has found on a majority of members, by index."""
        self._first: dict[int, tuple[str, str]] = {}
        self._commands: dict[str, int] = {}  # index of each command that was acknowledged with SUCCESS
        self._at: dict[str, int] = {}  # index at which each command was first applied
        self._terms: dict[int, str] = {}
        self._number = 0
        self._busy = True

    def show(self, name: str, text: str) -> None:
        """Record a violation."""
        self.count[name] += 1
        self.shown.setdefault(name, []).append(f"{self.clock.now:.6f} {name}: {text}")

    # -- methods of the interface Faulty

    @property
    def victims(self) -> list[StockMember]:
        return self.members

    @property
    def others(self) -> tuple[str, ...]:
        return ()

    def leader(self) -> StockMember | None:
        leading = [m for m in self.members if m.up and m.node._isLeader()]
        return max(leading, key=lambda m: int(m.node._SyncObj__raftCurrentTerm), default=None)

    def may_lose(self, member: Victim) -> bool:
        return False

    def may_lose_power(self, member: Victim) -> bool:
        return False

    # -- methods that the members call

    @contextmanager
    def watched(self, member: StockMember) -> Iterator[None]:
        """Count and ignore the errors of a tick, because the library's own thread would only log them."""
        try:
            yield
        except Exception as error:
            self.count[f"raised {type(error).__name__}"] += 1

    def leads(self, member: StockMember) -> None:
        """Check a leader after its tick, and record the entries that it has committed."""
        term = int(member.node._SyncObj__raftCurrentTerm)
        if self._terms.setdefault(term, member.name) != member.name:
            self.show("two leaders", f"in term {term}: {self._terms[term]}, {member.name}")
        for entry in member.newly_committed():
            self.committed.setdefault(entry.index, entry)

    def applied(self, member: StockMember, index: int, command: str) -> None:
        self.count["applied"] += 1
        first = self._first.setdefault(index, (command, member.name))
        self._at.setdefault(command, index)
        if first[0] != command:
            self.show(
                "diverged",
                f"{member.name} applies {command} at {index}, where {first[1]} has applied {first[0]}"
                f"{self._why(index)}",
            )

    def _why(self, index: int) -> str:
        """Return a text with the defects that affected an index, or "" if there are none."""
        names = [
            f"{name} of {member.name}"
            for member in self.members
            for name, begin, end in member.truncated
            if begin <= index <= end
        ]
        return f" ({', '.join(dict.fromkeys(names))})" if names else ""

    # -- clients that submit commands

    def submit(self) -> None:
        """Submit a command to one member."""
        rng = self.clock.rng
        if self._busy:
            self.clock.at(rng.expovariate(self.commands_per_s), self.submit)
        live = [member for member in self.members if member.up]
        for _ in range(rng.choice((1, 1, 1, 5))) if live else ():
            self._number += 1
            text = f"{self._number}." + "x" * rng.randrange(60)
            member = rng.choice(live)
            member.deliver(member.life, self._submit, member, text)

    def _submit(self, member: StockMember, text: str) -> None:
        self.count["submitted"] += 1

        def told(_: object, error: int) -> None:
            if error == FAIL_REASON.SUCCESS:
                self.count["acknowledged"] += 1
                self._commands[text] = self._at[text]

        with member._running():
            member.node.put(text, callback=told)

    # -- the run

    def run(self, faults: Faults, seconds: float) -> None:
        clock = self.clock
        for member in self.members:
            clock.at(clock.rng.uniform(0.0, 0.2), member.start)
        clock.run(3.0, lambda: self.leader() is not None)
        self.submit()
        clock.run(0.5)
        faults.begin(seconds)
        clock.run(seconds, self._is_flooded)
        self.net.slow = 0.0
        self.net.heal()
        for member in self.members:
            if not member.up:
                member.start()
            member.mend()
        clock.run(1.0, self._is_flooded)
        self._busy = False
        settled = clock.run(SETTLE_S, lambda: self._is_settled() or self._is_flooded())
        if self._is_flooded():
            self.count["cut short"] += 1
        elif not settled:
            self.show("stuck", f"no common state {SETTLE_S:g} s after healing")
        if self._is_settled():
            self._look_at_the_end()

    def _is_flooded(self) -> bool:
        return self.clock.events > EVENTS_MAX

    def _is_settled(self) -> bool:
        nodes = [member.node for member in self.members]
        indexes = {int(node._SyncObj__raftLastApplied) for node in nodes}
        return len(indexes) == 1 and {m.node._SyncObj__raftLog[-1][1] for m in self.members} == indexes

    def _look_at_the_end(self) -> None:
        states = [member.node.commands for member in self.members]
        if any(state != states[0] for state in states):
            self.show("diverged", "the members' states differ at the end")
        there = set.union(*(set(state) for state in states))
        for command, index in self._commands.items():
            if command not in there:
                self.show("lost", f"{command} was acknowledged at {index}{self._why(index)}")
        for member, state in zip(self.members, states, strict=True):
            for command, times in Counter(state).items():
                if times > 1:
                    self.show("twice", f"{command} is in the state of {member.name} {times} times")


def run_stock(
    seed: int,
    *,
    members: int = 3,
    seconds: float = 12.0,
    faults: Sequence[str] | None = None,
    compact_entries: int | None = None,
    batch_bytes: int | None = None,
) -> Result:
    """Run one seed on the unchanged library.

    Each violation begins with its time and a name from this module's docstring.

    The seed chooses each of the following arguments that is None.

    Args:
        faults: Names from :data:`STOCK_FAULTS`.
        compact_entries: Number of entries in the log at which a dump is written.
        batch_bytes: The library's setting ``appendEntriesBatchSizeBytes``. A command has up to 150 bytes.
    """
    folder = Path(tempfile.mkdtemp(prefix="stock-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    logger = logging.getLogger("pysyncobj")
    disabled, logger.disabled = logger.disabled, True
    modules = [logging.getLogger(f"pysyncobj.{name}") for name in ("syncobj", "serializer")]
    levels = [module.level for module in modules]
    for module in modules:
        module.setLevel(logging.CRITICAL + 1)
    chooser = random.Random(seed)
    if faults is None:
        faults = chooser.sample(STOCK_FAULTS, chooser.randint(1, 4))
    if compact_entries is None:
        compact_entries = chooser.choice((60, 60, 10**9))
    if batch_bytes is None:
        batch_bytes = chooser.choice((150, 300, 2**16))
    commands_per_s = chooser.choice(COMMANDS_PER_S)
    world = StockWorld(
        seed,
        folder,
        members=members,
        compact_entries=compact_entries,
        batch_bytes=batch_bytes,
        commands_per_s=commands_per_s,
    )
    play = Faults(world, faults)
    try:
        with warnings.catch_warnings():
            # The library does not close its files, so the garbage collector closes them and warns about it.
            warnings.simplefilter("ignore", ResourceWarning)
            try:
                world.run(play, seconds)
            finally:
                for member in world.members:
                    member.kill()
                gc.collect()
        return Result(
            seed=seed,
            settings=f"members={members} compact_entries={compact_entries} batch_bytes={batch_bytes} "
            f"commands_per_s={commands_per_s:g} faults={','.join(faults)}",
            violations=tuple(line for lines in world.shown.values() for line in lines),
            count=world.count,
            trace=world.clock.trace(),
            seconds=world.clock.now,
            events=world.clock.events,
            what=tuple(play.done),
        )
    finally:
        logger.disabled = disabled
        for module, level in zip(modules, levels, strict=True):
            module.setLevel(level)
        shutil.rmtree(folder, ignore_errors=True)
