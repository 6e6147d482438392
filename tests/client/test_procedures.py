"""The commands of docs/operations.md, run on real processes, some of which the test kills."""

from __future__ import annotations

import http.client
import json
import resource
import secrets
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import routekeeper.client.blocking
from routekeeper.client.config import ClientConfig
from routekeeper.client.errors import NoNameserver
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.client.conftest import Process
from tests.client.mqadmin import mqadmin
from tests.ports import free_addresses
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

CONDITION_S = 60.0


class Nameserver:
    """One nameserver, with the same addresses for RocketMQ's protocol and HTTP after each restart."""

    def __init__(self, root: Path, number: int, token: Path, listen: str, http: str, raft: str) -> None:
        self.root, self.number, self.token = root, number, token
        self.listen, self.http, self.raft = listen, http, raft
        self.data = root / f"data{number}"
        self.popen: subprocess.Popen[str] | None = None

    def start(self, *flags: str) -> None:
        with open(self.root / f"log{self.number}", "a") as log:
            self.popen = subprocess.Popen(
                [
                    *(sys.executable, "-m", "routekeeper.nameserver"),
                    *("--listen", self.listen, "--http", self.http, "--data", str(self.data), *flags),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line.startswith("mqnamesrv ready "), self.log()

    def start_member(self, peers: list[str], *flags: str) -> None:
        self.start(
            *("--mode", "raft", "--raft", self.raft, "--peers", ",".join(peers)),
            *("--http-token-file", str(self.token), "--raft-secret-file", str(self.token)),
            # The election timeout is long: only a procedure of the test, and not a busy machine, may change
            # the leader.
            *("--election-timeout-ms", "2000", *flags),
        )

    def end(self, *, kill: bool = False) -> int:
        popen, self.popen = self.popen, None
        if popen is None:
            return 0
        if kill:
            popen.kill()
        else:
            popen.terminate()
        code = popen.wait(timeout=30)
        assert popen.stdout is not None
        popen.stdout.close()
        return code

    def log(self) -> str:
        return (self.root / f"log{self.number}").read_text()

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=20) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text[:1] == b"{" else text
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except (OSError, http.client.HTTPException):  # the server may end while it sends its answer
            return 0, None

    def status(self) -> dict[str, Any]:
        code, found = self.get("/v1/status")
        assert code == 200
        return dict(found)

    def digest(self) -> str:
        return str(self.get("/v1/digest")[1]["digest"])

    def ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def routed(self) -> bool:
        """Return True if this nameserver knows the broker's default topic."""
        code, body = self.get("/v1/topics?consistency=stale")
        return code == 200 and "TBW102" in body["topics"]

    def ask(self, code: int, **fields: str) -> RemotingCommand:
        with BlockingClient() as wire:
            return wire.invoke(self.listen, RemotingCommand.request(code, fields), timeout_s=CONDITION_S)

    def put(self, key: str, value: str) -> None:
        """Write a value, and repeat the write while there is no leader."""
        wait_until(lambda: self.ask(100, namespace="n", key=key, value=value).code == 0, f"{key} is written")

    def kv(self) -> str | None:
        """Return the value of key k, or None without a value. Repeat the read while there is no quorum."""
        answers: list[RemotingCommand] = []

        def granted() -> bool:
            answers.append(self.ask(101, namespace="n", key="k"))
            return not (answers[-1].remark or "").startswith("[NO_QUORUM]")

        wait_until(granted, f"{self.number} reads")
        return answers[-1].ext_fields.get("value")


@dataclass
class Place:
    root: Path
    token: Path
    servers: list[Nameserver]

    @property
    def http(self) -> str:
        return ";".join(server.http for server in self.servers)

    @property
    def peers(self) -> list[str]:
        return [server.raft for server in self.servers]

    def admin(self, subcommand: str, *argv: str, http: str | None = None) -> str:
        """Run a subcommand of mqadmin that must succeed, and return its output."""
        code, out, err = self._admin(subcommand, *argv, http=http)
        assert (code, err) == (0, ""), err + out
        return out

    def said(self, subcommand: str, *argv: str, http: str | None = None) -> str:
        """Run a subcommand of mqadmin, and return its output on both streams. It may fail."""
        _, out, err = self._admin(subcommand, *argv, http=http)
        return out + err

    def _admin(self, subcommand: str, *argv: str, http: str | None) -> tuple[int, str, str]:
        flags = ("--http", http or self.http, "--token-file", str(self.token))
        return mqadmin(subcommand, *flags, *argv)

    def all_ready(self) -> None:
        for server in self.servers:
            wait_until(server.ready, f"{server.number} is ready")

    def all_equal(self) -> None:
        def digests() -> bool:
            found = [server.get("/v1/digest")[1] for server in self.servers]
            return len({(one["index"], one["state_digest"]) for one in found if one}) == 1

        wait_until(digests, "all hold the same")


class Broker(Process):
    """A real broker that registers at every nameserver."""

    def register(self) -> None:
        """Make the broker register at once.

        The request sets the broker's permission to the value that it already has. The broker registers after
        each change of this setting, as RocketMQ's brokers do.
        """
        request = RemotingCommand.request(25, {}, body=b"brokerPermission=6")
        with BlockingClient() as wire:
            assert wire.invoke(self.addr, request, timeout_s=CONDITION_S).code == 0


@contextmanager
def broker_of(place: Place) -> Iterator[Broker]:
    conf = place.root / "broker.properties"
    conf.write_text("registerNameServerPeriod=10000\n")
    broker = Broker(
        *("routekeeper.broker", "-n", ";".join(server.listen for server in place.servers)),
        *("--listen", "127.0.0.1:0", "--store", str(place.root / "store"), "-c", str(conf)),
        log=place.root / "broker.log",
    )
    try:
        for server in place.servers:
            wait_until(server.routed, "the broker reports")
        yield broker
    finally:
        broker.stop()


class Readers:
    """Clients that know all nameservers and read a route again and again.

    Each client behaves like RocketMQ's clients: if one nameserver is down or refuses, the client asks another
    nameserver. A read has failed if a nameserver answers with anything but the route, or if no nameserver
    answers within :data:`CONDITION_S`.
    """

    def __init__(self, place: Place, count: int) -> None:
        self.failures: list[str] = []
        self._addresses = tuple(server.listen for server in place.servers)
        self._counts = [0] * count
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def until_more(self) -> None:
        """Wait until each client has read the route five more times."""
        before = list(self._counts)
        wait_until(
            lambda: all(now >= then + 5 for now, then in zip(self._counts, before, strict=True)), "reads"
        )

    def _run(self, number: int) -> None:
        try:
            with routekeeper.client.blocking.Client(ClientConfig(nameservers=self._addresses)) as reader:
                while not self._stop.is_set():
                    self._read(reader)
                    self._counts[number] += 1
                    time.sleep(0.005)
        except Exception as error:
            self.failures.append(repr(error))

    def _read(self, reader: routekeeper.client.blocking.Client) -> None:
        deadline = time.monotonic() + CONDITION_S
        request = RemotingCommand.request(105, {"topic": "TBW102"})
        while True:
            try:
                answer = reader.run(reader.core.directory.ask(request))
            except NoNameserver as error:
                said = str(error)
            else:
                if answer.code == 0 and b"brokerDatas" in answer.body:
                    return
                said = f"code {answer.code} {answer.remark}"
                if not said.startswith("code 1 [NO_QUORUM]"):
                    self.failures.append(said)
                    return
            if time.monotonic() > deadline:
                self.failures.append(said)
                return


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    token = tmp_path / "token"
    token.write_text("a-word-of-the-operators-and-the-members")
    token.chmod(0o600)
    addresses = free_addresses(9)
    servers = [
        Nameserver(tmp_path, number, token, *addresses[3 * number : 3 * number + 3]) for number in range(3)
    ]
    try:
        yield Place(tmp_path, token, servers)
    finally:
        for server in servers:
            server.end(kill=True)


def founded(place: Place) -> None:
    for server in place.servers:
        server.start_member(place.peers)
    place.all_ready()
    place.servers[0].put("k", "v")
    place.all_equal()


def test_lost_quorum_is_revived_from_the_member_that_is_left(place: Place) -> None:
    founded(place)
    left, *lost = place.servers
    digest = left.digest()
    weak = (
        f"{lost[0].raft} is down or cut off: no link with ",
        "2 of 3 voters are up; if one more is lost, nothing is served",
    )
    for server in lost:
        server.end(kill=True)
        shutil.rmtree(server.data)
        if server is lost[0]:
            wait_until(lambda: all(words in place.said("raftStatus") for words in weak), "who leads says so")
    wait_until(lambda: not left.ready(), "nothing is served")
    wait_until(lambda: b"no link to" in (left.get("/readyz")[1] or b""), "and it says why")
    assert left.end() == 0
    left.start_member(place.peers, "--force-new-cluster")
    wait_until(left.ready, "it goes on alone")
    wait_until(lambda: "new cluster forced" in left.log(), "its log says so")
    assert left.kv() == "v"
    assert left.digest() == digest
    assert left.end() == 0
    left.start_member(place.peers)
    wait_until(left.ready, "also without the flag")
    for server in lost:
        server.start_member(place.peers)
        assert "it votes" in place.admin("addMember", "--address", server.raft)
    place.all_ready()
    place.all_equal()
    assert [server.kv() for server in place.servers] == ["v"] * 3


def test_member_with_old_data_does_not_come_back_after_a_forced_cluster(place: Place) -> None:
    founded(place)
    left, second, third = place.servers
    for server in place.servers:
        server.end(kill=True)
    left.start_member(place.peers, "--force-new-cluster")
    wait_until(left.ready, "it goes on alone")
    term = left.status()["term"]
    second.start_member(place.peers)
    wait_until(lambda: "is no member" in left.log(), "it is refused")
    assert not second.ready()
    assert left.status()["term"] == term, "nobody listens to it"
    assert left.get("/v1/status")[1]["members"] == [left.raft]
    second.end()
    shutil.rmtree(second.data)
    second.start_member(place.peers)
    place.admin("addMember", "--address", second.raft, http=left.http)
    wait_until(second.ready, "an empty one is taken")
    assert third.popen is None


def test_group_whose_disks_are_all_lost_is_restored_from_a_snapshot(place: Place) -> None:
    founded(place)
    file = place.root / "routes.snapshot"
    place.admin("snapshotSave", "--file", str(file))
    digest = place.servers[0].digest()
    for server in place.servers:
        server.end(kill=True)
        shutil.rmtree(server.data)
    first, *others = place.servers
    first.start_member([first.raft], "--force-new-cluster")
    wait_until(first.ready, "it leads alone")
    place.admin("snapshotRestore", "--file", str(file), http=first.http)
    assert first.digest() == digest
    assert first.end() == 0
    first.start_member([first.raft])
    wait_until(first.ready, "also without the flag")
    assert first.digest() == digest
    for server in others:
        server.start_member(place.peers)
        place.admin("addMember", "--address", server.raft)
    place.all_ready()
    place.all_equal()
    assert [server.kv() for server in place.servers] == ["v"] * 3


def test_full_disk_is_named_and_room_is_all_it_needs(place: Place) -> None:
    alone = place.servers[0]
    alone.start_member([alone.raft])
    wait_until(alone.ready, "it leads")
    assert alone.popen is not None
    # The limit applies to each file that the process writes. The log still fits into the limit, but the
    # journal needs more.
    used = len(alone.log().encode()) + 5_000
    _, hard = resource.prlimit(alone.popen.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(alone.popen.pid, resource.RLIMIT_FSIZE, (used, hard))
    refused = alone.ask(100, namespace="n", key="k", value=secrets.token_hex(20_000))
    assert (refused.remark or "").startswith("[OUTCOME_UNKNOWN]")
    wait_until(
        lambda: b"disk does not accept its journal" in (alone.get("/readyz")[1] or b""), "readyz names it"
    )
    said = place.admin("raftStatus", http=alone.http)
    assert f"{alone.http} cannot write its journal: its disk does not answer" in said
    assert "mqnamesrv_raft_storage_stalled 1.0\n" in alone.get("/metrics")[1].decode()
    refused = alone.ask(100, namespace="n", key="other", value="v")
    assert (refused.remark or "").startswith("[NO_QUORUM]")
    resource.prlimit(alone.popen.pid, resource.RLIMIT_FSIZE, (hard, hard))
    wait_until(alone.ready, "it goes on without a restart")
    wait_until(lambda: "journal has room again" in alone.log(), "its log says so")
    assert "acknowledging nothing until there is room" in alone.log()
    alone.put("k", "v")
    assert alone.kv() == "v"


def test_machine_is_replaced_add_first_then_remove(place: Place) -> None:
    founded(place)
    old = place.servers[0]
    new = Nameserver(place.root, 3, place.token, *free_addresses(3))
    with ExitStack() as stack:
        stack.callback(lambda: new.end(kill=True))
        new.start_member([*place.peers, new.raft])
        # The group may elect any member as its leader, even the new member. A member that does not lead
        # answers with the leader's address.
        place.admin("addMember", "--address", new.raft, http=place.servers[2].http)
        wait_until(new.ready, "the new one is ready")
        assert old.popen is not None
        place.admin("removeMember", "--address", old.raft, http=place.servers[2].http)
        assert old.popen.wait(timeout=30) == 3
        old.end()
        assert "stopped abandoned=0" in old.log(), "it ends in order, as at SIGTERM"
        place.servers[0] = new
        place.all_ready()
        place.all_equal()
        members = {tuple(sorted(server.get("/v1/status")[1]["members"])) for server in place.servers}
        assert members == {tuple(sorted(place.peers))}
        assert new.kv() == "v"


def test_mode_is_changed_nameserver_by_nameserver_and_somebody_always_has_the_routes(place: Place) -> None:
    for server in place.servers:
        server.start()
        server.put("k", "v")
    with broker_of(place) as broker:
        members: list[str] = []
        for server in place.servers:
            old = server.data
            assert server.end() == 0
            assert somebody_routes(place), "a client finds the routes elsewhere"
            server.data = place.root / f"raft{server.number}"
            server.data.mkdir()
            if not members:
                shutil.copy(old / "kvConfig.json", server.data)
            members.append(server.raft)
            server.start_member(members)
            if len(members) > 1:
                http = ";".join(s.http for s in place.servers if s.raft in members)
                place.admin("addMember", "--address", server.raft, http=http)
            wait_until(server.ready, "the changed one serves")
            broker.register()
            wait_until(server.routed, "the broker reports to it")
            assert somebody_routes(place)
        place.all_ready()
        place.all_equal()
        assert [server.kv() for server in place.servers] == ["v"] * 3
        assert "are equal" in place.admin("routeDiff")
        assert {server.get("/v1/status")[1]["mode"] for server in place.servers} == {"raft"}


def test_group_is_left_nameserver_by_nameserver_and_somebody_always_has_the_routes(place: Place) -> None:
    founded(place)
    with broker_of(place) as broker:
        for server in place.servers:
            old = server.data
            assert server.end() == 0
            assert somebody_routes(place), "a client finds the routes elsewhere"
            server.data = place.root / f"independent{server.number}"
            server.data.mkdir()
            shutil.copy(old / "kvConfig.json", server.data)
            server.start()
            wait_until(server.ready, "the changed one serves")
            assert server.kv() == "v"
            broker.register()
            wait_until(server.routed, "the broker reports to it")
            assert somebody_routes(place)
        # Brokers register at each nameserver separately, so the last registration may not have reached all
        # nameservers yet.
        wait_until(lambda: "are equal" in place.said("routeDiff"), "all hold the same routes")
        assert {server.get("/v1/status")[1]["mode"] for server in place.servers} == {"independent"}


def test_rolling_restart_costs_no_read(place: Place) -> None:
    founded(place)
    with broker_of(place), Readers(place, 2) as readers:
        # Restart the leader last, as docs/operations.md advises. Then the leader changes only once, at this
        # last restart.
        leads_last = sorted(place.servers, key=lambda server: server.status()["role"] == "leader")
        lives = [server.status()["boot_id"] for server in leads_last]
        for server in leads_last:
            readers.until_more()
            assert server.end() == 0
            readers.until_more()
            server.start_member(place.peers)
            wait_until(server.ready, "it serves again")
        readers.until_more()
        assert [server.status()["boot_id"] for server in leads_last] != lives
    assert readers.failures == []
    place.all_equal()
    assert [server.kv() for server in place.servers] == ["v"] * 3


def somebody_routes(place: Place) -> bool:
    for server in place.servers:
        try:
            if server.ask(105, topic="TBW102").code == 0:
                return True
        except RemotingError:
            continue
    return False
