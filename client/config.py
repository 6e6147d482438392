"""Settings of a client, checked when they are created.

Settings that RocketMQ also has use RocketMQ's names and defaults. Times are in seconds.
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
#: Largest length of a group's name, with its namespace. The group's retry topic has a prefix before this
#: name, and a topic name also has a largest length. If the group's name were longer, brokers of 4.9 would
#: refuse messages that the group sends back. RocketMQ's client also refuses longer names, since July 2025.
CLIENT_GROUP_LENGTH_MAX: Final = TOPIC_LENGTH_MAX - len(RETRY_PREFIX)
#: Number of queues that a producer requests for a topic that does not exist yet. Source:
#: DefaultMQProducer.defaultTopicQueueNums.
DEFAULT_TOPIC_QUEUE_NUMS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS settings. Files are in PEM format. If a file changes, new connections use its new content.

    Attributes:
        ca_file: File with the certificates of the authorities that the client trusts; if empty, the client
            trusts the authorities of the operating system.
        cert_file: Certificate for servers that request a client certificate.
        key_file: Private key of the certificate in ``cert_file``; empty if ``cert_file`` also contains the
            key.
        key_password: Password of the private key, if the key is encrypted.
        check: Condition that a server's certificate must meet. "host": a trusted authority signed the
            certificate for the host of the address. "authority": a trusted authority signed it for any host.
            "nothing": no check, as in RocketMQ's own client by default.
        nameservers: True if connections to nameservers use TLS, like the connections to brokers.
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
    """Settings that apply to all producers, all consumers and the administration of one client.

    Attributes:
        nameservers: Addresses of the nameservers, "host:port".
        nameserver_url: URL of a page that lists nameserver addresses, separated by ``;``. When the page
            changes, the client uses the page's new addresses instead of the old addresses.
        client_id: Name of this client at brokers; if empty, the client makes a name from address and process.
        codec: Encoding of request headers: JSON, or RocketMQ's own binary form.
        route_refresh_s: Time between two queries for the route of a topic in use.
        nameserver_refresh_s: Time between two reads of ``nameserver_url``.
        heartbeat_s: Time between two heartbeats to each broker in use.
        rebalance_s: Time between two rebalances. A rebalance computes which queues a consumer must consume.
        offset_persist_s: Time between two reports of consumed offsets to the brokers.
        lock_s: Time between two renewals of the locks that orderly consumers have at brokers.
        call_timeout_s: Time that a request may take if its caller passes no timeout.
        connect_timeout_s: Time in which a new connection must be open, including the TLS handshake.
        nameserver_try_s: Longest wait for one nameserver while the client can still ask another nameserver.
        nameserver_avoid_s: Time after a nameserver's failure during which the client asks this nameserver
            only if the other nameservers do not answer.
        shutdown_s: Time that ``close`` gives to listener calls, to sends in threads and to the client's own
            threads. Messages of ``put`` have ``send_timeout_s`` more. The requests that then store offsets
            and leave groups have ``call_timeout_s`` each. If the program or its event loop ends before
            ``close`` was called, everything together has ``shutdown_s``.
        namespace: Prefix that producers and consumers add to topics and groups at the brokers
            (``namespace%topic``). Users see messages and queues without this prefix. Administration uses the
            full names, with the prefix.
        tls: TLS settings of connections; None turns TLS off.
        cache_size: Limit in bytes for the messages that all consumers together hold. The size of a message is
            the size of its decompressed body, plus 160 bytes for each property after the first 32. At this
            limit, consumers stop pulling. A consumer that holds no messages may still pull one message, so
            that other consumers cannot block it.
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
        for name in ("nameserver_avoid_s", "shutdown_s"):
            value = getattr(self, name)
            if not 0 <= value <= 3600:
                raise InvalidArgument(f"{name}={value}, allowed 0..3600")
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
        try_timeout_s: Time for one try of a send, if another broker can be tried afterwards. Because of this
            limit, one hung broker does not use up ``send_timeout_s``. The limit has no effect if
            ``retry_unknown`` is False.
        latency_fault_enable: True to avoid a broker for some time after it was slow or did not answer, see
            :mod:`routekeeper.client.latency`.
        retry_times: Number of tries after the first try of a synchronous or asynchronous send.
        retry_unknown: True to try again, as RocketMQ does, even if the outcome of a try is unknown; the
            message may then be stored twice. If False, such a send raises OutcomeUnknown.
        retry_another_broker_when_not_store_ok: True to try again at another broker if a broker stored the
            message, but could not flush or replicate it as configured (any status except SEND_OK).
        linger_s: Longest time that a message of ``put`` waits for other messages of the same batch.
        batch_size: Size in bytes at which a batch is sent without further waiting.
        buffer_size: Largest total size in bytes of the messages of ``put`` that are waiting or being sent. If
            a message would exceed it, ``put`` waits.
        batches_max: Largest number of batches that are sent at the same time.
        compress_above: Size in bytes above which a body is sent compressed; batches are never compressed.
        compress_level: Level from 0 to 9; a higher level gives smaller bodies and takes longer.
        compress_type: Compression algorithm. Consumers before RocketMQ 5.0 can read only zlib.
        message_size_max: Size in bytes of the largest body that is sent. In a batch (``put``,
            ``send_batch``), the properties of the messages count, too.
        create_topic_key: Name of the template topic. If a broker creates the topic of a message, it copies
            the settings of the template topic.
        default_topic_queue_nums: Number of queues of a topic that a broker creates for a message, at most
            the number of queues of ``create_topic_key``.
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
    """Position in a queue at which a group begins to consume if it has no stored offset."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Settings of push consumers and pull consumers. Times are in seconds.

    Attributes:
        group: Name of the consumer group.
        consume_from: Position in a queue at which the group begins to consume if it has no stored offset.
        consume_timestamp_ms: Unix time in ms of the first messages to consume, if ``consume_from`` is
            TIMESTAMP; 0 means half an hour before the consumer's start.
        pull_batch_size: Number of messages that one pull requests.
        suspend_s: Longest time for which a broker may delay the answer to a pull while the queue has no new
            message.
        pull_timeout_s: Time in which a broker must answer a pull, including ``suspend_s``.
        broadcast: True if every member receives every message. A message is then not delivered again after a
            failure, and offsets are stored in ``offset_file`` instead of at the brokers.
        offset_file: File in which a broadcast member stores its offsets. If empty, offsets are not stored,
            and the member begins at ``consume_from`` after each start.
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
        if not 0 < self.suspend_s < self.pull_timeout_s <= 3600:
            raise InvalidArgument(
                f"suspend_s={self.suspend_s}, must be above 0 and below pull_timeout_s={self.pull_timeout_s},"
                " which must be at most 3600"
            )
        if self.offset_file and not self.broadcast:
            raise InvalidArgument(f"offset_file={self.offset_file!r} is for broadcast=True only")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(GroupConfig):
    """Settings of one push consumer.

    Attributes:
        orderly: True if the batches of a queue are consumed one after the other. The member locks the queue
            at the broker for this.
        consume_batch_max: Largest number of messages in one call of the listener.
        workers: Number of calls of the listener that may run at the same time.
        max_reconsume_times: Number of retries before a message goes to the dead letter topic. -1 means 16.
            For an orderly group, -1 means no limit: later messages of the queue wait until the message
            succeeds.
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
        auto_commit: True to store consumed offsets every ``offset_persist_s`` seconds and when the consumer
            closes; False to store them only when the user calls ``commit()``.
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
        InvalidArgument: If ``addr`` has another form.
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
        InvalidArgument: If a part is not an address.
    """
    parts = (part.strip() for part in re.split(r"[;,]", text))
    return tuple(dict.fromkeys(check_addr(part) for part in parts if part))


def check_topic(topic: str) -> str:
    """Return ``topic`` if it is an allowed topic name.

    Raises:
        InvalidArgument: If the name is not allowed. The error names the value and the allowed form.
    """
    is_text = isinstance(topic, str)
    limit = GROUP_TOPIC_LENGTH_MAX if is_text and topic.startswith(RETRY_PREFIX) else TOPIC_LENGTH_MAX
    _check_name("topic", topic, limit)
    return topic


def check_group(group: str) -> str:
    """Return ``group`` if it is an allowed group name.

    Raises:
        InvalidArgument: If the name is not allowed.
    """
    _check_name("group", group, CLIENT_GROUP_LENGTH_MAX)
    return group


def check_text(what: str, text: object) -> None:
    """Reject a value that is not text, or that cannot be sent as UTF-8.

    Raises:
        InvalidArgument: If the value is not text or cannot be encoded.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} of type {type(text).__name__}, allowed is text")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"{what}={text!r}: {error.reason} in UTF-8") from None


