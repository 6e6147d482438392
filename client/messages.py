"""Messages as users give them: what they may hold, and the properties that stand for it on the wire. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from routekeeper.remoting.message import (
    NAME_END,
    PAIR_END,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_WAIT,
)

from .errors import InvalidArgument

#: Largest delay level that a broker reads; how many levels it has is its own matter.
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
#: Start of the names of properties that a broker adds for the client alone. Source: MessageConst, 5.3.3.
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
#: Properties that steer brokers and clients although RocketMQ leaves their names free: not forwarded.
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
        keys: Words by which the message can be found; none contains a blank.
        delay_level: 0 for at once, else a level of the broker's delay table; its last one for those above.
        wait_store: Have the broker answer only after the disk or slave it waits for by its own settings.
        properties: The user's own; names that RocketMQ reserves are refused.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    flag: int = 0
    delay_level: int = 0
    wait_store: bool = True
    properties: Mapping[str, str] = field(default_factory=dict)


def is_reserved(name: str) -> bool:
    """Say whether users cannot give a property this name."""
    return name in RESERVED_PROPERTIES or name.startswith(TRANSIENT_PREFIX)


def own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that a message's user gave it, without those of clients and brokers."""
    return {
        name: value for name, value in properties.items() if name not in _STEERING and not is_reserved(name)
    }


def wire_properties(message: Message) -> dict[str, str]:
    """Merge the user's properties with those that the message's own attributes stand for.

    Raises:
        InvalidArgument: If a name is reserved, or a name, a value or the delay level cannot be carried.
    """
    properties = dict(message.properties)
    for name, value in message.properties.items():
        if not name or not value or NAME_END in name + value or PAIR_END in name + value:
            raise InvalidArgument(
                f"property {name!r}={value!r}: name and value must not be empty nor hold the separators"
            )
        if is_reserved(name):
            raise InvalidArgument(
                f"property {name!r} is reserved for RocketMQ: choose another name, or the attribute for it"
            )
    if not 0 <= message.delay_level <= _DELAY_LEVEL_MAX:
        raise InvalidArgument(f"delay_level={message.delay_level}, allowed 0..{_DELAY_LEVEL_MAX}")
    if message.tags:
        properties[PROPERTY_TAGS] = message.tags
    if message.keys:
        properties[PROPERTY_KEYS] = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
    if message.delay_level:
        properties[PROPERTY_DELAY] = str(message.delay_level)
    properties[PROPERTY_WAIT] = "true" if message.wait_store else "false"
    return properties
