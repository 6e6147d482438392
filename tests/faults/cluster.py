"""Real nameserver processes in raft mode, and functions that query their state."""

from __future__ import annotations

import http.client
import json
import os
import random
import resource
import selectors
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import standstill
from tests.ports import free_addresses
from tests.waiting import wait_until

CONDITION_S = 60.0
TOKEN = "a-token-for-the-administration"


def cycles(few: int) -> int:
    """Return how often a test repeats a fault.

    This is the number in ``RAFT_FAULT_CYCLES`` if it is set, else ``few``.
    """
    return int(os.environ.get("RAFT_FAULT_CYCLES") or few)


def chooser() -> random.Random:
    """Return a random generator that chooses a fault's target and time, and print its seed.

    ``RAFT_FAULT_SEED`` sets the seed, so that a failed test's choices can be repeated.
    """
    seed = int(os.environ.get("RAFT_FAULT_SEED") or random.SystemRandom().randrange(10**6))
    print(f"RAFT_FAULT_SEED={seed}")
    return random.Random(seed)


def hold(instant: float) -> None:
    """Wait until an instant (s, monotonic), for example to give a fault a certain duration."""
    time.sleep(max(0.0, instant - time.monotonic()))


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@dataclass(kw_only=True)
class Member:
    """One nameserver process, with the same addresses and data after each restart.

    Attributes:
        raft: Address for the other members. The group knows the member by this address.
        arguments: Additional flags.
        prefix: Words before the command, for example to run the nameserver in a network namespace.
        silences: Intervals (s, monotonic) in which the member is killed or paused. No answer is expected
            then.
    """

    number: int
    root: Path
    raft: str
    peers: str
    listen: str
    http: str
    data: Path
    arguments: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    process: subprocess.Popen[str] | None = None
    silences: list[tuple[float, float]] = field(default_factory=list)
    _silent_since: float | None = None

    @property
    def command(self) -> list[str]:
        return [
            *self.prefix,
            sys.executable,
            *("-m", "routekeeper.nameserver", "--mode", "raft", "--raft", self.raft, "--peers", self.peers),
            *("--listen", self.listen, "--http", self.http, "--data", str(self.data)),
            *self.arguments,
        ]

    def spawn(self) -> subprocess.Popen[str]:
        # The nameserver inherits the open file, so it can still write its log after this block has closed the
        # file.
        with open(self.log_path, "a") as log:
            return subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=log, text=True)

    def start(self) -> None:
        self.process = self.spawn()
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(CONDITION_S), f"member {self.number} said nothing"
        line = self.process.stdout.readline()
        assert line.startswith("mqnamesrv ready "), self.log()
        standstill.watch(self.process.pid)
        self._speaks()

    def refuse_to_start(self) -> str:
        """Start a member that ends at once with exit code 2, and return its one error line."""
        ended = subprocess.run(self.command, capture_output=True, text=True, timeout=CONDITION_S, check=False)
        assert ended.returncode == 2, (ended.returncode, ended.stdout, ended.stderr)
        said = [line for line in ended.stderr.splitlines() if line.startswith("mqnamesrv: ")]
        assert len(said) == 1, ended.stderr
        assert "Traceback" not in ended.stderr
        return said[0]

    def kill(self) -> None:
        assert self.process is not None
        self._falls_silent()
        self.process.kill()

    def reap(self) -> None:
        if self.process is not None:
            self.process.wait(timeout=CONDITION_S)
            standstill.forget(self.process.pid)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        if number == signal.SIGCONT:
            self.process.send_signal(number)
            self._speaks()
            return
        self._falls_silent()
        self.process.send_signal(number)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    @contextmanager
    def file_size_limit(self, size: int) -> Iterator[None]:
        """Limit the size of every file to ``size`` bytes.

        Larger writes fail (EFBIG), as if the disk was full.
        """
        assert self.process is not None
        soft, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (soft, hard))

    def _falls_silent(self) -> None:
        if self._silent_since is None:
            self._silent_since = time.monotonic()

    def _speaks(self) -> None:
        if self._silent_since is not None:
            self.silences.append((self._silent_since, time.monotonic()))
            self._silent_since = None

    @property
    def log_path(self) -> Path:
        return self.root / f"member{self.number}.log"

    def log_size(self) -> int:
        return self.log_path.stat().st_size

    def log(self, since: int = 0) -> str:
        """Return the member's log from a byte offset on."""
        return self.log_path.read_bytes()[since:].decode()

    def get(self, path: str, *, timeout_s: float = 20.0) -> tuple[int, Any]:
        """Send a GET request over HTTP, and return status and content, or status 0 if there is no answer."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=timeout_s) as response:
                text = response.read()
                return response.status, json.loads(text) if text[:1] == b"{" else text
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
                return error.code, json.loads(text) if text[:1] == b"{" else text
        except (OSError, http.client.HTTPException):  # the member may end before its answer is complete
            return 0, None

    def ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.get("/v1/status")[1] or {}
        return status

    def raft_status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.get("/v1/raft/status")[1] or {}
        return status

    def topics(self, consistency: str = "default") -> set[str] | None:
        code, body = self.get(f"/v1/topics?consistency={consistency}", timeout_s=CONDITION_S)
        return set(body["topics"]) if code == 200 else None

    def served_topics(self) -> set[str]:
        """Return the topics from a read with the default freshness.

        Repeat the read until it succeeds, because reads may fail during an election.
        """

        def answered() -> list[set[str]]:
            topics = self.topics()
            return [] if topics is None else [topics]

        return wait_until(answered, f"member {self.number} answers a default read")[0]

    def wait_topics(self, wanted: set[str], *, consistency: str = "default") -> None:
        wait_until(
            lambda: self.topics(consistency) == wanted,
            f"member {self.number} has exactly the topics {wanted}",
        )

    @property
    def journal(self) -> Path:
        """Path of the newest segment file of the journal."""
        return sorted((self.data / "raft").glob("journal-*"))[-1]


@dataclass
class Cluster:
    """A raft group of real nameserver processes."""

    members: list[Member]

    def start(self) -> None:
        with ThreadPoolExecutor(len(self.members)) as pool:
            list(pool.map(Member.start, self.members))
        self.wait_ready()

    def stop(self) -> None:
        """Kill all members, and keep their data."""
        running = [member for member in self.members if member.process is not None]
        for member in running:
            member.kill()
        for member in running:
            member.reap()

    def wait_ready(self) -> None:
        for member in self.members:
            wait_until(member.ready, f"member {member.number} is ready")

    def leader(self, among: Iterable[Member] | None = None) -> Member:
        """Wait for a leader among these members (by default all) and return it.

        If several members claim to lead, the member with the highest term is the leader.
        """
        asked = [m for m in (self.members if among is None else among) if m.process is not None]

        def leading() -> list[tuple[int, int]]:
            found = [(number, member.status()) for number, member in enumerate(asked)]
            return [(status["term"], number) for number, status in found if status.get("role") == "leader"]

        return asked[max(wait_until(leading, "somebody leads"))[1]]

    def others(self, *but: Member) -> list[Member]:
        return [member for member in self.members if member not in but]

    def wait_equal(self) -> str:
        """Wait until all members have applied the same entries, and return their common digest.

        Raises:
            AssertionError: At once, if members at the same log index differ.
        """

        def digests() -> set[tuple[int, str, str]]:
            found = set()
            for member in self.members:
                code, body = member.get("/v1/digest")
                if code != 200:
                    return set()
                found.add((body["index"], body["digest"], body["state_digest"]))
            assert len({index for index, _, _ in found}) == len(found), f"diverged: {sorted(found)}"
            return found if len(found) == 1 else set()

        return next(iter(wait_until(digests, "all members are equal")))[1]


def token_flags(root: Path) -> tuple[str, str]:
    """Write a file with :data:`TOKEN`, and return the flags with which members accept changes over HTTP."""
    token = root / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    return "--http-token-file", str(token)


def administer(
    member: Member, method: str, path: str, body: dict[str, Any] | bytes | None = None
) -> tuple[int, Any]:
    """Send a change to one member, and return the HTTP status and the JSON answer, even of an error."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
    request = urllib.request.Request(
        f"http://{member.http}/v1/raft/{path}",
        data=data,
        method=method,
        headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": kind},
    )
    try:
        with urllib.request.urlopen(request, timeout=2 * CONDITION_S) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def make_members(root: Path, *, size: int = 3, arguments: tuple[str, ...] = ()) -> list[Member]:
    """Return members on loopback that connect directly to each other. The members are not started."""
    addresses = free_addresses(3 * size)
    rafts = addresses[:size]
    return [
        Member(
            number=number,
            root=root,
            raft=rafts[number],
            peers=",".join(rafts),
            listen=addresses[size + number],
            http=addresses[2 * size + number],
            data=root / f"data{number}",
            arguments=arguments,
        )
        for number in range(size)
    ]


@contextmanager
def running(members: list[Member]) -> Iterator[Cluster]:
    """Start members, and kill them at the end.

    If the test fails, its error shows the last 3,000 characters of each member's log.
    """
    cluster = Cluster(members)
    standstill.begin()
    try:
        cluster.start()
        yield cluster
    except AssertionError as error:
        for member in members:
            error.add_note(f"-- log of member {member.number}, {member.raft}\n{member.log()[-3000:]}")
        raise
    finally:
        cluster.stop()
