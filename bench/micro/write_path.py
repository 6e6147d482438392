"""One registration on its way through a member, step by step and as a whole, in this process without sockets.

    python -m bench.micro.write_path [--topics 10] [--brokers 32] [--rounds 100]

Brokers register with one topic changed, as ``bench.micro.raft`` has them do it. First each step is timed on
its own. Then a raft group of one, ``--durability memory``, gets what connections would receive: all brokers
at the same time, and one alone; the thread's CPU time runs from the bytes to the last answer. Figures are the
smallest fifth and the median, in us for each write: neighbours on the machine lengthen a step, nothing
shortens it. By command only.
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

from bench.micro.raft.figures import percentile
from bench.micro.raft.remoting_wire import RemotingWire
from nameserver.commands import (
    Batch,
    Proposal,
    RegisterBroker,
    decode_batch,
    decode_command,
    encode_batch,
    encode_command,
)
from nameserver.config import LiveSettings, NamesrvSettings
from nameserver.handlers import Registration, answer_for, decide_registration, decode_registration
from nameserver.raft import RaftConfig
from nameserver.replicated import Replicated
from nameserver.route_table import RouteTable
from nameserver.server import NameServer
from nameserver.types import Request
from nameserver.verdicts import Applied
from remoting.command import RemotingCommand, encode_done
from remoting.command import decode_command as decode_header
from remoting.frame import split_frame
from remoting.transport.server import ServerProtocol

_STARTED_MS: Final = 1_700_000_000_000
_LEADS_S: Final = 10.0
_LOOK_S: Final = 0.01
_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Steps:
    """How long each step took, in us."""

    def __init__(self) -> None:
        self.took: dict[str, list[float]] = {}

    def time(self, step: str, run: Callable[[_In], _Out], value: _In) -> _Out:
        began = time.perf_counter_ns()
        result = run(value)
        self.took.setdefault(step, []).append((time.perf_counter_ns() - began) / 1e3)
        return result

    def say(self) -> None:
        for step, took in self.took.items():
            _say(step, took)


def _say(what: str, took: Iterable[float]) -> None:
    ordered = sorted(took)
    print(f"{what:44} {percentile(ordered, 0.2):8.2f} {percentile(ordered, 0.5):8.2f}", flush=True)


def steps_alone(wires: Sequence[RemotingWire], rounds: int) -> None:
    """Time each step of the brokers' registrations on a table of its own."""
    table, settings, steps = RouteTable(), NamesrvSettings(), Steps()

    def decode(frame: bytes) -> RemotingCommand:
        return decode_header(split_frame(frame, 0, len(frame)))

    for number in range(rounds + 1):
        if number == 1:
            steps.took.clear()  # whatever came first registered for the first time
        for sequence, wire in enumerate(wires):
            request = steps.time("decode header", decode, wire.write(number) if number else wire.prepare())
            asked = Request.of(request)
            decoded = steps.time("decode body", decode_registration, asked)
            assert isinstance(decoded, Registration), decoded
            decide = functools.partial(decide_registration, table.view, settings=settings)
            command = steps.time("decide", decide, decoded)
            assert isinstance(command, RegisterBroker), command
            data = steps.time("encode command", encode_command, command)
            proposal = Proposal(boot_id=2**62, sequence=sequence, command=data)
            entry = steps.time("encode entry of one", encode_batch, Batch(proposals=(proposal,)))
            (again,) = steps.time("decode entry of one", decode_batch, entry).proposals
            verdict = steps.time(
                "apply", table.apply, steps.time("decode command", decode_command, again.command)
            )
            assert isinstance(verdict, Applied), verdict
            assert not answer_for(command, verdict, asked, settings).code
            steps.time("encode answer", encode_done, request)
    steps.say()


class _Peer(asyncio.Transport):
    """What a connection writes to: counts the answers."""

    def __init__(self, connection: ServerProtocol, answered: Callable[[], None]) -> None:
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


class Group:
    """A raft group of one and connections to it that have no sockets."""

    def __init__(self, server: NameServer, wires: Sequence[RemotingWire]) -> None:
        self._wires = wires
        self._left = 0
        self._all: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connections = []
        for _ in wires:
            connection = ServerProtocol(server.wire)
            connection.connection_made(_Peer(connection, self._answered))
            self._connections.append(connection)

    def _answered(self) -> None:
        self._left -= 1
        if not self._left:
            self._all.set_result(None)

    async def write(self, frames: Sequence[bytes]) -> float:
        """Let the first connections receive one frame each; return the CPU time in us for each of them."""
        self._all = asyncio.get_running_loop().create_future()
        self._left = len(frames)
        began = time.thread_time_ns()
        for connection, frame in zip(self._connections, frames, strict=False):
            connection.data_received(frame)
        await self._all
        return (time.thread_time_ns() - began) / 1e3 / len(frames)

    async def rounds(self, what: str, count: int, first: int, brokers: int) -> None:
        took = []
        for number in range(first, first + count):
            took.append(await self.write([wire.write(number) for wire in self._wires[:brokers]]))
        _say(what, took)


async def group_of_one(wires: Sequence[RemotingWire], rounds: int) -> None:
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        me = f"127.0.0.1:{probe.getsockname()[1]}"
        probe.close()
        live = LiveSettings(NamesrvSettings(data_dir=folder, listen_port=0))
        raft = RaftConfig(me=me, peers=(me,), listen=None, data_dir=Path(folder), durability="memory")
        async with asyncio.TaskGroup() as tasks:
            server = NameServer(settings=live, group=tasks)
            mode = Replicated(live, server, boot_id=secrets.randbits(63), raft=raft)
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
            every = len(wires)
            await group.rounds(f"group of one, {every} at the same time", rounds, 1, every)
            await group.rounds("group of one, one alone", rounds, 1 + rounds, 1)
            await mode.close()
            await server.close(drain_s=1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--topics", type=int, default=10, help="topics of each broker")
    parser.add_argument("--brokers", type=int, default=32, help="brokers that register")
    parser.add_argument("--rounds", type=int, default=100, help="registrations of each broker")
    args = parser.parse_args()
    for name in ("topics", "brokers", "rounds"):
        if (value := getattr(args, name)) < 1:
            parser.error(f"--{name} {value}: at least 1 is needed")

    def wires() -> list[RemotingWire]:
        return [
            RemotingWire(key=key, topics=args.topics, timestamp_ms=_STARTED_MS) for key in range(args.brokers)
        ]

    print(f"{'us for each write':44} {'p20':>8} {'p50':>8}")
    steps_alone(wires(), args.rounds)
    uvloop.run(group_of_one(wires(), args.rounds))


if __name__ == "__main__":
    main()
