"""Arguments of requests and responses as typed Python values, with the conversion to and from the wire.

Each class describes the header of one request or response code. ``parse`` reads ``extFields``; ``to_ext``
writes them. An argument that is None is not written. Names on the wire are camelCase. Only the argument
classes use these names; other code uses the Python names.

This module refuses a request whose required argument is missing. RocketMQ's Java programs mark required
arguments, but do not check them on receipt. There, a request with a missing argument fails later.
Source: the ``*RequestHeader`` and ``*ResponseHeader`` classes of RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import product
from typing import Annotated, Any, Final, NamedTuple, Self, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, field

from routekeeper.remoting.bounds import (
    ADDR_FORM,
    ADDR_MAX,
    CLIENT_ID_MAX,
    NAME_MAX,
    TOPIC_NAME_MAX,
    is_address,
)
from routekeeper.remoting.errors import FieldError as FieldError

_FORGIVING: Final = {"forgiving": True}

Name = Annotated[str, Meta(max_length=NAME_MAX)]
TopicName = Annotated[str, Meta(max_length=TOPIC_NAME_MAX)]
ClientId = Annotated[str, Meta(max_length=CLIENT_ID_MAX)]
#: An address, or an empty text.
Address = Annotated[str, Meta(max_length=ADDR_MAX, extra={"address": True})]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
#: An integer. If the received text is not an integer within the bounds, the argument's default is used.
Int32OrDefault = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1, extra=_FORGIVING)]
Int64OrDefault = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1, extra=_FORGIVING)]

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
#: Texts of a boolean that Java reads as false, but msgspec does not. msgspec reads "1" as true. It reads
#: "null", in capital or small letters, as None.
_NOT_AS_JAVA: Final = frozenset(map("".join, product(*zip("null", "NULL", strict=True)))) | {"1"}


class _Argument(NamedTuple):
    """One argument of an argument class; ``meta`` has the bounds of its value."""

    name: str
    wire: str
    kind: type
    meta: Meta
    required: bool

    def read(self, text: str) -> Any:
        """Return the value that Java would read; None if the argument's default must be used.

        Raises:
            FieldError: If the text is invalid.
        """
        extra = self.meta.extra or {}
        if self.kind is bool:
            return text.lower() == "true"
        if self.kind is int:
            assert self.meta.ge is not None
            assert self.meta.le is not None
            number = int(text) if _INTEGER.fullmatch(text) else None
            if number is not None and self.meta.ge <= number <= self.meta.le:
                return number
            if "forgiving" in extra:
                return None
            raise FieldError(self.wire, text, f"an integer of {int(self.meta.le).bit_length() + 1} bits")
        if "address" in extra:
            if text and not is_address(text):
                raise FieldError(self.wire, text, ADDR_FORM)
        elif self.meta.max_length is not None and len(text) > self.meta.max_length:
            raise FieldError(self.wire, text, f"at most {self.meta.max_length} characters, not {len(text)}")
        return text


class _Plan(NamedTuple):
    """All arguments of a class, and the names on the wire of its numbers, booleans and addresses.

    :meth:`Fields.parse` checks the arguments of these three kinds after msgspec has read them.
    """

    arguments: tuple[_Argument, ...]
    numbers: tuple[str, ...]
    booleans: tuple[str, ...]
    addresses: tuple[str, ...]


@cache
def _plan(kind: type[Fields]) -> _Plan:
    hints = get_type_hints(kind, include_extras=True)
    arguments = []
    for declared in msgspec.structs.fields(kind):
        hint = hints[declared.name]
        if get_origin(hint) is not Annotated and get_args(hint):  # the hint is ``X | None``
            (hint,) = (part for part in get_args(hint) if part is not type(None))
        of, meta = get_args(hint) if get_origin(hint) is Annotated else (hint, Meta())
        arguments.append(_Argument(declared.name, declared.encode_name, of, meta, declared.required))
    return _Plan(
        tuple(arguments),
        tuple(argument.wire for argument in arguments if argument.kind is int),
        tuple(argument.wire for argument in arguments if argument.kind is bool),
        tuple(argument.wire for argument in arguments if "address" in (argument.meta.extra or {})),
    )


class Fields(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Base of all argument classes; reads and writes the arguments that a subclass declares."""

    @classmethod
    def parse(cls, ext: Mapping[str, str]) -> Self:
        """Read the declared arguments; ignore all others.

        msgspec reads usual texts as Java does. It needs 2 us for the arguments of a pull. Reading them
        without msgspec needs 9 us.

        Raises:
            FieldError: If a required argument is missing, or if an argument has a wrong type.
        """
        try:
            made = msgspec.convert(ext, cls, strict=False)
        except msgspec.ValidationError:
            return cls.parse_slowly(ext)
        _, numbers, booleans, addresses = _plan(cls)
        get = ext.get
        # msgspec reads "1e3" as a number and "1" as true, but Java refuses "1e3" and reads "1" as false.
        # Therefore :meth:`parse_slowly` must read such texts.
        for name in numbers:
            if not get(name, "0").isdigit():
                return cls.parse_slowly(ext)
        for name in booleans:
            if get(name) in _NOT_AS_JAVA:
                return cls.parse_slowly(ext)
        for name in addresses:
            addr = get(name)
            if addr and not is_address(addr):
                return cls.parse_slowly(ext)
        return made

    @classmethod
    def parse_slowly(cls, ext: Mapping[str, str]) -> Self:
        """Read the declared arguments in every spelling that Java accepts.

        Java accepts signs and leading zeros of numbers. It reads every boolean text other than ``true``, in
        capital or small letters, as false.

        Raises:
            FieldError: If a required argument is missing, or if an argument is invalid.
        """
        values = {}
        for argument in _plan(cls).arguments:
            text = ext.get(argument.wire)
            if text is not None:
                value = argument.read(text)
                if value is not None:
                    values[argument.name] = value
            elif argument.required:
                raise FieldError(argument.wire, None, "it is required")
        return cls(**values)

    def to_ext(self) -> dict[str, str]:
        """Return the arguments as text for the wire, without arguments that are None."""
        return self._write(self.__struct_encode_fields__)

    def _write(self, spelling: Iterable[str]) -> dict[str, str]:
        ext = {}
        for name, value in zip(spelling, msgspec.structs.astuple(self), strict=True):
            if value is not None:
                ext[name] = value if type(value) is str else _text(value)
        return ext


