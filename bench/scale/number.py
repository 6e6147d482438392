"""Measurements with other numbers of servers.

They concern changes that are made one at a time, kills, rolling restarts, and a time without any server.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from routekeeper.bench.arms.interface import CLUSTER, Arm, ArmConfig, Side
from routekeeper.bench.arms.remoting import threaded_arm
from routekeeper.bench.arms.servers import wait_until
from routekeeper.bench.cluster import create_topics
from routekeeper.bench.events import Operation, Outcome
from routekeeper.bench.group import Unhealthy
from routekeeper.bench.ports import HOST, free_ports
from routekeeper.bench.processes import Process
from routekeeper.bench.recorder import short_remark
from routekeeper.bench.scale.distance import lone_changes_ms, probes
from routekeeper.bench.scale.groups import TIMERS, ScaleGroup
from routekeeper.bench.scale.others import counting_others
from routekeeper.bench.scale.points import FAILOVER_S, PERIOD_S, ROUNDS, Point, tried_s
from routekeeper.bench.scale.probes import (
    FIRST_KEY,
    TRY_S,
    ReconnectPause,
    Trying,
    at_once,
    first_change_s,
)
from routekeeper.bench.scale.size import life_of
from routekeeper.bench.storm.frames import topic_name
from routekeeper.bench.storm.rightness import PAUSE_S, ChildrenReader, Reader, RouteReader
from routekeeper.bench.timers import DOCUMENTED_MS
from routekeeper.bench.wires.wire import WireError
from routekeeper.client.config import ProducerConfig
from routekeeper.client.errors import NotApplied, OutcomeUnknown
from routekeeper.client.producer import Message
from routekeeper.remoting.errors import RemotingError, ResponseError

Record = Callable[[dict[str, Any]], None]
#: Number of changes before the first measured change. A JVM compiles only code that has run often.
WARM_TIMES: Final = 200
#: Each change has a number. For the tries after each kill of a server, this many numbers are reserved. There
#: are fewer tries, so no number is used twice.
TRIES_MAX: Final = 10_000
#: Seconds after which a query counts as unanswered.
ANSWER_S: Final = 2.0
#: Longest time in seconds from the end of a rolling restart to a right answer. Brokers return within 30 s.
RETURN_S: Final = PERIOD_S + 10.0
BROKERS: Final = 2
TOPIC: Final = "bench-0"
SEND_EVERY_S: Final = 0.05
TIMEOUT_S: Final = 3.0
_SEND_USER: Final = 0


def measure_number(
    group: ScaleGroup, point: Point, record: Record, chance: random.Random
) -> dict[str, float]:
    """Measure single changes, then kills of all servers but one, then a rolling restart."""
    found: dict[str, float] = {}
    with life_of(group, point, record) as life:
        with counting_others(found, "change"):
            life.register()
            with probes(group, shared=False) as at:
                leader = group.leader()
                chosen = at[0 if leader is None else leader]
                for number in range(1, WARM_TIMES + 1):
                    chosen.change(number)
                took = lone_changes_ms(chosen, first=WARM_TIMES + 1)
            role = "server" if leader is None else "leader"
            record({"kind": "changes", "role": role, "took_ms": took})
            found["change_leader_ms"] = statistics.median(took)
        # Measure kills before the rolling restart: a JVM that has just started would be slow.
        with counting_others(found, "kills"):
            found |= losses(group, point, record, chance)
        everybody = range(len(group.clients))
        group.launch([index for index in everybody if not group.processes[index].alive])
        group.wait_healthy()
        life.settle()
        # Let brokers return within their period of 30 s, as real brokers do. ZooKeeper's clients connect
        # again at once.
        if group.kind != "jute":
            life.returning(PERIOD_S)
        with counting_others(found, "rolling"):
            found |= rolling(group, point, record)
    return found


class PatientReader(ChildrenReader):
    """A reader that pauses before it opens a new session with a ZooKeeper server, as a probe does."""

    def __init__(self, addr: str, *, answer_s: float) -> None:
        super().__init__(addr, answer_s=answer_s)
        self._pause = ReconnectPause()

    def count(self, topic: str) -> int | None:
        if self._session is None and not self._pause.is_over:
            return None
        found = super().count(topic)
        if self._session is None:
            self._pause.begin()
        return found


def reader_of(group: ScaleGroup, addr: str) -> Reader:
    kind = PatientReader if group.kind == "jute" else RouteReader
    return kind(addr, answer_s=ANSWER_S)


def rolling(group: ScaleGroup, point: Point, record: Record) -> dict[str, float]:
    """Restart one server after the other, and measure for how long changes and queries fail.

    Return the longest time without an accepted change, the longest time without a right answer, and the
    number of new leaders. The measurement ends only when a change and a query have succeeded after the last
    restart.

    If a server fails, the client tries the next server, as RocketMQ's and our clients do.
    """
    with probes(group, shared=False, first=FIRST_KEY + 200) as at:
        for probe in at:
            probe.wait_at_most(TRY_S)
        readers = [reader_of(group, addr) for addr in group.clients]
        topic = topic_name(0)
        # number of failures so far; it selects the server, so that a failure leads to the next server
        turns = {"write": 0, "read": 0}

        def write(turn: int) -> None:
            try:
                at[turns["write"] % len(at)].change(turn)
            except (OSError, WireError):
                turns["write"] += 1
                raise

        def read(turn: int) -> None:
            if readers[turns["read"] % len(readers)].count(topic) != point.brokers:
                turns["read"] += 1
                raise WireError("no right answer")

        before = group.epoch()
        trying = [Trying(write), Trying(read)]
        began = time.monotonic()
        try:
            group.roll()
            took_s, ended = time.monotonic() - began, time.perf_counter()
            wait_until(
                lambda: all(each.succeeded_after(ended) for each in trying),
                "no accepted change or no right answer after the last restart",
                group.processes,
                RETURN_S,
                late=Unhealthy,
            )
        finally:
            gaps = [each.stop() for each in trying]
            for reader in readers:
                reader.close()
            for what, each in zip(("change", "read"), trying, strict=True):
                record(each.row(what))
    found = {"rolling_s": took_s, "rolling_change_gap_s": gaps[0], "rolling_read_gap_s": gaps[1]}
    after = group.epoch()
    if before is not None and after is not None:
        found["rolling_leader_changes"] = float(after - before)
    return found


def losses(group: ScaleGroup, point: Point, record: Record, chance: random.Random) -> dict[str, float]:
    """Kill one server after the other; after each kill, check whether changes and queries still succeed.

    The leader is killed if there is one. Before each kill, the remaining servers get time to elect a leader.
    """
    found: dict[str, float] = {}
    servers = len(group.clients)
    left = list(range(servers))
    accepted: list[bool] = []
    answered: list[bool] = []
    with probes(group, shared=False, first=FIRST_KEY + 300) as at:
        for probe in at:
            probe.wait_at_most(TRY_S)
        for down in range(1, servers):
            within_s = tried_s(servers, down)
            # Give the servers time to elect a leader. After a failed change, they have had this time already.
            if all(accepted):
                await_service(group, left, within_s)
            leader = group.leader()
            lost = next_lost(left, leader, chance)
            left.remove(lost)
            group.kill([lost])
            deadline = time.monotonic() + within_s
            took = first_change_s([at[index] for index in left], down * TRIES_MAX, within_s=within_s)
            right = right_answers(group, left, point.brokers, deadline)
            kill = {"kind": "down", "down": down, "lost": lost, "was_leader": lost == leader}
            record({**kill, "change_s": took, "right": right, "asked": len(left)})
            if took is not None:
                found[f"down_{down}_change_s"] = took
            accepted.append(took is not None)
            answered.append(right == len(left))
    return found | {
        "down_with_changes": float(unbroken(accepted)),
        "down_with_answers": float(unbroken(answered)),
    }


def await_service(group: ScaleGroup, indexes: Sequence[int], within_s: float) -> None:
    """Wait until these servers serve, but no longer than ``within_s``."""
    with contextlib.suppress(Unhealthy):
        wait_until(lambda: group.serves(indexes), "not every server serves", [], within_s, late=Unhealthy)


def next_lost(left: Sequence[int], leader: int | None, chance: random.Random) -> int:
    """Return the server to kill next: the leader, or a random server if there is no leader."""
    return leader if leader is not None and leader in left else chance.choice(left)


def unbroken(successes: Iterable[bool]) -> int:
    """Return the number of successes before the first failure."""
    return sum(1 for _ in itertools.takewhile(bool, successes))


def right_answers(group: ScaleGroup, indexes: Sequence[int], brokers: int, deadline: float) -> int:
    """Ask each of these servers until it lists every broker; return how many servers do before the deadline.

    Each server is asked at least once, even if the deadline has passed.
    """
    right: list[int] = []

    def ask(index: int) -> None:
        reader = reader_of(group, group.clients[index])
        try:
            while reader.count(topic_name(0)) != brokers:
                if time.monotonic() > deadline:
                    return
                time.sleep(PAUSE_S)
            right.append(index)
        finally:
            reader.close()

    at_once([partial(ask, index) for index in indexes])
    return len(right)


# -- all servers are down for a while ------------------------------------------------------------------------


def phase_s(number: int) -> float:
    """Return how long round ``number`` waits before the servers are killed, in seconds.

    The servers are down for whole periods of the brokers' registrations. Without this wait, the next
    registration would come at the same time after the servers' return in every round. With the wait, the
    rounds are spread over the period.
    """
    return (number - 0.5) / ROUNDS % 1.0 * PERIOD_S


def measure_away(
    group: ScaleGroup, point: Point, folder: Path, record_operation: Callable[[Operation], None], number: int
) -> dict[str, float]:
    """Kill all servers, and start them again after a while; our brokers and one producer continue to work.

    Args:
        number: Number of the round.
    """
    found: dict[str, float] = {}
    arm, brokers = users_of(group, folder)
    side = arm.config.sides[0]
    try:
        for place, broker in enumerate(brokers):
            if place:  # brokers of a real cluster do not register at the same time
                time.sleep(PERIOD_S / len(brokers))
            broker.launch()
        for broker in brokers:
            broker.wait_ready()
        create_topics(group.clients, list(side.brokers.values()), [TOPIC])
        await_route(arm, side, brokers)
        client = arm.producer_client(side, 0, seed=1, hooks=())
        try:
            client.start()
            producer = client.producer(ProducerConfig(group="mqbench", send_timeout_s=TIMEOUT_S))
            sending = Sending(lambda: producer.send(Message(topic=TOPIC, body=bytes(200))), record_operation)
            sending.for_s(2.0)
            time.sleep(phase_s(number))
            everybody = range(len(group.clients))
            with counting_others(found, "away"):
                group.kill(everybody)
                sent, failed = sending.for_s(point.away_s)
                with sending.meanwhile() as after:
                    group.launch(everybody)
                    back = time.monotonic()
                    await_route(arm, side, brokers)
                    right_s = time.monotonic() - back
                    time.sleep(2.0)
                sent_after, failed_after = after()
        finally:
            client.close()
    finally:
        for broker in brokers:
            broker.kill()
    return found | {
        "away_sent": float(sent),
        "away_failed": float(failed),
        "away_right_s": right_s,
        "away_sent_after": float(sent_after),
        "away_failed_after": float(failed_after),
    }


class Sending:
    """One producer that sends at fixed times; each send is recorded as an operation."""

    def __init__(self, send: Callable[[], object], record: Callable[[Operation], None]) -> None:
        self._send = send
        self._record = record
        self._message = 0

    def for_s(self, seconds: float) -> tuple[int, int]:
        """Send for ``seconds``; return the number of tried messages, and the number of failed messages."""
        end_ns = time.monotonic_ns() + round(seconds * 1e9)
        return self._until(lambda due_ns: due_ns >= end_ns)

    @contextlib.contextmanager
    def meanwhile(self) -> Iterator[Callable[[], tuple[int, int]]]:
        """Send in a thread while the context is open.

        Yield a function that returns the same numbers as :meth:`for_s`. Call it only after the context is
        closed.
        """
        over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(self._until, lambda due_ns: over.is_set())
            try:
                yield sent.result
            finally:
                over.set()

    def _until(self, over: Callable[[int], bool]) -> tuple[int, int]:
        """Send until ``over`` returns True; its argument is the instant in ns of the next message.

        Return the same numbers as :meth:`for_s`.
        """
        began_ns = time.monotonic_ns()
        sent = failed = 0
        while not over(due_ns := began_ns + round(sent * SEND_EVERY_S * 1e9)):
            time.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            sent += 1
            failed += self._one(due_ns) != "ok"
        return sent, failed

    def _one(self, due_ns: int) -> Outcome:
        outcome: Outcome = "ok"
        remark = None
        self._message += 1
        sent_ns = time.monotonic_ns()
        try:
            self._send()
        except OutcomeUnknown as error:
            outcome, remark = "unknown", short_remark(str(error))
        except (NotApplied, ResponseError, RemotingError, OSError) as error:
            outcome, remark = "error", short_remark(str(error))
        self._record(
            Operation(
                op="send",
                user=_SEND_USER,
                due_ns=due_ns,
                sent_ns=max(due_ns, sent_ns),
                done_ns=time.monotonic_ns(),
                outcome=outcome,
                remark=remark,
                topic=TOPIC,
                message=self._message,
            )
        )
        return outcome


def users_of(group: ScaleGroup, folder: Path) -> tuple[Arm, list[Process]]:
    """Return a design's client adapter, and the processes of our brokers (not started yet)."""
    addrs = [f"{HOST}:{port}" for port in free_ports(BROKERS)]
    is_zookeeper = group.kind == "jute"
    side = Side(
        name="clients",
        servers=group.clients,
        brokers=dict(zip(addrs, addrs, strict=True)),
    )
    config = ArmConfig(
        kind="zookeeper" if is_zookeeper else "remoting",
        sides=[side],
        lease_ms=TIMERS.session_ms() if is_zookeeper else TIMERS.lease_ms(),
        refresh_ms=round(DOCUMENTED_MS["pollNameServerInterval"]),
        heartbeat_ms=round(DOCUMENTED_MS["registerNameServerPeriod"]),
        divisor=1.0,
        timeout_s=TIMEOUT_S,
        watches=is_zookeeper,
    )
    program = "routekeeper.bench.arms.zookeeper_broker" if is_zookeeper else "routekeeper.broker"
    brokers = [
        Process(
            role="broker",
            index=index,
            command=[
                *(sys.executable, "-m", program, "-n", ";".join(group.clients)),
                *("--set", "autoCreateTopicEnable=false", "--listen", addr, "--advertise", addr),
                *(
                    "--name",
                    f"broker-{index}",
                    "--cluster",
                    CLUSTER,
                    "--store",
                    str(folder / f"broker-{index}"),
                ),
            ],
            log=folder / f"broker-{index}.log",
        )
        for index, addr in enumerate(addrs)
    ]
    # While all servers are down, kazoo would log a line for each attempt to connect.
    logging.getLogger("routekeeper.bench.arms.zookeeper").setLevel(logging.CRITICAL)
    return threaded_arm(config), brokers


def await_route(arm: Arm, side: Side, brokers: list[Process]) -> None:
    """Wait until every server lists every broker to a new client."""
    everybody = list(range(BROKERS))
    wait_until(
        lambda: all(
            arm.newcomer(side, target, TOPIC).brokers == everybody for target in range(len(side.servers))
        ),
        "not every server lists every broker",
        brokers,
        FAILOVER_S + 2 * DOCUMENTED_MS["registerNameServerPeriod"] / 1e3,
        late=Unhealthy,
    )
