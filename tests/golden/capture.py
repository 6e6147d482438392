"""Program that records golden bytes and texts from Apache RocketMQ's own programs.

    python tests/golden/capture.py 4.9.7
    python tests/golden/capture.py 5.3.3

The program starts an Apache nameserver and brokers of the given release behind two recording TCP proxies.
Apache's Java clients and ``mqadmin`` then send requests, and the program itself sends a few hand-made
requests. The program rewrites ``frames/RELEASE-*.jsonl`` and ``mqadmin/RELEASE/``. It needs the tools of the
interop tests. README.md beside this file describes the formats.

Every recorded byte is exactly as its process sent it. Clients must reach the broker through the proxy.
Therefore the proxy replaces the broker's address in requests to the nameserver, after it has recorded these
requests. The proxy changes no other bytes.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import shlex
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from tests.interop.apache import (  # noqa: E402  (run as a script: the root is not on the path before)
    LANGUAGES,
    Apache,
    ApacheBroker,
    broker_port,
    decode_binary,
    has_route,
    listed,
    wait_until,
)

PORTS: Final = {"4.9.7": (9876, 10911), "5.3.3": (9877, 10921)}
"""Ports of the proxies of nameserver and broker, by release.

The number of digits of a port affects the layout of mqadmin's tables, so these ports are fixed.
"""

NAMES: Final = {
    10: "SEND_MESSAGE",
    11: "PULL_MESSAGE",
    14: "QUERY_CONSUMER_OFFSET",
    15: "UPDATE_CONSUMER_OFFSET",
    17: "UPDATE_AND_CREATE_TOPIC",
    28: "GET_BROKER_RUNTIME_INFO",
    30: "GET_MAX_OFFSET",
    31: "GET_MIN_OFFSET",
    34: "HEART_BEAT",
    35: "UNREGISTER_CLIENT",
    36: "CONSUMER_SEND_MSG_BACK",
    38: "GET_CONSUMER_LIST_BY_GROUP",
    40: "NOTIFY_CONSUMER_IDS_CHANGED",
    100: "PUT_KV_CONFIG",
    101: "GET_KV_CONFIG",
    102: "DELETE_KV_CONFIG",
    103: "REGISTER_BROKER",
    104: "UNREGISTER_BROKER",
    105: "GET_ROUTEINFO_BY_TOPIC",
    106: "GET_BROKER_CLUSTER_INFO",
    202: "GET_TOPIC_STATS_INFO",
    205: "WIPE_WRITE_PERM_OF_BROKER",
    206: "GET_ALL_TOPIC_LIST_FROM_NAMESERVER",
    215: "DELETE_TOPIC_IN_BROKER",
    216: "DELETE_TOPIC_IN_NAMESRV",
    219: "GET_KVLIST_BY_NAMESPACE",
    224: "GET_TOPICS_BY_CLUSTER",
    300: "QUERY_TOPIC_CONSUME_BY_WHO",
    304: "GET_SYSTEM_TOPIC_LIST_FROM_NS",
    310: "SEND_MESSAGE_V2",
    318: "UPDATE_NAMESRV_CONFIG",
    319: "GET_NAMESRV_CONFIG",
    320: "SEND_BATCH_MESSAGE",
    322: "QUERY_DATA_VERSION",
    327: "ADD_WRITE_PERM_OF_BROKER",
    351: "GET_TOPIC_CONFIG",
    901: "GET_BROKER_MEMBER_GROUP",
    904: "BROKER_HEARTBEAT",
    905: "NOTIFY_MIN_BROKER_ID_CHANGE",
}

PROBE_OPAQUE: Final = 20_000_001
"""Request number (``opaque``) of hand-made requests; real programs number their requests from 0."""

KEPT_PER_KIND: Final = 1
"""Number of recorded exchanges (request and answer) of each kind in the files; see :func:`kind_of`."""

FRAME_SIZE_KEPT: Final = 12_000
"""Maximum size in bytes of an exchange that is recorded; the limit keeps the files small."""


@dataclass(slots=True)
class Frame:
    """One frame as it was on the wire, with its decoded header."""

    raw: bytes
    codec: str
    header: dict[str, Any]
    body: bytes

    @classmethod
    def parse(cls, raw: bytes) -> Frame:
        word = struct.unpack_from(">I", raw, 4)[0]
        length = word & 0xFFFFFF
        head, body = raw[8 : 8 + length], raw[8 + length :]
        if word >> 24 == 0:
            return cls(raw, "json", json.loads(head), body)
        return cls(raw, "rocketmq", decode_binary(head), body)

    def rebuilt(self, fields: Mapping[str, str]) -> bytes:
        """Return the bytes of the frame with its extFields replaced by ``fields``."""
        header = {**self.header, "extFields": dict(fields)}
        if self.codec == "json":
            head, kind = json.dumps(header, separators=(",", ":")).encode(), 0
        else:
            head, kind = encode_binary(header), 1
        size = 4 + len(head) + len(self.body)
        return struct.pack(">II", size, kind << 24 | len(head)) + head + self.body


def encode_binary(header: Mapping[str, Any]) -> bytes:
    """Encode a header in RocketMQ's binary form, which :func:`decode_binary` reads."""
    fields = b"".join(
        struct.pack(">h", len(key.encode()))
        + key.encode()
        + struct.pack(">i", len(value.encode()))
        + value.encode()
        for key, value in header.get("extFields", {}).items()
    )
    remark = (header.get("remark") or "").encode()
    return (
        struct.pack(
            ">hBhiii",
            header["code"],
            LANGUAGES.index(header["language"]),
            header["version"],
            header["opaque"],
            header["flag"],
            len(remark),
        )
        + remark
        + struct.pack(">i", len(fields))
        + fields
    )