def _text(value: bool | int) -> str:
    if value is True:
        return "true"
    return "false" if value is False else str(value)


# Nameserver ------------------------------------------------------------------------------------------


class RegisterBrokerFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 103, REGISTER_BROKER.

    Attributes:
        body_crc32: CRC32 of the body as sent, 31 bits. If it is 0 or unreadable, the body is not checked.
        heartbeat_timeout_ms: Lease that a 5.x broker asks for, in ms; None for the nameserver's default.
        enable_acting_master: None if the broker is too old to know acting masters.
    """

    broker_name: Name
    broker_addr: Address
    cluster_name: Name
    ha_server_addr: Address = ""
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int32OrDefault = 0
    heartbeat_timeout_ms: Int64OrDefault | None = field(name="heartbeatTimeoutMillis", default=None)
    enable_acting_master: bool | None = None
    zone_name: Name | None = field(name="__ZONE_NAME", default=None)


class RegisterBrokerResponseFields(Fields, frozen=True, kw_only=True):
    """Answer to REGISTER_BROKER 103, with two addresses of the broker's master.

    Only a slave whose master is registered gets these addresses; for other brokers they are None.
    """

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBrokerFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 104, UNREGISTER_BROKER."""

    broker_name: Name
    broker_addr: Address
    cluster_name: Name
    broker_id: Int64


class QueryDataVersionFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 322, QUERY_DATA_VERSION."""

    broker_name: Name
    broker_addr: Address
    cluster_name: Name
    broker_id: Int64 = 0


class QueryDataVersionResponseFields(Fields, frozen=True, kw_only=True):
    """Answer to QUERY_DATA_VERSION 322."""

    changed: bool


class GetRouteFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 105, GET_ROUTEINFO_BY_TOPIC."""

    topic: TopicName | None = None
    accept_standard_json_only: bool = False
    zone_mode: bool = field(name="__ZONE_MODE", default=False)
    zone_name: Name | None = field(name="__ZONE_NAME", default=None)


class PutKvFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 100, PUT_KV_CONFIG.

    The handler, not this class, refuses a request without namespace or key.
    """

    namespace: str | None = None
    key: str | None = None
    value: str | None = None


class KvFields(Fields, frozen=True, kw_only=True):
    """Arguments of requests 101, GET_KV_CONFIG, and 102, DELETE_KV_CONFIG."""

    namespace: str | None = None
    key: str | None = None


class GetKvResponseFields(Fields, frozen=True, kw_only=True):
    """Answer to GET_KV_CONFIG 101."""

    value: str | None = None


class GetKvListFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 219, GET_KVLIST_BY_NAMESPACE."""

    namespace: str | None = None


class WritePermFields(Fields, frozen=True, kw_only=True):
    """Arguments of requests 205, WIPE_WRITE_PERM_OF_BROKER, and 327, ADD_WRITE_PERM_OF_BROKER."""

    broker_name: Name | None = None


class WipeWritePermResponseFields(Fields, frozen=True, kw_only=True):
    """Answer to WIPE_WRITE_PERM_OF_BROKER 205."""

    wipe_topic_count: Int32


