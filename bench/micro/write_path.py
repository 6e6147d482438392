"""Measures the time that a raft member needs for a registration: for each step, and in total.

    python -m routekeeper.bench.micro.write_path [--topics 10] [--brokers 32] [--rounds 100] [--cold]

Brokers register with one changed topic, as in ``routekeeper.bench.micro.raft``. First the benchmark times
each step separately. Then it starts a raft group of one member with ``--durability memory`` in this process.
It passes to this member the bytes that connections would receive:

- from one broker after the other, to time three steps: before, in and after the code of the raft mode;
- from all brokers at the same time, as whole writes;
- from one broker alone, as whole writes.

The member has no sockets. The time of a step is wall time. For whole writes, the thread's CPU time is
taken from the receipt of the bytes to the last answer. It is then divided by the number of writes. The
benchmark prints the 20th percentile and the median of the time for one write, in µs. Other programs can only
lengthen a step, so the 20th percentile shows the step with few disturbances.

With ``--cold`` it empties the processor's caches before each step. If a member writes seldom and its machine
runs other processes, little of its code is in the caches. The figures with ``--cold`` show how much code a
step uses.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import uvloop

from routekeeper.bench import interpreter
from routekeeper.bench.figures import percentile
from routekeeper.bench.wires.remoting_wire import RemotingWire
from routekeeper.nameserver.commands import (
    Batch,
    Command,
    Proposal,
    RegisterBroker,
    decode_batch,
    decode_command,
    encode_batch,
    encode_command,
)
from routekeeper.nameserver.handlers import answer_for, decide_registration
from routekeeper.nameserver.raft.types import RaftConfig
from routekeeper.nameserver.registration import Registration, decode_registration
from routekeeper.nameserver.replicated import Replicated
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, ConnectionId, Request
from routekeeper.nameserver.verdicts import Applied
from routekeeper.nameserver.wire.server import NameServer
from routekeeper.remoting.command import RemotingCommand, encode_done, read_command
from routekeeper.remoting.transport.server import Connection

_STARTED_MS: Final = 1_700_000_000_000
_LEADS_S: Final = 10.0
_LOOK_S: Final = 0.01
_LENGTH_SIZE: Final = 4
#: Size in bytes of the data with which a benchmark fills the caches. It is larger than the caches of one
#: core; caches that several cores share may be larger.
_CACHES_SIZE: Final = 8 * 1024 * 1024
_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Steps:
    """Times in µs that each step took.

    Args:
        cold: True to remove code and data of the steps from the processor's caches before each step.
    """

    def __init__(self, *, cold: bool) -> None:
        self.took: dict[str, list[float]] = {}
        self._other = bytes(_CACHES_SIZE) if cold else b""

    def time(self, step: str, run: Callable[[_In], _Out], value: _In) -> _Out:
        self.cool()
        began = time.perf_counter_ns()
        result = run(value)
        self.note(step, began, time.perf_counter_ns())
        return result

    def cool(self) -> None:
        """Fill the caches with other data, if ``cold`` is set."""
        self._other.count(b"x")

    def note(self, step: str, began_ns: int, ended_ns: int) -> None:
        self.took.setdefault(step, []).append((ended_ns - began_ns) / 1e3)

    def say(self) -> None:
        for step, took in self.took.items():
            _say(step, took)


def _say(what: str, took: Iterable[float]) -> None:
    ordered = sorted(took)
    print(f"{what:44} {percentile(ordered, 0.2):8.2f} {percentile(ordered, 0.5):8.2f}", flush=True)


def steps_alone(wires: Sequence[RemotingWire], rounds: int, *, cold: bool) -> None:
    """Time each step of the brokers' registrations separately, on a route table without a raft group."""
    table, settings, steps = RouteTable(), NamesrvSettings(), Steps(cold=cold)

    def decode(frame: bytes) -> RemotingCommand:
        return read_command(frame, 0, len(frame) - _LENGTH_SIZE)

    for number in range(rounds + 1):
        if number == 1:
            steps.took.clear()  # omit the first round, in which the brokers are new
        for sequence, wire in enumerate(wires):
            request = steps.time("frame to command", decode, wire.write(number) if number else wire.prepare())
            decoded = steps.time("decode arguments and body", decode_registration, request)
            assert isinstance(decoded, Registration), decoded
            command: Command
            if number:
                decide = functools.partial(table.shortened, delete_absent=False)
                difference = steps.time("decide: what is to change", decide, decoded)
                assert difference is not None, decoded
                command = difference
            else:
                whole = decide_registration(table.view, decoded, settings)
                assert isinstance(whole, RegisterBroker), whole
                command = whole
            data = steps.time("encode command", encode_command, command)
            proposal = Proposal(boot_id=2**62, sequence=sequence, command=data)
            entry = steps.time("encode entry of one", encode_batch, Batch(proposals=(proposal,)))
            (again,) = steps.time("decode entry of one", decode_batch, entry).proposals
            verdict = steps.time(
                "apply", table.apply, steps.time("decode command", decode_command, again.command)
            )
            assert isinstance(verdict, Applied), verdict
            assert not answer_for(command, verdict, settings).code
            steps.time("encode answer", encode_done, request)
    steps.say()


class _Peer(asyncio.Transport):
    """Transport of a connection without a socket; it counts the answers."""

    def __init__(self, connection: Connection, answered: Callable[[], None]) -> None:
        super().__init__()
        self._connection = connection
        self._answered = answered
        self._closing = False

    def write(self, data: Any) -> None:
        assert b'"code":0,' in data, data
        self._answered()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def abort(self) -> None:
        self.close()


