"""Planted faults have the right length in events from real nameservers and a real observer.

The plain computation of recompute.py reads the events. tests/bench/report/test_planted.py checks the report
with invented events. Tests that kill servers are in test_losses.py.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from routekeeper.bench.arms.interface import ArmConfig, Listing, Side, Told
from routekeeper.bench.arms.remoting import RemotingArm, RemotingBroker
from routekeeper.bench.events import Event, Fault, Truth, View
from routekeeper.bench.links import Link, both_ways
from routekeeper.bench.network import ProxyNetwork
from routekeeper.bench.observer import ObserverConfig
from routekeeper.bench.recorder import EventLog
from routekeeper.bench.runfolder import write_manifest
from tests.bench.lives import rows
from tests.bench.recompute import Life, Run, figures
from tests.bench.report.planted import PlantedRun
from tests.bench.servers import Cluster, running
from tests.bench.stale_server import stale_server
from tests.ports import free_addresses

pytestmark = [pytest.mark.bench, pytest.mark.alone, pytest.mark.timeout(900)]

STALE_NS: Final = 200_000_000
CUT_NS: Final = 5_000_000_000
CHANGES: Final = 24
EVERY_NS: Final = 230_000_000
#: Time in ms after which a registration expires. It is longer than every cut in this file.
LEASE_MS: Final = 60_000
SECOND: Final = 10**9


def sleep_until(at_ns: int) -> None:
    time.sleep(max(at_ns - time.monotonic_ns(), 0) / 1e9)


def announcer(addr: str) -> RemotingBroker:
    """Return a simulated broker that registers with one nameserver."""
    side = Side(name="broker-0", servers=[addr])
    config = ArmConfig(
        kind="remoting",
        sides=[side],
        lease_ms=LEASE_MS,
        refresh_ms=1000,
        heartbeat_ms=1000,
        divisor=1.0,
        timeout_s=20.0,
    )
    return RemotingArm(config).broker(side)


def listing(topic: str, version: int) -> Listing:
    index = int(topic.split("-")[1])
    return Listing(
        index=index,
        addr=f"127.0.0.1:{index}",
        topics={topic: version},
        version=version,
        stamp=version,
    )


class Watched:
    """A run's folder in which an observer writes the route lists and the test writes its changes."""

    def __init__(self, out: Path, scenario: str, servers: list[str], topic: str) -> None:
        self.run = PlantedRun(out, scenario=scenario, arm="independent")
        self.topic = topic
        self._log = EventLog(self.run.folder, "test")
        self._writing = threading.Lock()
        path = out / f"{scenario}.json"
        config = ObserverConfig(kind="remoting", servers=servers, topics=[topic], folder=str(self.run.folder))
        path.write_bytes(msgspec.json.encode(config))
        self._observer = subprocess.Popen(
            [sys.executable, "-m", "routekeeper.bench.observer", str(path)], stdout=subprocess.PIPE, text=True
        )

    def await_observer(self) -> None:
        assert self._observer.stdout is not None
        assert self._observer.stdout.readline() == "observer ready\n"

    def record(self, event: Event) -> None:
        with self._writing:
            self._log.record(event)

    def end(self, begin_ns: int, end_ns: int) -> None:
        self._observer.terminate()
        assert self._observer.wait(20) == 0
        self._log.close()
        manifest = msgspec.structs.replace(
            self.run.manifest, measure_begin_ns=begin_ns, measure_end_ns=end_ns, ended_ns=end_ns + SECOND
        )
        write_manifest(self.run.folder, manifest)

    def kill(self) -> None:
        self._observer.kill()
        self._observer.communicate()


def tell(watched: Watched, broker: RemotingBroker, begin_ns: int) -> int:
    """Change a topic again and again at one nameserver, and return the time in ns of the last change."""
    at_ns = begin_ns
    for version in range(2, CHANGES + 2):
        at_ns += EVERY_NS
        common: dict[str, Any] = {"subject": "topic", "broker": 100, "topic": watched.topic}
        sleep_until(at_ns)
        began_ns = time.monotonic_ns()  # ``sleep_until`` may return late on a busy machine
        watched.record(Truth(what="changing", version=version, t_ns=began_ns, **common))
        (told,) = broker.announce(listing(watched.topic, version))
        assert told.outcome == "ok", told
        watched.record(Truth(what="changed", version=version, t_ns=told.done_ns, **common))
    return began_ns


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Times of a cut, and each nameserver's answer to the change that was made when the cut began."""

    folder: Path
    begin_ns: int
    healed_ns: int
    told: list[Told]


