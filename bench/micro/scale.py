"""Measures the cost of changes and snapshots of a large route table, and their effect on a raft group.

    python -m routekeeper.bench.micro.scale [--topics 100000] [--brokers 10] [--unlike] [--json FILE]
    python -m routekeeper.bench.micro.scale --group [--durability fsync]

The first command works in one process, without sockets. It measures:

- the CPU time of each step of a registration, of an eviction, and of a snapshot;
- the longest pause of an event loop while a thread encodes or prepares a snapshot;
- the longest CPU time for which that thread blocks the event loop.

The second command starts three members as users do, and registers every broker with all topics. Then it
stores a snapshot on the leader, restarts a member, and restarts a member without data. During all this it
sends route queries for random topics to all members at planned times. A response time counts from the planned
time. README.md in this folder has the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import json
import os
import platform
import random
import secrets
import shutil
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import uvloop

from routekeeper.bench import interpreter
from routekeeper.bench.direct import OPENER
from routekeeper.bench.figures import percentile
from routekeeper.bench.micro.raft.systems import MEMBERS, RouteKeeper
from routekeeper.bench.micro.raft.timers import SERIES
from routekeeper.nameserver.commands import Evict, RegisterBroker, decode_command, encode_command
from routekeeper.nameserver.handlers import decide_registration
from routekeeper.nameserver.raft.node.images import TURN_S
from routekeeper.nameserver.registration import decode_registration
from routekeeper.nameserver.routes.image import encode_image
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, BrokerAddr, ClusterName, LeaveReason, Request
from routekeeper.nameserver.verdicts import Applied
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.fields import RegisterBrokerFields
from routekeeper.remoting.registration import RegisterBody, body_crc32, encode_register_body
from routekeeper.remoting.route import DataVersion, RouteDialect, TopicConfig, encode_route
from routekeeper.remoting.transport.blocking import BlockingClient

CLUSTER: Final = "scale"
VERSION: Final = 479
#: Interval in s between route queries to each member.
QUERY_EVERY_S: Final = 0.01
STEP_S: Final = 60.0
#: Time in s for which a thread repeats its work while the delays of the event loop are measured.
PAUSES_S: Final = 2.0
#: Number of measurements of the longest time for which a thread blocks the event loop; the largest value
#: counts.
HOLD_TIMES: Final = 3
_Result = TypeVar("_Result")


def topic_name(number: int) -> str:
    return f"orders-of-region-{number:06d}"


def registration(broker: int, topics: int, *, version: int, unlike: bool, compressed: bool) -> Request:
    """Return request 103 (registration) of a broker with all topics.

    Each version changes the number of read queues of every topic.
    """
    configs = tuple(
        TopicConfig(
            topic_name=topic_name(number),
            read_queue_nums=(number if unlike else 8) + version,
            write_queue_nums=8,
        )
        for number in range(topics)
    )
    content = RegisterBody(
        data_version=DataVersion(counter=version), topic_configs=configs, filter_servers=()
    )
    body = encode_register_body(content, compressed=compressed, version=VERSION)
    fields = RegisterBrokerFields(
        broker_name=f"broker-{broker}",
        broker_addr=f"10.0.0.{broker + 1}:10911",
        cluster_name=CLUSTER,
        ha_server_addr=f"10.0.0.{broker + 1}:10912",
        broker_id=0,
        compressed=compressed,
        body_crc32=body_crc32(body),
    )
    return Request(code=RequestCode.REGISTER_BROKER, ext_fields=fields.to_ext(), body=body, version=VERSION)


# -- in this process ---------------------------------------------------------------------------------------


class Steps:
    """CPU time of the calling thread, by step, in ms."""

    def __init__(self) -> None:
        self.took: dict[str, list[float]] = {}

    def time(self, step: str, run: Callable[[], _Result]) -> _Result:
        began = time.thread_time()
        result = run()
        self.took.setdefault(step, []).append((time.thread_time() - began) * 1e3)
        return result


def register(steps: Steps, table: RouteTable, request: Request, step: str) -> None:
    """Execute all steps of a registration in a raft group, and note the time of each step.

    The decoding of the command is one of the steps, because every follower decodes the command that it
    receives.
    """
    decoded = steps.time("decode body" + step, lambda: decode_registration(request))
    assert not isinstance(decoded, Answer), decoded
    settings = NamesrvSettings()
    command = steps.time("decide", lambda: decide_registration(table.view, decoded, settings))
    assert isinstance(command, RegisterBroker), command
    data = steps.time("encode command", lambda: encode_command(command))
    again = steps.time("decode command", lambda: decode_command(data))
    verdict = steps.time("apply" + step, lambda: table.apply(again))
    assert isinstance(verdict, Applied), verdict


def evict(steps: Steps, table: RouteTable, broker: int, step: str) -> None:
    addr = BrokerAddr(f"10.0.0.{broker + 1}:10911")
    record = next(record for record in table.view.records() if record.broker.broker_addr == addr)
    command = Evict(
        cluster_name=ClusterName(CLUSTER),
        broker_addr=addr,
        revision=record.revision,
        reason=LeaveReason.LEASE_EXPIRED,
    )
    verdict = steps.time(step, lambda: table.apply(command))
    assert isinstance(verdict, Applied), verdict


async def longest_pause_ms(work: Callable[[], object], table: RouteTable, topics: int) -> tuple[float, float]:
    """Return the longest and the p99 delay of the event loop in ms; meanwhile a thread runs ``work``."""
    loop = asyncio.get_running_loop()
    late: list[float] = []

    def again_and_again() -> None:
        until = time.monotonic() + PAUSES_S
        while time.monotonic() < until:
            work()

    done = asyncio.ensure_future(asyncio.to_thread(again_and_again))
    numbers = random.Random(1)
    while not done.done():
        due = loop.time() + 0.001
        await asyncio.sleep(0.001)
        route = table.view.route(topic_name(numbers.randrange(topics)))
        assert route is not None
        encode_route(route, RouteDialect.QUOTED)
        late.append((loop.time() - due) * 1e3)
    await done
    return max(late, default=0.0), percentile(sorted(late), 0.99) if late else 0.0


def longest_hold_ms(work: Callable[[], object]) -> float:
    """Return the longest CPU time in ms for which a thread kept the interpreter before another thread ran.

    Only CPU time counts, so the time for which a thread waits for a free processor does not matter.
    """
    longest = 0.0
    for _ in range(HOLD_TIMES):
        thread = threading.Thread(target=work)
        thread.start()
        assert thread.ident is not None
        before = 0.0
        with contextlib.suppress(OSError):  # the thread may end first; then its clock cannot be read
            clock = time.pthread_getcpuclockid(thread.ident)
            while thread.is_alive():
                time.sleep(TURN_S / 2)
                now = time.clock_gettime(clock)
                longest, before = max(longest, now - before), now
        thread.join()
    return longest * 1e3


def in_process(arguments: argparse.Namespace) -> dict[str, Any]:
    topics, brokers, unlike = arguments.topics, arguments.brokers, arguments.unlike
    steps, table = Steps(), RouteTable()
    for broker in range(brokers):
        compressed = bool(broker % 2)
        request = registration(broker, topics, version=1, unlike=unlike, compressed=compressed)
        step = (" (compressed)" if compressed else " (JSON)") if broker else " (first, JSON)"
        register(steps, table, request, step)
    request = registration(1, topics, version=2, unlike=unlike, compressed=True)
    register(steps, table, request, " (all topics changed)")
    steps.time("both digests", lambda: (table.digest(), table.state_digest()))
    image = steps.time("snapshot: copy", table.copy_for_snapshot)
    data = steps.time("snapshot: encode", lambda: encode_image(image))
    again = steps.time("restore: prepare", lambda: RouteTable.restore(data))
    assert again.state_digest() == table.state_digest()
    target = RouteTable()
    steps.time("restore: install", lambda: target.adopt(again))
    steps.time("garbage collection, full", gc.collect)
    # Set the switch interval (the time after which a thread lets other threads run) that the nameserver also
    # sets while it works on snapshots.
    sys.setswitchinterval(TURN_S)
    pauses = {
        name: uvloop.run(longest_pause_ms(work, table, topics))
        for name, work in (
            ("nothing, for comparison", functools.partial(time.sleep, 0.1)),
            ("snapshot: encode", lambda: encode_image(image)),
            ("restore: prepare", lambda: RouteTable.restore(data)),
        )
    }
    holds = {
        "snapshot: encode": longest_hold_ms(lambda: encode_image(image)),
        "restore: prepare": longest_hold_ms(lambda: RouteTable.restore(data)),
    }
    evict(steps, table, 1, "evict")
    for broker in range(brokers):
        if broker != 1:
            last = broker == brokers - 1
            evict(steps, table, broker, "evict (last broker)" if last else "evict")
    return {"steps": steps.took, "image_bytes": len(data), "pauses": pauses, "holds": holds}


def print_in_process(found: dict[str, Any]) -> None:
    print("\n| step | CPU ms, smallest | largest |\n|---|---|---|")
    for step, took in found["steps"].items():
        print(f"| {step} | {min(took):.1f} | {max(took):.1f} |")
    print(f"\nimage: {found['image_bytes']:,} bytes\n")
    print("| while a thread does | loop late at most, ms | p99 |\n|---|---|---|")
    for name, (longest, p99) in found["pauses"].items():
        print(f"| {name} | {longest:.1f} | {p99:.1f} |")
    print("\n| in a thread | CPU ms at most between two turns of the loop |\n|---|---|")
    for name, longest in found["holds"].items():
        print(f"| {name} | {longest:.1f} |")


# -- a group -----------------------------------------------------------------------------------------------


class Group(RouteKeeper):
    """Three members that accept administration commands over HTTP."""

    def __init__(self, folder: Path, *, durability: str) -> None:
        super().__init__(folder, SERIES["defaults"], durability=durability)
        self.token = secrets.token_hex(16)
        self._token_file = folder / "token"
        self._token_file.write_text(self.token)
        self._token_file.chmod(0o600)

    def _command(self, index: int) -> list[str]:
        return [*super()._command(index), "--http-token-file", str(self._token_file)]

    def save_snapshot(self, index: int) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://{self.http[index]}/v1/raft/snapshot",
            data=b"{}",
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        with OPENER.open(request, timeout=STEP_S) as reply:
            found: dict[str, Any] = json.loads(reply.read())
            return found

    def term(self) -> int:
        return max(int(self.status(index).get("term", 0)) for index in range(MEMBERS))

    def applied(self, index: int) -> int:
        return int(self.status(index).get("applied_index", -1))


class Queries:
    """Route queries for random topics at planned times.

    Each member has a thread of its own, which sends queries while the member runs.
    """

    def __init__(self, group: Group, topics: int) -> None:
        self._group = group
        self._topics = topics
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._took: dict[int, list[float]] = {index: [] for index in range(MEMBERS)}
        self._failed = 0
        self.down: set[int] = set()
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(MEMBERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def take(self) -> tuple[list[float], int]:
        """Return the response times in ms since the last call, ascending, and the number of failures."""
        with self._lock:
            found = sorted(ms for took in self._took.values() for ms in took)
            failed, self._failed = self._failed, 0
            for took in self._took.values():
                took.clear()
        return found, failed

    def _run(self, index: int) -> None:
        numbers = random.Random(index)
        with BlockingClient() as client:
            due = time.perf_counter()
            while not self._stopping.is_set():
                due += QUERY_EVERY_S
                time.sleep(max(0.0, due - time.perf_counter()))
                if index in self.down:
                    due = time.perf_counter()
                    continue
                topic = topic_name(numbers.randrange(self._topics))
                query = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
                try:
                    answer = client.invoke(self._group.clients[index], query, timeout_s=5.0)
                    good = answer.code == 0
                except RemotingError:
                    good = False
                with self._lock:
                    if index in self.down:
                        continue
                    self._failed += not good
                    self._took[index].append((time.perf_counter() - due) * 1e3)


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STEP_S
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: this did not happen within {STEP_S:g} s")
        time.sleep(0.02)


def in_group(arguments: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.data))) / "group"
        group = Group(folder, durability=arguments.durability)
        stack.callback(group.stop)
        group.start()
        client = stack.enter_context(BlockingClient())
        queries = Queries(group, arguments.topics)

        @contextlib.contextmanager
        def phase(name: str) -> Iterator[None]:
            queries.take()
            term, began = group.term(), time.perf_counter()
            yield
            seconds = time.perf_counter() - began
            time.sleep(0.5)  # wait for late answers to queries of this phase
            took, failed = queries.take()
            found[name] = {
                "seconds": seconds,
                "terms": group.term() - term,
                "queries": len(took),
                "failed": failed,
                "p50_ms": percentile(took, 0.5) if took else 0.0,
                "p99_ms": percentile(took, 0.99) if took else 0.0,
                "max_ms": took[-1] if took else 0.0,
            }

        def put(broker: int, version: int) -> None:
            request = registration(
                broker, arguments.topics, version=version, unlike=arguments.unlike, compressed=True
            )
            command = RemotingCommand.request(request.code, request.ext_fields, request.body)
            deadline = time.monotonic() + STEP_S
            while True:  # repeat a refused registration, as a broker does
                answer = client.invoke(group.clients[broker % MEMBERS], command, timeout_s=STEP_S)
                if answer.code == 0:
                    return
                found["registrations refused"] = found.get("registrations refused", 0) + 1
                if time.monotonic() > deadline:
                    raise SystemExit(f"broker {broker} was refused: {answer.code} {answer.remark}")
                time.sleep(1.0)

        def caught_up(member: int, aim: int) -> bool:
            return group.applied(member) >= aim

        for broker in range(arguments.brokers):
            put(broker, 1)
        first = group.applied(group.leader() or 0)
        wait_for("applied everywhere", lambda: min(map(group.applied, range(MEMBERS))) >= first)
        queries.start()
        stack.callback(queries.stop)
        time.sleep(2.0)
        with phase("quiet"):
            time.sleep(3.0)
        leader = group.leader()
        assert leader is not None, "nobody leads"
        member = (leader + 1) % MEMBERS
        with phase("snapshot on the leader"):
            found["snapshot"] = group.save_snapshot(leader)
        with phase("registration with all topics changed"):
            put(0, 2)
        for name, emptied in (("restart of a member", False), ("catch-up of an empty member", True)):
            queries.down.add(member)
            child = group._children[member]
            assert child is not None
            child.terminate()
            child.wait(STEP_S)
            if emptied:
                shutil.rmtree(folder / str(member) / "data")
            aim = group.applied(leader)
            with phase(name):
                group.launch(member)
                wait_for(name, functools.partial(caught_up, member, aim))
                wait_for(name + ", healthy", group.healthy)
            queries.down.discard(member)
            time.sleep(1.0)
        digests = {group.status(index).get("applied_index") for index in range(MEMBERS)}
        found["applied"] = sorted(map(str, digests))
        found["rss_mb"] = [_rss_mb(pid) for pid in group.pids]
    return found


def print_in_group(found: dict[str, Any]) -> None:
    print("\n| phase | s | leader changes | queries | failed | p50 ms | p99 ms | max ms |")
    print("|---|---|---|---|---|---|---|---|")
    for name, row in found.items():
        if isinstance(row, dict) and "p99_ms" in row:
            print(
                f"| {name} | {row['seconds']:.2f} | {row['terms']} | {row['queries']} | {row['failed']}"
                f" | {row['p50_ms']:.2f} | {row['p99_ms']:.2f} | {row['max_ms']:.1f} |"
            )
    print(f"\nregistrations refused: {found.get('registrations refused', 0)}")
    print(f"snapshot: {found['snapshot']}; resident: {', '.join(f'{mb:.0f} MB' for mb in found['rss_mb'])}")


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="routekeeper.bench.micro.scale", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--topics", type=int, default=100_000, help="topics of each broker (default %(default)s)"
    )
    parser.add_argument("--brokers", type=int, default=10, help="brokers (default %(default)s)")
    parser.add_argument("--unlike", action="store_true", help="give no two topics equal numbers of queues")
    parser.add_argument(
        "--group", action="store_true", help="start three members instead of working in this process"
    )
    parser.add_argument(
        "--durability",
        choices=("memory", "journal", "fsync"),
        default="fsync",
        help="durability of the three members (default %(default)s)",
    )
    parser.add_argument("--data", type=Path, help="folder for the members' data (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser


def main() -> int:
    arguments = parser().parse_args()
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, {interpreter.said()}\n"
        f"load {os.getloadavg()[0]:.1f}; {arguments.topics:,} topics x {arguments.brokers} brokers"
        f"{', all unlike' if arguments.unlike else ''}",
        flush=True,
    )
    found = in_group(arguments) if arguments.group else in_process(arguments)
    (print_in_group if arguments.group else print_in_process)(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