@dataclass(slots=True)
class Exchange:
    """A request and its response; a oneway or unanswered request has no response."""

    sender: str
    receiver: str
    note: str
    request: Frame
    response: Frame | None = None

    def line(self, release: str) -> dict[str, Any]:
        code = self.request.header["code"]
        line: dict[str, Any] = {
            "release": release,
            "sender": self.sender,
            "receiver": self.receiver,
            "code": code,
            "name": NAMES.get(code, ""),
            "note": self.note,
            "codec": self.request.codec,
            "request": base64.b64encode(self.request.raw).decode(),
            "response": base64.b64encode(self.response.raw).decode() if self.response else None,
            "response_codec": self.response.codec if self.response else None,
        }
        # Add the decoded header of a binary frame, because people cannot read binary headers.
        if self.request.codec == "rocketmq":
            line["request_header"] = self.request.header
        if self.response and self.response.codec == "rocketmq":
            line["response_header"] = self.response.header
        return line


@dataclass(slots=True)
class Record:
    """All recorded exchanges, in the order of their requests.

    ``actor`` names the program that sends the present requests, and ``note`` names its activity.
    """

    exchanges: list[Exchange] = field(default_factory=list)
    actor: str = "client"
    note: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def doing(self, actor: str, note: str = "") -> None:
        with self.lock:
            self.actor, self.note = actor, note

    def mark(self) -> int:
        with self.lock:
            return len(self.exchanges)


BROKER_TO_NAMESRV: Final = frozenset((103, 104, 322, 901, 904))


@dataclass(slots=True)
class Link:
    """One proxied connection: all its exchanges, and unanswered requests by direction and ``opaque``."""

    pending: dict[tuple[bool, int], Exchange] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    of_broker: bool = False


