"""Inputs of a fuzz run: real bodies, known attacks, and mutations of both that are expensive to read."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from routekeeper.remoting.bodies import ConsumerData, HeartbeatData, LockBatch, MessageQueue, SubscriptionData
from routekeeper.remoting.codes import HeaderCodec
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import BatchItem, StoredMessage, encode_batch, encode_message
from routekeeper.remoting.registration import RegisterBody, encode_register_body
from routekeeper.remoting.route import TopicConfig
from tests.fuzz import arguments, peers

SIZE_MAX: Final = 64 * 1024
CORPUS: Final = Path(__file__).parent / "corpus"

_REGISTRATION: Final = RegisterBody(
    topic_configs=tuple(TopicConfig(topic_name=f"topic-{i}") for i in range(3)), filter_servers=("f:1",)
)
_COMMAND: Final = RemotingCommand(code=105, opaque=7, ext_fields={"topic": "T", "n": "1"})
_HEARTBEAT: Final = HeartbeatData(
    client_id="c",
    consumers=(
        ConsumerData(group_name="g", subscriptions=(SubscriptionData(topic="T", tags=("a",), codes=(97,)),)),
    ),
    producer_groups=("p",),
)

SEEDS: Final[tuple[bytes, ...]] = (
    b"",
    _COMMAND.encode(),
    _COMMAND.encode()[8:],
    RemotingCommand(code=103, ext_fields={"brokerId": "0"}, codec=HeaderCodec.ROCKETMQ).encode()[8:],
    encode_register_body(_REGISTRATION, compressed=False, version=479),
    encode_register_body(_REGISTRATION, compressed=True, version=479),
    _HEARTBEAT.encode(),
    LockBatch(
        consumer_group="g", client_id="c", queues=(MessageQueue(topic="T", broker_name="b", queue_id=1),)
    ).encode(),
    b'{"counter":3,"stateVersion":0,"timestamp":1700000000000}',
    b"globalWhiteRemoteAddresses: [10.0.0.*]\naccounts:\n- accessKey: writers\n  secretKey: '12345678'\n"
    b"  topicPerms:\n  - T=PUB|SUB\n",
    b'{"brokerDatas":[{"brokerAddrs":{0:"a:1"},"brokerName":"b","cluster":"c"}],"queueDatas":[{"brokerName":"b"}]}',
    b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":5}}}',
    b'{"offsetTable":{"t@g":{0:5,1:6}}}',
    b'{"topicList":["a","b"],"table":{"k":"v"},"consumerIdList":["c"]}',
    b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"6"}},"topicQueueMappingInfoMap":'
    b'{"T":{"bname":"b","currIdMap":{0:0},"epoch":7,"topic":"T"}}}}',
    b"orderMessageEnable=true\nscanNotActiveBrokerInterval=10000\n",
    encode_message(StoredMessage(topic="T", queue_id=0, body=b"x", properties="a\x01b\x02")),
    encode_batch([BatchItem(body=b"x", properties="a\x01b\x02")]),
    zlib.compress(b"body" * 100),
)
#: Initial inputs for each family of targets. :func:`tests.fuzz.targets.family` returns a target's family.
SEEDS_OF: Final[dict[str, tuple[bytes, ...]]] = {
    "bytes": SEEDS,
    "arguments": tuple(map(arguments.with_all, SEEDS)),
    "http": peers.HTTP_SEEDS,
    "raft-stranger": peers.STRANGER_SEEDS,
    "raft-member": peers.MEMBER_SEEDS,
    "peer": peers.DECODER_SEEDS,
}
_CHANGE_OF: Final[dict[str, Callable[[random.Random, bytes], bytes]]] = {
    "arguments": arguments.change,
    "http": peers.change_http,
    "raft-member": peers.change_members,
    "peer": lambda rng, data: data[:1] + peers.change_value(rng, data[1:]),
}
_TOKENS: Final = (
    *(bytes((char,)) for char in b"{}[]\"\\,:' \0\xff"),
    *(b'\\"', b"0:", b"{0:1}", b"{{1:1}:1}", b"null", b"-1", b"1e308", b"9" * 20, b"\r\n", b"\x1b[31m"),
    *(b"\x7f\xff\xff\xff", b"\x80\0\0\0"),
)


def corpus() -> list[tuple[str, bytes]]:
    """Return the file name and the bytes of each input that once caused a fault.

    Each file has the parts of one input in hexadecimal digits; ``*n`` repeats a part.
    """
    return [(path.stem, expand(path.read_text())) for path in sorted(CORPUS.glob("*.txt"))]


def expand(text: str) -> bytes:
    data = b""
    for part in text.split():
        digits, _, count = part.partition("*")
        data += bytes.fromhex(digits) * int(count or 1)
    return data


def pool_of(family: str) -> list[bytes]:
    """Return the initial inputs of a run: messages of real peers, and inputs that once caused a fault."""
    known = [data for _, data in corpus()]
    if family == "arguments":
        known = [arguments.with_all(data) for data in known]
    return [*SEEDS_OF[family], *known]


def mutate(rng: random.Random, pool: list[bytes], family: str = "bytes") -> bytes:
    """Return a new input, which is a mutation of an input of ``pool``.

    Most mutations keep the form of the family's inputs, because other inputs are refused early.
    """
    data = rng.choice(pool)
    own = _CHANGE_OF.get(family)
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        if own is not None and rng.randrange(4):
            data = own(rng, data)[:SIZE_MAX]
        else:
            data = _change(rng, data, pool)[:SIZE_MAX]
    return data


def _change(rng: random.Random, data: bytes, pool: list[bytes]) -> bytes:
    at, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    part = data[at:end] or rng.choice(_TOKENS)
    times = min(rng.choice((2, 10, 100, 1000, 30_000)), SIZE_MAX // max(len(part), 1))
    match rng.randrange(9):
        case 0:
            return data[:at] + part * times + data[end:]
        case 1:
            token = rng.choice(_TOKENS)
            return data[:at] + token * rng.choice((1, 1, times)) + data[at:]
        case 2:
            return data[:at] + rng.choice(pool) + data[end:]
        case 3:
            return data[:at] + data[end:]
        case 4:
            opened, closed = rng.choice(((b"{1:", b"}"), (b"[", b"]"), (b'{"a":', b"}"), (b"{", b":1}")))
            return data[:at] + opened * times + part + closed * times + data[end:]
        case 5:
            return (
                data[:at] + str(rng.choice((0, -1, 2**31, 2**63, 10**times))).encode()[:SIZE_MAX] + data[end:]
                if times < 4000
                else data
            )
        case 6:
            return b"{" + b",".join(b'"%x":%b' % (i, part[:40]) for i in range(min(times, 5000))) + b"}"
        case 7:
            try:
                return zlib.compress(_change(rng, zlib.decompress(data), pool) * rng.choice((1, 1, 50)), 9)
            except zlib.error:
                return zlib.compress(data, 9)
        case _:
            flipped = bytearray(data)
            if flipped:
                flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
            return bytes(flipped)
