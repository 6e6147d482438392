"""Simulated brokers and readers that send requests all the time, and functions that check the answers.

Each registration of :class:`Writers` has one new topic, so that every acknowledgement can be checked in the
table afterwards. :class:`Registers` write and read a few topics at all members at once, so that the history
of these calls can be checked for linearizability.
"""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Self
from urllib.parse import quote

from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.transport.blocking import BlockingClient
from tests import history
from tests.linearizability import check
from tests.registrations import registration
from tests.standstill import elapsed
from tests.waiting import wait_until

from .cluster import CONDITION_S, Cluster, Member

#: Seconds within which a server must answer, because clients give up after this time. Servers try to answer
#: within 2.5 s.
ANSWER_S = 3.0
#: Timeout of the test's clients in s. It is longer than ANSWER_S, so that the test also sees late answers. It
#: also keeps a client connected to a member that is paused.
PATIENCE_S = 20.0
WRITERS_PER_MEMBER = 2
REGISTERS = 3

Outcome = Literal["applied", "not applied", "unknown"]


def route_query(topic: str) -> RemotingCommand:
    return RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})


def read_answer(link: socket.socket) -> RemotingCommand:
    """Return the first answer that comes over a connection."""
    decoder = FrameDecoder()
    while data := link.recv(65536):
        for frame in decoder.feed(data):
            return decode_command(frame)
    raise AssertionError("closed without an answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Result of a write, as the caller knows it.

    The field ``answered`` is False if the server gave no answer.
    """

    outcome: Outcome
    answered: bool = True
    remark: str = ""


def tell(client: BlockingClient, addr: str, request: RemotingCommand) -> Told:
    """Send a write, and return the outcome as far as the caller can know it."""
    try:
        answer = client.invoke(addr, request, timeout_s=PATIENCE_S)
    except RemotingError as error:
        unsent = getattr(error, "sent", True) is False
        return Told(outcome="not applied" if unsent else "unknown", answered=False, remark=repr(error))
    if answer.code == ResponseCode.SUCCESS:
        return Told(outcome="applied")
    assert answer.remark is not None, answer
    if answer.remark.startswith("[NO_QUORUM]"):
        return Told(outcome="not applied", remark=answer.remark)
    assert answer.remark.startswith("[OUTCOME_UNKNOWN]"), answer.remark
    return Told(outcome="unknown", remark=answer.remark)


def ask(client: BlockingClient, addr: str, request: RemotingCommand) -> Outcome:
    return tell(client, addr, request).outcome


def is_applied(client: BlockingClient, addr: str, request: RemotingCommand) -> bool:
    return ask(client, addr, request) == "applied"


def register(client: BlockingClient, member: Member, request: RemotingCommand) -> None:
    """Register like a broker, which repeats the registration until it succeeds."""
    wait_until(
        lambda: is_applied(client, member.listen, request), f"member {member.number} takes a registration"
    )


# -- writers: one new topic for each registration -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One registration of a topic that no other call registers.

    ``start`` and ``end`` are in s of the monotonic clock.
    """

    member: int
    topic: str
    start: float
    end: float
    outcome: Outcome
    answered: bool = True


Silences = dict[int, list[tuple[float, float]]]


def judge(calls: Iterable[Call], topics: set[str], silences: Silences | None = None) -> list[str]:
    """Compare the topics of a route table with the history of calls, and return a description of each fault.

    Args:
        silences: Intervals, by member, in which no answer is expected. Outside of these intervals, each call
            must be answered within :data:`ANSWER_S`.
    """
    wrong, sent = [], {"shared"}
    for call in calls:
        sent.add(call.topic)
        if call.outcome == "applied" and call.topic not in topics:
            wrong.append(f"lost: {call}")
        if call.outcome == "not applied" and call.topic in topics:
            wrong.append(f"refused, yet there: {call}")
        excused = any(
            call.start < end and start < call.end and elapsed(end, call.end) < ANSWER_S
            for start, end in (silences or {}).get(call.member, [])
        )
        late = call.end - call.start > ANSWER_S and elapsed(call.start, call.end) > ANSWER_S
        if not excused and late:
            wrong.append(f"late: {call}")
        if not excused and not call.answered:
            wrong.append(f"unanswered: {call}")
    return wrong + [f"from nowhere: {t}" for t in sorted(topics - sent) if not t.startswith("register-")]


class _Threads:
    """Threads that call functions until :meth:`stop` and keep their connections open until :meth:`close`.

    The connections stay open because a nameserver evicts a broker and its topics when the broker's
    connections close.
    """

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._release = threading.Event()
        self.errors: list[BaseException] = []
        self._idle: list[threading.Event] = []
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[BlockingClient], None]) -> None:
        """Start a thread with its own client that calls ``work`` again and again."""
        idle = threading.Event()

        def body() -> None:
            try:
                with BlockingClient() as client:
                    while not self.stopping.is_set():
                        work(client)
                    idle.set()
                    self._release.wait()
            except BaseException as error:  # stop() raises this exception again
                self.errors.append(error)
            finally:
                idle.set()

        thread = threading.Thread(target=body, daemon=True)
        self._idle.append(idle)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Stop sending. If a thread failed with an exception, raise the first such exception."""
        self.stopping.set()
        for idle in self._idle:
            assert idle.wait(CONDITION_S), "a request hangs"
        if self.errors:
            raise self.errors[0]

    def close(self) -> None:
        """Close the connections and wait until the threads have ended."""
        self.stopping.set()
        self._release.set()
        for thread in self._threads:
            thread.join(CONDITION_S)
            assert not thread.is_alive(), "a request hangs"


@dataclass
class Writers:
    """Simulated brokers, some at each member. Each broker registers a new topic again and again.

    Args:
        pause_s: Pause between two calls of one broker.
        lease_ms: Time after which a silent broker and its topics are evicted.
    """

    cluster: Cluster
    pause_s: float = 0.02
    lease_ms: int = 120_000
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._threads = _Threads()
        for member in self.cluster.members:
            for number in range(WRITERS_PER_MEMBER):
                self._threads.run(partial(self._call, member, number, itertools.count(1)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._threads.close()

    def _call(
        self, member: Member, number: int, counters: itertools.count[int], client: BlockingClient
    ) -> None:
        name, addr = f"broker-{member.number}-{number}", f"10.1.{member.number}.{number}:10911"
        counter = next(counters)
        topic = f"{name}-{counter}"
        request = registration(name, addr, (topic, "shared"), counter=counter, lease_ms=self.lease_ms)
        start = time.monotonic()
        told = tell(client, member.listen, request)
        end = time.monotonic()
        self.calls.append(
            Call(
                member=member.number,
                topic=topic,
                start=start,
                end=end,
                outcome=told.outcome,
                answered=told.answered,
            )
        )
        self._threads.stopping.wait(self.pause_s if told.outcome == "applied" else 0.05)

    def _acknowledged(self, member: Member, since: float) -> bool:
        """Return True if a call that began after ``since`` succeeded at the member, or if a thread failed."""
        recent = self.calls[-500:]
        return bool(self._threads.errors) or any(
            call.member == member.number and call.start > since and call.outcome == "applied"
            for call in recent
        )

    def wait_for_progress(self, members: list[Member], *, since: float | None = None) -> float:
        """Wait until each of these members has acknowledged a call that began after the instant ``since``.

        Returns:
            Seconds from that instant to the end of the first acknowledged call at any of the given members.
            Time in which this machine hung does not count (:func:`elapsed`).
        """
        since = time.monotonic() if since is None else since
        for member in members:
            wait_until(
                partial(self._acknowledged, member, since),
                f"registrations succeed at member {member.number}",
            )
        if self._threads.errors:
            self._threads.stop()
        numbers = {member.number for member in members}
        ends = [
            c.end
            for c in self.calls[-5000:]
            if c.start > since and c.outcome == "applied" and c.member in numbers
        ]
        return elapsed(since, min(ends))

    def wait_for_load(self, members: list[Member], *, calls: int = 50) -> None:
        """Wait until each of these members acknowledges registrations, and then until ``calls`` more succeed.

        With so many acknowledged registrations, a loss of some of them would be visible.
        """
        self.wait_for_progress(members)
        begun = len(self.calls)
        wait_until(
            lambda: (
                self._threads.errors or sum(call.outcome == "applied" for call in self.calls[begun:]) >= calls
            ),
            f"{calls} more calls succeed",
        )

    def stop(self) -> list[Call]:
        """Stop sending, and return the history of all calls.

        The connections stay open, because members must not evict the brokers.
        """
        self._threads.stop()
        return self.calls

    def check(self) -> str:
        """Stop sending, wait until all members have equal tables, and compare the tables with the history."""
        calls = self.stop()
        self.cluster.wait_ready()
        self.cluster.wait_equal()
        silences = {member.number: member.silences for member in self.cluster.members}
        for member in self.cluster.members:
            topics = member.topics("stale")
            assert topics is not None
            wrong = judge(calls, topics, silences)
            assert not wrong, f"member {member.number}: {len(wrong)} wrong, the first: {wrong[:5]}"
        count = {o: sum(call.outcome == o for call in calls) for o in ("applied", "not applied", "unknown")}
        return f"registrations: {count}"


# -- registers: values that are written and read at all members at once --------------------------------------


def route_value(body: dict[str, Any], broker: str) -> int | None:
    """Return the number of read queues of one broker in a route, or None if the broker is not listed."""
    for queues in body["route"]["queueDatas"]:
        if queues["brokerName"] == broker:
            value: int = queues["readQueueNums"]
            return value
    return None


class Registers:
    """A few topics. The number of queues of each topic is written and read at all members at once.

    Each topic has one broker. The broker is connected to all members, so that it stays listed while at least
    one member works.

    Attributes:
        writes: Registrations with their outcomes.
        reads: Reads with ``consistency=linearizable``.
        default_reads: Reads with ``consistency=default``.
    """

    def __init__(self, cluster: Cluster, *, pause_s: float = 0.05) -> None:
        self.writes: list[history.Call] = []
        self.reads: list[history.Call] = []
        self.default_reads: list[history.Call] = []
        self._pause_s = pause_s
        self._values = itertools.count(1)
        self._threads = _Threads()
        self._readers: list[_Reader] = []
        for member in cluster.members:
            keys = itertools.cycle(range(REGISTERS))
            self._threads.run(partial(self._write, member, keys))
            for consistency, calls in (("linearizable", self.reads), ("default", self.default_reads)):
                reader = _Reader(member)
                self._readers.append(reader)
                keys = itertools.cycle(range(REGISTERS))
                self._threads.run(partial(self._read, reader, consistency, calls, keys))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._threads.close()
        for reader in self._readers:
            reader.close()

    def _write(self, member: Member, keys: itertools.cycle[int], client: BlockingClient) -> None:
        key, value = next(keys), next(self._values)
        name = f"register-{key}"
        # A larger value has a larger counter but an earlier timestamp. So no version is greater than another
        # version in both fields, and a nameserver never ignores a registration as a late copy.
        topics, timestamp = (name, "register-all"), 2**40 - value
        request = registration(
            name, f"10.9.0.{key}:10911", topics, counter=value, timestamp=timestamp, queues=value
        )
        begun = time.monotonic()
        told = tell(client, member.listen, request)
        outcomes = {
            "applied": history.Outcome.OK,
            "not applied": history.Outcome.FAILED,
            "unknown": history.Outcome.UNKNOWN,
        }
        self.writes.append(
            history.Call(
                key=name,
                operation=history.Operation.WRITE,
                value=value,
                begun=begun,
                ended=time.monotonic(),
                outcome=outcomes[told.outcome],
                caller=f"writer at {member.number}: {told.remark!r},",
            )
        )
        self._threads.stopping.wait(self._pause_s)

    def _read(
        self,
        reader: _Reader,
        consistency: str,
        calls: list[history.Call],
        keys: itertools.cycle[int],
        _client: BlockingClient,
    ) -> None:
        name = f"register-{next(keys)}"
        begun = time.monotonic()
        code, body = reader.get(f"/v1/topics/{quote(name)}/route?consistency={consistency}")
        ended = time.monotonic()
        if code in (200, 404):
            calls.append(
                history.Call(
                    key=name,
                    operation=history.Operation.READ,
                    value=route_value(body, name) if code == 200 else None,
                    begun=begun,
                    ended=ended,
                    caller=f"{consistency} reader at {reader.member.number}",
                )
            )
        self._threads.stopping.wait(self._pause_s)

    def stop(self) -> None:
        self._threads.stop()

    def check(self, *, promise_s: float) -> str:
        """Stop sending, and check that all linearizable reads and all default reads had allowed results.

        Args:
            promise_s: Seconds by which a default read may lag behind acknowledged writes. It is one
                minimum election timeout.
        """
        self.stop()
        assert self.reads
        assert self.default_reads
        wrong = judge_reads(self.writes, self.reads, self.default_reads, promise_s=promise_s)
        assert not wrong, "\n".join(wrong)
        return (
            f"register writes: {len(self.writes)}, linearizable reads: {len(self.reads)}, "
            f"default reads: {len(self.default_reads)}"
        )


def judge_reads(
    writes: list[history.Call],
    reads: list[history.Call],
    default_reads: list[history.Call],
    *,
    promise_s: float,
) -> list[str]:
    """Return a description of each fault in the reads.

    One fault is a value that a client read although its write was refused. The other fault is a read that no
    order of the writes explains.
    """
    seen = {(read.key, read.value) for read in (*reads, *default_reads)}
    refused = [w for w in writes if w.outcome is history.Outcome.FAILED and (w.key, w.value) in seen]
    wrong = [f"refused, yet read: {write} {write.begun:.3f}..{write.ended:.3f}" for write in refused]
    wrong += [f"linearizable reads: {violation}" for violation in check([*writes, *reads])]
    # A default read may miss changes that were acknowledged less than promise_s ago. So the check treats each
    # default read as if it began promise_s seconds earlier.
    earlier = [replace(read, begun=read.begun - promise_s) for read in default_reads]
    return wrong + [f"default reads: {violation}" for violation in check([*writes, *earlier])]


class _Reader:
    """One HTTP connection. If the connection breaks, the next request makes a new connection."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str) -> tuple[int, Any]:
        """Return the status and the body, or status 0 and None if there was no answer."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self.member.http, timeout=PATIENCE_S)
        try:
            self._connection.request("GET", path)
            response = self._connection.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException):
            self.close()
            return 0, None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