class Proxy:
    """Proxy that passes frames between clients and one server, and records them.

    Args:
        readdress: Address that replaces a broker's real address in requests to the nameserver, by real
            address.
    """

    def __init__(
        self, record: Record, receiver: str, port: int, target: str, readdress: Mapping[str, str]
    ) -> None:
        self._record = record
        self._receiver = receiver
        self._target = target
        self._readdress = readdress
        self._listener = socket.create_server(("127.0.0.1", port))
        self.addr = f"127.0.0.1:{port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # without this call accept() would wait forever
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        host, _, port = self._target.rpartition(":")
        try:
            server = socket.create_connection((host, int(port)), 5)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        link = Link()
        up = threading.Thread(target=self._pump, args=(client, server, True, link), daemon=True)
        up.start()
        self._pump(server, client, False, link)

    def _pump(self, source: socket.socket, sink: socket.socket, upward: bool, link: Link) -> None:
        buffer = bytearray()
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                buffer += chunk
                while len(buffer) >= 4:
                    size = 4 + struct.unpack_from(">I", buffer)[0]
                    if len(buffer) < size:
                        break
                    raw = bytes(buffer[:size])
                    del buffer[:size]
                    sink.sendall(self._note(Frame.parse(raw), upward, link))
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _note(self, frame: Frame, upward: bool, link: Link) -> bytes:
        header = frame.header
        with self._record.lock:
            if header["flag"] & 1:
                exchange = link.pending.pop((not upward, header["opaque"]), None)
                if exchange is not None:
                    exchange.response = frame
                return frame.raw
            exchange = Exchange(self._sender(header, upward), self._receiver, self._record.note, frame)
            if not upward:
                exchange.receiver = "client"
            self._record.exchanges.append(exchange)
            link.exchanges.append(exchange)
            if upward and exchange.sender == "broker":
                # A 5.3.3 broker may send request 106 before it registers. So remember that the connection is
                # a broker's.
                link.of_broker = True
            if link.of_broker:
                for earlier in link.exchanges:
                    earlier.sender = "broker"
            if not header["flag"] & 2:
                link.pending[upward, header["opaque"]] = exchange
        fields = header.get("extFields") or {}
        shown = self._readdress.get(fields.get("brokerAddr", ""))
        if upward and shown:
            return frame.rebuilt({**fields, "brokerAddr": shown})
        return frame.raw

    def _sender(self, header: Mapping[str, Any], upward: bool) -> str:
        if not upward:
            return self._receiver
        if header["opaque"] == PROBE_OPAQUE:
            return "probe"
        if self._receiver == "namesrv" and header["code"] in BROKER_TO_NAMESRV:
            return "broker"
        return self._record.actor if self._record.actor != "probe" else "client"


