"""RouteKeeper's programs for the tests, alone and in deployments with Apache's programs.

Servers run as processes. Our mqadmin runs in the process of the tests, because starting a process would take
longer than the subcommand itself.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.client.mqadmin import mqadmin
from tests.ports import free_addresses

from .apache import (
    RELEASES,
    START_S,
    AdminResult,
    Apache,
    ApacheBroker,
    ApacheFailure,
    ApacheNamesrv,
    Program,
    ask,
    has_route,
    wait_until,
)
from .watchdog import guard

MODES: Final = ("independent", "raft")
#: Each mode of our nameservers with each release of Apache's programs.
PRODUCT: Final = tuple(itertools.product(MODES, RELEASES))
#: Each mode with one release. These pairs suit tests in which a request's form depends only on the release,
#: and its effect only on the mode. With ROUTEKEEPER_INTEROP_FULL=1, these tests run with all four
#: combinations.
PAIRS: Final = (
    PRODUCT if os.environ.get("ROUTEKEEPER_INTEROP_FULL") == "1" else tuple(zip(MODES, RELEASES, strict=True))
)
MEMBERS: Final = 3
CLUSTER: Final = "DefaultCluster"

SCAN_MS: Final = 2000
"""Milliseconds between a nameserver's scans for silent brokers; the default is 10 s."""

REGISTER_MS: Final = 10_000
"""Milliseconds between a broker's registrations.

The default is 30 s; brokers use 10 s for any smaller value.
"""

RETRY_LEVELS: Final = "1s 1s 1s 2s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m"
"""``messageDelayLevel`` of brokers: the delay of each level.

The first redelivery of a message has level 3: 1 s here, and 10 s by default.
"""


