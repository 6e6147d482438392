"""Tests of linearizable reads of three real nameservers.

The tests use a topic's route as a register, a value that clients write and read. Request 217 writes the
topic's number of read queues. Request 105, the route query of all clients, reads this number. A setting makes
reads over RocketMQ's protocol linearizable. Over HTTP, a parameter of the request does the same.
"""

from __future__ import annotations

import itertools
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from routekeeper.nameserver.handlers import READS
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.route import decode_route
from routekeeper.remoting.transport.blocking import BlockingClient
from tests import standstill
from tests.faults.brokers import register
from tests.faults.cluster import CONDITION_S, Cluster, Member, make_members, running
from tests.history import Call, Operation, Outcome
from tests.linearizability import check
from tests.registrations import registration
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.one_core, pytest.mark.timeout(180)]

MEMBERS = 3
ROUNDS = 300
#: Maximum seconds until a read is refused. A member refuses after 2.5 s, but a busy machine adds delays.
REFUSED_WITHIN_S = 4.0
NAME, BROKER_ADDR = "broker-a", "10.0.0.1:10911"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Run three members, and one broker that is registered with each member over an open connection."""
    settings = tmp_path / "namesrv.properties"
    settings.write_text("routeFreshness=linearizable\n")
    # A long election timeout keeps the same leader during a test, even on a busy machine.
    arguments = ("-c", str(settings), "--election-timeout-ms", "1000")
    with running(make_members(tmp_path, arguments=arguments)) as cluster, BlockingClient() as broker:
        request = registration(NAME, BROKER_ADDR, ("other", "another"))
        for member in cluster.members:
            register(broker, member, request)
        yield cluster


def write_request(topic: str, value: int) -> RemotingCommand:
    queues = {"brokerName": NAME, "readQueueNums": value, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0}
    body = json.dumps({"queueDatas": [queues], "brokerDatas": []}).encode()
    return RemotingCommand.request(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": topic}, body)


def read_request(topic: str) -> RemotingCommand:
    return RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})


def value_of(answer: RemotingCommand) -> int | None:
    """Return the value in the answer to a read, or None if the topic does not exist."""
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    (queues,) = decode_route(answer.body).queue_datas
    return queues.read_queue_nums


def figure(member: Member, name: str) -> int:
    code, status = member.get("/v1/raft/status")
    assert code == 200, status
    return int(status[name])


def refused(answer: RemotingCommand) -> bool:
    return answer.code == ResponseCode.SYSTEM_ERROR and (answer.remark or "").startswith("[NO_QUORUM]")


def write(client: BlockingClient, member: Member, topic: str, value: int) -> None:
    """Repeat a write until the member acknowledges it.

    A member refuses writes during an election.
    """

    def acknowledged() -> bool:
        try:
            answer = client.invoke(member.listen, write_request(topic, value), timeout_s=CONDITION_S)
        except RemotingError:
            return False  # an earlier refusal closed the connection
        return answer.code == ResponseCode.SUCCESS

    wait_until(acknowledged, f"{value} is acknowledged at {member.number}")


def read(client: BlockingClient, member: Member, topic: str) -> int | None:
    """Repeat a read until the member answers it; return the value, or None if the topic does not exist.

    A member refuses reads during an election. If it answers a read, it must not return an old value.
    """
    answers: list[RemotingCommand] = []

    def granted() -> bool:
        try:
            answers.append(client.invoke(member.listen, read_request(topic), timeout_s=CONDITION_S))
        except RemotingError:
            return False  # an earlier refusal closed the connection
        return not refused(answers[-1])

    wait_until(granted, f"a read is granted at {member.number}")
    return value_of(answers[-1])


def test_a_read_at_any_member_sees_what_was_acknowledged_at_another(cluster: Cluster) -> None:
    with BlockingClient() as client:
        for value in range(1, ROUNDS + 1):
            writer, *readers = random.sample(cluster.members, MEMBERS)
            write(client, writer, "T", value)
            for reader in (*readers, writer):
                assert read(client, reader, "T") == value, reader.number
            code, route = readers[0].get("/v1/topics/T/route?consistency=linearizable")
            while code == 503:  # during an election
                code, route = readers[0].get("/v1/topics/T/route?consistency=linearizable")
            assert code == 200
            assert [queues["readQueueNums"] for queues in route["route"]["queueDatas"]] == [value]
    assert all(figure(member, "barriers") > ROUNDS for member in cluster.members)


def test_requests_of_one_segment_are_answered_in_order_behind_one_barrier(cluster: Cluster) -> None:
    with BlockingClient() as client:
        for topic, value in (("T", 7), ("U", 8)):
            write(client, cluster.members[0], topic, value)
    reader = cluster.members[1]
    before = figure(reader, "barriers")
    host, _, port = reader.listen.rpartition(":")
    sent = [read_request(topic).with_opaque(100 + n) for n, topic in enumerate("TUTTU" * 20)]
    with socket.create_connection((host, int(port)), timeout=CONDITION_S) as connection:
        connection.sendall(b"".join(command.encode() for command in sent))
        answers = list(answers_of(connection, len(sent)))
    assert [answer.opaque for answer in answers] == [command.opaque for command in sent]
    assert [value_of(answer) for answer in answers] == [7, 8, 7, 7, 8] * 20
    # TCP may split the requests into up to five segments. Each segment needs its own read barrier.
    assert 1 <= figure(reader, "barriers") - before <= 5


def answers_of(connection: socket.socket, count: int) -> Iterator[RemotingCommand]:
    decoder = FrameDecoder()
    while count:
        data = connection.recv(65536)
        assert data, f"closed {count} answers early"
        for frame in decoder.feed(data):
            yield decode_command(frame)
            count -= 1


def test_a_stopped_leader_delays_reads_but_never_makes_them_stale(cluster: Cluster) -> None:
    leader = cluster.leader()
    survivors = [member for member in cluster.members if member is not leader]
    with BlockingClient() as client, BlockingClient() as late:
        write(client, leader, "T", 1)
        assert read(late, leader, "T") == 1  # this read also opens the connection for the later read
        answers: list[RemotingCommand] = []
        with leader.paused():
            begun = time.monotonic()
            for member in survivors:
                answer = client.invoke(member.listen, read_request("T"), timeout_s=CONDITION_S)
                assert refused(answer) or value_of(answer) == 1
                assert standstill.elapsed(begun) < 2 * REFUSED_WITHIN_S
            write(client, survivors[0], "T", 2)
            for member in survivors:
                assert read(client, member, "T") == 2
            # When the stopped leader resumes, it finds this query together with old messages from its
            # followers.
            reader = threading.Thread(
                target=lambda: answers.append(late.invoke(leader.listen, read_request("T"), timeout_s=20.0))
            )
            reader.start()
            time.sleep(0.05)  # the query must arrive before the leader resumes; no event shows its arrival
        reader.join(CONDITION_S)
    (answer,) = answers
    assert refused(answer) or value_of(answer) == 2


def test_without_a_majority_reads_are_refused_in_time_and_clients_sent_away(cluster: Cluster) -> None:
    alone, *others = cluster.members
    with BlockingClient() as client:
        write(client, alone, "T", 1)
    host, _, port = alone.listen.rpartition(":")
    refused_before = figure(alone, "refused_reads")
    with others[0].paused(), others[1].paused():
        begun = time.monotonic()
        with socket.create_connection((host, int(port)), timeout=CONDITION_S) as connection:
            connection.sendall(read_request("T").with_opaque(5).encode())
            (answer,) = answers_of(connection, 1)
            assert refused(answer)
            assert (answer.remark or "").startswith("[NO_QUORUM] name server not ready: no leader")
            assert connection.recv(1) == b"", "closed once that was flushed"
        assert standstill.elapsed(begun) < REFUSED_WITHIN_S
        code, problem = alone.get("/v1/topics/T/route?consistency=linearizable")
        assert code == 503
        assert "no leader" in problem["detail"]
        assert alone.get("/v1/topics/T/route?consistency=stale")[0] == 200
        assert standstill.elapsed(begun) < 2 * REFUSED_WITHIN_S
        assert figure(alone, "refused_reads") - refused_before == 2
    cluster.wait_ready()
    with BlockingClient() as client:
        assert read(client, alone, "T") == 1


def test_every_read_of_the_table_follows_the_freshness_and_nothing_else_does(cluster: Cluster) -> None:
    alone, *others = cluster.members
    host, _, port = alone.listen.rpartition(":")
    fields = {"topic": "T", "namespace": "n", "key": "k", "cluster": "C"}
    fields |= {"clusterName": "C", "brokerName": NAME}
    # Send the route query last, because the nameserver refuses it and then closes the connection.
    reads = sorted(READS, key=lambda code: code == RequestCode.GET_ROUTEINFO_BY_TOPIC)
    sent = [
        RemotingCommand.request(code, fields).with_opaque(opaque)
        for opaque, code in enumerate([*reads, RequestCode.GET_NAMESRV_CONFIG], start=1)
    ]
    linearizable = [
        f"/v1/{path}?consistency=linearizable"
        for path in ("topics", "topics/T/route", "topics/T/explain", "brokers", "clusters", "kv/n")
    ]
    local = ["/v1/status", "/v1/digest", "/metrics", "/healthz", "/v1/raft/status"]
    with others[0].paused(), others[1].paused(), ThreadPoolExecutor() as pool:
        begun = time.monotonic()
        over_http = pool.map(lambda path: alone.get(path)[0], [*linearizable, *local])
        with socket.create_connection((host, int(port)), timeout=CONDITION_S) as connection:
            # Do not send the configuration query here: the member closes this connection after it has refused
            # the route query.
            connection.sendall(b"".join(command.encode() for command in sent[:-1]))
            refusals = list(answers_of(connection, len(reads)))
        with socket.create_connection((host, int(port)), timeout=CONDITION_S) as connection:
            connection.sendall(sent[-1].encode())
            (config,) = answers_of(connection, 1)
        assert {answer.opaque for answer in refusals if refused(answer)} == {c.opaque for c in sent[:-1]}
        assert config.code == ResponseCode.SUCCESS
        assert list(over_http) == [503] * len(linearizable) + [200] * len(local)
        assert standstill.elapsed(begun) < 2 * REFUSED_WITHIN_S


class Recorder:
    """Callers in separate threads, and the recorded history of their calls."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def run(self, target: Callable[[BlockingClient, Recorder], None]) -> None:
        def body() -> None:
            with BlockingClient() as client:
                while not self._stop.is_set():
                    target(client, self)

        thread = threading.Thread(target=body)
        thread.start()
        self._threads.append(thread)

    def finish(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(CONDITION_S)
            assert not thread.is_alive()

    def done(self, operation: Operation) -> int:
        calls = list(self.calls)
        return sum(call.operation is operation and call.outcome is Outcome.OK for call in calls)


def test_a_concurrent_history_with_killed_leaders_is_linearizable(cluster: Cluster) -> None:
    recorder, values = Recorder(), itertools.count(1)
    topics = ["T", "U", "V"]

    def write(client: BlockingClient, to: Recorder) -> None:
        topic, value, member = random.choice(topics), next(values), random.choice(cluster.members)
        begun = time.monotonic()
        try:
            answer = client.invoke(member.listen, write_request(topic, value), timeout_s=5.0)
        except RemotingError as error:
            never = getattr(error, "sent", True) is False
            outcome = Outcome.FAILED if never else Outcome.UNKNOWN
        else:
            outcome = (
                Outcome.OK
                if answer.code == ResponseCode.SUCCESS
                else Outcome.FAILED
                if refused(answer)
                else Outcome.UNKNOWN
            )
        to.calls.append(
            Call(
                key=topic,
                operation=Operation.WRITE,
                value=value,
                begun=begun,
                ended=time.monotonic(),
                outcome=outcome,
                caller=f"write at {member.number}",
            )
        )
        time.sleep(random.uniform(0, 0.01))  # fewer calls, so that the check of the history ends sooner

    def read(client: BlockingClient, to: Recorder) -> None:
        topic, member = random.choice(topics), random.choice(cluster.members)
        begun = time.monotonic()
        try:
            answer = client.invoke(member.listen, read_request(topic), timeout_s=5.0)
        except RemotingError:
            return
        if refused(answer):
            return
        to.calls.append(
            Call(
                key=topic,
                operation=Operation.READ,
                value=value_of(answer),
                begun=begun,
                ended=time.monotonic(),
                caller=f"read at {member.number}",
            )
        )
        time.sleep(random.uniform(0, 0.005))

    for _ in range(3):
        recorder.run(write)
    for _ in range(6):
        recorder.run(read)
    try:
        for _ in range(2):
            wanted = recorder.done(Operation.READ) + 200
            wait_until(lambda wanted=wanted: recorder.done(Operation.READ) >= wanted, "reads go on")  # type: ignore[misc]
            leader = cluster.leader()
            leader.kill()
            leader.reap()
            wanted = recorder.done(Operation.READ) + 100
            wait_until(lambda wanted=wanted: recorder.done(Operation.READ) >= wanted, "they go on then")  # type: ignore[misc]
            leader.start()
            cluster.wait_ready()
        wait_until(lambda: recorder.done(Operation.WRITE) > 100, "enough was written")
    finally:
        recorder.finish()
    violations = check(recorder.calls)
    assert violations == (), "\n".join(map(str, violations))
