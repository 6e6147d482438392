"""Real broker processes that are killed, have no disk space left, or get input that no client sends."""

from __future__ import annotations

import json
import random
import resource
import signal
import struct
import sys
import threading
import time
from pathlib import Path

import pytest

from routekeeper.remoting.bodies import SubscriptionGroupConfig
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import decode_messages, parse_offset_message_id
from tests.broker.conftest import BrokerProcess, RecordingNameserver, StartBroker, Wire

pytestmark = pytest.mark.faults


def read_all(wire: Wire, topic: str, queue_id: int) -> list[bytes]:
    """Read a queue from its first offset to its end, and return the bodies."""
    bodies: list[bytes] = []
    offset = 0
    while True:
        answer = wire.answer(wire.pull(topic, offset, queue_id=queue_id))
        if answer.code != 0:
            return bodies
        messages = list(decode_messages(answer.body))
        assert [message.queue_offset for message in messages] == list(range(offset, offset + len(messages)))
        bodies += [message.body for message in messages]
        offset = int(answer.ext_fields["nextBeginOffset"])


class Sender(threading.Thread):
    """Thread that sends numbered messages to one queue until the broker is gone.

    Attributes:
        acknowledged: Queue offset and number of each acknowledged message.
    """

    def __init__(self, broker: BrokerProcess, topic: str, queue_id: int, *, first: int = 0) -> None:
        super().__init__(daemon=True)
        self.wire = broker.wire()
        self.topic = topic
        self.queue_id = queue_id
        self.acknowledged: list[tuple[int, int]] = []
        self._number = first

    def run(self) -> None:
        while True:
            number = self._number
            self._number += 1
            padding = b"." * (number % 700)
            try:
                answer = self.wire.send_message(
                    self.topic, b"%d%s" % (number, padding), queue_id=self.queue_id
                )
            except OSError:
                return
            assert answer.code == 0, answer
            self.acknowledged.append((int(answer.ext_fields["queueOffset"]), number))


def test_acknowledged_messages_survive_kills_while_writing(start_broker: StartBroker) -> None:
    """This test uses ASYNC_FLUSH. The test in test_kills.py kills a broker with SYNC_FLUSH."""
    # The broker must remove no log file, even if this machine's disk is almost full.
    keep = ("--set", "cleanFileForciblyEnable=false")
    settings = ("--set", "maxMessageSize=2000", "--set", "mappedFileSizeCommitLog=200000", *keep)
    acknowledged: dict[int, list[tuple[int, int]]] = {0: [], 1: [], 2: []}
    for round_number in range(4):
        broker = start_broker(*settings)
        # Before each kill, also create a topic with one message, which must be found at the end.
        probe = broker.wire()
        assert probe.send_message(f"Round{round_number}", b"made").code == 0
        senders = [
            Sender(broker, "Kill", queue_id, first=round_number * 1_000_000) for queue_id in acknowledged
        ]
        for sender in senders:
            sender.start()
        deadline = time.monotonic() + 60
        while sum(len(sender.acknowledged) for sender in senders) < 400:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        broker.kill()
        for sender in senders:
            sender.join(15)
            acknowledged[sender.queue_id] += sender.acknowledged
    broker = start_broker(*settings)
    wire = broker.wire()
    for queue_id, expected in acknowledged.items():
        found = [int(body.rstrip(b".")) for body in read_all(wire, "Kill", queue_id)]
        assert expected
        missing = [number for offset, number in expected if found[offset : offset + 1] != [number]]
        assert missing == []
        # Each of the four kills may leave one stored message per queue that was not acknowledged.
        assert len(found) <= len(expected) + 4
    for round_number in range(4):
        assert read_all(wire, f"Round{round_number}", 0) == [b"made"]
    assert wire.send_message("Kill", b"7").code == 0
    assert broker.stop() == 0