class AddWritePermResponseFields(Fields, frozen=True, kw_only=True):
    """Answer to ADD_WRITE_PERM_OF_BROKER 327."""

    add_topic_count: Int32


class DeleteTopicInNamesrvFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 216, DELETE_TOPIC_IN_NAMESRV."""

    topic: TopicName
    cluster_name: Name | None = None


class GetTopicsByClusterFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 224, GET_TOPICS_BY_CLUSTER."""

    cluster: Name | None = None


class GetBrokerMemberGroupFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 901, GET_BROKER_MEMBER_GROUP."""

    cluster_name: Name
    broker_name: Name


class BrokerHeartbeatFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 904, BROKER_HEARTBEAT, which is oneway."""

    cluster_name: Name
    broker_addr: Address
    broker_name: Name = ""
    broker_id: Int64OrDefault | None = None
    epoch: Int32OrDefault | None = None
    max_offset: Int64OrDefault | None = None
    heartbeat_timeout_ms: Int64OrDefault | None = field(name="heartbeatTimeoutMills", default=None)


class NotifyMinBrokerIdFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 905, NOTIFY_MIN_BROKER_ID_CHANGE, a oneway request from a nameserver."""

    min_broker_id: Int64 | None = None
    broker_name: Name | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


# Topics ----------------------------------------------------------------------------------------------


class TopicFields(Fields, frozen=True, kw_only=True):
    """Name of one topic: the argument of the request codes 202, 215, 217, 300 and 351."""

    topic: TopicName


class CreateTopicFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 17, UPDATE_AND_CREATE_TOPIC.

    Attributes:
        attributes: Attributes of the topic as one text, such as ``+key=value,-key`` (only 5.x).
    """

    topic: TopicName
    default_topic: TopicName = "TBW102"
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: Name = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


# Sending ---------------------------------------------------------------------------------------------


class SendMessageFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 10, SEND_MESSAGE.

    The request codes 310, 320 and 325 have the same arguments, but name them by single letters (V2).

    Attributes:
        queue_id: Queue of the message; if it is below 0, the broker chooses a queue.
        sys_flag: Bits, see ``routekeeper.remoting.message``.
        born_timestamp: Time at which the producer made the message, in Unix ms.
        properties: Properties of the message as one text: ``name 0x01 value 0x02 ...``.
        batch: True if the body is a batch of messages. Only this argument shows a batch; the request code
            does not.
    """

    producer_group: Name
    topic: TopicName
    default_topic: TopicName = "TBW102"
    default_topic_queue_nums: Int32 = 4
    queue_id: Int32
    sys_flag: Int32 = 0
    born_timestamp: Int64 = 0
    flag: Int32 = 0
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: Name | None = field(name="bname", default=None)

    @classmethod
    def parse_v2(cls, ext: Mapping[str, str]) -> Self:
        """Read the arguments of a send request that names them by single letters (V2).

        Raises:
            FieldError: If a required argument is missing, or if an argument has a wrong type.
        """
        spelt = {name: ext[letter] for letter, name in _SEND_LETTERS.items() if letter in ext}
        try:
            return cls.parse(spelt)
        except FieldError as error:
            letter = next(letter for letter, name in _SEND_LETTERS.items() if name == error.name)
            raise FieldError(letter, error.value, error.allowed) from None

    def to_ext_v2(self) -> dict[str, str]:
        """Return the arguments for the wire, named by single letters (V2)."""
        return self._write(_SEND_LETTERS)


def at_queue_v2(ext: Mapping[str, str], queue_id: int, broker_name: str) -> dict[str, str]:
    """Return a send request's single-letter arguments (V2) with another queue id and broker name."""
    return {**ext, "e": str(queue_id), "n": broker_name}


#: Name of each argument of a send request by its letter. The letters follow the order of declaration.
_SEND_LETTERS: Final = dict(zip("abcdefghijklmn", SendMessageFields.__struct_encode_fields__, strict=True))


class SendMessageResponseFields(Fields, frozen=True, kw_only=True):
    """Answer to a send request.

    Java's producer crashes if a successful answer has no arguments. The producer also reads ``MSG_REGION``.
    """

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    msg_region: str | None = field(name="MSG_REGION", default=None)
    trace_on: str | None = field(name="TRACE_ON", default=None)


class SendBackFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 36, CONSUMER_SEND_MSG_BACK.

    Attributes:
        offset: Commit log offset of the message.
        delay_level: If it is 0, the broker chooses the delay. If it is below 0, the broker puts the message
            into the group's dead letter topic.
    """

    offset: Int64
    group: Name
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: TopicName | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    broker_name: Name | None = field(name="bname", default=None)


# Pulling and offsets ---------------------------------------------------------------------------------


class PullMessageFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 11, PULL_MESSAGE.

    Attributes:
        sys_flag: Sum of bit values: 1 (commit the offset), 2 (the broker may hold the request), 4 (a
            subscription is present), 8 (class filter), 16 (lite pull).
        commit_offset: Offset to commit for the group; only used with the value 1 in ``sys_flag``.
        suspend_timeout_ms: Time in ms for which the broker may hold the request; only used with the value 2
            in ``sys_flag``.
    """

    consumer_group: Name
    topic: TopicName
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32 = 0
    commit_offset: Int64 = 0
    suspend_timeout_ms: Int64 = field(name="suspendTimeoutMillis", default=0)
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    broker_name: Name | None = field(name="bname", default=None)


class PullMessageResponseFields(Fields, frozen=True, kw_only=True):
    """Answer to PULL_MESSAGE 11. Even an answer without messages has the first four arguments."""

    suggest_which_broker_id: Int64 = 0
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class QueryConsumerOffsetFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 14, QUERY_CONSUMER_OFFSET."""

    consumer_group: Name
    topic: TopicName
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    broker_name: Name | None = field(name="bname", default=None)


class UpdateConsumerOffsetFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 15, UPDATE_CONSUMER_OFFSET, which is often oneway."""

    consumer_group: Name
    topic: TopicName
    queue_id: Int32
    commit_offset: Int64
    broker_name: Name | None = field(name="bname", default=None)


class SearchOffsetFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 29, SEARCH_OFFSET_BY_TIMESTAMP; ``timestamp`` is in Unix ms."""

    topic: TopicName
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None
    broker_name: Name | None = field(name="bname", default=None)


class QueueFields(Fields, frozen=True, kw_only=True):
    """Arguments of requests 30, GET_MAX_OFFSET, 31, GET_MIN_OFFSET, and 32, GET_EARLIEST_MSG_STORETIME."""

    topic: TopicName
    queue_id: Int32
    committed: bool | None = None
    broker_name: Name | None = field(name="bname", default=None)


class OffsetResponseFields(Fields, frozen=True, kw_only=True):
    """Answer to the request codes 14, 29, 30 and 31."""

    offset: Int64


class TimestampResponseFields(Fields, frozen=True, kw_only=True):
    """Answer to GET_EARLIEST_MSG_STORETIME 32: Unix ms, -1 if the queue has no message."""

    timestamp: Int64


class ViewMessageFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 33, VIEW_MESSAGE_BY_ID; ``offset`` is an offset in the commit log."""

    offset: Int64
    topic: TopicName | None = None


class QueryMessageFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 12, QUERY_MESSAGE; both timestamps are in Unix ms."""

    topic: TopicName
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: bool = field(name="_UNIQUE_KEY_QUERY", default=False)


class QueryMessageResponseFields(Fields, frozen=True, kw_only=True):
    """Answer to QUERY_MESSAGE 12."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


# Clients and groups ----------------------------------------------------------------------------------


class UnregisterClientFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 35, UNREGISTER_CLIENT."""

    client_id: ClientId = field(name="clientID")
    producer_group: Name | None = None
    consumer_group: Name | None = None


class ConsumerGroupFields(Fields, frozen=True, kw_only=True):
    """Arguments of three requests about one consumer group.

    The requests are GET_CONSUMER_LIST_BY_GROUP 38, NOTIFY_CONSUMER_IDS_CHANGED 40 and
    GET_CONSUMER_CONNECTION_LIST 203.
    """

    consumer_group: Name


class ProducerGroupFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 204, GET_PRODUCER_CONNECTION_LIST."""

    producer_group: Name


class DeleteGroupFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 207, DELETE_SUBSCRIPTIONGROUP.

    The two booleans have the same meaning: also delete the group's offsets. RocketMQ 4.9 uses one name, and
    5.x uses the other name.
    """

    group_name: Name
    remove_offset: bool | None = None
    clean_offset: bool | None = None


class ConsumeStatsFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 208, GET_CONSUME_STATS."""

    consumer_group: Name
    topic: TopicName | None = None


class ResetOffsetFields(Fields, frozen=True, kw_only=True):
    """Arguments of requests 222, INVOKE_BROKER_TO_RESET_OFFSET, and 220, RESET_CONSUMER_CLIENT_OFFSET.

    Attributes:
        timestamp: Time in Unix ms; -1 means the maximum offset.
    """

    topic: TopicName
    group: Name
    timestamp: Int64 = -1
    is_force: bool = False


class ConsumerRunningInfoFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 307, GET_CONSUMER_RUNNING_INFO."""

    consumer_group: Name
    client_id: ClientId


class ConsumeMessageDirectlyFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 309, CONSUME_MESSAGE_DIRECTLY."""

    consumer_group: Name
    client_id: ClientId | None = None
    msg_id: str | None = None
    broker_name: Name | None = None
    topic: TopicName | None = None
