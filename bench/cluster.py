"""The processes of one run: nameservers and brokers on loopback, started, killed, restarted, measured."""

import contextlib
import json
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from bench.manifest import Durability, Mode
from bench.samples import ProcessRole, ProcessSample
from bench.workload import Workload

READY_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 10.0
HOST: Final = "127.0.0.1"
#: Ports are taken from below the range that systems give to outgoing connections, so that a killed server
#: can have its port again.
_PORTS: Final = range(20_000, 32_000)


class ClusterError(Exception):
    """A process did not start, or died when nobody had killed it."""


def free_ports(count: int) -> list[int]:
    """Return ``count`` different ports that nobody listens on now."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for port in random.sample(_PORTS, len(_PORTS)):
            probe = held.enter_context(socket.socket())
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise ClusterError(f"only {len(found)} free ports in {_PORTS.start}..{_PORTS.stop}, need {count}")


@dataclass(kw_only=True)
class Process:
    """One server process that can be killed and started again with the same command line."""

    role: ProcessRole
    index: int
    command: Sequence[str]
    log: Path
    child: subprocess.Popen[str] | None = None
    _lines: "queue.Queue[str | None]" = field(default_factory=queue.Queue)

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    def launch(self) -> None:
        """Start it; :meth:`wait_ready` then waits for its ready line."""
        self._lines = queue.Queue()
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True
            )
        # A pipe that nobody reads would stop the server one day.
        threading.Thread(target=self._drain, args=(self.child, self._lines), daemon=True).start()

    @staticmethod
    def _drain(child: subprocess.Popen[str], lines: "queue.Queue[str | None]") -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line.rstrip("\n"))
        lines.put(None)

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> str:
        """Return the ready line.

        Raises:
            ClusterError: If the process ended or was silent for ``timeout_s``; the message ends in its log.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise ClusterError(
                    f"{self.name} was not ready within {timeout_s:g} s\n{self.log_tail()}"
                ) from None
            if line is None:
                assert self.child is not None
                raise ClusterError(f"{self.name} ended with {self.child.wait()}\n{self.log_tail()}")
            if " ready " in line:
                return line

    @property
    def alive(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def kill(self) -> None:
        """SIGKILL, and reap."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        if self.child is not None and self.alive:
            self.child.send_signal(signal.SIGTERM)

    def join(self) -> None:
        """Wait for its end; SIGKILL if that takes too long."""
        if self.child is not None:
            try:
                self.child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def log_tail(self) -> str:
        """Return the last lines it logged, for error messages."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-8:]) if self.log.exists() else ""

    def sample(self) -> ProcessSample | None:
        """Return what it has used so far; None if it does not run."""
        return sample_process(self.child.pid, role=self.role, index=self.index) if self.child else None


def sample_process(pid: int, *, role: ProcessRole, index: int) -> ProcessSample | None:
    """Return CPU and memory of a process as of now; None if it is gone."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            times = process.cpu_times()
            return ProcessSample(
                role=role,
                index=index,
                pid=pid,
                t_ns=time.monotonic_ns(),
                cpu_ns=round((times.user + times.system) * 1e9),
                rss_bytes=process.memory_info().rss,
                threads=process.num_threads(),
            )
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where the servers of a run listen; all texts are ``host:port``."""

    wire: list[str]
    http: list[str]
    """One per nameserver, in the order of ``wire``."""
    brokers: list[str]


class Cluster:
    """Nameservers of one mode and their brokers; addresses survive restarts.

    ``processes`` is empty for a cluster that somebody else runs (``attached``): it can be driven and asked,
    not killed or measured.
    """

    def __init__(
        self, *, mode: Mode, workload: Workload, folder: Path, attached: Addresses | None = None
    ) -> None:
        self.mode = mode
        self._workload = workload
        self._folder = folder
        self.nameservers: list[Process] = []
        self.brokers: list[Process] = []
        folder.mkdir(parents=True, exist_ok=True)
        if attached is not None:
            self.addresses = attached
            return
        count = workload.nameservers
        ports = free_ports(3 * count + workload.brokers)
        addrs = [f"{HOST}:{port}" for port in ports]
        raft = addrs[2 * count : 3 * count]
        self.addresses = Addresses(
            wire=addrs[:count], http=addrs[count : 2 * count], brokers=addrs[3 * count :]
        )
        settings = folder / "namesrv.properties"
        timers = workload.timers_ms()
        settings.write_text(f"scanNotActiveBrokerInterval={timers['scanNotActiveBrokerInterval']}\n")
        self.nameservers = [
            Process(
                role="nameserver",
                index=index,
                command=self._nameserver_command(index, raft, settings),
                log=folder / f"nameserver-{index}.log",
            )
            for index in range(count)
        ]
        self.brokers = [self._broker(index) for index in range(workload.brokers)]

    def _nameserver_command(self, index: int, raft: list[str], settings: Path) -> list[str]:
        command = [sys.executable, "-m", "nameserver", "--mode", self.mode]
        command += [
            "--listen",
            self.addresses.wire[index],
            "--http",
            self.addresses.http[index],
            "-c",
            str(settings),
        ]
        command += ["--data", str(self._folder / f"nameserver-{index}")]
        if self.mode == "raft":
            durability: Durability = self._workload.durability
            command += ["--raft", raft[index], "--peers", ",".join(raft), "--durability", durability]
        return command

    def _broker(self, index: int) -> Process:
        settings = self._folder / f"broker-{index}.properties"
        settings.write_text(f"timerDivisor={self._workload.timer_divisor:g}\n")
        command = [sys.executable, "-m", "broker", "-n", ";".join(self.addresses.wire), "-c", str(settings)]
        command += ["--listen", self.addresses.brokers[index], "--name", f"broker-{index}"]
        command += ["--store", str(self._folder / f"broker-{index}")]
        log = self._folder / f"broker-{index}.log"
        return Process(role="broker", index=index, command=command, log=log)

    @property
    def processes(self) -> list[Process]:
        return [*self.nameservers, *self.brokers]

    def start(self) -> None:
        """Start everything; returns when every nameserver serves reads and writes and knows every broker.

        Raises:
            ClusterError: If that takes more than 30 s.
        """
        for process in self.nameservers:
            process.launch()
        for process in self.nameservers:
            process.wait_ready()
        self.wait(lambda: all(self.http_status(index, "/readyz") == 200 for index in self._indexes()))
        self._check_mode()
        for process in self.brokers:
            process.launch()
        for process in self.brokers:
            process.wait_ready()
        self.wait(
            lambda: all(self.broker_count(index) >= len(self.addresses.brokers) for index in self._indexes())
        )

    def _indexes(self) -> range:
        return range(len(self.addresses.wire))

    def wait(self, condition: Callable[[], bool], timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until ``condition`` holds.

        Raises:
            ClusterError: After ``timeout_s``, or when a process that nobody killed is gone.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            for process in self.processes:
                if process.child is not None and not process.alive:
                    raise ClusterError(f"{process.name} has ended\n{process.log_tail()}")
            if time.monotonic() > deadline:
                logs = "\n".join(f"{process.name}: {process.log_tail()}" for process in self.nameservers)
                raise ClusterError(f"cluster is not ready after {timeout_s:g} s\n{logs}")
            time.sleep(0.02)

    def http_get(self, index: int, path: str) -> tuple[int, bytes]:
        """Return (status, body) of a GET at one nameserver; (0, b"") if there was no answer."""
        try:
            with urllib.request.urlopen(f"http://{self.addresses.http[index]}{path}", timeout=2) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError:
            return 0, b""

    def http_status(self, index: int, path: str) -> int:
        return self.http_get(index, path)[0]

    def broker_count(self, index: int) -> int:
        """Return how many brokers one nameserver lists."""
        status, body = self.http_get(index, "/v1/brokers?consistency=stale")
        return len(json.loads(body)["brokers"]) if status == 200 else 0

    def _check_mode(self) -> None:
        """Refuse to measure servers that run in another mode than the run says."""
        for index in self._indexes():
            status, body = self.http_get(index, "/v1/status")
            found = json.loads(body)["mode"] if status == 200 else f"HTTP {status}"
            if found != self.mode:
                raise ClusterError(f"{self.addresses.wire[index]} runs in mode {found}, not {self.mode}")

    def role(self, index: int) -> str:
        """Return ``leader``, ``follower``, ``independent``..., or ``unknown`` without an answer."""
        status, body = self.http_get(index, "/v1/status")
        return str(json.loads(body)["role"]) if status == 200 else "unknown"

    def leader(self) -> int | None:
        """Return the index of the raft leader; None in independent mode or without one."""
        return next((index for index in self._indexes() if self.role(index) == "leader"), None)

    def samples(self) -> Iterator[ProcessSample]:
        for process in self.processes:
            sample = process.sample()
            if sample is not None:
                yield sample

    def stop(self) -> None:
        """Stop everything, brokers first as an operator would."""
        for group in (self.brokers, self.nameservers):
            for process in group:
                process.terminate()
            for process in group:
                process.join()

    def kill(self) -> None:
        """End everything at once, whatever state it is in."""
        for process in self.processes:
            process.kill()