def cut_one_off(
    watched: Watched, brokers: list[RemotingBroker], cut: Callable[[], int], heal: Callable[[], int]
) -> Cut:
    """Cut the last nameserver off for five seconds.

    When the cut begins, a change is sent to every nameserver, but it cannot reach the last nameserver.
    """
    with ThreadPoolExecutor(len(brokers)) as pool:
        from_ns = time.monotonic_ns()
        time.sleep(0.5)
        begin_ns = cut()
        told = [pool.submit(broker.announce, listing(watched.topic, 2)) for broker in brokers]
        sleep_until(begin_ns + CUT_NS)
        assert [one.done() for one in told] == [True, True, False]
        healed_ns = heal()
        answers = [answer for one in told for answer in one.result(60)]
    assert [answer.outcome for answer in answers] == ["ok"] * len(brokers)
    time.sleep(0.5)
    watched.record(
        Fault(
            n=0,
            kind="partition",
            case="1-2",
            targets=["nameserver-2"],
            from_ns=from_ns,
            begin_ns=begin_ns,
            healed_ns=healed_ns,
            end_ns=healed_ns,
            until_ns=time.monotonic_ns(),
        )
    )
    return Cut(folder=watched.run.folder, begin_ns=begin_ns, healed_ns=healed_ns, told=answers)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Cut]:
    out = tmp_path_factory.mktemp("live")
    with running(tmp_path_factory.mktemp("cluster"), nameservers=3, brokers=()) as cluster:
        return out, live(out, cluster)


def live(out: Path, cluster: Cluster) -> Cut:
    (listen,) = free_addresses(1)
    link = Link(dialler="broker-0", acceptor="nameserver-2", listen=listen, to=cluster.nameservers[2])
    network = ProxyNetwork(out, lambda event: None)
    network.links.append(link)
    network.carriers()
    # The run "stale" has one nameserver and its own observer. The staleness there must not count as a
    # disagreement of the three nameservers of the run "parted".
    (behind,) = free_addresses(1)
    stale = Watched(out, "stale", [behind], "sim-100-stale")
    parted = Watched(out, "parted", cluster.nameservers, "sim-101-parted")
    told = announcer(cluster.nameservers[0])
    brokers = [announcer(addr) for addr in (*cluster.nameservers[:2], listen)]
    with contextlib.ExitStack() as stack:
        for watched in (stale, parted):
            stack.callback(watched.kill)
        stack.callback(network.process.kill)
        for broker in (told, *brokers):
            stack.callback(broker.close)
        network.process.launch()
        network.process.wait_ready()
        told.announce(listing(stale.topic, 1))
        behind_s = STALE_NS / SECOND
        stack.enter_context(
            stale_server(behind, cluster.nameservers[0], topic=stale.topic, behind_s=behind_s)
        )
        for broker in brokers:
            (answer,) = broker.announce(listing(parted.topic, 1))
            assert answer.outcome == "ok", answer
        for each in (stale, parted):
            each.await_observer()
        time.sleep(0.3)
        begin_ns = time.monotonic_ns()
        with ThreadPoolExecutor(1) as pool:
            cutting = pool.submit(
                cut_one_off,
                parted,
                brokers,
                lambda: network.cut(both_ways(["broker-0"], ["nameserver-2"])),
                network.heal,
            )
            last_ns = tell(stale, told, begin_ns)
            cut = cutting.result(120)
        time.sleep(0.3)
        stale.end(begin_ns, last_ns + 1)  # end the run while the last change is not yet visible
        parted.end(begin_ns, time.monotonic_ns())
    return cut


def test_answers_that_are_200_ms_stale_are_measured_so(measured: tuple[Path, Cut]) -> None:
    out, _ = measured
    (folder,) = (out / "runs").glob("series=equal/scenario=stale/*/*")
    life = Life([Run(folder)])
    shown = sorted(
        min(span["since"] for span in life.spans if (span["version"] or 0) >= version) - begun_ns
        for (_, version), begun_ns in life.begun.items()
    )
    assert len(shown) == CHANGES, "the last change before the end is seen, too"
    assert shown[len(shown) // 2] == pytest.approx(STALE_NS, abs=10e6)


def test_cut_of_five_seconds_is_five_seconds_of_disagreement(measured: tuple[Path, Cut]) -> None:
    """Check that the events show five seconds of disagreement, less the time between two samples.

    The observer only samples the nameservers. So the instant of the change at a nameserver is uncertain. It
    lies between the last sample without the change and the first sample with the change.
    """
    out, cut = measured
    disagree_ns = figures(out)["parted", "1-2", "disagree_queues_s", "independent", 1] * SECOND
    of_change = [row for row in rows(cut.folder, View) if row.version == 2 and row.unseen_ns is not None]
    assert {row.index for row in of_change} == {0, 1, 2}
    unknown_ns = {row.index: row.seen_ns - (row.unseen_ns or 0) for row in of_change}
    first, second, last = cut.told
    assert cut.healed_ns - cut.begin_ns >= CUT_NS
    assert disagree_ns <= last.done_ns - min(first.sent_ns, second.sent_ns)
    certain_ns = cut.healed_ns - min(first.done_ns, second.done_ns)
    assert disagree_ns >= certain_ns - max(unknown_ns[0], unknown_ns[1]) - unknown_ns[2]
    (at_last,) = (row for row in of_change if row.index == 2)
    assert cut.healed_ns <= at_last.seen_ns, "nobody has told it before"
    assert (at_last.unseen_ns or 0) <= last.done_ns