@dataclass(slots=True, kw_only=True)
class OurNamesrv(Program):
    """One nameserver process of ours; addresses are ``host:port``.

    Attributes:
        flags: Command line, without the addresses on which it listens.
    """

    flags: Sequence[str] = ()
    addr: str = ""
    http: str = ""

    @property
    def role(self) -> str:
        """Role in the raft group (``leader``, ``follower``...), or ``independent``; "" without an answer."""
        status, text = self.get("/v1/status")
        return str(json.loads(text)["role"]) if status == 200 else ""

    def get(self, path: str) -> tuple[int, str]:
        """Return status and text of the answer to an HTTP GET; status 0 if there is no answer."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=3) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except (OSError, http.client.HTTPException):  # a test may kill this nameserver during the answer
            return 0, ""

    def requests(self, code: int) -> int:
        """Return the number of requests with ``code`` that have arrived, read from the metrics."""
        _, text = self.get("/metrics")
        for line in text.splitlines():
            if line.startswith(f'mqnamesrv_requests_total{{code="{code}"}}'):
                return int(float(line.split()[-1]))
        return 0


@dataclass(slots=True, kw_only=True)
class OurBroker(Program):
    """One broker process of ours."""

    addr: str = ""
    name: str = ""
    cluster: str = CLUSTER


def _spawn(module: str, args: Sequence[str], home: Path) -> tuple[subprocess.Popen[bytes], Path]:
    home.mkdir(parents=True, exist_ok=True)
    output = home / "output.txt"
    with output.open("wb") as out, (home / "log.txt").open("ab") as log:
        popen = subprocess.Popen(
            [sys.executable, "-m", module, *args], cwd=home, stdin=subprocess.DEVNULL, stdout=out, stderr=log
        )
    guard(popen.pid)
    return popen, output


def _ready(program: Program) -> dict[str, str]:
    """Wait for the line that a program prints when it is ready; return its ``key=value`` parts."""
    program.wait_for("\n")
    line = program.text().splitlines()[0]
    if " ready " not in line:
        raise ApacheFailure(f"no ready line: {line!r}")
    return dict(part.split("=", 1) for part in line.split() if "=" in part)


def start_namesrvs(mode: str, folder: Path, settings: Mapping[str, str]) -> list[OurNamesrv]:
    """Start three nameservers of one mode; return them when each of them serves reads and writes.

    Args:
        settings: RocketMQ's keys and values, written to the file that the option ``-c`` names.
    """
    raft, listen, http = (free_addresses(MEMBERS) for _ in range(3))
    namesrvs = []
    for index in range(MEMBERS):
        home = folder / f"namesrv-{mode}-{index}"
        file = folder / f"namesrv-{mode}-{index}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        flags = ["--mode", mode, "-c", str(file), "--data", str(home / "data")]
        if mode == "raft":
            flags += ["--raft", raft[index], "--peers", ",".join(raft)]
            # Use a long timeout, because a short timeout causes elections on a busy machine. These tests are
            # not about elections.
            flags += ["--election-timeout-ms", "2000"]
        namesrvs.append(_launch_namesrv(flags, home, listen[index], http[index]))
    try:
        for namesrv in namesrvs:
            await_namesrv(namesrv)
    except BaseException:
        for namesrv in namesrvs:
            namesrv.kill()
        raise
    return namesrvs


def _launch_namesrv(flags: Sequence[str], home: Path, listen: str, http: str) -> OurNamesrv:
    popen, output = _spawn("routekeeper.nameserver", [*flags, "--listen", listen, "--http", http], home)
    return OurNamesrv(popen, output, home, log_name="log.txt", flags=flags)


def mode_flags(mode: str) -> list[str]:
    """Return the options of a nameserver in this mode; in raft mode, its group has no other member."""
    if mode == "independent":
        return ["--mode", mode]
    (raft,) = free_addresses(1)
    return ["--mode", mode, "--raft", raft, "--peers", raft]


def start_namesrv(flags: Sequence[str], home: Path, listen: str) -> OurNamesrv:
    """Start one nameserver at a given address; return it when it listens on its ports."""
    namesrv = _launch_namesrv(flags, home, listen, "127.0.0.1:0")
    facts = _ready(namesrv)
    namesrv.addr, namesrv.http = facts["listen"], facts["http"]
    return namesrv


def await_namesrv(namesrv: OurNamesrv) -> None:
    """Wait until the nameserver serves reads and writes; set the addresses in ``namesrv``."""
    facts = _ready(namesrv)
    namesrv.addr, namesrv.http = facts["listen"], facts["http"]
    wait_until(lambda: namesrv.get("/readyz")[0] == 200, f"{namesrv.home.name} ready", START_S)


def start_again(namesrv: OurNamesrv) -> OurNamesrv:
    """Restart a nameserver that has ended, with the same addresses and data; return the new process."""
    again = _launch_namesrv(namesrv.flags, namesrv.home, namesrv.addr, namesrv.http)
    await_namesrv(again)
    return again


def launch_broker(
    namesrvs: Sequence[str], folder: Path, *, name: str, settings: Mapping[str, str] | None = None
) -> OurBroker:
    """Start ``mqbroker`` and return at once; :func:`await_broker` waits until it serves."""
    home = folder / f"mqbroker-{name}"
    file = folder / f"mqbroker-{name}.properties"
    merged = {
        "messageDelayLevel": RETRY_LEVELS,
        "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
        "cleanFileForciblyEnable": "false",  # keep messages even on a full disk
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in (merged | dict(settings or {})).items()))
    args = ["-n", ";".join(namesrvs), "--listen", "127.0.0.1:0", "--name", name, "-c", str(file)]
    popen, output = _spawn("routekeeper.broker", [*args, "--store", str(home / "store")], home)
    return OurBroker(popen, output, home, log_name="log.txt", name=name)


def await_broker(broker: OurBroker, namesrvs: Sequence[str]) -> OurBroker:
    """Wait until the broker serves and each of ``namesrvs`` lists it; then return the broker.

    A nameserver lists a broker when it has the route of the topic with the broker's name.
    """
    broker.addr = _ready(broker)["listen"]
    for namesrv in namesrvs:
        wait_until(
            lambda n=namesrv: has_route(n, broker.name, broker.addr),  # type: ignore[misc]
            f"{broker.name} {broker.addr} listed by {namesrv}",
            START_S,
        )
    return broker


@contextmanager
def our_servers(
    folder: Path, mode: str = "independent", settings: Mapping[str, str] | None = None
) -> Iterator[tuple[OurNamesrv, OurBroker]]:
    """Yield a nameserver of ours, and a broker of ours with these settings that is registered there."""
    with ExitStack() as stack:
        flags = [*mode_flags(mode), "--data", str(folder / "data")]
        namesrv = start_namesrv(flags, folder / "namesrv", "127.0.0.1:0")
        stack.callback(namesrv.stop)
        await_namesrv(namesrv)
        broker = launch_broker([namesrv.addr], folder, name="broker-a", settings=settings)
        stack.callback(broker.stop)
        yield namesrv, await_broker(broker, [namesrv.addr])


def our_mqadmin(*args: str, namesrvs: Sequence[str] = ()) -> AdminResult:
    """Run our ``mqadmin SUBCOMMAND...``."""
    arguments = (*args, *(("-n", ";".join(namesrvs)) if namesrvs else ()))
    return AdminResult(arguments, *mqadmin(*arguments))


def create_topic(broker_addr: str, topic: str, *, queues: int = 4) -> None:
    """Create a topic at one broker, as an administrator does (request 17)."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    code, answer, _ = ask(broker_addr, 17, fields)
    assert code == 0, answer


