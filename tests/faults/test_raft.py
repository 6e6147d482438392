"""Tests of a group of real nameservers in which members are killed, paused or stopped.

test_raft_cycles.py repeats such faults many times.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from functools import partial

import pytest

from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient
from tests import history
from tests.registrations import registration
from tests.standstill import elapsed
from tests.waiting import wait_until

from .brokers import (
    PATIENCE_S,
    Call,
    Outcome,
    Writers,
    is_applied,
    judge,
    judge_reads,
    read_answer,
    register,
    route_query,
)
from .cluster import CONDITION_S, Cluster, chooser, split

pytestmark = [pytest.mark.faults, pytest.mark.one_core, pytest.mark.timeout(300)]


def test_judge_finds_each_kind_of_wrong() -> None:
    def call(topic: str, outcome: Outcome, *, took_s: float = 0.1, answered: bool = True) -> Call:
        return Call(member=0, topic=topic, start=1.0, end=1.0 + took_s, outcome=outcome, answered=answered)

    fine = [call("a", "applied"), call("b", "not applied"), call("c", "unknown"), call("d", "unknown")]
    assert judge(fine, {"a", "c", "shared", "register-1"}) == []
    assert judge(fine, {"c"})[0].startswith("lost: ")
    assert judge(fine, {"a", "b"})[0].startswith("refused, yet there: ")
    assert judge(fine, {"a", "x"}) == ["from nowhere: x"]
    late = call("a", "applied", took_s=3.1)
    assert judge([late], {"a"})[0].startswith("late: ")
    assert judge([late], {"a"}, {1: [(0.0, 9.0)]})[0].startswith("late: ")
    assert judge([late], {"a"}, {0: [(2.0, 3.0)]}) == []
    assert judge([late], {"a"}, {0: [(0.2, 0.9)]})[0].startswith("late: ")
    assert judge([call("a", "applied", took_s=9.0)], {"a"}, {0: [(2.0, 3.0)]})[0].startswith("late: ")
    lost = call("a", "unknown", answered=False)
    assert judge([lost], set())[0].startswith("unanswered: ")
    assert judge([lost], set(), {0: [(0.5, 1.05)]}) == []


def test_judge_of_reads_knows_both_promises() -> None:
    def call(operation: history.Operation, value: int, begun: float) -> history.Call:
        return history.Call(key="k", operation=operation, value=value, begun=begun, ended=begun + 0.1)

    writes = [call(history.Operation.WRITE, 1, 1.0), call(history.Operation.WRITE, 2, 2.0)]
    late = [call(history.Operation.READ, 1, 2.3)]
    assert judge_reads(writes, [call(history.Operation.READ, 2, 2.3)], late, promise_s=0.3) == []
    assert judge_reads(writes, late, late, promise_s=0.3)[0].startswith("linearizable reads: ")
    assert judge_reads(writes, [], late, promise_s=0.1)[0].startswith("default reads: ")


def test_minority_fails_writes_in_time_refuses_default_reads_and_serves_stale_ones(cluster: Cluster) -> None:
    last, *others = chooser().sample(cluster.members, len(cluster.members))
    with BlockingClient() as client, BlockingClient() as reader:
        register(client, last, registration("broker-a", "10.0.0.1:10911", ("T", "U"), counter=1))
        cluster.wait_equal()
        for member in others:
            member.kill()
        for member in others:
            member.reap()
        # Each of these registrations must fail. The last one changes nothing, but without a leader, the
        # broker's lease cannot be renewed either.
        for counter, topics in ((2, ("T", "V")), (1, ("T", "V")), (1, ("T", "U"))):
            request = registration("broker-a", "10.0.0.1:10911", topics, counter=counter)
            asked_at = time.monotonic()
            answer = client.invoke(last.listen, request, timeout_s=PATIENCE_S)
            assert elapsed(asked_at) < 3.0
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
        # RocketMQ's protocol has no field for stale reads, so a setting of the nameserver allows them. A
        # nameserver can change this setting without a quorum.
        change = RemotingCommand.request(RequestCode.UPDATE_NAMESRV_CONFIG, {}, body=b"routeFreshness=stale")
        assert client.invoke(last.listen, change).code == ResponseCode.SUCCESS
        assert client.invoke(last.listen, route_query("T")).code == ResponseCode.SUCCESS
    for member in others:
        member.start()
    cluster.wait_ready()
    assert cluster.wait_equal()


BROKER_PROGRAM = """
import sys
from routekeeper.remoting.transport.blocking import BlockingClient
from routekeeper.remoting.command import RemotingCommand, decode_command
fields, body, *addrs = sys.argv[1:]
client = BlockingClient()
ext_fields = dict(field.split("=", 1) for field in fields.split("&"))
for addr in addrs:
    request = RemotingCommand.request(103, ext_fields, body=bytes.fromhex(body))
    while client.invoke(addr, request).code != 0:
        pass  # nobody leads just now
