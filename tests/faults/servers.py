"""Real nameservers and brokers that run with flags of a test, and figures of their processes."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder
from tests.waiting import WITHIN_S, wait_until

#: A request for each kind of server, which the server answers in any state.
QUESTION = {
    "nameserver": RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO, {}),
    "broker": RemotingCommand.request(RequestCode.GET_BROKER_CONFIG, {}),
}
SERVERS = pytest.mark.parametrize("kind", ["nameserver", "broker"])


@dataclass
class Running:
    kind: str
    listen: str
    log: Path
    http: str
    pid: int

    def connect(self, context: ssl.SSLContext | None = None) -> socket.socket:
        host, _, port = self.listen.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=WITHIN_S)
        try:
            return plain if context is None else context.wrap_socket(plain, server_hostname="127.0.0.1")
        except BaseException:
            plain.close()
            raise

    def ask(self, link: socket.socket) -> RemotingCommand:
        """Send the server a request over a connection, and return the answer.

        Raises:
            OSError: If the server has closed the connection, or does not answer.
        """
        link.sendall(QUESTION[self.kind].encode())
        decoder = FrameDecoder()
        while data := link.recv(1 << 16):
            for frame in decoder.feed(data):
                return decode_command(frame)
        raise ConnectionError("closed")

    def works(self, context: ssl.SSLContext | None = None) -> bool:
        """Return True if the server answers a request over a new connection, with TLS given a context."""
        try:
            with self.connect(context) as link:
                return self.ask(link).code == 0
        except OSError:
            return False

    def says(self, line: str) -> None:
        wait_until(lambda: line in self.log.read_text(), f"{line!r} in {self.log.read_text()}")


@contextlib.contextmanager
def server(kind: str, tmp_path: Path, *flags: str, http: bool = False) -> Iterator[Running]:
    """Run a nameserver or a broker. At the end, stop it with SIGTERM and check its exit code.

    The log of the server is the file ``stderr.txt`` in the folder.
    """
    command = [sys.executable, "-m", f"routekeeper.{kind}", "--listen", "127.0.0.1:0", *flags]
    command += ["--http", "127.0.0.1:0"] if http else ["--http", "off"]
    command += (
        ["--data", str(tmp_path / "data")]
        if kind == "nameserver"
        else ["--store", str(tmp_path / "store"), "--name", "b"]
    )
    log = tmp_path / "stderr.txt"
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            ready = process.stdout.readline().split()
            assert "ready" in ready, log.read_text()
            found = dict(word.partition("=")[::2] for word in ready if "=" in word)
            yield Running(kind, found["listen"], log, found.get("http", ""), process.pid)
            process.terminate()
            assert process.wait(WITHIN_S) == 0
        finally:
            process.kill()
    assert "Traceback" not in log.read_text()


def refusal(kind: str, tmp_path: Path, *flags: str) -> str:
    """Start a server that must refuse its flags, and return the text that it writes to stderr."""
    command = [
        sys.executable,
        "-m",
        f"routekeeper.{kind}",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "off",
        *flags,
    ]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert ended.returncode == 2, ended.stderr
    return ended.stderr


def memory(pid: int, figure: str = "VmRSS") -> int:
    """Return the resident memory of a process in bytes, or with ``VmHWM`` the highest value so far."""
    found = re.search(rf"^{figure}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
