"""Settings of a client, checked once.

Names and defaults are RocketMQ's where it has them; times are seconds here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from client.errors import InvalidArgument
from remoting.codes import DEFAULT_TOPIC, RETRY_PREFIX, HeaderCodec

_HOST_PORT: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:;,\[\]]+):(?P<port>\d{1,5})")
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_TOPIC_SIZE_MAX: Final = 127
_GROUP_SIZE_MAX: Final = 255
MESSAGE_SIZE_MAX: Final = 4 * 1024 * 1024
#: Queues of a topic that a producer names before it exists. Source: DefaultMQProducer.defaultTopicQueueNums.
DEFAULT_TOPIC_QUEUE_NUMS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What producers, consumers and admin share.

    Attributes:
        nameservers: Addresses, "host:port".
        nameserver_url: Page that lists nameserver addresses (``;`` between them); replaces the list as it
            changes.
        client_id: Name of this client towards brokers; empty lets the driver make one from address and
            process.
        timer_divisor: Divides every period below (not timeouts); the benchmark shortens a run by it.
        nameserver_try_s: Longest wait for one nameserver while another can still be asked.
        nameserver_avoid_s: How long a nameserver that failed is asked last.
    """

    nameservers: tuple[str, ...]
    nameserver_url: str | None = None
    client_id: str = ""
    codec: HeaderCodec = HeaderCodec.JSON
    timer_divisor: float = 1.0
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

    def __post_init__(self) -> None:
        for addr in self.nameservers:
            check_addr(addr)
        if not self.nameservers and self.nameserver_url is None:
            raise InvalidArgument(
                "no nameserver address: give -n or set NAMESRV_ADDR, as host:port;host:port"
            )
        if not 0.1 <= self.timer_divisor <= 1000:
            raise InvalidArgument(f"timer_divisor={self.timer_divisor}, allowed 0.1..1000")
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
        if self.heartbeat_s / self.timer_divisor > 60:
            raise InvalidArgument(
                f"heartbeat_s={self.heartbeat_s}, must stay within half a broker's limit of 120"
            )

    def period(self, seconds: float) -> float:
        """Return a documented period as it applies here."""
        return seconds / self.timer_divisor


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Settings of one producer.

    Attributes:
        send_timeout_s: For all tries of one send together.
        retry_times: Further tries after the first of a synchronous or asynchronous send.
        retry_unknown: Also retry after a try whose outcome is unknown, as RocketMQ does: at least once, maybe
            twice. False gives up with OutcomeUnknown instead.
        compress_above: Bodies above this many bytes are sent zlib-compressed; batches never are.
    """

    group: str
    send_timeout_s: float = 3.0
    retry_times: int = 2
    retry_unknown: bool = True
    retry_another_broker_when_not_store_ok: bool = False
    compress_above: int = 4096
    compress_level: int = 5
    message_size_max: int = MESSAGE_SIZE_MAX
    create_topic_key: str = DEFAULT_TOPIC
    default_topic_queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS

    def __post_init__(self) -> None:
        check_group(self.group)
        if not 0 <= self.retry_times <= 100:
            raise InvalidArgument(f"retry_times={self.retry_times}, allowed 0..100")
        if not 0 < self.send_timeout_s <= 3600:
            raise InvalidArgument(f"send_timeout_s={self.send_timeout_s}, allowed above 0 to 3600")
        if not 0 <= self.compress_level <= 9:
            raise InvalidArgument(f"compress_level={self.compress_level}, allowed 0..9")
        if not 1 <= self.message_size_max <= 16 * 1024 * 1024:
            raise InvalidArgument(f"message_size_max={self.message_size_max}, allowed 1..{16 * 1024 * 1024}")
        if not 1 <= self.default_topic_queue_nums <= 65536:
            raise InvalidArgument(
                f"default_topic_queue_nums={self.default_topic_queue_nums}, allowed 1..65536"
            )


def check_addr(addr: str) -> str:
    """Return ``addr`` if it reads host:port, with an IPv6 address in brackets.

    Raises:
        InvalidArgument: If it does not.
    """
    match = _HOST_PORT.fullmatch(addr)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        raise InvalidArgument(
            f"address {addr!r} is not host:port with a port in 1..65535 ([v6]:port for IPv6)"
        )
    return addr


def parse_nameservers(text: str) -> tuple[str, ...]:
    """Split ``a:9876;b:9876`` (commas allowed) into addresses, without repetitions.

    Raises:
        InvalidArgument: If one of them is no address.
    """
    parts = (part.strip() for part in re.split(r"[;,]", text))
    return tuple(dict.fromkeys(check_addr(part) for part in parts if part))


def check_topic(topic: str, *, sizes_only: bool = False) -> str:
    """Return ``topic`` if it is a name a topic may have.

    Raises:
        InvalidArgument: If it is not; the text names the value and what is allowed.
    """
    if not topic:
        raise InvalidArgument("the specified topic is blank")
    if not sizes_only and _NAME.fullmatch(topic) is None:
        raise InvalidArgument(f"topic {topic!r} has characters outside %|a-zA-Z0-9_-")
    limit = _GROUP_SIZE_MAX if topic.startswith(RETRY_PREFIX) else _TOPIC_SIZE_MAX
    if len(topic) > limit:
        raise InvalidArgument(f"topic of {len(topic)} characters, at most {limit} are allowed")
    return topic


def check_group(group: str) -> str:
    """Return ``group`` if it is a name a group may have.

    Raises:
        InvalidArgument: If it is not.
    """
    if not group:
        raise InvalidArgument("the specified group is blank")
    if _NAME.fullmatch(group) is None:
        raise InvalidArgument(f"group {group!r} has characters outside %|a-zA-Z0-9_-")
    if len(group) > _GROUP_SIZE_MAX:
        raise InvalidArgument(f"group of {len(group)} characters, at most {_GROUP_SIZE_MAX} are allowed")
    return group
