"""Real nameservers in raft mode that are killed, paused and cut off, under registrations at all members.

Each call is recorded with start, end and outcome; :func:`judge` is a pure validator of the history.
Environment variable ``RAFT_FAULT_CYCLES`` says how often the leader, or everybody, is killed (default 5).
"""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, decode_command
from remoting.errors import RemotingError
from remoting.frame import FrameDecoder
from remoting.route import DataVersion, RegisterBody, TopicConfig, body_crc32, encode_register_body
from remoting.transport.blocking import BlockingClient

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

CYCLES = int(os.environ.get("RAFT_FAULT_CYCLES", "5"))
CONDITION_S = 30.0
MEMBERS = 3
WRITERS_PER_MEMBER = 2
LOAD = 100  # calls between two kills, at least

_T = TypeVar("_T")


def until(condition: Callable[[], _T], what: str, *, within_s: float = CONDITION_S) -> _T:
    """Return the first true value of a condition."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.01)


# -- processes --------------------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    """Find ports below the ephemeral range: no outgoing connection takes one while a member is down."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(12_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


@dataclass
class Member:
    """One nameserver process; the same addresses and data through all its lives."""

    number: int
    root: Path
    raft: str
    peers: str
    listen: str
    http: str
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        log = open(self.root / f"member{self.number}.log", "a")  # noqa: SIM115  # the child keeps it
        with log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    *("-m", "nameserver", "--mode", "raft", "--raft", self.raft, "--peers", self.peers),
                    *("--listen", self.listen, "--http", self.http),
                    *("--data", str(self.root / f"data{self.number}")),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(CONDITION_S), f"member {self.number} said nothing"
        line = self.process.stdout.readline()
        assert line.startswith("mqnamesrv ready "), self.log()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()

    def reap(self) -> None:
        if self.process is not None:
            self.process.wait(timeout=CONDITION_S)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def log(self) -> str:
        return (self.root / f"member{self.number}.log").read_text()[-4000:]

    def get(self, path: str, *, timeout_s: float = 5.0) -> tuple[int, Any]:
        """Ask over HTTP; status 0 if nobody answers."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=timeout_s) as response:
                text = response.read()
                return response.status, json.loads(text) if text[:1] == b"{" else text
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError:
            return 0, None

    def ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.get("/v1/status")[1] or {}
        return status

    def topics(self, consistency: str = "default") -> set[str] | None:
        code, body = self.get(f"/v1/topics?consistency={consistency}")
        return set(body["topics"]) if code == 200 else None

    def wait_topics(self, wanted: set[str], *, consistency: str = "default") -> None:
        until(
            lambda: self.topics(consistency) == wanted,
            f"member {self.number} has exactly the topics {wanted}",
        )


@dataclass
class Cluster:
    """Three members."""

    members: list[Member]

    def start(self) -> None:
        with ThreadPoolExecutor(len(self.members)) as pool:
            list(pool.map(Member.start, self.members))
        self.wait_ready()

    def wait_ready(self) -> None:
        for member in self.members:
            until(member.ready, f"member {member.number} is ready")

    def leader(self) -> Member:
        def leading() -> list[Member]:
            return [m for m in self.members if m.process is not None and m.status().get("role") == "leader"]

        return until(leading, "somebody leads")[0]

    def wait_equal(self) -> str:
        """Wait until all members have applied the same; return the digest they share."""

        def digests() -> set[tuple[int, str, str]]:
            found = set()
            for member in self.members:
                code, body = member.get("/v1/digest")
                found.add(
                    (body["index"], body["digest"], body["state_digest"]) if code == 200 else (0, "", "")
                )
            return found if len(found) == 1 and ("" not in next(iter(found))) else set()

        return next(iter(until(digests, "all members are equal")))[1]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    ports = free_ports(3 * MEMBERS)
    rafts = [f"127.0.0.1:{port}" for port in ports[:MEMBERS]]
    cluster = Cluster(
        [
            Member(
                number=number,
                root=tmp_path,
                raft=rafts[number],
                peers=",".join(rafts),
                listen=f"127.0.0.1:{ports[MEMBERS + number]}",
                http=f"127.0.0.1:{ports[2 * MEMBERS + number]}",
            )
            for number in range(MEMBERS)
        ]
    )
    try:
        cluster.start()
        yield cluster
    finally:
        for member in cluster.members:
            if member.process is not None:
                member.kill()
                member.reap()


# -- brokers ------------------------------------------------------------------------------------------------


def registration(
    name: str, addr: str, topics: tuple[str, ...], *, counter: int, lease_ms: int = 120_000
) -> RemotingCommand:
    body = encode_register_body(
        RegisterBody(
            data_version=DataVersion(counter=counter),
            topic_configs=tuple(TopicConfig(topic_name=topic) for topic in topics),
            filter_servers=(),
            mapping_infos={},
        ),
        compressed=False,
        version=479,
    )
    fields = {
        "brokerName": name,
        "brokerAddr": addr,
        "clusterName": "C",
        "brokerId": "0",
        "haServerAddr": "",
        "bodyCrc32": str(body_crc32(body)),
        "heartbeatTimeoutMillis": str(lease_ms),
    }
    return RemotingCommand.request(RequestCode.REGISTER_BROKER, fields, body=body)


def route_query(topic: str) -> RemotingCommand:
    return RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})


Outcome = Literal["applied", "not applied", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One registration, which brings one topic that no other call brings. Instants in s, monotonic."""

    member: int
    topic: str
    start: float
    end: float
    outcome: Outcome