def routed_topic(namesrvs: Sequence[str], broker_addr: str, topic: str, *, queues: int = 4) -> str:
    """Create a topic at one broker; return its name when each of ``namesrvs`` routes it to this broker."""
    create_topic(broker_addr, topic, queues=queues)
    for namesrv in namesrvs:
        wait_until(lambda n=namesrv: has_route(n, topic, broker_addr), f"{topic} at {namesrv}")  # type: ignore[misc]
    return topic


def route(namesrv: str, topic: str) -> dict[str, Any] | None:
    """Return a topic's route from a nameserver's answer, or None if the answer is code 17 (no such topic).

    Raises:
        ApacheFailure: If the answer has any other error code.
    """
    code, answer, body = ask(namesrv, 105, {"topic": topic, "acceptStandardJsonOnly": "true"})
    if code == 17:
        return None
    if code != 0:
        raise ApacheFailure(f"105 {topic} at {namesrv}: {answer}")
    decoded: dict[str, Any] = json.loads(body)
    return decoded


class RouteWatch:
    """Thread that asks each nameserver for each topic's route twice a second, and records missing routes.

    Args:
        topics: Address of each topic's broker, by topic.
    """

    PERIOD_S: Final = 0.5

    def __init__(self, namesrvs: Sequence[str], topics: Mapping[str, str]) -> None:
        self.missing: list[str] = []
        self.unanswered: list[str] = []
        self.answered = 0
        self._namesrvs = tuple(namesrvs)
        self._topics = dict(topics)
        self._begin = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="route-watch", daemon=True)
        self._thread.start()

    @property
    def seconds(self) -> float:
        """Seconds since the watch began."""
        return time.monotonic() - self._begin

    def _run(self) -> None:
        while not self._stop.wait(self.PERIOD_S):
            for namesrv in self._namesrvs:
                for topic, addr in self._topics.items():
                    self._look(namesrv, topic, addr)

    def _look(self, namesrv: str, topic: str, addr: str) -> None:
        when = f"{self.seconds:.1f} s {namesrv} {topic}"
        try:
            code, answer, body = ask(namesrv, 105, {"topic": topic})
        except OSError as error:
            self.unanswered.append(f"{when} {error!r}")
            return
        if code == 0 and f'"{addr}"'.encode() in body:
            self.answered += 1
        elif code in (0, 17):
            self.missing.append(f"{when} code={code} {body.decode(errors='replace')}")
        else:
            self.unanswered.append(f"{when} code={code} {answer.get('remark')}")

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def retried_by_java(apache: Apache, namesrvs: Sequence[str], broker_addr: str, group: str) -> dict[str, str]:
    """Let Java's push consumer refuse every tenth of 100 messages once; return the consumer's output."""
    topic = routed_topic(namesrvs, broker_addr, group)
    sent = apache.produce(namesrvs, topic, 100)
    assert sent["status SEND_OK"] == "100", sent
    return apache.consume(namesrvs, topic, group, 100, retry_every=10)


@dataclass(slots=True, kw_only=True)
class OurDeployment:
    """Three nameservers of ours with a broker of each Apache release and one broker of ours.

    Apache's brokers have auto-creation of topics switched off. So an unknown topic of a producer is created
    only at our broker.

    Attributes:
        apache: Apache's brokers by release.
        kept: Topic of each Apache broker, by release; from the start, ``watch`` asks for the routes of these
            topics.
    """

    mode: str
    namesrvs: list[OurNamesrv]
    apache: dict[str, ApacheBroker]
    ours: OurBroker
    kept: dict[str, str]
    watch: RouteWatch

    @property
    def addrs(self) -> list[str]:
        return [namesrv.addr for namesrv in self.namesrvs]

    def everywhere(self, condition: Callable[[str], bool], what: str, timeout_s: float = 60.0) -> float:
        """Wait until ``condition(addr)`` is true for each nameserver; return the seconds that this took."""
        begin = time.monotonic()
        for addr in self.addrs:
            left = timeout_s - (time.monotonic() - begin)
            wait_until(lambda a=addr: condition(a), f"{what} at {addr}", max(left, 0.1))  # type: ignore[misc]
        return time.monotonic() - begin


@dataclass(slots=True, kw_only=True)
class ApacheDeployment:
    """Apache's nameserver and broker of one release, and our broker, which does not auto-create topics."""

    release: str
    namesrv: ApacheNamesrv
    broker: ApacheBroker
    ours: OurBroker

    @property
    def addrs(self) -> list[str]:
        return [self.namesrv.addr]


