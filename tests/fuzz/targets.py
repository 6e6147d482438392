"""Functions and servers that the fuzzer calls with generated input.

There are three kinds of targets:

- each decoder of bytes from another process
- each request code of the nameserver and of the broker
- the servers behind a nameserver's ports (RocketMQ's protocol, HTTP, raft)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from routekeeper.nameserver.commands import CommandFormatError
from routekeeper.nameserver.commands import decode_batch as decode_commands
from routekeeper.nameserver.commands import decode_command as decode_one
from routekeeper.nameserver.handlers import SERVED
from routekeeper.nameserver.raft.consensus import messages
from routekeeper.nameserver.raft.consensus.members import decode_configuration
from routekeeper.nameserver.raft.types import StopMember
from routekeeper.nameserver.replicated import peer_messages
from routekeeper.nameserver.routes.image import ImageError, decode_image
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, Request
from routekeeper.remoting import bodies
from routekeeper.remoting.acl.access import denied_by_rule
from routekeeper.remoting.acl.accounts import AclFileError, merge_files, parse_acl_file
from routekeeper.remoting.acl.rules import broker_rule
from routekeeper.remoting.codes import HeaderCodec, RequestCode
from routekeeper.remoting.command import decode_command, read_command
from routekeeper.remoting.errors import FieldError, RemoteProtocolError
from routekeeper.remoting.frame import Frame, FrameDecoder, encode_frame
from routekeeper.remoting.lenient import REQUEST, loads
from routekeeper.remoting.message import decode_batch, decode_messages, decode_properties, decompress_body
from routekeeper.remoting.route import decode_cluster_info, decode_route
from tests.fuzz import arguments, broker
from tests.fuzz.stack import STACK
from tests.registrations import decided

#: Exceptions that a decoder may raise. Each of them describes a fault of the input in one line.
REFUSALS: Final = (
    RemoteProtocolError,
    FieldError,
    messages.MessageError,
    peer_messages.PeerMessageError,
    CommandFormatError,
    ImageError,
    StopMember,
    AclFileError,
)
MESSAGE_MAX: Final = 4096
_UPTIME_S: Final = 1000.0
_TABLE: Final = RouteTable()
_SETTINGS: Final = NamesrvSettings()
_ARGUMENTS: Final = {
    "brokerName": "b",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "c",
    "brokerId": "0",
    "topic": "T",
    "namespace": "n",
    "key": "k",
}


def _served(code: int, compressed: bool = False) -> Callable[[bytes], object]:
    def ask(body: bytes) -> object:
        ext = {**_ARGUMENTS, "compressed": "true"} if compressed else _ARGUMENTS
        request = Request(code=code, ext_fields=ext, body=body)
        decision = decided(_TABLE.view, request, _SETTINGS, uptime_s=_UPTIME_S)
        if isinstance(decision, Answer) and len(decision.remark or "") > MESSAGE_MAX:
            raise AssertionError(f"remark of {len(decision.remark or '')} characters")
        return decision

    return ask


def _request(frame: bytes) -> object:
    """Read a frame as a server does, and return the answer to its request."""
    request = read_command(frame, 0, len(frame) - 4)
    return request.code in SERVED and decided(_TABLE.view, request, _SETTINGS, uptime_s=_UPTIME_S)


def _header(codec: HeaderCodec) -> Callable[[bytes], object]:
    return lambda header: _request(encode_frame(header, codec=codec))


def _stream(data: bytes) -> object:
    return [decode_command(frame) for frame in FrameDecoder().feed(data)]


_ACCOUNTS: Final = merge_files(
    {"f": parse_acl_file(b"accounts:\n- accessKey: writers\n  secretKey: secret-of-writers\n", "f")}
)


def _access(header: bytes) -> object:
    """Return a broker's decision whether a client may send the request.

    Also return the topics and groups for which the request needs a permission.
    """
    request = decode_command(Frame(HeaderCodec.JSON, header, b""))
    rule = broker_rule(request.code)
    needs = None if rule.needs is None else list(rule.needs(request))
    return denied_by_rule(_ACCOUNTS, request, "192.0.2.1", rule), needs


def _heartbeat_needs(body: bytes) -> object:
    needs = broker_rule(RequestCode.HEART_BEAT).needs
    assert needs is not None
    return list(needs(Request(code=RequestCode.HEART_BEAT, ext_fields={}, body=body)))


_BODIES: Final = (
    bodies.TopicList,
    bodies.KVTable,
    bodies.GroupList,
    bodies.ConsumerIdList,
    bodies.HeartbeatData,
    bodies.SubscriptionGroupConfig,
    bodies.SubscriptionGroupTable,
    bodies.ProducerConnection,
    bodies.ConsumerConnection,
    bodies.LockBatch,
    bodies.LockBatchResponse,
    bodies.ConsumerOffsetTable,
    bodies.DelayOffsetTable,
    bodies.QueueOffsets,
    bodies.TopicStats,
    bodies.ConsumeStats,
)

TARGETS: Final[dict[str, Callable[[bytes], object]]] = {
    "header-json": _header(HeaderCodec.JSON),
    "header-binary": _header(HeaderCodec.ROCKETMQ),
    "stream": _stream,
    **{f"served-{code}": _served(code) for code in sorted(SERVED)},
    "served-103-compressed": _served(103, compressed=True),
    **{f"body-{kind.__name__}": kind.decode for kind in _BODIES},
    "body-loads": lambda data: loads(data, REQUEST),
    "body-route": decode_route,
    "body-cluster": decode_cluster_info,
    "messages": lambda data: list(decode_messages(data)),
    "batch": decode_batch,
    "properties": lambda data: decode_properties(data.decode("utf-8", "replace")),
    "message-zlib": lambda data: decompress_body(data, 1),
    **{f"asked-{code}": arguments.asked(code, _TABLE) for code in arguments.CODES},
    **{f"broker-{code}": broker.served(code) for code in broker.CODES},
    "wire": STACK.wire,
    "wire-secured": STACK.secured,
    "wire-handshake": STACK.handshake,
    "http": STACK.http,
    "raft-stranger": STACK.stranger,
    "raft-member": STACK.member,
    "access-file": lambda data: parse_acl_file(data, "f"),
    "access-header": _access,
    "access-heartbeat": _heartbeat_needs,
    "peer-message": messages.decode,
    "peer-exchange": peer_messages.decode,
    "peer-commands": decode_commands,
    "peer-command": decode_one,
    "peer-configuration": decode_configuration,
    "peer-image": decode_image,
}

#: Functions that prepare a target before the cost of an input is measured. They start its servers, or replace
#: servers that earlier inputs have stopped.
PREPARE: Final[dict[str, Callable[[], None]]] = {
    "broker": broker.prepare,
    **dict.fromkeys(("wire", "http", "raft"), STACK.prepare),
}


def family(name: str) -> str:
    """Return the name of a target's family, which is a set of targets that get the same inputs."""
    kind = name.partition("-")[0]
    return {"asked": "arguments", "broker": "arguments", "raft": name}.get(
        kind, kind if kind in ("http", "peer") else "bytes"
    )