class Stage:
    """The nameserver, brokers and proxies of one RocketMQ release, all with the same header codec."""

    def __init__(self, release: str, codec: str, folder: Path) -> None:
        self.release = release
        self.record = Record()
        self.properties = {"rocketmq.serialize.type": "ROCKETMQ"} if codec == "rocketmq" else {}
        self.apache = Apache.open(release, folder)
        self._readdress: dict[str, str] = {}
        self._proxies: list[Proxy] = []
        self.folder = folder
        self.namesrv_port, self._broker_port = PORTS[release]

    def start(self) -> None:
        """Start the nameserver and its proxy; the caller must call :meth:`close` even if this fails."""
        self.real_namesrv = self.apache.namesrv(
            properties=self.properties,
            settings={"kvConfigPath": str(self.folder / "kv.json"), "scanNotActiveBrokerInterval": "5000"},
        )
        self.namesrv = self._proxy("namesrv", self.namesrv_port, self.real_namesrv.addr)

    def _proxy(self, receiver: str, port: int, target: str) -> str:
        proxy = Proxy(self.record, receiver, port, target, self._readdress)
        self._proxies.append(proxy)
        return proxy.addr

    def broker(
        self,
        name: str,
        note: str,
        settings: Mapping[str, str] | None = None,
        *,
        shown: bool = False,
        readable: bool = True,
    ) -> ApacheBroker:
        """Start a broker that registers through the proxy, and wait until it is registered.

        Args:
            shown: True to register the address of a second proxy, which records requests to the broker.
            readable: False if the nameserver is known to refuse the broker's registrations.
        """
        self.record.doing("client", note)
        port = broker_port()
        addr = f"127.0.0.1:{port}"
        if shown:
            self._readdress[addr] = self._proxy("broker", self._broker_port, addr)
        broker = self.apache.broker(
            [self.namesrv], name=name, port=port, settings=settings, properties=self.properties, wait=False
        )
        broker.wait_for("boot success")
        public = self._readdress.get(addr, addr)
        if readable:
            wait_until(lambda: listed(self.real_namesrv.addr, public), f"{name} listed", 60)
        else:
            self.wait_for_code(103, note)

        return broker

    def wait_for_code(self, code: int, note: str | None = None) -> None:
        """Wait until the proxies have passed a request with this code and its answer.

        A oneway request has no answer.
        """

        def seen() -> bool:
            with self.record.lock:
                return any(
                    exchange.request.header["code"] == code
                    and (exchange.response is not None or exchange.request.header["flag"] & 2)
                    and note in (None, exchange.note)
                    for exchange in self.record.exchanges
                )

        wait_until(seen, f"request {code}", 40)

    def close(self) -> None:
        self.apache.close()
        for proxy in self._proxies:
            proxy.close()

    def probe(
        self,
        target: str,
        code: int,
        note: str,
        fields: Mapping[str, str] | None = None,
        *,
        body: bytes = b"",
        version: int = 479,
    ) -> None:
        """Send a hand-made request through the recording proxy and wait for the answer."""
        self.record.doing("probe", note)
        header: dict[str, Any] = {
            "code": code,
            "flag": 0,
            "language": "JAVA",
            "opaque": PROBE_OPAQUE,
            "version": version,
        }
        if fields is not None:
            header["extFields"] = dict(fields)
        host, _, port = target.rpartition(":")
        head = (
            encode_binary(header) if self.properties else json.dumps(header, separators=(",", ":")).encode()
        )
        word = (1 << 24 if self.properties else 0) | len(head)
        with socket.create_connection((host, int(port)), 5) as connection:
            connection.sendall(struct.pack(">II", 4 + len(head) + len(body), word) + head + body)
            connection.settimeout(2)
            with contextlib.suppress(TimeoutError):  # 4.9's nameserver does not answer unknown codes
                connection.recv(65536)
                time.sleep(0.1)


def probe_namesrv(stage: Stage) -> None:
    """Send hand-made requests to the nameserver, to record answers that RocketMQ's own tools rarely get."""
    namesrv = stage.namesrv
    stage.probe(namesrv, 105, "unquoted dialect: version below 401", {"topic": "TopicTest"}, version=373)
    stage.probe(namesrv, 105, "quoted dialect: acceptStandardJsonOnly", {"topic": "TopicTest", "acceptStandardJsonOnly": "true"}, version=373)  # fmt: skip  # noqa: E501
    stage.probe(namesrv, 105, "quoted dialect: version 401 and up", {"topic": "TopicTest"}, version=401)
    stage.probe(namesrv, 105, "unknown topic", {"topic": "NoSuchTopic"})
    stage.probe(namesrv, 105, "without topic", {})
    stage.probe(namesrv, 106, "cluster info")
    stage.probe(namesrv, 206, "all topics")
    stage.probe(namesrv, 224, "topics of a cluster", {"cluster": "DefaultCluster"})
    stage.probe(namesrv, 224, "unknown cluster", {"cluster": "NoSuchCluster"})
    stage.probe(namesrv, 304, "system topics")
    stage.probe(namesrv, 311, "unit topics")
    stage.probe(namesrv, 100, "put", {"namespace": "GOLDEN", "key": "k1", "value": "v1"})
    stage.probe(namesrv, 100, "put non-ASCII", {"namespace": "GOLDEN", "key": "k2", "value": "grün"})
    stage.probe(namesrv, 100, "put without namespace", {"key": "k", "value": "v"})
    stage.probe(namesrv, 101, "get", {"namespace": "GOLDEN", "key": "k1"})
    stage.probe(namesrv, 101, "get unknown key", {"namespace": "GOLDEN", "key": "none"})
    stage.probe(namesrv, 219, "list", {"namespace": "GOLDEN"})
    stage.probe(namesrv, 219, "list unknown namespace", {"namespace": "NONE"})
    stage.probe(namesrv, 102, "delete", {"namespace": "GOLDEN", "key": "k2"})
    stage.probe(namesrv, 102, "delete again", {"namespace": "GOLDEN", "key": "k2"})
    stage.probe(namesrv, 205, "wipe unknown broker", {"brokerName": "no-such-broker"})
    stage.probe(namesrv, 327, "add unknown broker", {"brokerName": "no-such-broker"})
    stage.probe(namesrv, 216, "delete unknown topic", {"topic": "NoSuchTopic"})
    stage.probe(namesrv, 319, "get configuration")
    stage.probe(namesrv, 318, "without body")
    stage.probe(namesrv, 318, "black-listed key", body=b"kvConfigPath=/nowhere\n")
    stage.probe(namesrv, 318, "accepted key", body=b"orderMessageEnable=true\n")
    identity = {
        "brokerName": "nobody",
        "brokerAddr": "127.0.0.9:1",
        "clusterName": "NoCluster",
        "brokerId": "0",
    }
    version = b'{"counter":1,"timestamp":1700000000000}'
    stage.probe(namesrv, 322, "unknown broker", identity, body=version)
    stage.probe(namesrv, 104, "unknown broker", identity)
    known = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}
    stage.probe(namesrv, 901, "member group", known)
    unknown = {"clusterName": "NoCluster", "brokerName": "nobody"}
    stage.probe(namesrv, 901, "member group of an unknown broker", unknown)
    stage.probe(namesrv, 29999, "unknown code", {})
    wrong = identity | {"haServerAddr": "127.0.0.9:2", "bodyCrc32": "1"}
    stage.probe(namesrv, 103, "checksum wrong", wrong, body=b"{}")
    stage.probe(namesrv, 103, "body is not JSON", wrong | {"bodyCrc32": "0"}, body=b"{{")


