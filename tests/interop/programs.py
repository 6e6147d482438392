"""Programs that a test has started, and runs of a program inside a shared JVM."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

START_S: Final = 180.0
"""Maximum seconds for the start of a JVM; on a busy machine with two cores, a start took 80 s."""


class ApacheFailure(AssertionError):
    """An Apache program did not reach the state that a test waits for; the text has the end of its output."""


@dataclass(slots=True)
class Program:
    """A running program; it prints to the file ``output`` and logs to ``home``/``log_name``."""

    popen: subprocess.Popen[bytes]
    output: Path
    home: Path
    log_name: str = "apache.log"

    @property
    def pid(self) -> int:
        return self.popen.pid

    def text(self) -> str:
        """Return everything printed so far."""
        return self.output.read_text(errors="replace")

    def log(self) -> str:
        """Return everything that the program logged so far (Apache's programs: at WARN and above)."""
        path = self.home / self.log_name
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for(self, needle: str, timeout_s: float = START_S) -> None:
        """Wait until the program has printed ``needle``.

        Raises:
            ApacheFailure: If the process ends, or ``timeout_s`` passes, before ``needle`` is printed.
        """
        deadline = time.monotonic() + timeout_s
        while needle not in self.text():
            if self.popen.poll() is not None and needle not in self.text():
                raise ApacheFailure(f"exit {self.popen.returncode} before {needle!r}:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise ApacheFailure(f"no {needle!r} within {timeout_s:g} s:\n{self._tail()}")
            time.sleep(0.02)

    def wait(self, timeout_s: float) -> int:
        """Wait until the process ends, and return its exit code.

        Raises:
            ApacheFailure: If the process still runs after ``timeout_s``; the process is then killed.
        """
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ApacheFailure(f"still running after {timeout_s:g} s:\n{self._tail()}") from None

    def stop(self, timeout_s: float = 40.0) -> None:
        """End the process by SIGTERM, as an operator would; kill it if it does not end in time.

        After SIGTERM, a broker unregisters before it ends.
        """
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End the process with SIGKILL."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGKILL)
            self.popen.wait()

    def _tail(self) -> str:
        return f"{self.text()[-3000:]}\n{self.log()[-3000:]}"


@dataclass(slots=True)
class Job:
    """One run of a program within the JVM ``host``; it prints to the file ``output``."""

    host: Program
    output: Path

    def text(self) -> str:
        """Return everything printed so far."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def wait_for(self, needle: str, timeout_s: float = START_S) -> None:
        """Wait until the program has printed ``needle``.

        Raises:
            ApacheFailure: If the run ends, or ``timeout_s`` passes, before ``needle`` is printed.
        """
        deadline = time.monotonic() + timeout_s
        while needle not in self.text():
            if self._code() is not None and needle not in self.text():
                raise ApacheFailure(f"exit {self._code()} before {needle!r}:\n{self._tail()}")
            self._pause(deadline, f"no {needle!r} within {timeout_s:g} s")

    def wait(self, timeout_s: float) -> int:
        """Wait until the run has ended, and return its exit code.

        Raises:
            ApacheFailure: If the run has not ended after ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while (code := self._code()) is None:
            self._pause(deadline, f"still running after {timeout_s:g} s")
        return code

    def _code(self) -> int | None:
        path = self.output.with_name(f"{self.output.name}.exit")
        return int(path.read_text()) if path.exists() else None

    def _pause(self, deadline: float, what: str) -> None:
        if self.host.popen.poll() is not None:
            raise ApacheFailure(f"the JVM of all runs has ended:\n{self._tail()}")
        if time.monotonic() > deadline:
            raise ApacheFailure(f"{what}:\n{self._tail()}")
        time.sleep(0.02)

    def _tail(self) -> str:
        return f"{self.text()[-3000:]}\n{self.host.text()[-3000:]}\n{self.host.log()[-3000:]}"


@dataclass(frozen=True, slots=True)
class AdminResult:
    """Output of one run of ``mqadmin``.

    ``stdout`` and ``stderr`` are the unchanged texts. If a command of Apache's mqadmin fails, the tool prints
    a stack trace to ``stderr``. Its exit code is 0 even then.
    """

    args: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
