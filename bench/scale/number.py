"""Measurements with other numbers of servers: servers are killed, restarted one by one, or all down."""

from __future__ import annotations

import logging
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from routekeeper.bench.arms.interface import CLUSTER, Arm, ArmConfig, Side
from routekeeper.bench.arms.servers import wait_until
from routekeeper.bench.events import Operation, Outcome
from routekeeper.bench.group import cpu_s
from routekeeper.bench.ports import HOST, free_ports
from routekeeper.bench.processes import Process
from routekeeper.bench.recorder import short_remark
from routekeeper.bench.scale.distance import FAILOVER_S, lone_changes_ms, probes, warm
from routekeeper.bench.scale.groups import TIMERS, ScaleGroup, order_of_loss
from routekeeper.bench.scale.points import Point
from routekeeper.bench.scale.probes import FIRST_KEY, TRY_S, Trying, first_change_s
from routekeeper.bench.scale.size import life_of
from routekeeper.bench.storm.frames import topic_name
from routekeeper.bench.storm.rightness import ChildrenReader, Reader, RouteReader
from routekeeper.bench.timers import DOCUMENTED_MS
from routekeeper.bench.wires.wire import WireError
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig, ProducerConfig
from routekeeper.client.errors import NotApplied, OutcomeUnknown
from routekeeper.client.producer import Message
from routekeeper.remoting.errors import RemotingError, ResponseError
from routekeeper.remoting.route import TopicConfig

Record = Callable[[dict[str, Any]], None]
#: Seconds after which a change counts as impossible, because no surviving server has accepted it.
DOWN_S: Final = 8.0
#: Size of the range of change numbers for the tries after each kill of a server. It is larger than the number
#: of tries, so no change number is used twice.
TRIES_MAX: Final = 10_000
REST_S: Final = 5.0
#: Seconds after which a query counts as unanswered.
ANSWER_S: Final = 2.0
BROKERS: Final = 2
TOPIC: Final = "bench-0"
SEND_EVERY_S: Final = 0.05
TIMEOUT_S: Final = 3.0
_SEND_USER: Final = 0


def measure_number(
    group: ScaleGroup, point: Point, record: Record, chance: random.Random
) -> dict[str, float]:
    """Measure the CPU use at rest and lone changes; restart the servers one by one; then kill all but one."""
    found: dict[str, float] = {}
    with life_of(group, point, record) as life:
        life.register()
        before, began = sum(map(cpu_s, group.pids)), time.monotonic()
        time.sleep(REST_S)
        used = sum(map(cpu_s, group.pids)) - before
        found["rest_cpu_s_a_minute"] = used * 60 / (time.monotonic() - began)
        with probes(group, shared=False) as at:
            warm(at)
            leader = group.leader()
            found["change_leader_ms"] = statistics.median(
                lone_changes_ms(at[0 if leader is None else leader])
            )
        found |= rolling(group, point)
        found |= losses(group, point, record, chance)
        everybody = range(len(group.clients))
        group.launch([index for index in everybody if not group.processes[index].alive])
        group.wait_healthy()
    return found


def reader_of(group: ScaleGroup, addr: str) -> Reader:
    kind = ChildrenReader if group.kind == "jute" else RouteReader
    return kind(addr, answer_s=ANSWER_S)


def rolling(group: ScaleGroup, point: Point) -> dict[str, float]:
    """Restart one server after the other.

    Return the longest time without an accepted change, and the longest time without a right answer.

    If a server fails, the client tries the next server, as RocketMQ's and our clients do.
    """
    with probes(group, shared=False, first=FIRST_KEY + 200) as at:
        for probe in at:
            probe.wait_at_most(TRY_S)
        readers = [reader_of(group, addr) for addr in group.clients]
        topic = topic_name(0)
        # number of failures so far; after each failure the client tries the next server
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

        trying = [Trying(write), Trying(read)]
        began = time.monotonic()
        try:
            group.roll()
        finally:
            gaps = [each.stop() for each in trying]
            for reader in readers:
                reader.close()
    return {
        "rolling_s": time.monotonic() - began,
        "rolling_change_gap_s": gaps[0],
        "rolling_read_gap_s": gaps[1],
    }