def test_offsets_survive_a_kill_after_their_interval(start_broker: StartBroker) -> None:
    broker = start_broker("--set", "flushConsumerOffsetInterval=50")
    wire = broker.wire()
    wire.send_message("T", b"x")
    wire.call(15, {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"})
    file = broker.store / "config" / "consumerOffset.json"
    deadline = time.monotonic() + 60
    while not file.exists() or '"T@G":{0:1}' not in file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    broker.kill()
    again = start_broker().wire()
    answer = again.call(14, {"consumerGroup": "G", "topic": "T", "queueId": "0"})
    assert answer.ext_fields == {"offset": "1"}


def test_full_disk_refuses_with_14_and_keeps_what_it_had_until_there_is_room(
    start_broker: StartBroker,
) -> None:
    # A limit on the file size makes the same writes fail as a full disk. The limit is 40 blocks of 512 or
    # 1024 bytes, depending on the shell.
    broker = start_broker(prefix=("sh", "-c", 'ulimit -S -f 40; exec "$@"', "sh"))
    wire = broker.wire()
    stored = 0
    while (answer := wire.send_message("T", b"%06d" % stored + b"x" * 1000)).code == 0:
        stored += 1
        assert stored < 100
    assert answer.code == 14
    assert "cannot write" in (answer.remark or "")
    assert answer.ext_fields["TRACE_ON"] == "true"
    size = (broker.store / "commitlog" / f"{0:020d}").stat().st_size
    # A smaller message may still fit into the file. No part of the refused message may lie before the small
    # message in the log.
    small = wire.send_message("T", b"small")
    expected = [b"%06d" % number + b"x" * 1000 for number in range(stored)]
    if small.code == 0:
        expected.append(b"small")
        # The refused message left no bytes in the log, so the small message begins at the log's old end.
        assert parse_offset_message_id(small.ext_fields["msgId"])[1] == size
    else:
        assert (broker.store / "commitlog" / f"{0:020d}").stat().st_size == size
    assert wire.send_message("T", b"x" * 5000).code == 14
    assert read_all(wire, "T", 0) == expected
    _, hard = resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
    for number in range(100):
        expected.append(b"%d" % number)
        assert wire.send_message("T", expected[-1]).code == 0
    assert read_all(wire, "T", 0) == expected
    broker.kill()
    assert b"Traceback" not in broker.log.read_bytes()
    again = start_broker().wire()
    assert read_all(again, "T", 0) == expected
    assert again.send_message("T", b"more").ext_fields["queueOffset"] == str(len(expected))


def _frames() -> list[tuple[str, bytes]]:
    rng = random.Random(4711)
    header = b'{"code":310,"flag":0,"language":"JAVA","opaque":1,"version":479}'
    good = struct.pack(">II", 4 + len(header), len(header)) + header
    return [
        ("random", rng.randbytes(4096)),
        ("oversized", struct.pack(">I", 2**31 - 1) + b"x" * 100),
        ("negative", struct.pack(">i", -1)),
        ("zero", struct.pack(">I", 0)),
        ("header-too-long", struct.pack(">II", 100, 0x00FFFFFF) + b"x" * 96),
        ("unknown-codec", struct.pack(">II", 8, 0x07000004) + b"{}{}"),
        ("no-json", struct.pack(">II", 8, 4) + b"\xff\xfe\xfd\xfc"),
        ("json-list", struct.pack(">II", 6, 2) + b"[]"),
        ("binary-short", struct.pack(">II", 9, 0x01000005) + b"\x00\x0a\x00\x01\x99"),
        ("http", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("tls", bytes.fromhex("1603010200010001fc0303") + rng.randbytes(64)),
        ("truncated", good[: len(good) // 2]),
        ("send-without-fields", good),
    ]


def test_garbage_harms_nobody_else_and_wrong_types_are_answered_with_errors(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    wire = broker.wire()
    for name, data in _frames():
        victim = broker.wire()
        victim.socket.sendall(data)
        if name not in ("truncated", "send-without-fields"):
            victim.socket.settimeout(10)
            try:
                while victim.socket.recv(4096):
                    pass
            except ConnectionResetError:
                pass
        assert wire.call(30, {"topic": "T", "queueId": "0"}).code == 0, name
    rng = random.Random(815)
    names = ["topic", "queueId", "consumerGroup", "offset", "a", "b", "c", "d", "e", "f", "g", "h", "i", "m"]
    values = ["", "x", "-1", "99999999999999999999", "%RETRY%", "\x00", "\x01\x02", "true", "T", "1" * 5000]
    codes = [
        10,
        310,
        320,
        11,
        361,
        14,
        15,
        17,
        18,
        21,
        25,
        26,
        28,
        29,
        30,
        31,
        32,
        33,
        34,
        35,
        36,
        38,
        41,
        42,
    ]
    codes += [43, 45, 46, 200, 201, 202, 203, 204, 207, 208, 215, 300, 305, 351]
    for code in codes * 4:
        ext = {name: rng.choice(values) for name in rng.sample(names, rng.randint(0, len(names)))}
        answer = wire.call(code, ext, rng.randbytes(rng.choice([0, 10, 300])))
        assert answer.is_response
    assert wire.call(30, {"topic": "T", "queueId": "0"}).code == 0
    assert "Traceback" not in broker.log.read_text()


def test_stopped_while_sending_loses_nothing_acknowledged(start_broker: StartBroker) -> None:
    broker = start_broker()
    sender = Sender(broker, "Stop", 0)
    sender.start()
    deadline = time.monotonic() + 60
    while len(sender.acknowledged) < 200:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert broker.stop() == 0
    sender.join(15)
    found = [int(body.rstrip(b".")) for body in read_all(start_broker().wire(), "Stop", 0)]
    assert [found[offset] for offset, _ in sender.acknowledged] == [n for _, n in sender.acknowledged]


#: Program that runs a broker whose disk can hang. Its second argument names functions of ``os``. As soon as
#: the file in the first argument exists, these functions add a line to this file and wait for ever. The third
#: and fourth arguments replace CLOSE_S and END_S, the time limits in s of the broker's shutdown. The default
#: executor has as few threads as on a machine with one CPU.
DISK_HANGS = """
import os, pathlib, runpy, sys, threading
import routekeeper.broker.server.ending, routekeeper.broker.server.upkeep

flag, names, close_s, end_s = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
sys.argv = sys.argv[7:]
os.cpu_count = lambda: 1
routekeeper.broker.server.upkeep.CLOSE_S, routekeeper.broker.server.ending.END_S = close_s, end_s


def altered(real):
    def call(descriptor, *arguments):
        if flag.exists():
            with flag.open("a") as file:
                known = isinstance(descriptor, int)
                file.write((os.readlink(f"/proc/self/fd/{descriptor}") if known else str(descriptor)) + "\\n")
            threading.Event().wait()
        return real(descriptor, *arguments)

    return call


for name in names.split():
    setattr(os, name, altered(getattr(os, name)))
runpy.run_module("routekeeper.broker", run_name="__main__", alter_sys=True)
"""


def disk_hangs(flag: Path, names: str, *, close_s: float = 1.0, end_s: float = 30.0) -> tuple[str, ...]:
    return sys.executable, "-c", DISK_HANGS, str(flag), names, str(close_s), str(end_s)


def test_disk_that_stands_still_holds_up_neither_registrations_nor_the_end(
    start_broker: StartBroker, nameserver: RecordingNameserver, tmp_path: Path
) -> None:
    hanging = tmp_path / "hanging"
    broker = start_broker(
        *("--set", "timerDivisor=100", "--set", "flushConsumerOffsetInterval=50"),
        namesrv=nameserver.addr,
        prefix=disk_hangs(hanging, "fsync fdatasync"),
    )
    wire, other = broker.wire(), broker.wire()
    topics = [{"topicName": f"T{number}", "readQueueNums": 1, "writeQueueNums": 1} for number in range(600)]
    assert wire.call(18, body=json.dumps({"topicConfigList": topics}).encode()).code == 0
    assert wire.send_message("T0", b"x").code == 0
    hanging.touch()
    # These requests change topics, groups, offsets and settings, so the broker must write all these files.
    group = SubscriptionGroupConfig(group_name="G", retry_max_times=3).encode()
    commit = {"consumerGroup": "G", "topic": "T0", "queueId": "0", "commitOffset": "1"}
    for request in (
        RemotingCommand.request(18, body=json.dumps({"topicConfigList": [{"topicName": "New"}]}).encode()),
        RemotingCommand.request(200, body=group),
        RemotingCommand.request(15, commit),
        RemotingCommand.request(25, body=b"longPollingEnable=false"),
    ):
        wire.send(request)
    deadline = time.monotonic() + 60
    hung = ("topics-", "subscriptionGroup-", "broker.properties.tmp", "/commitlog/")
    while not all(name in hanging.read_text() for name in hung):
        assert time.monotonic() < deadline, hanging.read_text()
        time.sleep(0.01)
    # Within these five seconds, the checkpoint also begins, and its first write hangs like the others.
    until = time.monotonic() + 5.0
    while not nameserver.requests.empty():
        nameserver.requests.get()
    registrations = 0
    while time.monotonic() < until:
        nameserver.expect(103, timeout_s=20)
        registrations += 1
    assert registrations > 5
    assert other.send_message("T0", b"taken").code == 0
    asked_at = time.monotonic()
    assert broker.stop() == 0
    # The shutdown waits 5 s for open requests, then at most twice 1 s (CLOSE_S) for the disk. The other 5 s
    # are a reserve for a busy machine.
    assert time.monotonic() - asked_at < 5 + 2 * 1 + 5
    log = broker.log.read_text()
    for what in ("topics.json", "subscriptionGroup.json", "broker.properties", "log", "store"):
        assert f"the disk has not answered for 1 s: ending without it what={what}\n" in log
    assert "Traceback" not in log


def test_questions_that_read_the_log_do_not_hold_up_others_on_a_disk_that_stands_still(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    hanging = tmp_path / "hanging"
    broker = start_broker(prefix=disk_hangs(hanging, "pread statvfs"))
    wire, other = broker.wire(), broker.wire()
    for number in range(3):
        assert wire.send_message("T", b"%d" % number).code == 0
    assert wire.call(200, body=SubscriptionGroupConfig(group_name="G").encode()).code == 0
    assert wire.call(15, {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "2"}).code == 0
    questions: tuple[tuple[int, dict[str, str]], ...] = (
        (28, {}),
        (202, {"topic": "T"}),
        (208, {"consumerGroup": "G"}),
        (303, {"topic": "T", "group": "G"}),
        (317, {"isOrder": "false"}),
    )
    for code, ext in questions:
        assert wire.call(code, ext).code == 0
    hanging.touch()
    for code, ext in questions:
        asking = broker.wire()
        asking.send(RemotingCommand.request(code, ext))
        assert other.send_message("T", b"taken").code == 0, code
    assert other.call(21).code == 0


@pytest.mark.parametrize(
    ("end_s", "signals", "code", "said"),
    [
        (2.0, 1, 70, "not ended 2 s after the signal, exiting"),
        (60.0, 2, 128 + signal.SIGTERM, "second signal, exiting at once"),
    ],
    ids=["in time", "second signal"],
)
def test_broker_ends_though_the_disk_holds_up_its_loop(
    start_broker: StartBroker, tmp_path: Path, end_s: float, signals: int, code: int, said: str
) -> None:
    hanging = tmp_path / "hanging"
    broker = start_broker(prefix=disk_hangs(hanging, "pwrite", end_s=end_s))
    wire = broker.wire()
    assert wire.send_message("T", b"stored").code == 0
    hanging.touch()
    fields = dict(
        zip(
            "abcdefghijkm",
            ["PG", "T", "TBW102", "4", "0", "0", "1", "0", "", "0", "false", "false"],
            strict=True,
        )
    )
    wire.send(RemotingCommand.request(310, fields, b"not stored"))
    deadline = time.monotonic() + 30
    while "/commitlog/" not in hanging.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    broker.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 40
    while signals > 1 and broker.process.poll() is None:
        # The broker ignores a repeated signal within a second, so wait longer than a second. The system may
        # merge two signals to a paused process into one signal, so send signals until the process ends.
        assert time.monotonic() < deadline
        time.sleep(1.2)
        broker.process.send_signal(signal.SIGTERM)
    assert broker.process.wait(40) == code
    assert said in broker.log.read_text()
    assert read_all(start_broker().wire(), "T", 0) == [b"stored"]