@dataclass(slots=True)
class Fleet:
    """All deployments of a test session; each deployment starts in the background before a test needs it.

    Args:
        full: True if brokers and nameservers keep their default intervals.
    """

    apaches: Mapping[str, Apache]
    folder: Path
    full: bool
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "fleet"))
    _futures: dict[str, Future[Any]] = field(default_factory=dict)
    _programs: list[Program] = field(default_factory=list)
    _watches: list[RouteWatch] = field(default_factory=list)

    def begin(self, name: str) -> None:
        """Begin to start the deployment ``name``: a mode of our nameservers, or a release of Apache's."""
        if name not in self._futures:
            start = self._start_ours if name in MODES else self._start_apache
            self._futures[name] = self._pool.submit(start, name)

    def ours(self, mode: str) -> OurDeployment:
        """Return the deployment with our nameservers in ``mode``."""
        self.begin(mode)
        deployment: OurDeployment = self._futures[mode].result(3 * START_S)
        return deployment

    def apache(self, release: str) -> ApacheDeployment:
        """Return the deployment with Apache's nameserver of this release."""
        self.begin(release)
        deployment: ApacheDeployment = self._futures[release].result(3 * START_S)
        return deployment

    def broker_settings(self) -> dict[str, str]:
        """Return the interval settings of every broker in the session."""
        return {} if self.full else {"registerNameServerPeriod": str(REGISTER_MS)}

    def _start_ours(self, mode: str) -> OurDeployment:
        settings = {} if self.full else {"scanNotActiveBrokerInterval": str(SCAN_MS)}
        namesrvs = start_namesrvs(mode, self.folder, settings)
        self._programs += namesrvs
        addrs = [namesrv.addr for namesrv in namesrvs]
        quiet = {"autoCreateTopicEnable": "false", "messageDelayLevel": RETRY_LEVELS}
        brokers = {
            release: apache.broker(
                addrs,
                name=f"apache-{release[0]}",
                settings=self.broker_settings() | quiet,
                wait=False,
            )
            for release, apache in self.apaches.items()
        }
        ours = launch_broker(addrs, self.folder, name=f"ours-{mode}", settings=self.broker_settings())
        self._programs.append(ours)
        await_broker(ours, addrs)
        kept = {release: f"Kept{release[0]}" for release in brokers}
        for release, broker in brokers.items():
            self.apaches[release].await_broker(broker, addrs, hasten=True)
            routed_topic(addrs, broker.addr, kept[release])
        watch = RouteWatch(addrs, {kept[release]: broker.addr for release, broker in brokers.items()})
        self._watches.append(watch)
        return OurDeployment(mode=mode, namesrvs=namesrvs, apache=brokers, ours=ours, kept=kept, watch=watch)

    def _start_apache(self, release: str) -> ApacheDeployment:
        apache = self.apaches[release]
        namesrv = apache.namesrv(settings={"kvConfigPath": str(self.folder / f"kv-{release}.json")})
        ours = launch_broker(
            [namesrv.addr],
            self.folder,
            name=f"ours-{release[0]}",
            settings=self.broker_settings() | {"autoCreateTopicEnable": "false"},
        )
        self._programs.append(ours)
        broker = apache.broker(
            [namesrv.addr],
            settings=self.broker_settings() | {"messageDelayLevel": RETRY_LEVELS},
            hasten=True,
        )
        await_broker(ours, [namesrv.addr])
        return ApacheDeployment(release=release, namesrv=namesrv, broker=broker, ours=ours)

    def close(self) -> None:
        """End our programs, brokers first; the :class:`Apache` objects end Apache's programs.

        Raises:
            AssertionError: If one of our programs had died, did not stop cleanly, or has logged a traceback.
        """
        self._pool.shutdown(wait=True, cancel_futures=True)
        for watch in self._watches:
            watch.close()
        brokers = [program for program in self._programs if isinstance(program, OurBroker)]
        namesrvs = [program for program in self._programs if program not in brokers]
        for kind in (brokers, namesrvs):
            for program in kind:
                if program.popen.poll() is None:
                    program.popen.terminate()
            for program in kind:
                program.wait(40.0)  # a running request may take 30 s, and a second signal would abort it
        unclean = [
            f"{program.home.name} exit {program.popen.returncode}\n{program.log()[-3000:]}"
            for program in self._programs
            if program.popen.returncode != 0 or "Traceback" in program.log()
        ]
        assert not unclean, "\n".join(unclean)


def in_parallel(*steps: Callable[[], object]) -> None:
    """Run all steps, each in its own thread, and wait for all of them.

    Raises:
        ExceptionGroup: If steps failed; the group holds their exceptions.
    """
    with ThreadPoolExecutor(len(steps), "step") as pool:
        errors = [future.exception() for future in [pool.submit(step) for step in steps]]
    failures = [error for error in errors if isinstance(error, Exception)]
    if failures:
        raise ExceptionGroup("steps failed", failures)
