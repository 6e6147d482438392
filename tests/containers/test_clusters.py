"""Tests of the clusters of compose/raft.yaml and compose/independent.yaml on a real container engine.

Clients send and read messages all the time while the tests kill and restart servers and cut networks.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .composition import BROKERS, HTTP, NAMESRVS, USER, WIRE, Composition, running, start
from .engine import CONDITION_S, IMAGE, Engine, say, wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1200)]

TRAFFIC = Path(__file__).with_name("traffic.py")
READ_ONLY = ("/opt/venv", "/etc", "")


def create_topic(cluster: Composition, topic: str, *, asked: str) -> None:
    """Create a topic on all brokers; wait until the nameserver ``asked`` routes it to all of them."""
    command = ("mqadmin", "updateTopic", "-n", WIRE, "-c", "DefaultCluster", "-t", topic)

    def created() -> bool:
        return cluster.attempt(asked, *command).stdout.count("success") == len(BROKERS)

    wait_until(created, f"{topic} is created in every broker")

    def routed() -> bool:
        route = cluster.attempt(asked, "mqadmin", "topicRoute", "-n", f"{asked}:9876", "-t", topic)
        return route.returncode == 0 and all(f'"{broker}"' in route.stdout for broker in BROKERS)

    wait_until(routed, f"{asked} routes {topic} to every broker")


def topics(cluster: Composition, namesrv: str) -> set[str]:
    """Return a nameserver's list of topics; repeat the request if it does not answer in time."""

    def listed() -> list[set[str]]:
        done = cluster.attempt(namesrv, "mqadmin", "topicList", "-n", f"{namesrv}:9876")
        return [set(done.stdout.split())] if done.returncode == 0 else []

    return wait_until(listed, f"{namesrv} lists its topics")[0]


def wait_topics(cluster: Composition, wanted: set[str]) -> None:
    """Wait until every nameserver lists these topics.

    In independent mode, a nameserver lists a topic only after the topic's brokers have registered with it.
    """
    for namesrv in NAMESRVS:
        wait_until(
            partial(lambda name: wanted <= topics(cluster, name), namesrv), f"{namesrv} lists {wanted}"
        )


def wait_equal(cluster: Composition) -> str:
    """Wait until ``mqadmin routeDiff`` finds the route tables equal; return their digest."""

    def digests() -> set[str]:
        done = cluster.attempt("broker-1", "mqadmin", "routeDiff", "--http", HTTP)
        if done.returncode != 0:
            return set()
        found = {line.split()[-1] for line in done.stdout.splitlines() if line.startswith(NAMESRVS)}
        assert len(found) == 1, done.stdout
        return found

    return wait_until(digests, "the route tables are equal").pop()


def leader(cluster: Composition, asked: str) -> str:
    """Return the name of the leader's service, by a query in the container of the service ``asked``."""

    def leaders() -> dict[int, str]:
        done = cluster.attempt(asked, "mqadmin", "raftStatus", "--http", HTTP, "-o", "json")
        rows: list[dict[str, Any]] = json.loads(done.stdout or "[]")
        return {row["term"]: row["me"].partition(":")[0] for row in rows if row.get("role") == "leader"}

    found = wait_until(leaders, "somebody leads")
    return found[max(found)]


def send(cluster: Composition, topic: str, *bodies: str) -> None:
    for body in bodies:
        sent = cluster.inside("namesrv-1", "mqadmin", "sendMessage", "-n", WIRE, "-t", topic, "-p", body)
        assert "SEND_OK" in sent, sent


def consume(cluster: Composition, topic: str) -> set[str]:
    printed = cluster.inside("namesrv-2", "mqadmin", "consumeMessage", "-n", WIRE, "-t", topic)
    return {line.rpartition("BODY: ")[2] for line in printed.splitlines() if "BODY: " in line}


