"""The processes of a run, with functions that start, kill and restart them and record their CPU time."""

import contextlib
import os
import queue
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from routekeeper.bench.events import ProcessSample, Role

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
            if not self.alive:
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
