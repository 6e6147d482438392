"""Settings of a client, checked once.

Names and defaults are RocketMQ's if it has such a setting. Times are in seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

from routekeeper.remoting.addresses import address_fault
from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.bounds import is_address
from routekeeper.remoting.codes import DEFAULT_TOPIC, RETRY_PREFIX, HeaderCodec
from routekeeper.remoting.logs import shortened
from routekeeper.remoting.names import (
    CHARACTERS,
    GROUP_TOPIC_LENGTH_MAX,
    TOPIC_LENGTH_MAX,
    NameFault,
    fault_of,
)

from .errors import InvalidArgument

_NAMESPACE: Final = re.compile(r"[a-zA-Z0-9_-]{1,100}")
MESSAGE_SIZE_MAX: Final = 4 * 1024 * 1024
#: Longest name of a group, with its namespace. Its retry topic then has the longest name of a topic: brokers
#: of 4.9 refuse messages that a longer group sends back. RocketMQ's client refuses those, too, since July
#: 2025.
CLIENT_GROUP_LENGTH_MAX: Final = TOPIC_LENGTH_MAX - len(RETRY_PREFIX)
#: Number of queues that a producer requests for a topic that does not exist yet. Source:
#: DefaultMQProducer.defaultTopicQueueNums.
DEFAULT_TOPIC_QUEUE_NUMS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Security of connections. Files are PEM; they are read again when they change, for new connections.

    Attributes:
        ca_file: Authorities that must have signed servers' certificates; empty for the authorities that the
            system trusts.
        cert_file: Certificate for servers that request one.
        key_file: Key of that certificate; empty if ``cert_file`` holds it, too.
        key_password: Password of the key, if the key is encrypted.
        check: Check of a server's certificate. "host": a known authority signed it for the host of the
            address. "authority": a known authority signed it. "nothing": no check, the default of Java's
            client.
        nameservers: Use TLS to nameservers, too; False for nameservers without TLS.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    key_password: str = field(default="", repr=False)
    check: Literal["host", "authority", "nothing"] = "host"
    nameservers: bool = True

    def __post_init__(self) -> None:
        if self.check not in ("host", "authority", "nothing"):
            raise InvalidArgument(f"check={self.check!r}, allowed host, authority, nothing")
        if self.key_file and not self.cert_file:
            raise InvalidArgument(f"key_file={self.key_file!r} needs a cert_file")
        if self.key_password and not self.cert_file:
            raise InvalidArgument("key_password needs a cert_file")
        if self.check == "nothing" and self.ca_file:
            raise InvalidArgument(
                f"check='nothing' does not use ca_file={self.ca_file!r}, allowed host, authority"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings that producers, consumers and admin share.

    Attributes:
        nameservers: Addresses, "host:port".
        nameserver_url: Page that lists nameserver addresses (``;`` between them); replaces the list as it
            changes.
        client_id: Name of this client at brokers; if empty, the client makes one from address and process.
        codec: Form of requests' headers: JSON, or RocketMQ's own binary form.
        route_refresh_s: Time between two queries for the route of a topic in use.
        nameserver_refresh_s: Time between two reads of ``nameserver_url``.
        heartbeat_s: Time between two heartbeats to each broker in use.
        rebalance_s: Time between two computations of this member's queues.
        offset_persist_s: Time between two reports of consumed offsets to the brokers.
        lock_s: Time between two renewals of the locks that orderly consumers hold at brokers.
        call_timeout_s: Time that a request may take if its caller names none.
        connect_timeout_s: Time that a new connection may take.
        nameserver_try_s: Longest wait for one nameserver while another can still be asked.
        nameserver_avoid_s: Time during which a nameserver that failed is asked last.
        shutdown_s: Time within which ``close`` ends all work under way.
        namespace: Prefix of all topics and groups of producers and consumers at the brokers
            (``namespace%topic``); users see messages and queues without it. Administration uses the full
            names.
        tls: TLS of connections; None turns TLS off. ``connect_timeout_s`` includes the handshake.
        cache_size: Bytes of decompressed bodies that all consumers hold before they stop pulling. Each
            consumer may hold one more body, so that the others cannot stop it.
    """

    nameservers: tuple[str, ...]
    nameserver_url: str | None = None
    client_id: str = ""
    codec: HeaderCodec = HeaderCodec.JSON
    route_refresh_s: float = 30.0
    nameserver_refresh_s: float = 120.0
    heartbeat_s: float = 30.0
    rebalance_s: float = 20.0
    offset_persist_s: float = 5.0
    lock_s: float = 20.0
    call_timeout_s: float = 3.0
    connect_timeout_s: float = 1.0
    nameserver_try_s: float = 1.0
    nameserver_avoid_s: float = 10.0
    shutdown_s: float = 5.0
    namespace: str = ""
    tls: TlsConfig | None = None
    cache_size: int = 128 * 1024 * 1024

    def __post_init__(self) -> None:
        if not 1 <= self.cache_size <= 1 << 40:
            raise InvalidArgument(f"cache_size={self.cache_size}, allowed 1..{1 << 40}")
        if self.namespace and _NAMESPACE.fullmatch(self.namespace) is None:
            raise InvalidArgument(
                f"namespace={self.namespace!r}, allowed are up to 100 characters of a-zA-Z0-9_-"
            )
        for addr in self.nameservers:
            check_addr(addr)
        if not self.nameservers and self.nameserver_url is None:
            raise InvalidArgument(
                "no nameserver address: give -n or set NAMESRV_ADDR, as host:port;host:port"
            )
        for name in (
            "route_refresh_s",
            "nameserver_refresh_s",
            "heartbeat_s",
            "rebalance_s",
            "offset_persist_s",
            "lock_s",
            "call_timeout_s",
            "connect_timeout_s",
            "nameserver_try_s",
        ):
            value = getattr(self, name)
            if not 0.001 <= value <= 3600:
                raise InvalidArgument(f"{name}={value}, allowed 0.001..3600")
        if self.heartbeat_s > 60:
            raise InvalidArgument(
                f"heartbeat_s={self.heartbeat_s}, must stay within half a broker's limit of 120"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Settings of one producer.

    Attributes:
        group: Name of the producer group.
        send_timeout_s: Time for all tries of one send together.
        try_timeout_s: Time for one try, if another try at another broker can follow: so a hung broker does
            not make the send fail. It has no effect for sends that end at the first unknown outcome.
        latency_fault_enable: Avoid a broker for seconds after it was slow or silent, see
            :mod:`routekeeper.client.latency`.
        retry_times: Further tries after the first of a synchronous or asynchronous send.
        retry_unknown: Also retry after a try whose outcome is unknown, as RocketMQ does: the message is
            stored at least once, maybe twice. False raises OutcomeUnknown instead.
        retry_another_broker_when_not_store_ok: Retry at another broker when one stored the message, but not
            as safely as its settings demand (any status but SEND_OK).
        linger_s: Time that a message of ``put`` may wait for others, to be sent in one request.
        batch_size: Size of a batch in bytes at which it is sent without further waiting.
        buffer_size: Bound in bytes of the messages that wait or are under way; above it ``put`` waits.
        batches_max: Number of batches that are under way at the same time.
        compress_above: Bodies above this many bytes are sent compressed; batches never are.
        compress_level: 0 to 9; higher is smaller and slower.
        compress_type: Algorithm. Consumers before RocketMQ 5.0 read zlib only.
        message_size_max: Bytes of the largest body that is sent.
        create_topic_key: Topic whose settings a broker copies for a topic that it creates at the first
            message.
        default_topic_queue_nums: Number of queues of such a topic, bounded by the number that
            ``create_topic_key`` has.
    """

    group: str
    send_timeout_s: float = 3.0
    try_timeout_s: float = 1.0
    latency_fault_enable: bool = False
    retry_times: int = 2
    retry_unknown: bool = True
    retry_another_broker_when_not_store_ok: bool = False
    linger_s: float = 0.01
    batch_size: int = 32 * 1024
    buffer_size: int = 32 * 1024 * 1024
    batches_max: int = 4
    compress_above: int = 4096
    compress_level: int = 5
    compress_type: Literal["zlib", "lz4", "zstd"] = "zlib"
    message_size_max: int = MESSAGE_SIZE_MAX
    create_topic_key: str = DEFAULT_TOPIC
    default_topic_queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS

    def __post_init__(self) -> None:
        check_group(self.group)
        if not 0 <= self.retry_times <= 100:
            raise InvalidArgument(f"retry_times={self.retry_times}, allowed 0..100")
        for name in ("send_timeout_s", "try_timeout_s"):
            value = getattr(self, name)
            if not 0 < value <= 3600:
                raise InvalidArgument(f"{name}={value}, allowed above 0 to 3600")
        if not 0 <= self.linger_s <= 60:
            raise InvalidArgument(f"linger_s={self.linger_s}, allowed 0..60")
        if not 1 <= self.batch_size <= self.message_size_max <= self.buffer_size <= 1 << 34:
            raise InvalidArgument(
                f"batch_size={self.batch_size}, message_size_max={self.message_size_max},"
                f" buffer_size={self.buffer_size}: each from 1 to the next, the last at most {1 << 34}"
            )
        if not 1 <= self.batches_max <= 256:
            raise InvalidArgument(f"batches_max={self.batches_max}, allowed 1..256")
        if not 0 <= self.compress_level <= 9:
            raise InvalidArgument(f"compress_level={self.compress_level}, allowed 0..9")
        if self.compress_type not in ("zlib", "lz4", "zstd"):
            raise InvalidArgument(f"compress_type={self.compress_type!r}, allowed zlib, lz4, zstd")
        if not 1 <= self.message_size_max <= 16 * 1024 * 1024:
            raise InvalidArgument(f"message_size_max={self.message_size_max}, allowed 1..{16 * 1024 * 1024}")
        if not 1 <= self.default_topic_queue_nums <= 65536:
            raise InvalidArgument(
                f"default_topic_queue_nums={self.default_topic_queue_nums}, allowed 1..65536"
            )


class ConsumeFrom(Enum):
    """The beginning of a group that has no stored offset."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Settings of both kinds of consumers; times are seconds.

    Attributes:
        group: Name of the consumer group.
        consume_from: The place where a group without a stored offset begins.
        consume_timestamp_ms: Unix ms to begin at with TIMESTAMP; 0 for half an hour before the start.
        pull_batch_size: Number of messages that one pull requests.
        suspend_s: Time for which a broker holds a pull when there is no message.
        pull_timeout_s: Time within which a broker must answer a pull, including ``suspend_s``.
        broadcast: Every member gets every message; a message is not delivered again after a failure. Offsets
            are stored here instead of at the brokers.
        offset_file: File of a broadcast member's offsets. If empty, offsets are not stored, and each start
            begins by ``consume_from``.
    """

    group: str
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    consume_timestamp_ms: int = 0
    pull_batch_size: int = 32
    suspend_s: float = 15.0
    pull_timeout_s: float = 30.0
    broadcast: bool = False
    offset_file: str = ""

    def __post_init__(self) -> None:
        check_group(self.group)
        _check_ranges(self, ("pull_batch_size", 1, 1024), ("consume_timestamp_ms", 0, 2**63 - 1))
        if not 0 < self.suspend_s < self.pull_timeout_s:
            raise InvalidArgument(
                f"suspend_s={self.suspend_s}, must be above 0 and below pull_timeout_s={self.pull_timeout_s}"
            )
        if self.offset_file and not self.broadcast:
            raise InvalidArgument(f"offset_file={self.offset_file!r} is for broadcast=True only")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(GroupConfig):
    """Settings of one push consumer.

    Attributes:
        orderly: Messages of a queue are consumed one batch after the other, under a lock at the broker.
        consume_batch_max: Messages per call of the listener.
        workers: Number of calls of the listener at the same time.
        max_reconsume_times: Retries before the dead letter topic. -1 means 16; for an orderly group it means
            no bound, because the group keeps its order by waiting for the message.
    """

    orderly: bool = False
    consume_batch_max: int = 1
    workers: int = 4
    max_reconsume_times: int = -1

    def __post_init__(self) -> None:
        GroupConfig.__post_init__(self)
        _check_ranges(
            self,
            ("consume_batch_max", 1, 1024),
            ("workers", 1, 256),
            ("max_reconsume_times", -1, 2**31 - 1),
        )
        if self.orderly and self.broadcast:
            raise InvalidArgument("orderly=True and broadcast=True: a broadcast group has no locks")


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConsumerConfig(GroupConfig):
    """Settings of one pull consumer.

    Attributes:
        auto_commit: Store consumed offsets every ``offset_persist_s`` and at the end; False stores them only
            by ``commit()``.
    """

    auto_commit: bool = True


def _check_ranges(config: GroupConfig, *ranges: tuple[str, int, int]) -> None:
    for name, low, high in ranges:
        value = getattr(config, name)
        if not low <= value <= high:
            raise InvalidArgument(f"{name}={value}, allowed {low}..{high}")


def check_addr(addr: str) -> str:
    """Return ``addr`` if it has the form host:port, with an IPv6 address in brackets.

    Raises:
        InvalidArgument: If it does not.
    """
    host = addr.rpartition(":")[0]
    if not is_address(addr) or (":" in host and not host.startswith("[")):
        form = "host:port with a port in 1..65535 ([v6]:port for IPv6)"
        fault = address_fault(addr, form=form, separator="semicolons")
        raise InvalidArgument(f"address {shortened(addr)!r} {fault}")
    return addr


def parse_nameservers(text: str) -> tuple[str, ...]:
    """Split ``a:9876;b:9876`` (commas allowed) into addresses, without duplicates.

    Raises:
        InvalidArgument: If one of them is no address.
    """
    parts = (part.strip() for part in re.split(r"[;,]", text))
    return tuple(dict.fromkeys(check_addr(part) for part in parts if part))


def check_topic(topic: str, *, sizes_only: bool = False) -> str:
    """Return ``topic`` if a topic may have this name.

    Raises:
        InvalidArgument: If it may not; the error names the value and the allowed form.
    """
    is_text = isinstance(topic, str)
    limit = GROUP_TOPIC_LENGTH_MAX if is_text and topic.startswith(RETRY_PREFIX) else TOPIC_LENGTH_MAX
    _check_name("topic", topic, limit, sizes_only=sizes_only)
    return topic


def check_group(group: str) -> str:
    """Return ``group`` if a group of this client may have this name.

    Raises:
        InvalidArgument: If it may not.
    """
    _check_name("group", group, CLIENT_GROUP_LENGTH_MAX)
    return group


def check_text(what: str, text: object) -> None:
    """Refuse a value that is no text, or that cannot be sent as UTF-8.

    Raises:
        InvalidArgument: If it is such.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} of type {type(text).__name__}, allowed is text")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"{what}={text!r}: {error.reason} in UTF-8") from None


