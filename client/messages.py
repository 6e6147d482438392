"""The messages that users send: checks of the content, and the encoding as properties on the wire.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from routekeeper.remoting.message import (
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_WAIT,
    is_separable,
)

from .config import check_text
from .errors import InvalidArgument

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_BLANK: Final = re.compile(r"\s")
#: Largest delay level that a broker can decode. The number of levels is a setting of the broker.
_DELAY_LEVEL_MAX: Final = 2**31 - 1
#: Names of properties that clients and brokers write. Source: MessageConst.STRING_HASH_SET, RocketMQ 5.3.3.
RESERVED_PROPERTIES: Final = frozenset(
    {
        *("1ST_POP_TIME", "ARRIVE_TIME", "BORN_TIMESTAMP", "BUYER_ID", "CLUSTER", "CONSUME_START_TIME"),
        *("CORRECTION_FLAG", "CORRELATION_ID", "DELAY", "DLQ_ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC"),
        *("DUP_INFO", "EXTEND_UNIQ_INFO", "INNER_MULTI_QUEUE_OFFSET", "INSTANCE_ID", "KEYS"),
        *("MAX_OFFSET", "MAX_RECONSUME_TIMES", "MIN_OFFSET", "MQ2_FLAG", "MSG_REGION", "MSG_TYPE"),
        *("ORIGIN_MESSAGE_ID", "PGROUP", "POP_CK", "POP_CK_OFFSET", "PUSH_REPLY_TIME", "REAL_QID"),
        *("REAL_TOPIC", "RECONSUME_TIME", "REPLY_TO_CLIENT", "RETRY_TOPIC", "TAGS"),
        *("TIMER_DELAY_LEVEL", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"),
        *("TIMER_DEL_UNIQKEY", "TIMER_DEQUEUE_MS", "TIMER_ENQUEUE_MS", "TIMER_OUT_MS"),
        *("TIMER_ROLL_TIMES", "TRACE_ON", "TRANSFER_FLAG", "TRAN_MSG", "TRAN_PREPARED_QUEUE_OFFSET"),
        *("TTL", "UNIQ_KEY", "WAIT", "__BORNHOST", "__CRC32#"),
    }
)
#: Prefix of the names of properties that a broker adds for the client only. Source: MessageConst, 5.3.3.
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
#: Names of properties that change the behavior of brokers and clients, although RocketMQ does not reserve
#: these names. A copy of a message must not contain such properties.
_STEERING: Final = frozenset(
    {
        *("CHECK_IMMUNITY_TIME_IN_SECONDS", "INNER_BASE", "INNER_MULTI_DISPATCH", "INNER_NUM", "REDIRECT"),
        *("PROPERTY_FORWARD_QUEUE_ID", "TRACE_CONTEXT", "TRANSACTION_CHECK_TIMES", "__transactionId__"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to send.

    Attributes:
        topic: Name of the topic.
        body: Content of the message.
        tags: Word by which consumers select messages.
        keys: Words by which the message can be found; a word must not contain a blank.
        flag: A number that only the user interprets; brokers store it unchanged.
        delay_level: 0 for delivery at once, else the number of a level in the broker's list of delays. A
            number above the last level means the last level.
        wait_store: True if the broker must delay its answer until the message is safe. The broker's settings
            decide if it must be synced to disk, copied to a slave, or both.
        properties: The user's own properties; names that RocketMQ reserves are rejected.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    flag: int = 0
    delay_level: int = 0
    wait_store: bool = True
    properties: Mapping[str, str] = field(default_factory=dict)


def check_message(message: object) -> None:
    """Reject a value that is no message, or has no topic. Call this function before the other checks.

    Raises:
        InvalidArgument: If the value is not a message or has no topic.
    """
    if not isinstance(message, Message):
        raise InvalidArgument(f"a message of type {type(message).__name__}, allowed is Message")
    check_text("topic", message.topic)


def plain_body(message: Message, size_max: int) -> bytes:
    """Return the body of a message as bytes.

    Raises:
        InvalidArgument: If the body is not bytes, is empty or is too large.
    """
    body = message.body
    if not isinstance(body, bytes):
        if not isinstance(body, bytearray | memoryview):
            raise InvalidArgument(
                f"message body of type {type(body).__name__}, allowed are bytes: encode text"
            )
        body = bytes(body)
    check_size(body, size_max)
    return body


def check_size(body: bytes, size_max: int) -> None:
    """Reject a body that is empty or too large.

    Raises:
        InvalidArgument: If the body is empty or too large.
    """
    if not body:
        raise InvalidArgument("message body of 0 bytes, at least 1 is needed")
    if len(body) > size_max:
        raise InvalidArgument(f"message body of {len(body)} bytes, at most {size_max} are allowed")


def is_reserved(name: str) -> bool:
    """Return True if users must not use this name for a property."""
    return name in RESERVED_PROPERTIES or name.startswith(TRANSIENT_PREFIX)


def own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that the user set, without the properties that clients and brokers add."""
    return {
        name: value for name, value in properties.items() if name not in _STEERING and not is_reserved(name)
    }


def wire_properties(message: Message) -> dict[str, str]:
    """Return the user's properties together with the properties for tags, keys, delay and wait_store.

    Raises:
        InvalidArgument: If a name is reserved, or a name, a value or the delay level cannot be encoded.
    """
    if not isinstance(message.properties, Mapping):
        raise InvalidArgument(
            f"properties of type {type(message.properties).__name__}, allowed is a mapping of text to text"
        )
    properties = dict(message.properties)
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgument(f"property {name!r}={value!r}: name and value are text, others not allowed")
        if not name or not value or not is_separable(name, value):
            raise InvalidArgument(
                f"property {name!r}={value!r}: name and value must not be empty,"
                " the name must not hold 0x01 or 0x02, the value not 0x02"
            )
        if is_reserved(name):
            raise InvalidArgument(
                f"property {name!r} is reserved for RocketMQ: choose another name, or the attribute for it"
            )
        check_text(f"name of property {name!r}", name)
        check_text(f"value of property {name!r}", value)
    _check_integer("flag", message.flag, -(2**31), 2**31 - 1)
    _check_integer("delay_level", message.delay_level, 0, _DELAY_LEVEL_MAX)
    if message.tags:
        _check_words("tags", message.tags)
        properties[PROPERTY_TAGS] = message.tags
    if message.keys:
        properties[PROPERTY_KEYS] = _joined(message.keys)
    if message.delay_level:
        properties[PROPERTY_DELAY] = str(message.delay_level)
    properties[PROPERTY_WAIT] = "true" if message.wait_store else "false"
    return properties


def _check_integer(name: str, value: int, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise InvalidArgument(f"{name}={value!r}, allowed {low}..{high}")


def _check_words(name: str, words: str) -> None:
    check_text(name, words)
    if _CONTROL.search(words) is not None:
        raise InvalidArgument(f"{name}={words!r}, control characters are not allowed")


def _joined(keys: Sequence[str]) -> str:
    """Return the keys as one text, separated by blanks."""
    if isinstance(keys, str):
        _check_words("keys", keys)
        return keys
    try:
        words = tuple(keys)
    except TypeError:
        raise InvalidArgument(f"keys of type {type(keys).__name__}, allowed is a sequence of text") from None
    for key in words:
        _check_words("key", key)
        if not key or _BLANK.search(key) is not None:
            raise InvalidArgument(f"key {key!r}, allowed is text without blanks, at least 1 character")
    return " ".join(words)
