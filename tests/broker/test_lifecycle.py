"""A broker's start, its shutdown, its command line, and its requests to nameservers."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.fields import RegisterBrokerFields, UnregisterBrokerFields
from routekeeper.remoting.message import decode_messages
from routekeeper.remoting.registration import PlainRegistration, body_crc32
from routekeeper.remoting.route import DataVersion
from tests.broker.conftest import RecordingNameserver, StartBroker
from tests.registrations import read_registration

pytestmark = pytest.mark.faults  # all tests here use real processes, and some of them cause faults


def registration(request: RemotingCommand) -> tuple[RegisterBrokerFields, PlainRegistration]:
    fields = RegisterBrokerFields.parse(request.ext_fields)
    assert fields.body_crc32 == body_crc32(request.body)
    body = read_registration(request.body, compressed=fields.compressed, version=request.version)
    return fields, body


def topic_names(body: PlainRegistration) -> set[str]:
    return set(body.topics)


def test_broker_registers_at_start_and_says_farewell(
    start_broker: StartBroker, nameserver: RecordingNameserver
) -> None:
    broker = start_broker("--name", "broker-x", "--cluster", "C", namesrv=nameserver.addr)
    assert broker.ready_line == f"mqbroker ready listen={broker.addr} name=broker-x cluster=C id=0"
    fields, body = registration(nameserver.expect(103))
    assert (fields.broker_name, fields.cluster_name, fields.broker_id) == ("broker-x", "C", 0)
    assert fields.broker_addr == broker.addr
    assert topic_names(body) >= {"TBW102", "C", "broker-x", "BenchmarkTest", "SELF_TEST_TOPIC"}
    assert broker.stop() == 0
    farewell = UnregisterBrokerFields.parse(nameserver.expect(104).ext_fields)
    assert (farewell.broker_name, farewell.broker_addr) == ("broker-x", broker.addr)


def test_created_topic_is_registered_alone_and_at_once(
    start_broker: StartBroker, nameserver: RecordingNameserver
) -> None:
    broker = start_broker(namesrv=nameserver.addr)
    _, full = registration(nameserver.expect(103))
    wire = broker.wire()
    assert wire.send_message("Auto", b"x").code == 0
    _, increment = registration(nameserver.expect(103))
    assert topic_names(increment) == {"Auto"}
    assert increment.data_version.counter == full.data_version.counter + 1
    ext = {"topic": "Made", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
    assert wire.call(17, ext).code == 0
    # The broker answers request 17 only after the registration has reached the nameserver.
    _, increment = registration(nameserver.expect(103, timeout_s=0.5))
    assert topic_names(increment) == {"Made"}
    # Topics that one request creates have a version each.
    table = [{"topicName": f"L{number}"} for number in range(3)]
    assert wire.call(18, body=json.dumps({"topicConfigList": table}).encode()).code == 0
    found = [registration(nameserver.expect(103))[1] for _ in range(3)]
    assert [topic_names(body) for body in found] == [{"L0"}, {"L1"}, {"L2"}]
    first = increment.data_version.counter + 1
    assert [body.data_version.counter for body in found] == [first, first + 1, first + 2]


def test_table_too_large_for_a_frame_travels_compressed(
    start_broker: StartBroker, nameserver: RecordingNameserver, tmp_path: Path
) -> None:
    topics = {f"{number:06d}{'x' * 110}": {"perm": 6} for number in range(60_000)}
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    text = json.dumps({"dataVersion": {"counter": 7, "timestamp": 5}, "topicConfigTable": topics})
    (config / "topics.json").write_text(text)
    start_broker(namesrv=nameserver.addr)
    fields, body = registration(nameserver.expect(103, timeout_s=30))
    assert fields.compressed
    assert len(body.topics) == 60_000 + 8
    assert body.data_version.counter == 7


def test_period_is_kept_and_a_lost_connection_triggers_nothing(
    start_broker: StartBroker, nameserver: RecordingNameserver
) -> None:
    before = time.monotonic()  # read first, because start_broker may return after the registration
    start_broker(
        "--set",
        "timerDivisor=10",
        "--set",
        "registerNameServerPeriod=10000",
        namesrv=nameserver.addr,
    )
    started = time.monotonic()
    nameserver.expect(103)
    for _ in range(5):
        nameserver.drop_connections()
        nameserver.expect(103)
    # With the divisor, the period is 1 s. A lost connection must not make it shorter. The bounds are wide,
    # because a busy machine may pause the processes.
    assert time.monotonic() - before > 4.0
    assert time.monotonic() - started < 25.0


def test_unforced_broker_asks_for_the_version_first(
    start_broker: StartBroker, nameserver: RecordingNameserver
) -> None:
    start_broker(
        "--set",
        "timerDivisor=10",
        "--set",
        "registerNameServerPeriod=10000",
        "--set",
        "forceRegister=false",
        namesrv=nameserver.addr,
    )
    _, body = registration(nameserver.expect(103))
    unchanged = RemotingCommand.request(
        ResponseCode.SUCCESS, {"changed": "false"}, body.data_version.encode()
    )
    nameserver.answers[322] = unchanged
    question = nameserver.expect(322)
    assert DataVersion.decode(question.body) == body.data_version
    nameserver.expect(322)  # the broker asks again after one period, and has not registered in between
    nameserver.answers[322] = RemotingCommand.request(ResponseCode.SUCCESS, {"changed": "true"})
    nameserver.expect(103)


def test_nothing_is_registered_after_the_farewell(
    start_broker: StartBroker, nameserver: RecordingNameserver
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts clients, no program answers
        addrs = f"127.0.0.1:{silent.getsockname()[1]};{nameserver.addr}"
        broker = start_broker(namesrv=addrs)
        nameserver.expect(103)
        wire = broker.wire()
        process = broker.process
        process.send_signal(signal.SIGTERM)
        nameserver.expect(104)
        # One nameserver does not answer, so the unregistration still waits. The broker still serves requests.
        assert wire.send_message("Late", b"x").code == 0
        assert process.wait(40) == 0
    with pytest.raises(queue.Empty):
        nameserver.expect(103, timeout_s=0.2)


def test_order_table_of_the_answer_marks_topics(
    start_broker: StartBroker, nameserver: RecordingNameserver
) -> None:
    table = json.dumps({"table": {"SELF_TEST_TOPIC": "broker-a:1"}}).encode()
    nameserver.answers[103] = RemotingCommand.request(ResponseCode.SUCCESS, {}, table)
    broker = start_broker(namesrv=nameserver.addr)
    nameserver.expect(103)
    wire = broker.wire()
    deadline = time.monotonic() + 60
    while not json.loads(wire.call(351, {"topic": "SELF_TEST_TOPIC"}).body)["order"]:
        assert time.monotonic() < deadline


def test_broker_without_write_permission_says_so_to_the_nameservers(
    start_broker: StartBroker, nameserver: RecordingNameserver
) -> None:
    broker = start_broker("--set", "compressedRegister=true", namesrv=nameserver.addr)
    fields, before = registration(nameserver.expect(103))
    assert fields.compressed
    assert broker.wire().call(25, body=b"brokerPermission=4\n").code == 0
    _, body = registration(nameserver.expect(103))
    assert {numbers.perm & 2 for numbers in body.topics.values()} == {0}
    # Without a greater version, a nameserver would not read the topics of this registration.
    assert body.data_version.counter > before.data_version.counter


def test_everything_survives_a_clean_restart_and_nobody_else_can_read_it(
    start_broker: StartBroker, nameserver: RecordingNameserver
) -> None:
    first = start_broker(namesrv=nameserver.addr)
    wire = first.wire()
    for number in range(10):
        assert wire.send_message("Keep", b"%d" % number).code == 0
    wire.call(15, {"consumerGroup": "G", "topic": "Keep", "queueId": "0", "commitOffset": "4"})
    wire.call(200, body=b'{"groupName":"Mine","retryMaxTimes":3}')
    version = json.loads(wire.call(21).body)["dataVersion"]
    assert first.stop() == 0
    modes = {path: path.stat().st_mode & 0o777 for path in (first.store, *first.store.rglob("*"))}
    assert len(modes) > 8
    assert {
        path: oct(mode) for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)
    } == {}
    again = start_broker(namesrv=nameserver.addr).wire()
    assert json.loads(again.call(21).body)["dataVersion"] == version
    found = again.answer(again.pull("Keep", 0))
    assert [message.body for message in decode_messages(found.body)] == [b"%d" % n for n in range(10)]
    offset = again.call(14, {"consumerGroup": "G", "topic": "Keep", "queueId": "0"})
    assert offset.ext_fields == {"offset": "4"}
    assert json.loads(again.call(201).body)["subscriptionGroupTable"]["Mine"]["retryMaxTimes"] == 3
    assert again.send_message("Keep", b"more").ext_fields["queueOffset"] == "10"


def test_commit_log_lies_where_the_setting_says_and_has_one_owner_as_the_store_has(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "fast" / "log"
    broker = start_broker("--set", f"storePathCommitLog={elsewhere}")
    assert broker.wire().send_message("T", b"x").code == 0
    assert sorted(file.name for file in elsewhere.iterdir()) == [f"{0:020d}", "lock"]
    assert not (broker.store / "commitlog").exists()
    assert broker.stop() == 0
    # A broker with the same log or the same store must not start.
    start_broker("--set", f"storePathCommitLog={elsewhere}")
    flags = ("--listen", "127.0.0.1:0", "--store")
    outcome = run(*flags, str(tmp_path / "other"), "--set", f"storePathCommitLog={elsewhere}")
    assert outcome.returncode == 2
    assert outcome.stderr.strip().endswith(f"storePathCommitLog={elsewhere}: another broker uses it")
    outcome = run(*flags, str(broker.store))
    assert outcome.returncode == 2
    assert outcome.stderr.strip().endswith("another broker uses it")


# Command line ------------------------------------------------------------------------------------


def run(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "routekeeper.broker", *flags],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--listen", "nonsense"), "'nonsense' is not HOST:PORT"),
        (("--store", "/dev/null"), "storePathRootDir=/dev/null cannot be used: "),
        (("-c", "/no/such/file"), "No such file"),
        (("--set", "noSuchKey=1"), "noSuchKey: no such setting"),
        (("--set", "listenPort"), "is not KEY=VALUE"),
        (("--listen", "192.0.2.1:0", "--store", "{tmp}"), "--listen 192.0.2.1:0 cannot be bound: "),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, tuple) else None,
)
def test_bad_setting_ends_with_one_line_and_2(tmp_path: Path, flags: tuple[str, ...], message: str) -> None:
    outcome = run(*(flag.replace("{tmp}", str(tmp_path)) for flag in flags))
    lines = outcome.stderr.strip().splitlines()
    assert outcome.returncode == 2
    assert len(lines) == 1
    assert lines[0].startswith("mqbroker: ")
    assert message in lines[0]


def test_settings_are_printed_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text(
        "brokerName=from-file\nbrokerClusterName=C\nlistenPort=12345\nnamesrvAddr=a:1\ntransferMsgByHeap=true\n"
    )
    outcome = run("-c", str(file), "-p", "--name", "from-flag", NAMESRV_ADDR="b:2")
    settings = dict(line.split("=", 1) for line in outcome.stdout.splitlines())
    assert outcome.returncode == 0
    assert settings["brokerName"] == "from-flag"
    assert (settings["brokerClusterName"], settings["listenPort"]) == ("C", "12345")
    assert settings["namesrvAddr"] == "a:1"
    assert "transferMsgByHeap" in outcome.stderr


def test_version_and_help_are_answered() -> None:
    assert run("--version").stdout.startswith("mqbroker ")
    assert "--advertise" in run("--help").stdout


_NOTHING_IS_DELIVERED = """
import sys
from routekeeper.broker.server import delay
from routekeeper.broker.__main__ import main

