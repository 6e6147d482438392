"""Processes of a run: start, kill, restart, and a record of all their CPU time."""

import contextlib
import os
import queue
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import psutil

from routekeeper.bench.events import ProcessSample, Role
from routekeeper.bench.links import DELAY_MAX_MS, Command, Count, Direction, Done, Link, Passes

READY_MARK: Final = " ready"
"""In the line that a program of ours prints when it serves."""
READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0


class ClusterError(Exception):
    """The harness itself failed, so the run is void."""


class ArmLost(Exception):
    """A server ended by itself, or did not begin to serve, so its arm has lost."""


def allow_connections() -> None:
    """Raise the limit on open files of this process and its children to the system's maximum.

    With the usual 1,024, the proxy between three servers and 300 brokers would run out of them.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


Record = Callable[[ProcessSample], object]


@dataclass(kw_only=True)
class Process:
    """One process that can be killed and started again with the same command line.

    Attributes:
        serves: It is part of the measured design, so that its death is a loss of its arm.
        record: Gets a row at each start, sample and end.
    """

    role: Role
    index: int
    command: Sequence[str]
    log: Path
    record: Record = lambda sample: None
    serves: bool = False
    pipe_in: bool = False
    ready_mark: str = READY_MARK
    child: subprocess.Popen[str] | None = None
    _lines: "queue.Queue[str | None]" = field(default_factory=queue.Queue)
    _ready: "subprocess.Popen[str] | None" = None
    _ending: bool = False
    _ends: threading.RLock = field(default_factory=threading.RLock)

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    def launch(self) -> None:
        """Start it; :meth:`wait_ready` then waits for its ready line."""
        with self._ends, open(self.log, "ab") as log:
            self._lines = queue.Queue()
            self.child = subprocess.Popen(
                self.command,
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.PIPE if self.pipe_in else subprocess.DEVNULL,
                text=True,
                errors="replace",  # bytes that are no text must not end the thread that reads them
            )
            self._ending = False
        self.record(
            ProcessSample(
                role=self.role,
                index=self.index,
                pid=self.child.pid,
                t_ns=time.monotonic_ns(),
                event="start",
                cpu_ns=0,
                rss_bytes=0,
            )
        )
        # A pipe without a reader would block the server some day.
        threading.Thread(target=self._drain, args=(self.child, self._lines), daemon=True).start()

    def _drain(self, child: subprocess.Popen[str], lines: "queue.Queue[str | None]") -> None:
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                if self.ready_mark in line:
                    self._ready = child
                lines.put(line.rstrip("\n"))
        lines.put(None)

    @property
    def is_ready(self) -> bool:
        """Return whether it runs and has printed its ready line since it was started last."""
        with self._ends:
            return self.alive and self._ready is self.child

    def next_line(self, deadline: float) -> str:
        """Return the next line it prints.

        Raises:
            ClusterError: If it ended or was silent until ``deadline``; the message ends in its log.
        """
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise ClusterError(f"{self.name} was silent for too long\n{self.log_tail()}") from None
        if line is None:
            raise ClusterError(f"{self.name} ended with {self._reap()}\n{self.log_tail()}")
        return line

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> str:
        """Return the ready line.

        Raises:
            ClusterError: If the process ended or was silent for ``timeout_s``; the message ends in its log.
        """
        deadline = time.monotonic() + timeout_s
        while self.ready_mark not in (line := self.next_line(deadline)):
            pass
        return line

    @property
    def alive(self) -> bool:
        """Return whether it runs; a process that ended is reaped and its end recorded."""
        with self._ends:
            return self._runs()

    def _runs(self) -> bool:
        if self.child is None or self.child.returncode is not None:
            return False
        if os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            return True
        self._reap()
        return False

    @property
    def paused(self) -> bool:
        """Return whether it runs and is stopped by SIGSTOP."""
        with self._ends:
            if not self._runs():
                return False
            assert self.child is not None
            options = os.WSTOPPED | os.WNOWAIT | os.WNOHANG
            return os.waitid(os.P_PID, self.child.pid, options) is not None

    @property
    def code(self) -> int | None:
        """The exit code; None if it runs or never did."""
        return None if self.child is None else self.child.returncode

    def died(self) -> str | None:
        """Return how the process ended by itself; None if it did not."""
        with self._ends:
            if self.child is None or self._ending or self.alive:
                return None
        return f"{self.name} ended with {self.child.returncode}"

    def revive(self) -> str | None:
        """Start it again if it ended by itself; return how it ended."""
        with self._ends:
            end = self.died()
            if end is not None:
                self.launch()
            return end

    def _reap(self) -> int:
        """Wait for its end, and record the resources that it used; the kernel's final figures are exact."""
        with self._ends:
            return self._reaped()

    def _reaped(self) -> int:
        assert self.child is not None
        if self.child.returncode is not None:
            return self.child.returncode
        os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOWAIT)
        cpu_ns = _cpu_ns(self.child.pid)
        code = self.child.wait()
        if self.child.stdin is not None:
            with contextlib.suppress(OSError):  # a last line that nobody reads any more
                self.child.stdin.close()
        if cpu_ns is not None:
            self.record(
                ProcessSample(
                    role=self.role,
                    index=self.index,
                    pid=self.child.pid,
                    t_ns=time.monotonic_ns(),
                    event="exit",
                    cpu_ns=cpu_ns,
                    rss_bytes=0,
                    code=code,
                    wanted=self._ending,
                )
            )
        return code

    def signal(self, number: int) -> None:
        """Send a signal that is not meant to end it."""
        if self.child is not None and self.child.returncode is None:
            self.child.send_signal(number)

    def strike(self) -> None:
        """SIGKILL, without waiting for its end."""
        with self._ends:
            if self.alive:
                assert self.child is not None
                self._ending = True
                self.child.kill()

    def kill(self) -> None:
        """SIGKILL, and reap."""
        self.strike()
        if self.child is not None:
            self._reap()

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        with self._ends:
            if self.alive:
                assert self.child is not None
                self._ending = True
                self.child.send_signal(signal.SIGCONT)
                self.child.send_signal(signal.SIGTERM)

    def join(self) -> None:
        """Wait for its end; SIGKILL if that takes too long."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self.alive:
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(0.005)

    def log_tail(self) -> str:
        """Return the last lines it logged, for error messages."""
        return "\n".join(self.log_text().splitlines()[-8:])

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def sample(self) -> None:
        """Record what it has used so far, if it runs."""
        if self.alive:
            assert self.child is not None
            sample = sample_process(self.child.pid, role=self.role, index=self.index)
            if sample is not None:
                self.record(sample)


def sample_process(pid: int, *, role: Role, index: int) -> ProcessSample | None:
    """Return what a process has used as of now; None if it is gone."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            cpu_ns = _cpu_ns(pid)
            if cpu_ns is None or process.status() == psutil.STATUS_ZOMBIE:
                return None
            return ProcessSample(
                role=role,
                index=index,
                pid=pid,
                t_ns=time.monotonic_ns(),
                cpu_ns=cpu_ns,
                rss_bytes=process.memory_info().rss,
                threads=process.num_threads(),
            )
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _cpu_ns(pid: int) -> int | None:
    """Return the CPU time of all threads of a process, also of one that ended and was not waited for, ns.

    It is the clock that clock_getcpuclockid(3) names. The times in /proc come in ticks of 10 ms.

    Returns:
        None if the process is gone.
    """
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return None