def check_timeout(timeout_s: float) -> None:
    """Reject a value that is not a timeout of a request.

    Values of 0 and less are allowed: such a request times out at once.

    Raises:
        InvalidArgument: If the value is not a timeout.
    """
    if not isinstance(timeout_s, int | float) or not timeout_s <= 3600:
        raise InvalidArgument(f"timeout_s={timeout_s!r}, allowed are seconds up to 3600")


def check_queue(queue: object) -> None:
    """Reject a value that is not a queue.

    Raises:
        InvalidArgument: If the value is not a queue.
    """
    if not isinstance(queue, MessageQueue):
        raise InvalidArgument(f"queue={queue!r}, allowed is a MessageQueue")
    check_text("broker name", queue.broker_name)


def _check_name(what: str, name: str, limit: int) -> None:
    if not isinstance(name, str):
        raise InvalidArgument(f"{what}={name!r} of type {type(name).__name__}, allowed is text")
    fault = fault_of(name, length_max=limit)
    if fault is NameFault.BLANK:
        raise InvalidArgument(f"the specified {what} is blank")
    if fault is NameFault.CHARACTERS:
        raise InvalidArgument(f"{what} {name!r} has characters outside {CHARACTERS}")
    if len(name) > limit:
        raise InvalidArgument(f"{what} of {len(name)} characters, at most {limit} are allowed")
