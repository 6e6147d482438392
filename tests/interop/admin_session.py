"""One JVM for many subcommands of Apache's ``mqadmin``, because each start of a JVM takes a second."""

from __future__ import annotations

import select
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from .programs import AdminResult, ApacheFailure
from .watchdog import guard

_ANSWER_S: Final = 120.0


class AdminSession:
    """One JVM that runs subcommands one after the other; end it with :meth:`close`.

    A wrong command line or the option ``-h`` ends the JVM. ``help SUBCOMMAND`` prints the same text as ``-h``
    and does not end the JVM.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], home: Path) -> None:
        """Start ``AdminSession.java`` by ``command`` with ``environment``, in the working folder ``home``."""
        self._asking = threading.Lock()
        self._errors = (home / "stderr.txt").open("wb")
        self._process = subprocess.Popen(
            command,
            env=environment,
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        guard(self._process.pid)

    def run(self, *args: str, namesrvs: Sequence[str]) -> AdminResult:
        """Run one subcommand.

        As in Apache's tool, the exit code is 0 even if the subcommand fails.

        Raises:
            ApacheFailure: If the JVM ended or did not answer in time.
        """
        given = args if args[0] == "help" else (*args, "-n", ";".join(namesrvs))
        sink, source = self._process.stdin, self._process.stdout
        assert sink is not None
        assert source is not None
        with self._asking:
            sink.write(("\t".join(given) + "\n").encode())
            sink.flush()
            deadline = time.monotonic() + _ANSWER_S
            line = b""
            while not line.endswith(b"\n"):
                line += self._read(source, 1, deadline, args)
            out, err = map(int, line.split())
            return AdminResult(
                args=given,
                returncode=0,
                stdout=self._read(source, out, deadline, args).decode(errors="replace"),
                stderr=self._read(source, err, deadline, args).decode(errors="replace"),
            )

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _read(self, source: IO[bytes], count: int, deadline: float, args: Sequence[str]) -> bytes:
        data = b""
        while len(data) < count:
            readable, _, _ = select.select([source], [], [], max(deadline - time.monotonic(), 0))
            if not readable:
                raise ApacheFailure(f"mqadmin {' '.join(args)} gave no answer within {_ANSWER_S:g} s")
            chunk = source.raw.read(count - len(data))  # type: ignore[attr-defined]  # select knows no buffer
            if not chunk:
                raise ApacheFailure(f"mqadmin {' '.join(args)} ended the JVM")
            data += chunk
        return data