def losses(group: ScaleGroup, point: Point, record: Record, chance: random.Random) -> dict[str, float]:
    """Kill one server after the other, the leader first; check after each if changes and queries succeed."""
    found: dict[str, float] = {}
    order = order_of_loss(group, chance)
    changes = answers = 0
    with probes(group, shared=False, first=FIRST_KEY + 300) as at:
        for probe in at:
            probe.wait_at_most(TRY_S)
        for down, lost in enumerate(order[:-1], start=1):
            group.kill([lost])
            survivors = order[down:]
            first = down * TRIES_MAX
            took = first_change_s([at[index] for index in survivors], first, within_s=DOWN_S)
            right = sum(answers_right(group, index, point.brokers) for index in survivors)
            record({"kind": "down", "down": down, "change_s": took, "right": right, "asked": len(survivors)})
            if took is not None:
                found[f"down_{down}_change_s"] = took
                changes = max(changes, down)
            answers = max(answers, down if right == len(survivors) else 0)
    return found | {"down_with_changes": float(changes), "down_with_answers": float(answers)}


def answers_right(group: ScaleGroup, index: int, brokers: int) -> bool:
    reader = reader_of(group, group.clients[index])
    try:
        return reader.count(topic_name(0)) == brokers
    finally:
        reader.close()


# -- all servers down for a while ----------------------------------------------------------------------------


def measure_away(
    group: ScaleGroup, point: Point, folder: Path, record_operation: Callable[[Operation], None]
) -> dict[str, float]:
    """Kill all servers for a while; meanwhile our brokers and a producer of ours continue to work."""
    arm, brokers = users_of(group, folder)
    side = arm.config.sides[0]
    found: dict[str, float] = {}
    try:
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.wait_ready()
        create_topic(group.clients, list(side.brokers.values()))
        await_route(arm, side, brokers)
        client = arm.producer_client(side, 0, seed=1, hooks=())
        try:
            client.start()
            producer = client.producer(ProducerConfig(group="mqbench", send_timeout_s=TIMEOUT_S))
            sending = Sending(lambda: producer.send(Message(topic=TOPIC, body=bytes(200))), record_operation)
            sending.for_s(2.0)
            everybody = range(len(group.clients))
            group.kill(everybody)
            sent, failed = sending.for_s(point.away_s)
            looked = arm.newcomer(side, 0, TOPIC)
            group.launch(everybody)
            back = time.monotonic()
            await_route(arm, side, brokers)
            found["away_right_s"] = time.monotonic() - back
            after, after_failed = sending.for_s(2.0)
        finally:
            client.close()
    finally:
        for broker in brokers:
            broker.kill()
    return found | {
        "away_sent": float(sent),
        "away_failed": float(failed),
        "away_new_clients_served": float(looked.outcome == "ok"),
        "away_failed_after": float(after_failed),
        "away_sent_after": float(after),
    }


class Sending:
    """One producer that sends at fixed times; each send is recorded as an operation."""

    def __init__(self, send: Callable[[], object], record: Callable[[Operation], None]) -> None:
        self._send = send
        self._record = record
        self._message = 0

    def for_s(self, seconds: float) -> tuple[int, int]:
        """Send for ``seconds``; return the number of tried messages, and the number of failed messages."""
        began_ns = time.monotonic_ns()
        sent = failed = 0
        while (due_ns := began_ns + round(sent * SEND_EVERY_S * 1e9)) < began_ns + round(seconds * 1e9):
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
    """Return the client adapter of a design, and our brokers' processes, which are not started yet."""
    addrs = [f"{HOST}:{port}" for port in free_ports(BROKERS)]
    is_zookeeper = group.kind == "jute"
    side = Side(
        name="clients",
        servers=group.clients,
        http=group.servers.http,
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
    if is_zookeeper:
        from routekeeper.bench.arms.zookeeper import ZooKeeperArm  # import kazoo for ZooKeeper only

        # Silence kazoo: by default it logs a line for each attempt while all servers are down.
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)
        return ZooKeeperArm(config), brokers
    from routekeeper.bench.arms.remoting import RemotingArm

    return RemotingArm(config), brokers


def create_topic(servers: list[str], addrs: list[str]) -> None:
    with Client(ClientConfig(nameservers=tuple(servers), call_timeout_s=30.0)) as client:
        config = TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4)
        for addr in addrs:
            client.run(client.admin.create_topic(addr, config))


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
    )
