"""A measurement of how long requests block a real nameserver with a large table, and delay other clients.

``python -m tests.fuzz --served`` runs the test. It has two parts:

- The first part sends every input of the corpus with each request code that is served, one request at a time.
  The cost of a request is the CPU time of the nameserver's main thread during the request. The kernel counts
  this time, so other programs do not add to it. If the cost is above the limit, the server must handle the
  request in several iterations of its event loop. To check this, the test repeats the request, and a harmless
  client (the bystander) sends requests over another connection. In the best of several tries, the bystander's
  longest wait must be within the limit.
- In the second part, hostile connections send the most costly requests again and again. A bystander on
  another host sends request 106 at fixed instants. The test judges every wait of this bystander, even the
  first wait, so this part needs an idle machine. The test also prints the CPU time that the kernel counted.

For comparison, a second bystander is on the host of the hostile connections. The server limits the work for
each host, and also counts the work for connections that have closed. So the first requests of the second
bystander wait like the requests of the hostile connections.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from routekeeper.nameserver.handlers import SERVED
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.lenient import REQUEST
from tests.cost import on_this_machine
from tests.fuzz.arguments import NAMES, read, with_all
from tests.fuzz.inputs import SEEDS, corpus
from tests.ports import free_addresses
from tests.registrations import body_of, fields_of

#: Longest time in s for which one request may block the event loop without interruption: HOLD_S for requests
#: of up to SMALL bytes, and HOLD_LARGE_S for larger requests.
SMALL: Final = 64 * 1024
HOLD_S: Final = 0.020
HOLD_LARGE_S: Final = 0.100
#: Limits while hostile connections send requests. WAIT_S is the limit for the 99th percentile of the seconds
#: that a harmless client (bystander) waits for its answers. RESIDENT_MAX is the limit for the peak memory of
#: the server's process, in bytes.
WAIT_S: Final = 0.100
RESIDENT_MAX: Final = 384 * 1024 * 1024
_TRIES: Final = 3
_EVERY_S: Final = 0.100
_DEADLINE_S: Final = 30.0
_BROKERS: Final = 10
_VERSION: Final = 479
_STRANGERS: Final = "127.0.0.1"
_ANOTHER: Final = "127.0.0.2"


class Input(NamedTuple):
    """One request: its code, the name of the input from which it was made, and its frame."""

    code: int
    name: str
    frame: bytes


class Wait(NamedTuple):
    """The time in seconds for which a bystander waited for an answer.

    The second value is the CPU time of the server's main thread during this wait.
    """

    felt_s: float
    cpu_s: float


@dataclass(kw_only=True)
class Findings:
    """Measurements of one mode (independent or raft).

    ``missed`` has a description of each limit that was exceeded.
    """

    mode: str
    requests: int = 0
    dearest: list[tuple[float, Input]] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    quiet: list[Wait] = field(default_factory=list)
    beside: list[Wait] = field(default_factory=list)
    leader_changes: int = 0
    resident: int = 0

    def lines(self) -> Iterator[str]:
        yield f"{self.mode}: {self.requests} requests of {len(SERVED)} codes"
        for took_s, one in self.dearest[:5]:
            yield f"  {took_s * 1e3:7.2f} ms  {one.code} {one.name}, {len(one.frame)} bytes"
        for what, waits in (
            ("alone", self.quiet),
            ("beside strangers", self.waits),
            ("on the strangers' host", self.beside),
        ):
            if waits:
                for unit, values in (
                    ("ms", [w.felt_s for w in waits]),
                    ("ms of CPU", [w.cpu_s for w in waits]),
                ):
                    yield (
                        f"  a bystander's 106 {what}: p50 {_at(values, 0.5) * 1e3:.1f}, "
                        f"p99 {_at(values, 0.99) * 1e3:.1f}, max {max(values) * 1e3:.1f} {unit}, "
                        f"{len(values)} asked"
                    )
        yield f"  leader changes {self.leader_changes}, most ever resident {self.resident >> 20} MiB"
        yield from (f"  MISSED {text}" for text in self.missed)


def _at(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


class Process:
    """A real nameserver process, with its addresses and the CPU time of its main thread."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "routekeeper.nameserver",
            "--listen",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
        ]
        with open(log, "w") as stderr:
            self.child = subprocess.Popen(
                [*command, *arguments], stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        assert self.child.stdout is not None
        found = re.match(r"mqnamesrv ready listen=(\S+):(\d+) http=(\S+)", self.child.stdout.readline())
        assert found is not None, log.read_text()
        self.address, self.http = (found[1], int(found[2])), found[3]

    def status(self) -> Mapping[str, object]:
        with urllib.request.urlopen(f"http://{self.http}/v1/status", timeout=_DEADLINE_S) as reply:
            status: Mapping[str, object] = json.load(reply)
            return status

    def cpu_s(self) -> float:
        """Return the CPU time of the main thread in seconds, as the kernel counts it."""
        pid = self.child.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

    def idle_cpu_s(self) -> float:
        """Wait until the main thread sleeps, then return :meth:`cpu_s`.

        While the thread runs, the kernel's value is some milliseconds too low.
        """
        pid, deadline = self.child.pid, time.monotonic() + 2
        stat = Path(f"/proc/{pid}/task/{pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "S" and time.monotonic() < deadline:
            pass
        return self.cpu_s()

    def resident(self) -> int:
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024


class Connection:
    """One connection that has at most one request in flight."""

    def __init__(self, process: Process, host: str = _STRANGERS) -> None:
        self.socket = socket.create_connection(process.address, timeout=_DEADLINE_S, source_address=(host, 0))
        self._decoder = FrameDecoder()

    def ask(self, frame: bytes) -> RemotingCommand | None:
        """Send a request; return the answer, or None if the server closed the connection instead."""
        try:
            self.socket.sendall(frame)
            while data := self.socket.recv(1 << 20):
                for answer in self._decoder.feed(data):
                    return decode_command(answer)
        except ConnectionError:
            pass
        return None


def inputs() -> Iterator[Input]:
    """Yield the requests for each served code, with bodies from the corpus and from real peers."""
    bodies = [(name, data) for name, data in corpus()]
    bodies += [(f"seed-{number}", data) for number, data in enumerate(SEEDS)]
    bodies += [
        ("one MiB of objects", b'{"a":[' + b"{}," * 300_000 + b"{}]}"),
        ("one MiB of number keys", b"{" + b",".join(b"%d:1" % number for number in range(120_000)) + b"}"),
        ("tolerated as large as may be", b'{"a":"' + b"x" * (REQUEST.dialect_size - 16) + b'",1:2}'),
    ]
    for code in sorted(SERVED):
        for name, body in bodies:
            ext, _ = read(with_all(b""))
            for packed in ("false", "true") if code == RequestCode.REGISTER_BROKER else ("false",):
                command = RemotingCommand(
                    code=code,
                    opaque=1,
                    version=_VERSION,
                    ext_fields={**ext, "compressed": packed, "brokerName": "b", "clusterName": "c"},
                    body=body,
                )
                yield Input(code, name + ", compressed" * (packed == "true"), command.encode())
        many = dict.fromkeys(NAMES, "9" * 500)
        yield Input(
            code, "arguments of 500 digits", RemotingCommand(code=code, opaque=1, ext_fields=many).encode()
        )
    for compressed in (False, True):
        yield Input(
            RequestCode.REGISTER_BROKER,
            f"2,000 topics of its own{', compressed' * compressed}",
            registration(_BROKERS, 2000, compressed=compressed).encode(),
        )


def registration(broker: int, topics: int, *, compressed: bool = False) -> RemotingCommand:
    """Return the registration of one broker with topics that no other broker has."""
    body = body_of(
        (f"topic-{broker}-{number}" for number in range(topics)), compressed=compressed, version=_VERSION
    )
    fields = fields_of(
        body, f"broker-{broker}", f"10.0.0.{broker + 1}:10911", compressed=str(compressed).lower()
    )
    return RemotingCommand(
        code=RequestCode.REGISTER_BROKER, opaque=1, version=_VERSION, ext_fields=fields, body=body
    )


_CLUSTER_INFO: Final = RemotingCommand(
    code=RequestCode.GET_BROKER_CLUSTER_INFO, opaque=1, ext_fields={}
).encode()


@contextmanager
def group(mode: str, directory: Path) -> Iterator[tuple[Process, list[Process]]]:
    """Run one nameserver or a group of three nameservers.

    Yield the process that gets the requests (in a group, the leader), and all processes.
    """
    processes: list[Process] = []
    try:
        if mode == "independent":
            processes.append(Process(["--data", str(directory / "data")], directory / "log"))
        else:
            peers = free_addresses(3)
            for number, peer in enumerate(peers):
                arguments = ["--mode", "raft", "--raft", peer, "--peers", ",".join(peers)]
                arguments += ["--data", str(directory / f"data-{number}")]
                processes.append(Process(arguments, directory / f"log-{number}"))
        yield _leader(processes), processes
    finally:
        for process in processes:
            process.child.send_signal(signal.SIGKILL)
            process.child.communicate()


def _leader(processes: list[Process]) -> Process:
    if len(processes) == 1:
        return processes[0]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in processes:
            status = process.status()
            if status["role"] == "leader" and status["writes_ready"]:
                return process
        time.sleep(0.05)
    raise AssertionError("no leader within 60 s")


def run_served(mode: str, *, topics: int, hostile: int, seconds: float = 10.0) -> Findings:
    """Measure one mode with a table of ``topics`` topics.

    If ``hostile`` is above 0, also measure while that number of hostile connections sends requests.
    """
    findings = Findings(mode=mode)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        asked, processes = stack.enter_context(group(mode, Path(folder)))
        filling = Connection(asked)
        for broker in range(_BROKERS):
            answer = filling.ask(registration(broker, topics // _BROKERS).encode())
            assert answer is not None
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        filling.socket.close()
        terms = {process.status()["term"] for process in processes}
        for one in inputs():
            findings.requests += 1
            took_s = _hold(asked, one, findings)
            findings.dearest.append((took_s, one))
        findings.dearest.sort(key=lambda found: -found[0])
        if hostile:
            dearest = [one for _, one in findings.dearest[: 2 * hostile]]
            findings.quiet = _waits(asked, seconds / 4, _ANOTHER)
            with _strangers(asked, dearest, hostile):
                findings.waits = _waits(asked, seconds, _ANOTHER)
            with _strangers(asked, dearest, hostile):
                findings.beside = _waits(asked, seconds, _STRANGERS)
            p99 = _at([wait.felt_s for wait in findings.waits], 0.99)
            if p99 > WAIT_S:
                findings.missed.append(f"a bystander's 106 waits {p99 * 1e3:.0f} ms at p99")
        after = {process.status()["term"] for process in processes}
        findings.leader_changes = len(after - terms)
        if findings.leader_changes:
            findings.missed.append(f"terms {terms} became {after}")
        findings.resident = max(process.resident() for process in processes)
        if findings.resident > RESIDENT_MAX:
            findings.missed.append(f"{findings.resident >> 20} MiB were resident")
    return findings


def _hold(asked: Process, one: Input, findings: Findings) -> float:
    """Return the shortest time, in several tries, for which a request blocks the event loop (in s)."""
    limit = HOLD_S if len(one.frame) <= SMALL else HOLD_LARGE_S
    least = float("inf")
    for _ in range(_TRIES):
        connection = Connection(asked)
        before = asked.idle_cpu_s()
        connection.ask(one.frame)
        least = min(least, asked.idle_cpu_s() - before)
        connection.socket.close()
        if least <= limit / 2:
            break
    if least > limit:
        limit = on_this_machine(limit)
        waits = [_wait_beside(asked, one) for _ in range(_TRIES)]
        if min(waits) > limit:
            findings.missed.append(
                f"{one.code} {one.name}, {len(one.frame)} bytes: {least * 1e3:.1f} ms of CPU, a bystander "
                f"waits {min(waits) * 1e3:.1f} ms, allowed are {limit * 1e3:.0f}"
            )
        least = min(least, *waits)
    assert asked.child.poll() is None, f"{one.code} {one.name} ended the nameserver"
    return least


def _wait_beside(asked: Process, one: Input) -> float:
    """Return the longest wait of one client in s, while the server handles the request of another client.

    If each of some tries ends before the client has asked, return the last wait, in an idle server.
    """
    for _ in range(20):
        longest, was_asked_in_time = _try_beside(asked, one)
        if was_asked_in_time:
            break
    return longest


def _try_beside(asked: Process, one: Input) -> tuple[float, bool]:
    longest, over = 0.0, threading.Event()
    bystander, sender = Connection(asked), Connection(asked)

    def send() -> None:
        sender.ask(one.frame)
        over.set()

    thread = threading.Thread(target=send)
    thread.start()
    was_asked_in_time = not over.is_set()
    while not longest or not over.is_set():
        began = time.perf_counter()
        bystander.ask(_CLUSTER_INFO)
        longest = max(longest, time.perf_counter() - began)
    thread.join()
    bystander.socket.close()
    sender.socket.close()
    return longest, was_asked_in_time


def _waits(asked: Process, seconds: float, host: str) -> list[Wait]:
    """Send request 106 at fixed instants; return the waits from each planned instant to the answer."""
    bystander, waits = Connection(asked, host), []
    began = time.perf_counter()
    for number in range(int(seconds / _EVERY_S)):
        due = began + number * _EVERY_S
        time.sleep(max(due - time.perf_counter(), 0))
        before = asked.cpu_s()
        assert bystander.ask(_CLUSTER_INFO) is not None
        waits.append(Wait(time.perf_counter() - due, asked.cpu_s() - before))
    bystander.socket.close()
    return waits


@contextmanager
def _strangers(asked: Process, dearest: list[Input], count: int) -> Iterator[None]:
    """Let another process send the most costly requests over many connections, again and again."""
    host, port = asked.address
    plan = json.dumps([one.frame.hex() for one in dearest])
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(plan)
        file.flush()
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.hostile", host, str(port), str(count), file.name],
            stdout=subprocess.PIPE,
        )
        try:
            assert child.stdout is not None
            child.stdout.readline()  # the program prints a line when all connections are open
            yield
        finally:
            child.kill()
            child.communicate()


def main(*, topics: int, hostile: int, seconds: float) -> int:
    """Measure each mode and print the figures; return 1 if a limit is missed, else 0."""
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{topics} topics, {hostile} hostile connections, {os.cpu_count()} cores, load {load}", flush=True)
    missed = False
    for mode in ("independent", "raft"):
        findings = run_served(mode, topics=topics, hostile=hostile, seconds=seconds)
        print("\n".join(findings.lines()), flush=True)
        missed = missed or bool(findings.missed)
    return int(missed)
