"""The command ``mqshutdown broker|namesrv``, which stops the servers of this installation."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from routekeeper.remoting.interrupt import end_quietly_when_interrupted
from routekeeper.remoting.terminal import print_any_text

#: The program's name for each word on the command line. Servers are stopped in this order. Brokers come
#: first, because a broker that stops unregisters at the nameservers.
_PROGRAMS: Final = {"broker": "mqbroker", "namesrv": "mqnamesrv"}
_MODULES: Final = {"routekeeper.broker": "mqbroker", "routekeeper.nameserver": "mqnamesrv"}
#: Options of the Python interpreter whose value is the next word of the command line.
_VALUED: Final = ("-X", "-W")
#: Longest time in seconds to wait for the end of the servers. A server waits up to 30 s for running requests
#: before it ends.
_ENDS_WITHIN_S: Final = 60.0
_INTERRUPTED: Final = 130  # exit code that shells use for an interrupted program: 128 + SIGINT
_PROC: Final = Path("/proc")
_USAGE: Final = """usage: mqshutdown broker|namesrv ...

Stop this user's brokers or nameservers that run with the same Python, in order, and wait for their end."""


@dataclass(frozen=True, slots=True)
class Server:
    """A process that runs one of RouteKeeper's servers.

    Attributes:
        started: Start time of the process in ticks of the system's clock. It distinguishes this process from
            a later process with the same id.
    """

    program: str
    pid: int
    started: str


def main(argv: Sequence[str] | None = None) -> int:
    """Stop servers, print their names, and return the exit code.

    Returns:
        - 0 if servers of each kind on the command line were running, and all of them have ended,
        - 2 if a word on the command line is wrong or missing,
        - 130 if the user interrupted the wait for the servers' end,
        - 1 in all other cases.
    """
    end_quietly_when_interrupted()
    print_any_text()
    words = list(sys.argv[1:] if argv is None else argv)
    if set(words) & {"-h", "--help"}:
        print(_USAGE)
        return 0
    wrong = [word for word in words if word not in _PROGRAMS]
    if wrong or not words:
        fault = f"{wrong[0]!r} names no server" if wrong else "no server is named"
        print(f"mqshutdown: {fault}, allowed are {' and '.join(_PROGRAMS)}", file=sys.stderr)
        return 2
    if not (_PROC / "self" / "stat").exists():
        print("mqshutdown: needs /proc, which is not here: send SIGTERM to the servers", file=sys.stderr)
        return 1
    code = 0
    try:
        for word, program in _PROGRAMS.items():
            if word in words:
                code |= _stop(program)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code


def _stop(program: str) -> int:
    servers = [server for server in _running() if server.program == program]
    if not servers:
        print(f"No {program} running.")
        return 1
    told: list[Server] = []
    try:
        for server in servers:
            print(f"The {program}({server.pid}) is running...", flush=True)
            with contextlib.suppress(ProcessLookupError):  # the process has ended meanwhile
                os.kill(server.pid, signal.SIGTERM)
            told.append(server)
            print(f"Send shutdown request to {program}({server.pid}) OK", flush=True)
        _await_end(program, told)
    except KeyboardInterrupt:
        left = ", ".join(f"{program}({server.pid})" for server in told) or "nobody"
        print(f"mqshutdown: interrupted; SIGTERM was sent to {left}, which may still run", file=sys.stderr)
        raise
    for server in told:
        print(
            f"mqshutdown: {program}({server.pid}) still runs after {_ENDS_WITHIN_S:g} s: its log says why",
            file=sys.stderr,
        )
    return 1 if told else 0


def _await_end(program: str, servers: list[Server]) -> None:
    """Wait until the servers have ended, and remove those from the list."""
    deadline_s = time.monotonic() + _ENDS_WITHIN_S
    while time.monotonic() < deadline_s:
        for server in [server for server in servers if _start_of(server.pid) != server.started]:
            print(f"The {program}({server.pid}) has stopped.", flush=True)
            servers.remove(server)
        if not servers:
            break
        time.sleep(0.05)


def _running() -> Iterator[Server]:
    """Yield this user's server processes that use the Python interpreter of this installation."""
    mine = os.path.realpath(os.path.dirname(sys.executable))
    for folder in sorted(_PROC.iterdir(), key=lambda path: (len(path.name), path.name)):
        if not folder.name.isdecimal():
            continue
        try:
            if folder.stat().st_uid != os.geteuid():
                continue
            command = [os.fsdecode(part) for part in (folder / "cmdline").read_bytes().split(b"\0")]
            program = server_of(command)
            if program is None or _installation(folder, command[0]) != mine:
                continue
        except OSError:
            continue  # the process has just ended, or this user may not read its files
        started = _start_of(int(folder.name))
        if started is not None:
            yield Server(program, int(folder.name), started)


def server_of(command: Sequence[str]) -> str | None:
    """Return the name of the server that a command line runs; None if it runs another program."""
    if not command or not os.path.basename(command[0]).startswith("python"):
        return None
    rest = list(command[1:])
    while rest:
        word = rest.pop(0)
        if word == "-m":
            return _MODULES.get(rest[0]) if rest else None
        if word in _VALUED:
            del rest[:1]
        elif not word.startswith("-") or word == "-c":
            name = os.path.basename(word)
            return name if name in _MODULES.values() else None
    return None


def _installation(process: Path, python: str) -> str | None:
    """Return the folder that contains the Python interpreter of a process; None if it is not found."""
    if "/" in python:
        found: str | None = os.path.join(os.readlink(process / "cwd"), python)
    else:
        variables = (process / "environ").read_bytes().split(b"\0")
        path = next((value[5:] for value in variables if value.startswith(b"PATH=")), b"")
        found = shutil.which(python, path=os.fsdecode(path))
    return None if found is None else os.path.realpath(os.path.dirname(found))


def _start_of(pid: int) -> str | None:
    """Return the start time of a process in ticks of the system's clock; None if the process has ended."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


if __name__ == "__main__":
    sys.exit(main())