def deliver(*arguments, **named):
    raise RuntimeError("planted")

delay.deliver_due = deliver
sys.exit(main())
"""


def test_a_service_that_dies_ends_the_broker_and_says_why(tmp_path: Path) -> None:
    """A broker must end when one of its background tasks fails.

    Otherwise it would run on without this task, for example without delivering delayed messages, and nobody
    would notice.
    """
    command = [sys.executable, "-c", _NOTHING_IS_DELIVERED]
    done = subprocess.run(
        [*command, "--listen", "127.0.0.1:0", "--store", str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 70
    assert done.stderr.count("RuntimeError: planted") == 1
    assert "in run" in done.stderr, "where it happened"


def test_an_interrupt_ends_it_cleanly_and_pulls_that_wait_for_a_message_are_answered(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    wires = [broker.wire() for _ in range(3)]
    assert wires[0].send_message("T", b"x").code == 0
    asked = []
    for wire in wires:
        asked.append([wire.pull("T", 1, sys_flag=6, suspend_ms=15_000) for _ in range(2)])
        # The broker answers this request after it has tried the pulls, so the pulls wait now.
        assert wire.call(30, {"topic": "T", "queueId": "0"}).code == 0
    broker.process.send_signal(signal.SIGINT)
    assert broker.process.wait(40) == 0
    for wire, opaques in zip(wires, asked, strict=True):
        for opaque in opaques:
            answer = wire.answer(opaque)
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert answer.ext_fields["nextBeginOffset"] == "1"


def test_advertised_address_goes_into_routes_and_ids_with_a_warning_if_it_leads_elsewhere(
    start_broker: StartBroker, nameserver: RecordingNameserver
) -> None:
    addresses = ("--listen", "127.1:0", "--advertise", "192.0.2.9:4711")
    broker = start_broker(*addresses, namesrv=nameserver.addr)
    assert " listen=127.0.0.1:" in broker.ready_line
    fields, _ = registration(nameserver.expect(103))
    assert fields.broker_addr == "192.0.2.9:4711"
    assert fields.ha_server_addr.startswith("192.0.2.9:")
    message_id = broker.wire().send_message("T", b"x").ext_fields["msgId"]
    assert message_id.startswith("C0000209" + "00001267")
    assert broker.stop() == 0
    assert "does not lead here advertised=192.0.2.9 listen=127.0.0.1:" in broker.log.read_text()


def test_ipv6_address_works_everywhere(start_broker: StartBroker, nameserver: RecordingNameserver) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    broker = start_broker("--listen", "[::1]:0", namesrv=nameserver.addr)
    fields, _ = registration(nameserver.expect(103))
    assert fields.broker_addr == broker.addr
    assert broker.addr.startswith("[::1]:")
    wire = broker.wire()
    message_id = wire.send_message("T", b"x").ext_fields["msgId"]
    assert len(message_id) == 56
    (message,) = decode_messages(wire.answer(wire.pull("T", 0)).body)
    assert (message.store_host.ip, message.born_host.ip) == ("::1", "::1")
    assert message.offset_message_id == message_id