print("registered", flush=True)
sys.stdin.read()
"""


def test_killed_broker_is_gone_on_all_members_within_a_second(cluster: Cluster) -> None:
    request = registration("broker-a", "10.0.0.1:10911", ("T", "U"), counter=1)
    fields = "&".join(f"{key}={value}" for key, value in request.ext_fields.items())
    gone_after: list[float] = []
    while len(gone_after) < 3:
        cluster.wait_ready()
        terms = terms_of(cluster)
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
                assert member.served_topics() == {"T", "U"}
        finally:
            broker.kill()
            killed_at = time.monotonic()
            broker.communicate()
        for member in cluster.members:
            member.wait_topics(set(), consistency="stale")
        seconds = elapsed(killed_at)
        # If the term changed, there was an election, because the machine was busy. Without a leader, the
        # group cannot evict the broker, so this attempt does not count.
        if terms_of(cluster) == terms:
            gone_after.append(seconds)
    print("broker killed to gone on all members, s:", [round(seconds, 3) for seconds in gone_after])
    assert max(gone_after) < 1.0


def terms_of(cluster: Cluster) -> list[int]:
    return [member.status()["term"] for member in cluster.members]


def test_broker_whose_link_to_one_nameserver_breaks_stays(cluster: Cluster) -> None:
    with BlockingClient() as broker, BlockingClient() as other:
        for member in cluster.members:
            register(broker, member, registration("broker-a", "10.0.0.1:10911", ("T", "U"), counter=1))
            register(other, member, registration("broker-b", "10.0.0.2:10911", ("V", "W"), counter=1))
        broker.disconnect(cluster.members[0].listen)
        # broker-b now loses all its connections and is evicted. broker-a lost one of its connections earlier.
        # So when broker-b is evicted, the leader has already decided to keep broker-a listed.
        other.close()
        for member in cluster.members:
            member.wait_topics({"T", "U"})
        for member in cluster.members[1:]:
            broker.disconnect(member.listen)
        for member in cluster.members:
            member.wait_topics(set())


def test_dead_nameserver_keeps_no_dead_broker_alive(cluster: Cluster) -> None:
    with BlockingClient() as broker:
        for member in cluster.members:
            register(broker, member, registration("broker-a", "10.0.0.1:10911", ("T", "U"), counter=1))
        dead, *alive = chooser().sample(cluster.members, len(cluster.members))
        dead.kill()
        dead.reap()
        for member in alive:
            wait_until(member.ready, "the others go on")
            topics = member.served_topics()
            assert topics == {"T", "U"}, "the broker is there as long as it is connected with one"
    for member in alive:
        member.wait_topics(set(), consistency="stale")


def test_paused_leader_neither_stops_the_others_nor_answers_from_the_past(cluster: Cluster) -> None:
    for _ in range(2):
        leader = cluster.leader()
        others = [member for member in cluster.members if member is not leader]
        with BlockingClient() as client, socket.create_connection(split(leader.listen)) as line:
            for member in cluster.members:
                register(client, member, registration("broker-a", "10.0.0.1:10911", ("T", "U"), counter=1))
            leader.signal(signal.SIGSTOP)
            try:
                drop = RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
                paused_at = time.monotonic()
                wait_until(partial(is_applied, client, others[0].listen, drop), "the others go on")
                assert elapsed(paused_at) < 5.0
                for member in others:
                    member.wait_topics({"U"})
                # The request waits in the socket's buffer of the paused process. It is the first input that
                # the process reads after the pause.
                line.sendall(route_query("T").encode())
            finally:
                leader.signal(signal.SIGCONT)
            line.settimeout(CONDITION_S)
            answer = read_answer(line)
            assert answer.code != ResponseCode.SUCCESS, "it still served what is gone"
            if answer.code == ResponseCode.SYSTEM_ERROR:
                assert (answer.remark or "").startswith("[NO_QUORUM] ")
            else:
                assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            cluster.wait_ready()
            cluster.wait_equal()
            for member in cluster.members:
                assert member.served_topics() == {"U"}, (
                    "the broker that was connected all the time is still there"
                )
        for member in cluster.members:
            member.wait_topics(set())


def test_leader_that_is_asked_to_stop_hands_over(cluster: Cluster) -> None:
    took = []
    with Writers(cluster) as writers:
        for _ in range(2):
            writers.wait_for_load(cluster.members)
            leader = cluster.leader()
            leader.signal(signal.SIGTERM)
            took.append(writers.wait_for_progress(cluster.others(leader)))
            leader.reap()
            leader.start()
            cluster.wait_ready()
        print(writers.check())
    print("leader asked to stop to next registration, s:", [round(s, 3) for s in took])
