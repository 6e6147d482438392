"""The processes of a run, with functions that start, kill and restart them and record their CPU time."""

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
"""Text in the line that one of our programs prints when it is ready to serve."""
READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0


class ClusterError(Exception):
    """The harness itself failed, so the run is invalid."""


class ArmLost(Exception):
    """A server ended by itself, or did not become ready, so the run counts as a failure of its design."""


def allow_connections() -> None:
    """Raise the limit on open files of this process and its children to the system's maximum.

    The usual limit of 1,024 files is too low for the proxy between three servers and 300 brokers.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


Record = Callable[[ProcessSample], object]


@dataclass(kw_only=True)
class Process:
    """One process that can be killed and started again with the same command line.

    Attributes:
        serves: True if the process is a part of the measured design, so that its death is the design's fault.
        record: Called with a row at each start, sample and end of the process.
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
        """Start the process, without a wait for its ready line (see :meth:`wait_ready`)."""
        with self._ends, open(self.log, "ab") as log:
            self._lines = queue.Queue()
            self.child = subprocess.Popen(
                self.command,
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.PIPE if self.pipe_in else subprocess.DEVNULL,
                text=True,
                errors="replace",  # invalid UTF-8 must not end the reading thread
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
        # Read the output until the process ends. Otherwise the pipe would become full and block the process.
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
        """Return True if the process runs and has printed its ready line since its last start."""
        with self._ends:
            return self.alive and self._ready is self.child

    def next_line(self, deadline: float) -> str:
        """Return the next line that the process prints.

        Raises:
            ClusterError: If the process ended, or was silent until ``deadline``. The message ends with the
                last lines of the process's log.
        """
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise ClusterError(f"{self.name} was silent for too long\n{self.log_tail()}") from None
        if line is None:
            raise ClusterError(f"{self.name} ended with {self._reap()}\n{self.log_tail()}")
        return line

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> str:
        """Wait until the process has printed its ready line, and return this line.

        Raises:
            ClusterError: If the process ended, or printed no ready line within ``timeout_s``. The message
                ends with the last lines of the process's log.
        """
        deadline = time.monotonic() + timeout_s
        while self.ready_mark not in (line := self.next_line(deadline)):
            pass
        return line

    @property
    def alive(self) -> bool:
        """Return True if the process runs. If the process has ended, reap it and record its end."""
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
        """Return True if the process runs and SIGSTOP has stopped it."""
        with self._ends:
            if not self._runs():
                return False
            assert self.child is not None
            options = os.WSTOPPED | os.WNOWAIT | os.WNOHANG
            return os.waitid(os.P_PID, self.child.pid, options) is not None

    @property
    def code(self) -> int | None:
        """The process's exit code, or None if the process runs or was never started."""
        return None if self.child is None else self.child.returncode

    def died(self) -> str | None:
        """Return a text on the end of the process if it ended by itself, else None."""
        with self._ends:
            if self.child is None or self._ending or self.alive:
                return None
        return f"{self.name} ended with {self.child.returncode}"

    def revive(self) -> str | None:
        """Restart the process if it ended by itself, and return a text on its end, else None."""
        with self._ends:
            end = self.died()
            if end is not None:
                self.launch()
            return end

    def _reap(self) -> int:
        """Wait for the process's end, record the resources that it used, and return its exit code.

        The recorded CPU time is exact, because it is read after the process has ended.
        """
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
            with contextlib.suppress(OSError):  # unsent input is lost, because the process has ended
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
        """Send a signal that is not meant to end the process."""
        if self.child is not None and self.child.returncode is None:
            self.child.send_signal(number)

    def strike(self) -> None:
        """Send SIGKILL, without waiting for the process's end."""
        with self._ends:
            if self.alive:
                assert self.child is not None
                self._ending = True
                self.child.kill()

    def kill(self) -> None:
        """Send SIGKILL, and wait for the process's end."""
        self.strike()
        if self.child is not None:
            self._reap()

    def terminate(self) -> None:
        """Send SIGTERM, without waiting for the process's end. Continue a paused process first."""
        with self._ends:
            if self.alive:
                assert self.child is not None
                self._ending = True
                self.child.send_signal(signal.SIGCONT)
                self.child.send_signal(signal.SIGTERM)

    def join(self) -> None:
        """Wait for the process's end. Send SIGKILL after ``STOP_TIMEOUT_S`` seconds."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self.alive:
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(0.005)

    def log_tail(self) -> str:
        """Return the last eight lines of the process's log, for error messages."""
        return "\n".join(self.log_text().splitlines()[-8:])

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def sample(self) -> None:
        """Record the resources that the process has used until now, if it runs."""
        if self.alive:
            assert self.child is not None
            sample = sample_process(self.child.pid, role=self.role, index=self.index)
            if sample is not None:
                self.record(sample)


def sample_process(pid: int, *, role: Role, index: int) -> ProcessSample | None:
    """Return the resources that a process has used until now, or None if the process has ended."""
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
    """Return the CPU time of all threads of a process in nanoseconds, or None if there is no such process.

    A process that has ended still exists until its parent process waits for it. The time comes from the clock
    of clock_getcpuclockid(3), because the times in /proc have a resolution of only 10 ms.
    """
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return None


def sample_machine() -> ProcessSample:
    """Return the CPU time that all programs of the machine have used, and the time that a hypervisor took."""
    times = psutil.cpu_times()
    used = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    return ProcessSample(
        role="machine", index=0, pid=0, t_ns=time.monotonic_ns(), cpu_ns=round(used * 1e9), rss_bytes=0
    )


class ProxyProcess:
    """The proxy's process, with methods that send commands to the proxy."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._asking = threading.Lock()
        self._number = 0
        self._is_silent = False

    def _do(self, command: Command) -> Done:
        with self._asking:
            self._write(command)
            # The proxy may not have answered the last command ``look`` yet. In this case _answer() skips the
            # late answer. So the next call of look() must send the command again.
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
        """Return the answer to the last command. Skip answers to earlier commands."""
        deadline = time.monotonic() + timeout_s
        while True:
            done = msgspec.json.decode(self.process.next_line(deadline), type=Done)
            if done.number == self._number:
                return done

    def cut(self, directions: Iterable[Direction]) -> int:
        """Cut these directions, each from its first to its second process. Return the instant in ns."""
        return self._do(Command(do="cut", directions=list(directions))).t_ns

    def heal(self) -> int:
        """End all cuts. Return the instant in ns at which the cuts ended."""
        return self._do(Command(do="heal")).t_ns

    def delay(self, directions: Iterable[Direction], delay_ms: float) -> int:
        """Delay the bytes of these directions. Return the instant in ns from which on the delay holds.

        Raises:
            ValueError: If the delay is out of range. The message names the delay and the range.
        """
        if not 0 <= delay_ms <= DELAY_MAX_MS:
            raise ValueError(f"delay_ms={delay_ms:g} is out of range, allowed are 0 to {DELAY_MAX_MS:g}")
        return self._do(Command(do="delay", directions=list(directions), delay_ms=delay_ms)).t_ns

    def counts(self) -> list[Count]:
        return self._do(Command(do="count")).counts

    def look(self, timeout_s: float) -> list[Passes]:
        """Return the present state of each link: open or cut, delay, and bytes passed.

        If the last call timed out and the proxy has not answered yet, wait for the late answer, without a
        new command.

        Raises:
            ClusterError: If the proxy does not answer within ``timeout_s``.
        """
        with self._asking:
            if not self._is_silent:
                self._write(Command(do="look"))
            self._is_silent = True
            passes = self._answer(timeout_s).passes
            self._is_silent = False
            return passes


def network_process(links: Sequence[Link], folder: Path, python: str, record: Record) -> ProxyProcess:
    """Return the proxy's process for these links, without starting it."""
    path = folder / "links.json"
    path.write_bytes(msgspec.json.encode(list(links)))
    command = [python, "-m", "routekeeper.bench.proxy", str(path)]
    return ProxyProcess(
        Process(role="proxy", index=0, command=command, log=folder / "proxy.log", record=record, pipe_in=True)
    )