class Clocked(Replicated):
    """A raft mode that measures how long each registration is processed, and adds the durations to ``steps``.

    There are three durations:

    - from the receipt of the bytes to the call of :meth:`register`;
    - in :meth:`register`;
    - from the raft group's answer until the answer is written to the connection.
    """

    def __init__(self, *args: Any, **others: Any) -> None:
        super().__init__(*args, **others)
        self.steps: Steps | None = None
        self.began_ns = 0

    def register(
        self,
        request: Request,
        origin: ConnectionId,
        *,
        deadline: float,
        answered: Callable[[Answer], None],
        host: str = "",
        turn_of: str = "",
    ) -> Answer | None:
        steps, hosts = self.steps, {"host": host, "turn_of": turn_of}
        if steps is None:
            return super().register(request, origin, deadline=deadline, answered=answered, **hosts)
        entered = time.perf_counter_ns()
        steps.note("bytes received until the mode has it", self.began_ns, entered)

        def passed_on(answer: Answer) -> None:
            steps.cool()
            began = time.perf_counter_ns()
            answered(answer)
            steps.note("answer until it is written", began, time.perf_counter_ns())

        steps.cool()
        began = time.perf_counter_ns()
        answer = super().register(request, origin, deadline=deadline, answered=passed_on, **hosts)
        steps.note("decode, decide and propose it", began, time.perf_counter_ns())
        return answer


class Group:
    """A raft group of one member, and connections to this member without sockets."""

    def __init__(self, server: NameServer, wires: Sequence[RemotingWire]) -> None:
        self._wires = wires
        self._left = 0
        self._all: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connections = []
        for _ in wires:
            connection = Connection(server.wire)
            connection.connection_made(_Peer(connection, self._answered))
            self._connections.append(connection)

    def _answered(self) -> None:
        self._left -= 1
        if not self._left:
            self._all.set_result(None)

    async def write(self, frames: Sequence[bytes]) -> float:
        """Pass the first frame to the first connection, the second frame to the second, and so on.

        Connections without a frame receive nothing. Return the CPU time per frame in µs.
        """
        self._all = asyncio.get_running_loop().create_future()
        self._left = len(frames)
        began = time.thread_time_ns()
        for connection, frame in zip(self._connections, frames, strict=False):
            connection.data_received(frame)
        await self._all
        return (time.thread_time_ns() - began) / 1e3 / len(frames)

    async def steps(self, mode: Clocked, steps: Steps, count: int) -> None:
        """Pass a frame to one connection after the other.

        For each frame, add the three durations of :class:`Clocked` to ``steps``.
        """
        mode.steps = steps
        for number in range(1, 1 + count):
            for connection, wire in zip(self._connections, self._wires, strict=True):
                self._all = asyncio.get_running_loop().create_future()
                self._left = 1
                frame = wire.write(number)
                steps.cool()
                mode.began_ns = time.perf_counter_ns()
                connection.data_received(frame)
                await self._all
        mode.steps = None

    async def rounds(self, what: str, count: int, first: int, brokers: int) -> None:
        took = []
        for number in range(first, first + count):
            took.append(await self.write([wire.write(number) for wire in self._wires[:brokers]]))
        _say(what, took)


async def group_of_one(wires: Sequence[RemotingWire], rounds: int, *, cold: bool) -> None:
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        me = f"127.0.0.1:{probe.getsockname()[1]}"
        probe.close()
        live = LiveSettings(NamesrvSettings(data_dir=folder, listen_port=0))
        raft = RaftConfig(me=me, peers=(me,), listen=None, data_dir=Path(folder), durability="memory")
        async with asyncio.TaskGroup() as tasks:
            server = NameServer(settings=live, group=tasks)
            mode = Clocked(live, server, boot_id=secrets.randbits(63), raft=raft)
            await mode.start()
            await server.start(mode)
            for _ in range(round(_LEADS_S / _LOOK_S)):
                if mode.member.leads:
                    break
                await asyncio.sleep(_LOOK_S)
            group = Group(server, wires)
            await group.write([wire.prepare() for wire in wires])
            gc.collect()
            gc.freeze()
            steps, every = Steps(cold=cold), len(wires)
            few = max(1, rounds // 10)
            await group.steps(mode, steps, few)
            steps.say()
            await group.rounds(f"group of one, {every} at the same time", rounds, 1 + few, every)
            await group.rounds("group of one, one alone", rounds, 1 + few + rounds, 1)
            await mode.close()
            await server.close(drain_s=1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--topics", type=int, default=10, help="topics of each broker (default %(default)s)")
    parser.add_argument("--brokers", type=int, default=32, help="brokers that register (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of writes (default %(default)s)")
    parser.add_argument("--cold", action="store_true", help="empty the processor's caches before each step")
    args = parser.parse_args()
    print(interpreter.said(), flush=True)
    for name in ("topics", "brokers", "rounds"):
        if (value := getattr(args, name)) < 1:
            parser.error(f"--{name} {value} is too small, allowed is 1 or more")

    def wires() -> list[RemotingWire]:
        return [
            RemotingWire(key=key, topics=args.topics, timestamp_ms=_STARTED_MS) for key in range(args.brokers)
        ]

    print(f"{'us for each write':44} {'p20':>8} {'p50':>8}")
    steps_alone(wires(), args.rounds, cold=args.cold)
    uvloop.run(group_of_one(wires(), args.rounds, cold=args.cold))


if __name__ == "__main__":
    main()