def check_timeout(timeout_s: float) -> None:
    """Refuse a value that is no timeout of a request.

    0 and less are allowed: such a request times out at once.

    Raises:
        InvalidArgument: If it is none.
    """
    if not isinstance(timeout_s, int | float) or not timeout_s <= 3600:
        raise InvalidArgument(f"timeout_s={timeout_s!r}, allowed are seconds up to 3600")


def check_queue(queue: object) -> None:
    """Refuse a value that is no queue.

    Raises:
        InvalidArgument: If it is no queue.
    """
    if not isinstance(queue, MessageQueue):
        raise InvalidArgument(f"queue={queue!r}, allowed is a MessageQueue")
    check_text("broker name", queue.broker_name)


def _check_name(what: str, name: str, limit: int, *, sizes_only: bool = False) -> None:
    if not isinstance(name, str):
        raise InvalidArgument(f"{what}={name!r} of type {type(name).__name__}, allowed is text")
    fault = fault_of(name, length_max=limit)
    if fault is NameFault.BLANK:
        raise InvalidArgument(f"the specified {what} is blank")
    if fault is NameFault.CHARACTERS and not sizes_only:
        raise InvalidArgument(f"{what} {name!r} has characters outside {CHARACTERS}")
    if len(name) > limit:
        raise InvalidArgument(f"{what} of {len(name)} characters, at most {limit} are allowed")