def probe_broker(stage: Stage, broker: str) -> None:
    stage.probe(broker, 29999, "unknown code", {})
    stage.probe(broker, 38, "unknown group", {"consumerGroup": "NoSuchGroup"})
    queue = {"topic": "TopicTest", "queueId": "0"}
    stage.probe(broker, 14, "unknown group", queue | {"consumerGroup": "NoSuchGroup"})
    stage.probe(broker, 30, "maximum offset", queue)
    stage.probe(broker, 31, "minimum offset", queue)
    stage.probe(broker, 29, "search by time", queue | {"timestamp": "0"})
    stage.probe(broker, 202, "statistics of an unknown topic", {"topic": "NoSuchTopic"})
    pull = {
        "consumerGroup": "NoSuchGroup",
        "topic": "NoSuchTopic",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "1",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subVersion": "0",
        "subscription": "*",
    }
    stage.probe(broker, 11, "unknown topic", pull)
    stage.probe(broker, 11, "queue out of range", pull | {"topic": "TopicTest", "queueId": "99"})
    stage.probe(broker, 11, "offset too large", pull | {"topic": "TopicTest", "queueOffset": "999999"})
    stage.probe(broker, 11, "found", pull | {"topic": "TopicTest"})
    topic = {
        "topic": "bad name",
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    stage.probe(broker, 17, "illegal name", topic)
    stage.probe(broker, 17, "system topic", topic | {"topic": "TBW102"})
    send = {
        "a": "pg",
        "b": "NoSuchTopic",
        "c": "NoSuchTemplate",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": "",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    stage.probe(broker, 310, "unknown topic without template", send, body=b"x")
    stage.probe(broker, 310, "queue out of range", send | {"b": "TopicTest", "e": "99"}, body=b"x")
    stage.probe(broker, 310, "forbidden topic", send | {"b": "SCHEDULE_TOPIC_XXXX"}, body=b"x")


SUBCOMMANDS: Final = (
    "updateTopic",
    "deleteTopic",
    "topicRoute",
    "topicList",
    "clusterList",
    "topicStatus",
    "updateKvConfig",
    "deleteKvConfig",
    "wipeWritePerm",
    "addWritePerm",
    "getNamesrvConfig",
    "updateNamesrvConfig",
    "sendMessage",
    "consumeMessage",
)

NOTHING_REQUIRED: Final = frozenset(("topicList", "clusterList", "getNamesrvConfig"))

WITHOUT_NAMESRV: Final = """
no-arguments|
help|help
help-of-updateTopic|help updateTopic
unknown-subcommand|noSuchCommand
clusterList-no-namesrv|clusterList -n 127.0.0.1:1
"""

WITH_NAMESRV: Final = """
updateTopic-unknown-flag|updateTopic --noSuchFlag -t X
updateTopic-value-missing|updateTopic -t
updateTopic-no-target|updateTopic -t TopicX
updateTopic-b|updateTopic -b BROKER -t TopicB
updateTopic-b-all|updateTopic -b BROKER -t TopicB2 -r 4 -w 2 -p 4 -o false -u false -s false
updateTopic-b-order|updateTopic -b BROKER -t TopicO -o true
updateTopic-c|updateTopic -c DefaultCluster -t TopicC -r 2 -w 2
updateTopic-c-order|updateTopic -c DefaultCluster -t TopicO2 -o true
updateTopic-unknown-cluster|updateTopic -c NoCluster -t TopicX
updateTopic-unknown-broker|updateTopic -b 127.0.0.1:1 -t TopicX
updateTopic-system|updateTopic -b BROKER -t TBW102
updateTopic-illegal-name|updateTopic -b BROKER -t bad!name
updateTopic-number-wrong|updateTopic -b BROKER -t TopicX -r many
topicRoute|topicRoute -t TopicC
topicRoute-unknown|topicRoute -t NoSuchTopic
topicRoute-l|topicRoute -t TopicC -l
topicList|topicList
topicList-c|topicList -c
clusterList|clusterList
clusterList-m|clusterList -m
topicStatus-empty|topicStatus -t TopicC
sendMessage|sendMessage -t TopicC -p 'hello golden'
sendMessage-keys-tags|sendMessage -t TopicC -p two -k key1 -c TagA
sendMessage-queue|sendMessage -t TopicC -p three -b broker-a -i 1
sendMessage-queue-without-broker|sendMessage -t TopicC -p four -i 1
sendMessage-unknown-broker|sendMessage -t TopicC -p five -b nobody -i 1
topicStatus|topicStatus -t TopicC
topicStatus-unknown|topicStatus -t NoSuchTopic
consumeMessage|consumeMessage -t TopicC
consumeMessage-queue|consumeMessage -t TopicC -b broker-a -i 1 -o 0 -c 1
consumeMessage-unknown-broker|consumeMessage -t TopicC -b nobody -i 0
consumeMessage-unknown|consumeMessage -t NoSuchTopic
updateKvConfig|updateKvConfig -s GOLDEN_NS -k color -v green
deleteKvConfig|deleteKvConfig -s GOLDEN_NS -k color
deleteKvConfig-unknown|deleteKvConfig -s NO_NS -k none
wipeWritePerm|wipeWritePerm -b broker-a
topicRoute-wiped|topicRoute -t TopicC
addWritePerm|addWritePerm -b broker-a
wipeWritePerm-unknown|wipeWritePerm -b nobody
addWritePerm-unknown|addWritePerm -b nobody
getNamesrvConfig|getNamesrvConfig
updateNamesrvConfig|updateNamesrvConfig -k orderMessageEnable -v true
topicRoute-order|topicRoute -t TopicO2
updateNamesrvConfig-black-list|updateNamesrvConfig -k kvConfigPath -v /nowhere
updateNamesrvConfig-unknown-key|updateNamesrvConfig -k noSuchKey -v 1
deleteTopic|deleteTopic -c DefaultCluster -t TopicB
deleteTopic-unknown|deleteTopic -c DefaultCluster -t NoSuchTopic
deleteTopic-unknown-cluster|deleteTopic -c NoCluster -t TopicC
deleteTopic-system|deleteTopic -c DefaultCluster -t TBW102
sendMessage-unknown|sendMessage -t AutoCreated -p first
"""

WITH_NAMESRV_5: Final = """
updateTopic-attributes|updateTopic -b BROKER -t TopicD -a +message.type=DELAY
clusterList-c|clusterList -c DefaultCluster
clusterList-c-unknown|clusterList -c NoCluster
topicStatus-c|topicStatus -t TopicC -c DefaultCluster
"""


def admin_commands(release: str, broker: str) -> list[tuple[str, list[str], bool]]:
    """Return (name, arguments, True if ``-n`` is added) of each command, in the order of the runs.

    A command may use topics and settings that earlier commands created.
    """

    def table(text: str, with_namesrv: bool) -> list[tuple[str, list[str], bool]]:
        rows = (line.partition("|") for line in text.strip().splitlines())
        return [(name, shlex.split(rest.replace("BROKER", broker)), with_namesrv) for name, _, rest in rows]

    commands = table(WITHOUT_NAMESRV, False)
    for name in SUBCOMMANDS:
        commands.append((f"{name}-h", [name, "-h"], False))
        if name not in NOTHING_REQUIRED:
            commands.append((f"{name}-required-missing", [name], True))
    commands += table(WITH_NAMESRV, True)
    if release.startswith("5"):
        commands += table(WITH_NAMESRV_5, True)
    return commands


def run_admin(stage: Stage, broker: str, out: Path) -> None:
    """Run each command; write its output and a list of its requests to the folder ``out``."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    index = []

    def neutral(text: str) -> str:
        return text.replace(str(stage.folder), "/HOME")

    for name, arguments, with_namesrv in admin_commands(stage.release, broker):
        mark = stage.record.mark()
        stage.record.doing("mqadmin", f"mqadmin {name}")
        result = stage.apache.mqadmin(
            *arguments, namesrvs=[stage.namesrv] if with_namesrv else (), properties=stage.properties
        )
        with stage.record.lock:
            asked = [
                f"{exchange.receiver} {exchange.request.header['code']}"
                for exchange in stage.record.exchanges[mark:]
                if exchange.sender == "mqadmin"
            ]
        (out / f"{name}.txt").write_text(neutral(result.stdout))
        index.append(
            {
                "name": name,
                "args": [neutral(argument) for argument in result.args],
                "exit": result.returncode,
                "stderr": neutral(result.stderr)[:1500],
                "asked": asked,
            }
        )
        print(f"{stage.release} {name} exit={result.returncode} stdout={len(result.stdout)}", flush=True)
        (out / "index.json").write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n")


def kind_of(exchange: Exchange) -> tuple[object, ...]:
    """Return the kind of an exchange: sender, receiver, codes of request and answer, and further details.

    :func:`write_frames` keeps the first exchanges of each kind.
    """
    code = exchange.request.header["code"]
    answer = exchange.response.header["code"] if exchange.response else None
    # The note names the activity that caused the request. The note is a part of the kind only if the activity
    # affects the bytes, as in hand-made requests, registrations and sent messages.
    told = exchange.sender == "probe" or exchange.note.startswith("registration") or code in (310, 320)
    note = exchange.note if told and not exchange.note.startswith("mqadmin") else ""
    incremental = code == 103 and exchange.request.body.count(b'"topicName"') == 1
    return exchange.sender, exchange.receiver, code, answer, note, incremental


def write_frames(path: Path, release: str, exchanges: Iterable[Exchange]) -> None:
    """Write the first :data:`KEPT_PER_KIND` exchanges of each kind, in the order of their requests."""
    kept: dict[tuple[object, ...], int] = {}
    lines = []
    for exchange in exchanges:
        size = len(exchange.request.raw) + (len(exchange.response.raw) if exchange.response else 0)
        if size > FRAME_SIZE_KEPT:
            continue
        kind = kind_of(exchange)
        kept[kind] = kept.get(kind, 0) + 1
        if kept[kind] <= KEPT_PER_KIND:
            lines.append(json.dumps(exchange.line(release), ensure_ascii=False, separators=(",", ":")))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines))
    print(f"{path.name}: {len(lines)} exchanges, {path.stat().st_size} bytes", flush=True)


def clients(stage: Stage) -> None:
    """Run Java producers and consumers: an auto-created topic, a batch, a compressed body, a redelivery."""
    namesrvs, properties = [stage.namesrv], stage.properties
    broker = f"127.0.0.1:{PORTS[stage.release][1]}"
    stage.record.doing("producer", "first send to an unknown topic")
    print(stage.apache.produce(namesrvs, "TopicTest", 6, properties=properties), flush=True)
    wait_until(lambda: has_route(stage.real_namesrv.addr, "TopicTest", broker), "route", 40)
    stage.record.doing("producer", "batch")
    print(stage.apache.produce(namesrvs, "TopicTest", 6, batch=3, properties=properties), flush=True)
    stage.record.doing("producer", "compressed body")
    print(stage.apache.produce(namesrvs, "TopicTest", 1, body_bytes=5000, properties=properties), flush=True)
    # Consume for 30 s: the broker redelivers a refused message after 10 s, and the consumer stores its first
    # offsets after 10 s.
    stage.record.doing("consumer", "push consumer")
    facts = stage.apache.consume(
        namesrvs, "TopicTest", "golden_group", 6, seconds=30, retry_every=5, properties=properties
    )
    print(facts, flush=True)
    stage.record.doing("client", "")


def capture(release: str, codec: str, folder: Path) -> None:
    stage = Stage(release, codec, folder)
    broker = f"127.0.0.1:{PORTS[release][1]}"
    try:
        stage.start()
        main = stage.broker("broker-a", "registration", shown=True)
        clients(stage)
        compressed = stage.broker(
            "broker-z",
            "registration, compressedRegister=true",
            {"compressedRegister": "true"},
            readable=release.startswith("4"),  # 5.x compresses the body, but the header says it is plain
        )
        compressed.stop()
        asking = stage.broker("broker-q", "registration, forceRegister=false", {"forceRegister": "false"})
        stage.wait_for_code(322)
        asking.stop()
        if release.startswith("5"):
            acting = stage.broker(
                "broker-s",
                "registration, enableSlaveActingMaster=true compatibleWithOldNameSrv=false",
                {"enableSlaveActingMaster": "true", "compatibleWithOldNameSrv": "false"},
            )
            stage.wait_for_code(904)
            time.sleep(1.5)
            acting.stop()
        probe_broker(stage, broker)
        if codec == "json":
            run_admin(stage, broker, HERE / "mqadmin" / release)
        else:
            stage.record.doing("mqadmin", "mqadmin")
            for arguments in (
                ["clusterList"],
                ["updateTopic", "-c", "DefaultCluster", "-t", "TopicC"],
                ["topicRoute", "-t", "TopicC"],
                ["topicStatus", "-t", "TopicTest"],
                ["updateKvConfig", "-s", "GOLDEN_NS", "-k", "color", "-v", "green"],
                ["wipeWritePerm", "-b", "broker-a"],
                ["addWritePerm", "-b", "broker-a"],
                ["deleteTopic", "-c", "DefaultCluster", "-t", "TopicC"],
            ):
                stage.apache.mqadmin(*arguments, namesrvs=[stage.namesrv], properties=stage.properties)
        probe_namesrv(stage)
        stage.record.doing("client", "shutdown")
        main.stop()
        time.sleep(0.5)
    finally:
        stage.close()
        with stage.record.lock:
            exchanges = list(stage.record.exchanges)
        write_frames(HERE / "frames" / f"{release}-{codec}.jsonl", release, exchanges)


def main() -> None:
    parser = argparse.ArgumentParser(description="Record golden bytes and texts from Apache RocketMQ.")
    parser.add_argument("release", choices=sorted(PORTS))
    parser.add_argument("--codec", choices=("json", "rocketmq"), action="append", help="default: both")
    arguments = parser.parse_args()
    for codec in arguments.codec or ("json", "rocketmq"):
        with tempfile.TemporaryDirectory(prefix="golden") as folder:
            capture(arguments.release, codec, Path(folder))


if __name__ == "__main__":
    main()