def sample_machine() -> ProcessSample:
    """Return the processor time of all programs of the machine so far, with time that a hypervisor took."""
    times = psutil.cpu_times()
    used = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    return ProcessSample(
        role="machine", index=0, pid=0, t_ns=time.monotonic_ns(), cpu_ns=round(used * 1e9), rss_bytes=0
    )


class ProxyProcess:
    """The proxy's process, and the harness's commands to it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._asking = threading.Lock()
        self._number = 0
        self._is_silent = False

    def _do(self, command: Command) -> Done:
        with self._asking:
            self._write(command)
            # The answer to a look that was given up is passed over with this one: the next look asks anew.
            self._is_silent = False
            return self._answer(10.0)

    def _write(self, command: Command) -> None:
        child = self.process.child
        assert child is not None
        assert child.stdin is not None
        self._number += 1
        numbered = msgspec.structs.replace(command, number=self._number)
        try:
            child.stdin.write(msgspec.json.encode(numbered).decode() + "\n")
            child.stdin.flush()
        except OSError as error:
            raise ClusterError(f"the proxy is gone: {error}\n{self.process.log_tail()}") from error

    def _answer(self, timeout_s: float) -> Done:
        """Return the answer to the last command; skip answers to earlier commands."""
        deadline = time.monotonic() + timeout_s
        while True:
            done = msgspec.json.decode(self.process.next_line(deadline), type=Done)
            if done.number == self._number:
                return done

    def cut(self, directions: Iterable[Direction]) -> int:
        """Cut these directions, each from its first to its second process; return the instant."""
        return self._do(Command(do="cut", directions=list(directions))).t_ns

    def heal(self) -> int:
        """End all cuts."""
        return self._do(Command(do="heal")).t_ns

    def delay(self, directions: Iterable[Direction], delay_ms: float) -> int:
        """Delay the bytes of these directions; return the instant.

        Raises:
            ValueError: If the delay is out of its range; the message names both.
        """
        if not 0 <= delay_ms <= DELAY_MAX_MS:
            raise ValueError(f"delay_ms={delay_ms:g} is out of range, allowed are 0 to {DELAY_MAX_MS:g}")
        return self._do(Command(do="delay", directions=list(directions), delay_ms=delay_ms)).t_ns

    def counts(self) -> list[Count]:
        return self._do(Command(do="count")).counts

    def look(self, timeout_s: float) -> list[Passes]:
        """Return what passes each link now.

        Raises:
            ClusterError: If the proxy does not say so in time; it is asked once, however often that is.
        """
        with self._asking:
            if not self._is_silent:
                self._write(Command(do="look"))
            self._is_silent = True
            passes = self._answer(timeout_s).passes
            self._is_silent = False
            return passes


def network_process(links: Sequence[Link], folder: Path, python: str, record: Record) -> ProxyProcess:
    """Return the proxy of these links, not yet started."""
    path = folder / "links.json"
    path.write_bytes(msgspec.json.encode(list(links)))
    command = [python, "-m", "routekeeper.bench.proxy", str(path)]
    return ProxyProcess(
        Process(role="proxy", index=0, command=command, log=folder / "proxy.log", record=record, pipe_in=True)
    )
