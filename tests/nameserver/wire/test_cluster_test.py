"""Tests of a nameserver in a test environment (``clusterTest``), with real processes.

A nameserver in a test environment asks a production nameserver for the routes of topics that the test
environment does not have.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.fields import RegisterBrokerFields
from routekeeper.remoting.route import decode_route
from routekeeper.remoting.transport.blocking import BlockingClient
from tests import standstill
from tests.faults.servers import refusal
from tests.nameserver.test_main import started
from tests.ports import free_addresses
from tests.waiting import WITHIN_S, wait_until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.one_core,
]

RAFT = ("--mode", "raft", "--raft", "127.0.0.1:0", "--peers", "127.0.0.1:0")
BODY = (
    b'{"topicConfigSerializeWrapper":{"dataVersion":{"stateVersion":0,"timestamp":1,"counter":1},'
    b'"topicConfigTable":{"Known":{"topicName":"Known","readQueueNums":4,"writeQueueNums":4,"perm":6},'
    b'"Other":{"topicName":"Other","readQueueNums":1,"writeQueueNums":1,"perm":6}}},"filterServerList":[]}'
)


def register(client: BlockingClient, addr: str) -> None:
    fields = RegisterBrokerFields(
        broker_name="production-a",
        broker_addr="192.0.2.7:10911",
        cluster_name="production",
        ha_server_addr="192.0.2.7:10912",
        broker_id=0,
    )
    assert client.invoke(addr, RemotingCommand.request(103, fields.to_ext(), BODY)).code == 0


def query(topic: str, **fields: str) -> RemotingCommand:
    return RemotingCommand.request(105, {"topic": topic, **fields})


def figure(http: str, name: str) -> float:
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as answer:
        found = re.search(rf"^{re.escape(name)} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found, name
    return float(found[1])


def questions(http: str, result: str) -> float:
    return figure(http, f'mqnamesrv_cluster_test_questions_total{{result="{result}"}}')


@contextlib.contextmanager
def address_server(folder: Path) -> Iterator[str]:
    """Serve a folder over HTTP from a separate process; yield its ``host:port``."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"port (\d+)", process.stdout.readline())
        assert found
        yield f"127.0.0.1:{found[1]}"
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextlib.contextmanager
def production(tmp_path: Path) -> Iterator[tuple[str, BlockingClient]]:
    """Run a nameserver that has the topics Known and Other; yield its address and a client."""
    (tmp_path / "production").mkdir()
    with started(tmp_path / "production", "--http", "off") as (_, ready), BlockingClient() as client:
        register(client, ready["listen"])
        yield ready["listen"], client


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """Listen without accepting connections, so that no request gets an answer; yield the address."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("mode", [(), RAFT], ids=["independent", "raft"])
def test_an_unknown_topic_is_asked_of_the_environment_that_the_address_server_names(
    tmp_path: Path, mode: tuple[str, ...]
) -> None:
    (tmp_path / "rocketmq").mkdir()
    with production(tmp_path) as (theirs, client), address_server(tmp_path) as domain:
        (tmp_path / "rocketmq" / "group-prod").write_text(f"127.0.0.1:1;{theirs}\nignored\n")
        settings = tmp_path / "namesrv.properties"
        settings.write_text(
            "clusterTest=true\nproductEnvName=prod\n"
            f"rocketmq.namesrv.domain={domain}\nrocketmq.namesrv.domain.subgroup=group\n"
        )
        with started(tmp_path, "--http", "127.0.0.1:0", "-c", str(settings), *mode) as (_, ready):
            ours, http = ready["listen"], ready["http"]
            wait_until(lambda: client.invoke(ours, query("Known")).code == 0, "the group has a leader")
            route = decode_route(client.invoke(ours, query("Known")).body)
            assert route.broker_datas[0].broker_addrs == {0: "192.0.2.7:10911"}
            assert route.queue_datas[0].read_queue_nums == 4
            # An old Java client expects JSON with numbers as keys of objects, without quotes.
            old = RemotingCommand(code=105, ext_fields={"topic": "Known"}, version=313)
            body = client.invoke(ours, old).body
            assert b'{0:"192.0.2.7:10911"}' in body
            assert body == client.invoke(theirs, old).body
            assert questions(http, "found") == 1, "what was found is kept"
            assert figure(http, "mqnamesrv_cluster_test_kept_answers_total") >= 2

            for _ in range(3):
                unknown = client.invoke(ours, query("Nowhere"))
                assert unknown.code == 17
                assert (unknown.remark or "").startswith(
                    "No topic route info in name server for the topic: Nowhere\nSee http"
                )
            assert questions(http, "absent") == 1, "that it is not there is kept, too"

            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://{http}/v1/topics/Other/route", timeout=10)
            with refused.value as problem:
                assert problem.code == 404, "only request 105 asks production"
            assert client.invoke(ours, RemotingCommand.request(206)).body == b'{"topicList":[]}'
            register(client, ours)
            assert client.invoke(ours, query("Other")).code == 0
            assert questions(http, "found") == 1, "the topic is known here, so production is not asked"


def test_nameservers_that_name_each_other_as_production_ask_once(tmp_path: Path) -> None:
    addrs = free_addresses(2)
    with contextlib.ExitStack() as stack:
        https = []
        for name, addr, other in (("one", addrs[0], addrs[1]), ("two", addrs[1], addrs[0])):
            (tmp_path / name).mkdir()
            flags = ("--listen", addr, "--clusterTest", "true", "--cluster-test-nameservers", other)
            _, ready = stack.enter_context(started(tmp_path / name, "--http", "127.0.0.1:0", *flags))
            https.append(ready["http"])
        client = stack.enter_context(BlockingClient())
        for _ in range(3):
            assert client.invoke(addrs[0], query("Nowhere"), timeout_s=WITHIN_S).code == 17
        assert [questions(http, "absent") for http in https] == [1, 0]
        assert [questions(http, "unanswered") for http in https] == [0, 0]


def test_silent_production_costs_its_askers_a_bounded_wait_and_others_nothing(tmp_path: Path) -> None:
    with silent() as theirs, BlockingClient() as client:
        flags = ("--clusterTest", "true", "--cluster-test-nameservers", theirs)
        with started(tmp_path, "--http", "127.0.0.1:0", *flags) as (process, ready):
            standstill.begin()
            standstill.watch(process.pid)
            ours, http = ready["listen"], ready["http"]
            host, _, port = ours.rpartition(":")
            with socket.create_connection((host, int(port)), timeout=30) as many:
                begun = time.monotonic()
                frames = [query(f"T{number}").with_opaque(number + 1).encode() for number in range(100)]
                many.sendall(b"".join(frames))
                assert client.invoke(ours, RemotingCommand.request(319), timeout_s=WITHIN_S).code == 0
                assert standstill.elapsed(begun) < 2.0, "others are served meanwhile"
                wait_until(lambda: questions(http, "refused") == 84, "16 questions are under way, no more")
                received = b""
                while received.count(b'"code":17') < 100:
                    assert select.select([many], [], [], 30)[0], "each question has its time, and no more"
                    received += many.recv(1 << 16)
            wait_until(lambda: questions(http, "unanswered") == 16, "each question ends")
            # The nameserver remembers for 30 s that production did not answer. So the next query must not ask
            # production again.
            ended = time.monotonic()
            assert client.invoke(ours, query("T0"), timeout_s=WITHIN_S).code == 17
            assert questions(http, "unanswered") == 16 or time.monotonic() - ended > 10.0, (
                "that there was no answer is kept as well"
            )
            log = tmp_path / "stderr.txt"
            wait_until(lambda: "production gave no route env=center" in log.read_text(), "it is logged")


def test_an_address_server_that_is_not_there_leaves_17(tmp_path: Path) -> None:
    flags = ("--clusterTest", "true", "--rocketmq.namesrv.domain", free_addresses(1)[0])
    with started(tmp_path, "--http", "127.0.0.1:0", *flags) as (_, ready), BlockingClient() as client:
        assert client.invoke(ready["listen"], query("Known")).code == 17
        assert questions(ready["http"], "unanswered") == 1
        log = tmp_path / "stderr.txt"
        wait_until(lambda: "address server failed url=http://127.0.0.1:" in log.read_text(), "it is logged")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--cluster-test-nameservers", "nowhere"), "--cluster-test-nameservers: 'nowhere' is not"),
        (("--rocketmq.namesrv.domain.subgroup", "a?b"), "rocketmq.namesrv.domain.subgroup=a?b: allowed"),
    ],
)
def test_a_setting_that_nobody_can_be_asked_by_refuses_the_start(
    tmp_path: Path, flags: tuple[str, ...], words: str
) -> None:
    said = refusal("nameserver", tmp_path, "--clusterTest", "true", *flags)
    assert words in said.splitlines()[-1]