@dataclass
class Traffic:
    """A client in its own container, which sends and reads messages all the time."""

    cluster: Composition
    topic: str
    path: Path
    process: subprocess.Popen[bytes] | None = None

    def command(self, what: str) -> tuple[str, ...]:
        return (
            *("podman", "run", "--rm", "--interactive", "--read-only", "--cap-drop", "ALL"),
            *("--network", self.cluster.network),
            *(f"--add-host={service}:{address}" for service, address in self.cluster.addresses().items()),
            *("--volume", f"{TRAFFIC}:/traffic.py:ro"),
            *(IMAGE, "python3", "/traffic.py", what, WIRE, self.topic),
        )

    def start(self) -> None:
        with self.path.open("wb") as output:
            self.process = subprocess.Popen(
                self.command("drive"),
                env=self.cluster.engine.environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )
        self.pass_by()

    def tell_addresses(self) -> None:
        """Send the client the current addresses of services, which change when containers restart."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(self.cluster.addresses()).encode() + b"\n")
        self.process.stdin.flush()

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines() if line.startswith("{")]

    def pass_by(self, rounds: int = 20) -> None:
        """Wait for ``rounds`` further successful reads and sends, to see effects of the last action."""
        before = len(self.rows())

        def flowing() -> bool:
            later = Counter((row["did"], row["outcome"]) for row in self.rows()[before:])
            return min(later["read", "ok"], later["send", "ok"]) >= rounds

        wait_until(flowing, f"traffic flows\n{self.path.read_text()[-2000:]}")

    def stop(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=CONDITION_S) == 0, self.path.read_text()[-2000:]
        self.process = None

    def acknowledged(self) -> set[str]:
        return {
            f"traffic-{row['number']}"
            for row in self.rows()
            if (row["did"], row["outcome"]) == ("send", "ok")
        }

    def stored(self) -> set[str]:
        printed = self.cluster.engine.run(*self.command("read"))
        return {json.loads(line)["body"] for line in printed.splitlines()}


def test_image_is_small_and_holds_nothing_that_only_builds_or_measures(engine: Engine, image: str) -> None:
    assert engine.image_mb(image) < 250
    absent = "cc gcc make pip apt-get java locust mqbench"
    found = engine.attempt("podman", "run", "--rm", image, "sh", "-c", f"command -v {absent}")
    assert found.stdout == ""
    modules = "pip setuptools locust pyspark numpy routekeeper.bench"
    code = f"import importlib.util as u; print([m for m in '{modules}'.split() if u.find_spec(m)])"
    assert engine.podman("run", "--rm", image, "python3", "-c", code).strip() == "[]"
    leftovers = "~root/.cache /var/cache/apt/archives/*.deb /var/lib/apt/lists/*Packages* /src"
    assert engine.podman("run", "--rm", image, "sh", "-c", f"ls -d {leftovers} 2>/dev/null || true") == ""


def check_confined(cluster: Composition) -> None:
    """Check that the kernel enforces the restrictions in the compose file."""
    for service in (*NAMESRVS, *BROKERS):
        written = " ".join(f"touch {path}/x;" for path in READ_ONLY)
        done = cluster.attempt(
            service, "sh", "-c", f"cat /proc/1/status; {written} touch /data/x && rm /data/x"
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("Read-only file system") == len(READ_ONLY), done.stderr
        status = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if "\t" in line)
        assert set(status["Uid"].split()) == {str(USER)}, service
        assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")} == {0}
        assert status["NoNewPrivs"] == "1"
        limits = cluster.inspect(service)["HostConfig"]
        assert limits["Memory"] == 512 << 20
        assert limits["NanoCpus"] == 10**9
        assert limits["PidsLimit"] == 128
        assert " ready listen=" in cluster.log(service)


Played = dict[Callable[[Engine], None], Future[None]]


@pytest.fixture(scope="module")
def played(engine: Engine, image: str, request: pytest.FixtureRequest) -> Iterator[Played]:
    """Run the selected tests at the same time, because they spend most time waiting; yield their futures."""
    names = {item.name for item in request.session.items}
    plays = {"test_raft_group": play_raft, "test_independent_nameservers": play_independent}
    with ThreadPoolExecutor() as pool:
        futures: Played = {play: pool.submit(play, engine) for name, play in plays.items() if name in names}
        try:
            yield futures
        finally:
            if not all(future.done() for future in futures.values()):
                engine.stop()


def test_raft_group(played: Played) -> None:
    played[play_raft].result()


def test_independent_nameservers(played: Played) -> None:
    played[play_independent].result()


def play_raft(engine: Engine) -> None:
    with running(engine, "raft") as cluster:
        check_confined(cluster)
        for namesrv in NAMESRVS:
            secrets_shown = json.dumps(cluster.inspect(namesrv))
            for variable in ("RAFT_SECRET", "HTTP_TOKEN"):
                assert Path(cluster.variables[variable]).read_text() not in secrets_shown
        create_topic(cluster, "Orders", asked="namesrv-1")
        create_topic(cluster, "Traffic", asked="namesrv-1")
        send(cluster, "Orders", "one", "two", "three")
        assert consume(cluster, "Orders") == {"one", "two", "three"}

        traffic = Traffic(cluster, "Traffic", engine.root / "traffic.jsonl")
        traffic.start()
        try:
            began = len(traffic.rows())
            for namesrv in NAMESRVS:
                cluster.compose("restart", namesrv)
                cluster.wait_healthy(namesrv)
                traffic.tell_addresses()
                traffic.pass_by()
            rows = traffic.rows()[began:]
            rolled = Counter((row["did"], row["outcome"]) for row in rows)
            say(f"raft: one after the other restarted under traffic: {dict(rolled)}")
            assert [row for row in rows if row["outcome"] != "ok"] == []
            longest_s = max(row["took_s"] for row in rows if row["did"] == "read")
            say(f"raft: the longest read took {longest_s:.2f} s meanwhile")
            for namesrv in NAMESRVS:
                assert "nameserver stopped abandoned=0" in cluster.log(namesrv)

            killed = leader(cluster, "broker-1")
            engine.podman("kill", cluster.container(killed))
            alive = [namesrv for namesrv in NAMESRVS if namesrv != killed]
            successor = leader(cluster, alive[0])
            assert successor != killed
            create_topic(cluster, "WhileKilled", asked=alive[0])
            traffic.pass_by()
            engine.podman("start", cluster.container(killed))
            cluster.wait_healthy(killed)
            traffic.tell_addresses()
            say(f"raft: {killed} led and was killed, {successor} took over")

            (cut,) = {*alive} - {successor}
            cluster.cut_off(cut)
            wait_until(lambda: not cluster.healthy(cut), f"{cut} refuses reads")
            create_topic(cluster, "WhileCut", asked=successor)
            traffic.pass_by()
            cluster.connect(cut)
            cluster.wait_healthy(cut)
            assert {"WhileKilled", "WhileCut"} <= topics(cluster, cut)
            traffic.tell_addresses()
            traffic.pass_by()
            say(f"raft: {cut} was cut off and connected again")
        finally:
            traffic.stop()
        before = wait_equal(cluster)

        cluster.compose("down")
        start(cluster)
        for namesrv in NAMESRVS:
            assert {"Orders", "Traffic", "WhileKilled", "WhileCut"} <= topics(cluster, namesrv)
        after = wait_equal(cluster)
        assert consume(cluster, "Orders") == {"one", "two", "three"}
        acknowledged = traffic.acknowledged()
        assert acknowledged - traffic.stored() == set()
        outcomes = Counter((row["did"], row["outcome"]) for row in traffic.rows())
        say(f"raft: {len(acknowledged)} messages acknowledged, none lost; {dict(outcomes)}")
        say(f"raft: digest {before} before, {after} after everything was restarted")


def play_independent(engine: Engine) -> None:
    with running(engine, "independent") as cluster:
        check_confined(cluster)
        create_topic(cluster, "Orders", asked="namesrv-1")
        send(cluster, "Orders", "one", "two", "three")
        assert consume(cluster, "Orders") == {"one", "two", "three"}

        engine.podman("kill", cluster.container("namesrv-2"))
        create_topic(cluster, "WhileKilled", asked="namesrv-3")
        engine.podman("start", cluster.container("namesrv-2"))
        cluster.wait_healthy("namesrv-2")
        cluster.cut_off("namesrv-3")
        create_topic(cluster, "WhileCut", asked="namesrv-1")
        cluster.connect("namesrv-3")
        cluster.wait_healthy(*NAMESRVS)
        wait_topics(cluster, {"Orders", "WhileKilled", "WhileCut"})
        wait_equal(cluster)
        say("independent: one was killed, one cut off; the brokers told them what they had missed")

        cluster.compose("down")
        start(cluster)
        wait_topics(cluster, {"Orders", "WhileKilled", "WhileCut"})
        digest = wait_equal(cluster)
        assert consume(cluster, "Orders") == {"one", "two", "three"}
        say(f"independent: nothing acknowledged lost; digest {digest}")