@dataclass
class Writers:
    """Brokers, some at each member, that register a new topic as fast as they are answered."""

    cluster: Cluster
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._release = threading.Event()
        self._errors: list[BaseException] = []
        places = [(m, number) for m in self.cluster.members for number in range(WRITERS_PER_MEMBER)]
        self._done = [threading.Event() for _ in places]
        self._threads = [
            threading.Thread(target=self._run, args=(member, number, done))
            for (member, number), done in zip(places, self._done, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def _acknowledged(self, member: Member, since: float) -> bool:
        """Whether a call to this member that began after an instant has succeeded, or a writer broke."""
        recent = self.calls[-500:]
        return bool(self._errors) or any(
            call.member == member.number and call.start > since and call.outcome == "applied"
            for call in recent
        )

    def wait_for_progress(self, members: list[Member]) -> float:
        """Wait for a fresh success at each of these members; return how long the slowest took."""
        since = time.monotonic()
        for member in members:
            until(
                partial(self._acknowledged, member, since),
                f"registrations succeed at member {member.number}",
            )
        return time.monotonic() - since

    def wait_for_load(self, members: list[Member]) -> None:
        """Wait until registrations flow at all of these members, and enough of them to lose some."""
        self.wait_for_progress(members)
        enough = len(self.calls) + LOAD
        until(lambda: self._errors or len(self.calls) >= enough, f"{LOAD} more registrations are answered")

    def stop(self) -> list[Call]:
        """Send nothing more, but stay connected, so that the brokers stay listed; return the history."""
        self._stop.set()
        for done in self._done:
            assert done.wait(CONDITION_S)
        if self._errors:
            raise self._errors[0]
        return self.calls

    def close(self) -> None:
        """Close the brokers' connections."""
        self._stop.set()
        self._release.set()
        for thread in self._threads:
            thread.join(CONDITION_S)
            assert not thread.is_alive()

    def _run(self, member: Member, number: int, done: threading.Event) -> None:
        name, addr = f"broker-{member.number}-{number}", f"10.1.{member.number}.{number}:10911"
        counter = 0
        try:
            with BlockingClient() as client:
                while not self._stop.is_set():
                    counter += 1
                    topic = f"{name}-{counter}"
                    request = registration(name, addr, (topic, "shared"), counter=counter)
                    start = time.monotonic()
                    outcome = ask(client, member.listen, request)
                    end = time.monotonic()
                    self.calls.append(
                        Call(member=member.number, topic=topic, start=start, end=end, outcome=outcome)
                    )
                    if outcome != "applied":
                        self._stop.wait(0.05)
                done.set()
                self._release.wait()
        except BaseException as error:
            self._errors.append(error)
        finally:
            done.set()


def ask(client: BlockingClient, addr: str, request: RemotingCommand) -> Outcome:
    """Send a write and say what is known of it then."""
    try:
        answer = client.invoke(addr, request, timeout_s=3.0)
    except RemotingError as error:
        return "not applied" if getattr(error, "sent", True) is False else "unknown"
    if answer.code == ResponseCode.SUCCESS:
        return "applied"
    assert answer.remark is not None, answer
    if answer.remark.startswith("[NO_QUORUM]"):
        return "not applied"
    assert answer.remark.startswith("[OUTCOME_UNKNOWN]"), answer.remark
    return "unknown"


def _applied(client: BlockingClient, addr: str, request: RemotingCommand) -> bool:
    return ask(client, addr, request) == "applied"


def judge(calls: list[Call], topics: set[str]) -> list[str]:
    """Return what is wrong with the table after a history: lost acknowledgements, refused writes applied."""
    wrong = [f"lost: {call}" for call in calls if call.outcome == "applied" and call.topic not in topics]
    wrong += [f"refused, yet there: {c}" for c in calls if c.outcome == "not applied" and c.topic in topics]
    wrong += [f"late: {call}" for call in calls if call.end - call.start > 3.0]
    sent = {call.topic for call in calls} | {"shared"}
    wrong += [f"from nowhere: {topic}" for topic in sorted(topics - sent)]
    return wrong


def test_judge_finds_each_kind_of_wrong() -> None:
    def call(topic: str, outcome: Outcome, *, took_s: float = 0.1) -> Call:
        return Call(member=0, topic=topic, start=1.0, end=1.0 + took_s, outcome=outcome)

    fine = [call("a", "applied"), call("b", "not applied"), call("c", "unknown"), call("d", "unknown")]
    assert judge(fine, {"a", "c", "shared"}) == []
    assert judge(fine, {"c"})[0].startswith("lost: ")
    assert judge(fine, {"a", "b"})[0].startswith("refused, yet there: ")
    assert judge(fine, {"a", "x"}) == ["from nowhere: x"]
    assert judge([call("a", "applied", took_s=3.1)], {"a"})[0].startswith("late: ")


def check_nothing_lost(cluster: Cluster, calls: list[Call]) -> None:
    cluster.wait_ready()
    cluster.wait_equal()
    for member in cluster.members:
        topics = member.topics()
        assert topics is not None
        assert judge(calls, topics) == []
    outcomes = {o: sum(call.outcome == o for call in calls) for o in ("applied", "not applied", "unknown")}
    print(f"registrations: {outcomes}")


# -- what must hold --------------------------------------------------------------------------------


def test_killed_leader_loses_no_acknowledged_registration(cluster: Cluster) -> None:
    writers = Writers(cluster)
    recoveries = []
    try:
        for _ in range(CYCLES):
            writers.wait_for_load(cluster.members)
            leader = cluster.leader()
            leader.kill()
            recoveries.append(writers.wait_for_progress([m for m in cluster.members if m is not leader]))
            leader.reap()
            leader.start()
            cluster.wait_ready()
        writers.wait_for_progress(cluster.members)
        check_nothing_lost(cluster, writers.stop())
    finally:
        writers.close()
    print("leader killed to next registration at all others, s:", [round(r, 3) for r in recoveries])


def test_all_killed_at_once_lose_no_acknowledged_registration(cluster: Cluster) -> None:
    writers = Writers(cluster)
    try:
        for _ in range(CYCLES):
            writers.wait_for_load(cluster.members)
            for member in cluster.members:
                member.kill()
            for member in cluster.members:
                member.reap()
            cluster.start()
        writers.wait_for_progress(cluster.members)
        check_nothing_lost(cluster, writers.stop())
    finally:
        writers.close()


def test_minority_fails_writes_in_time_refuses_default_reads_and_serves_stale_ones(cluster: Cluster) -> None:
    last, *others = random.sample(cluster.members, MEMBERS)
    with BlockingClient() as client, BlockingClient() as reader:
        first = registration("broker-a", "10.0.0.1:10911", ("T", "U"), counter=1)
        assert ask(client, last.listen, first) == "applied"
        cluster.wait_equal()
        for member in others:
            member.kill()
        for member in others:
            member.reap()
        for counter in (2, 1):
            request = registration("broker-a", "10.0.0.1:10911", ("T", "V"), counter=counter)
            asked_at = time.monotonic()
            answer = client.invoke(last.listen, request, timeout_s=5.0)
            assert time.monotonic() - asked_at < 3.0
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark is not None
            assert answer.remark.startswith(("[NO_QUORUM] ", "[OUTCOME_UNKNOWN] "))
        refused = reader.invoke(last.listen, route_query("T"))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark is not None
        assert refused.remark.startswith("[NO_QUORUM] name server not ready: no leader")
        assert last.get("/v1/topics/T/route")[0] == 503
        assert last.get("/readyz")[0] == 503
        assert last.get("/v1/topics/T/route?consistency=stale")[0] == 200
        # On the wire the setting decides; it is this nameserver's own and changes without a quorum.
        change = RemotingCommand.request(RequestCode.UPDATE_NAMESRV_CONFIG, {}, body=b"routeFreshness=stale")
        assert client.invoke(last.listen, change).code == ResponseCode.SUCCESS
        assert client.invoke(last.listen, route_query("T")).code == ResponseCode.SUCCESS
    for member in others:
        member.start()
    cluster.wait_ready()
    assert cluster.wait_equal()


BROKER_PROGRAM = """
import sys
from remoting.transport.blocking import BlockingClient
from remoting.command import RemotingCommand, decode_command
fields, body, *addrs = sys.argv[1:]
client = BlockingClient()
ext_fields = dict(field.split("=", 1) for field in fields.split("&"))
for addr in addrs:
    answer = client.invoke(addr, RemotingCommand.request(103, ext_fields, body=bytes.fromhex(body)))
    assert answer.code == 0, answer
print("registered", flush=True)
sys.stdin.read()
"""


def test_killed_broker_is_gone_on_all_members_within_a_second(cluster: Cluster) -> None:
    request = registration("broker-a", "10.0.0.1:10911", ("T", "U"), counter=1)
    fields = "&".join(f"{key}={value}" for key, value in request.ext_fields.items())
    gone_after = []
    for _ in range(3):
        broker = subprocess.Popen(
            [sys.executable, "-c", BROKER_PROGRAM, fields, request.body.hex()]
            + [member.listen for member in cluster.members],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert broker.stdout is not None
            assert broker.stdout.readline() == "registered\n"
            for member in cluster.members:
                assert member.topics() == {"T", "U"}
        finally:
            broker.kill()
            killed_at = time.monotonic()
            broker.communicate()
        for member in cluster.members:
            member.wait_topics(set(), consistency="stale")
        gone_after.append(time.monotonic() - killed_at)
    print("broker killed to gone on all members, s:", [round(seconds, 3) for seconds in gone_after])
    assert max(gone_after) < 1.0


def test_broker_whose_link_to_one_nameserver_breaks_stays(cluster: Cluster) -> None:
    with BlockingClient() as broker, BlockingClient() as other:
        for member in cluster.members:
            stays = registration("broker-a", "10.0.0.1:10911", ("T", "U"), counter=1)
            assert ask(broker, member.listen, stays) == "applied"
            goes = registration("broker-b", "10.0.0.2:10911", ("V", "W"), counter=1)
            assert ask(other, member.listen, goes) == "applied"
        broker.disconnect(cluster.members[0].listen)
        other.close()  # once this one is gone, the evidence about the first was judged, too
        for member in cluster.members:
            member.wait_topics({"T", "U"})
        for member in cluster.members[1:]:
            broker.disconnect(member.listen)
        for member in cluster.members:
            member.wait_topics(set())


def test_dead_nameserver_keeps_no_dead_broker_alive(cluster: Cluster) -> None:
    with BlockingClient() as broker:
        for member in cluster.members:
            request = registration("broker-a", "10.0.0.1:10911", ("T", "U"), counter=1)
            assert ask(broker, member.listen, request) == "applied"
        dead, *alive = random.sample(cluster.members, MEMBERS)
        dead.kill()
        dead.reap()
        for member in alive:
            until(member.ready, "the others go on")
            assert member.topics() == {"T", "U"}, "the broker is there as long as it is connected with one"
    for member in alive:
        member.wait_topics(set(), consistency="stale")


def test_paused_leader_neither_stops_the_others_nor_answers_from_the_past(cluster: Cluster) -> None:
    for _ in range(2):
        leader = cluster.leader()
        others = [member for member in cluster.members if member is not leader]
        with BlockingClient() as client, socket.create_connection(_split(leader.listen)) as line:
            for member in cluster.members:
                request = registration("broker-a", "10.0.0.1:10911", ("T", "U"), counter=1)
                assert ask(client, member.listen, request) == "applied"
            leader.signal(signal.SIGSTOP)
            try:
                drop = RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
                until(partial(_applied, client, others[0].listen, drop), "the others go on", within_s=5.0)
                for member in others:
                    member.wait_topics({"U"})
                # Waits in the paused process's buffer and is read before anything newer.
                line.sendall(route_query("T").encode())
            finally:
                leader.signal(signal.SIGCONT)
            line.settimeout(5.0)
            answer = _read_answer(line)
            assert answer.code != ResponseCode.SUCCESS, "it still served what is gone"
            if answer.code == ResponseCode.SYSTEM_ERROR:
                assert (answer.remark or "").startswith("[NO_QUORUM] ")
            else:
                assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            cluster.wait_ready()
            cluster.wait_equal()
            for member in cluster.members:
                assert member.topics() == {"U"}, "the broker that was connected all the time is still there"
        for member in cluster.members:
            member.wait_topics(set())


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _read_answer(line: socket.socket) -> RemotingCommand:
    decoder = FrameDecoder()
    while True:
        data = line.recv(65536)
        assert data, "closed before the answer"
        for frame in decoder.feed(data):
            return decode_command(frame)


def test_leader_that_is_asked_to_stop_hands_over(cluster: Cluster) -> None:
    writers = Writers(cluster)
    took = []
    try:
        for _ in range(2):
            writers.wait_for_load(cluster.members)
            leader = cluster.leader()
            leader.signal(signal.SIGTERM)
            took.append(writers.wait_for_progress([m for m in cluster.members if m is not leader]))
            leader.reap()
            leader.start()
            cluster.wait_ready()
        check_nothing_lost(cluster, writers.stop())
    finally:
        writers.close()
    print("leader asked to stop to next registration at all others, s:", [round(s, 3) for s in took])
