"""Arguments of requests and responses as typed values; the wire's camelCase stays here.

Each class is the header of one request or response code: ``parse`` reads ``extFields``, ``to_ext`` writes
them. An argument that is None is left out. Required ones are enforced here, because Java's marks are not
enforced on receipt and a missing one fails later.
Source: the ``*RequestHeader`` and ``*ResponseHeader`` classes of RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Final, NamedTuple, Self

import msgspec

from remoting.errors import FieldError as FieldError

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


def _integer(bits: int) -> Callable[[str], int]:
    limit = 2 ** (bits - 1)

    def parse(value: str) -> int:
        number = int(value) if _INTEGER.fullmatch(value) else limit
        if not -limit <= number < limit:
            raise ValueError(f"an integer of {bits} bits")
        return number

    return parse


def _boolean(value: str) -> bool:
    return value.lower() == "true"


def _write(value: Any) -> str:
    if value is True:
        return "true"
    return "false" if value is False else str(value)


_INT32_MAX: Final = str(2**31 - 1)
_INT32: Final = _integer(32)
_INT64: Final = _integer(64)


def _argument(
    parse: Callable[[str], Any], name: str, default: Any, *, short: str = "", forgiving: bool = False
) -> Any:
    metadata = {"wire": name, "parse": parse, "short": short or name, "forgiving": forgiving}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def text(name: str, default: Any = MISSING, *, short: str = "") -> Any:
    """Declare a text argument; required unless a default is given."""
    return _argument(str, name, default, short=short)


def int32(name: str, default: Any = MISSING, *, short: str = "", forgiving: bool = False) -> Any:
    """Declare a 32-bit argument. A forgiving one takes its default when the text is no such number."""
    return _argument(_INT32, name, default, short=short, forgiving=forgiving)


def int64(name: str, default: Any = MISSING, *, short: str = "", forgiving: bool = False) -> Any:
    """Declare a 64-bit argument. A forgiving one takes its default when the text is no such number."""
    return _argument(_INT64, name, default, short=short, forgiving=forgiving)


def boolean(name: str, default: Any = MISSING, *, short: str = "") -> Any:
    """Declare a boolean argument: true for "true" in any case, else false, as Java reads it."""
    return _argument(_boolean, name, default, short=short)


class _Argument(NamedTuple):
    attribute: str
    wire: str
    parse: Callable[[str], Any] | None  # None for text, which needs none
    required: bool
    default: Any
    forgiving: bool
    set: Callable[[Any, Any], None]  # of the slot: instances are frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Base of all argument classes: reads and writes by the declarations of the subclass."""

    _plans: ClassVar[dict[tuple[type, str], tuple[_Argument, ...]]] = {}

    @classmethod
    def parse(cls, ext: Mapping[str, str]) -> Self:
        """Read the arguments; those not declared are ignored.

        Raises:
            FieldError: If a required one is missing, or one is of the wrong type.
        """
        return cls._parse(ext, "wire")

    def to_ext(self) -> dict[str, str]:
        """Write the arguments; those that are None are left out."""
        return self._to_ext("wire")

    @classmethod
    def _plan(cls, spelling: str) -> tuple[_Argument, ...]:
        plan = cls._plans.get((cls, spelling))
        if plan is None:
            plan = cls._plans[cls, spelling] = tuple(
                _Argument(
                    declared.name,
                    declared.metadata[spelling],
                    None if declared.metadata["parse"] is str else declared.metadata["parse"],
                    declared.default is MISSING,
                    declared.default,
                    declared.metadata["forgiving"],
                    getattr(cls, declared.name).__set__,
                )
                for declared in fields(cls)
            )
        return plan

    @classmethod
    def _parse(cls, ext: Mapping[str, str], spelling: str) -> Self:
        made = cls.__new__(cls)  # filled slot by slot: that is what a frozen dataclass takes its time for
        for _, wire, parse, required, default, forgiving, put in cls._plan(spelling):
            value = ext.get(wire)
            if value is None:
                if required:
                    raise FieldError(wire, None, "it is required")
                put(made, default)
            elif parse is None:
                put(made, value)
            else:
                try:
                    put(made, parse(value))
                except ValueError as error:
                    if not forgiving:
                        raise FieldError(wire, value, str(error)) from None
                    put(made, default)
        return made

    def _to_ext(self, spelling: str) -> dict[str, str]:
        ext = {}
        for argument in self._plan(spelling):
            value = getattr(self, argument.attribute)
            if value is not None:
                ext[argument.wire] = value if type(value) is str else _write(value)
        return ext


# Nameserver ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerFields(Fields):
    """REGISTER_BROKER 103.

    Attributes:
        body_crc32: CRC32 of the body as sent, 31 bits; 0 or unreadable means not to be checked.
        heartbeat_timeout_ms: Lease that a 5.x broker asks for; None for the default.
        enable_acting_master: None from a broker that knows no acting master.
    """

    broker_name: str = text("brokerName")
    broker_addr: str = text("brokerAddr")
    cluster_name: str = text("clusterName")
    ha_server_addr: str = text("haServerAddr", "")
    broker_id: int = int64("brokerId")
    compressed: bool = boolean("compressed", False)
    body_crc32: int = int32("bodyCrc32", 0, forgiving=True)
    heartbeat_timeout_ms: int | None = int64("heartbeatTimeoutMillis", None, forgiving=True)
    enable_acting_master: bool | None = boolean("enableActingMaster", None)
    zone_name: str | None = text("__ZONE_NAME", None)


class PlainRegisterFields(msgspec.Struct, frozen=True, gc=False):
    """What :class:`RegisterBrokerFields` says, see :func:`read_plain_register`."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: int
    compressed: bool
    body_crc32: int
    heartbeat_timeout_ms: int | None
    enable_acting_master: bool | None
    zone_name: str | None


def read_plain_register(ext: Mapping[str, str]) -> PlainRegisterFields | None:
    """Read the arguments of a registration in a third of the time that :class:`RegisterBrokerFields` takes.

    It calls nothing: a call whose code has left the processor's caches takes longer than all this.

    Returns:
        None if one is missing or unusual; ``RegisterBrokerFields.parse`` tells which. What this reads, that
        one reads alike.
    """
    get = ext.get
    name, addr, cluster = get("brokerName"), get("brokerAddr"), get("clusterName")
    broker_id, crc = get("brokerId", ""), get("bodyCrc32", "0")
    if name is None or addr is None or cluster is None:
        return None
    if not (broker_id.isdigit() and broker_id.isascii() and len(broker_id) < 10):
        return None
    # Most checksums have ten digits, the most that there are.
    if not (crc.isdigit() and crc.isascii() and (len(crc) < 10 or (len(crc) == 10 and crc <= _INT32_MAX))):
        return None
    timeout, acting = get("heartbeatTimeoutMillis"), get("enableActingMaster")
    if timeout is not None and not (timeout.isdigit() and timeout.isascii() and len(timeout) < 10):
        return None
    return PlainRegisterFields(
        name,
        addr,
        cluster,
        get("haServerAddr", ""),
        int(broker_id),
        get("compressed", "").lower() == "true",
        int(crc),
        None if timeout is None else int(timeout),
        None if acting is None else acting.lower() == "true",
        get("__ZONE_NAME"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerResponseFields(Fields):
    """Answer to 103; both only for a slave whose master is registered."""

    ha_server_addr: str | None = text("haServerAddr", None)
    master_addr: str | None = text("masterAddr", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerFields(Fields):
    """UNREGISTER_BROKER 104."""

    broker_name: str = text("brokerName")
    broker_addr: str = text("brokerAddr")
    cluster_name: str = text("clusterName")
    broker_id: int = int64("brokerId")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDataVersionFields(Fields):
    """QUERY_DATA_VERSION 322."""

    broker_name: str = text("brokerName")
    broker_addr: str = text("brokerAddr")
    cluster_name: str = text("clusterName")
    broker_id: int = int64("brokerId", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDataVersionResponseFields(Fields):
    """Answer to 322."""

    changed: bool = boolean("changed")


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRouteFields(Fields):
    """GET_ROUTEINFO_BY_TOPIC 105."""

    topic: str | None = text("topic", None)
    accept_standard_json_only: bool = boolean("acceptStandardJsonOnly", False)
    zone_mode: bool = boolean("__ZONE_MODE", False)
    zone_name: str | None = text("__ZONE_NAME", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutKvFields(Fields):
    """PUT_KV_CONFIG 100. All are optional on the wire; the handler names what is missing."""

    namespace: str | None = text("namespace", None)
    key: str | None = text("key", None)
    value: str | None = text("value", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKvFields(Fields):
    """GET_KV_CONFIG 101."""

    namespace: str | None = text("namespace", None)
    key: str | None = text("key", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKvResponseFields(Fields):
    """Answer to 101."""

    value: str | None = text("value", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteKvFields(Fields):
    """DELETE_KV_CONFIG 102."""

    namespace: str | None = text("namespace", None)
    key: str | None = text("key", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKvListFields(Fields):
    """GET_KVLIST_BY_NAMESPACE 219."""

    namespace: str | None = text("namespace", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePermFields(Fields):
    """WIPE_WRITE_PERM_OF_BROKER 205 and ADD_WRITE_PERM_OF_BROKER 327."""

    broker_name: str | None = text("brokerName", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeWritePermResponseFields(Fields):
    """Answer to 205."""

    wipe_topic_count: int = int32("wipeTopicCount")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWritePermResponseFields(Fields):
    """Answer to 327."""

    add_topic_count: int = int32("addTopicCount")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicInNamesrvFields(Fields):
    """DELETE_TOPIC_IN_NAMESRV 216."""

    topic: str = text("topic")
    cluster_name: str | None = text("clusterName", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicsByClusterFields(Fields):
    """GET_TOPICS_BY_CLUSTER 224."""

    cluster: str | None = text("cluster", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerMemberGroupFields(Fields):
    """GET_BROKER_MEMBER_GROUP 901."""

    cluster_name: str = text("clusterName")
    broker_name: str = text("brokerName")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatFields(Fields):
    """BROKER_HEARTBEAT 904, oneway."""

    cluster_name: str = text("clusterName")
    broker_addr: str = text("brokerAddr")
    broker_name: str = text("brokerName", "")
    broker_id: int | None = int64("brokerId", None, forgiving=True)
    epoch: int | None = int32("epoch", None, forgiving=True)
    max_offset: int | None = int64("maxOffset", None, forgiving=True)
    confirm_offset: int | None = int64("confirmOffset", None, forgiving=True)
    heartbeat_timeout_ms: int | None = int64("heartbeatTimeoutMills", None, forgiving=True)
    election_priority: int | None = int32("electionPriority", None, forgiving=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyMinBrokerIdFields(Fields):
    """NOTIFY_MIN_BROKER_ID_CHANGE 905, from a nameserver to a broker, oneway."""

    min_broker_id: int | None = int64("minBrokerId", None)
    broker_name: str | None = text("brokerName", None)
    min_broker_addr: str | None = text("minBrokerAddr", None)
    offline_broker_addr: str | None = text("offlineBrokerAddr", None)
    ha_broker_addr: str | None = text("haBrokerAddr", None)


# Topics ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFields(Fields):
    """One topic: 202, 215, 217, 300, 351."""

    topic: str = text("topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicFields(Fields):
    """UPDATE_AND_CREATE_TOPIC 17.

    Attributes:
        attributes: ``+key=value,-key`` (5.x).
    """

    topic: str = text("topic")
    default_topic: str = text("defaultTopic", "TBW102")
    read_queue_nums: int = int32("readQueueNums")
    write_queue_nums: int = int32("writeQueueNums")
    perm: int = int32("perm")
    topic_filter_type: str = text("topicFilterType", "SINGLE_TAG")
    topic_sys_flag: int = int32("topicSysFlag", 0)
    order: bool = boolean("order", False)
    attributes: str | None = text("attributes", None)
    force: bool | None = boolean("force", None)


# Sending ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageFields(Fields):
    """SEND_MESSAGE 10; its V2 (310, 320, 325) spells the same arguments as single letters.

    Attributes:
        queue_id: Below 0 the broker picks one.
        sys_flag: See ``remoting.message``.
        born_timestamp: Unix ms at the producer.
        properties: ``name 0x01 value 0x02 ...``.
        batch: The body is a batch; this, not the code, says so.
    """

    producer_group: str = text("producerGroup", short="a")
    topic: str = text("topic", short="b")
    default_topic: str = text("defaultTopic", "TBW102", short="c")
    default_topic_queue_nums: int = int32("defaultTopicQueueNums", 4, short="d")
    queue_id: int = int32("queueId", short="e")
    sys_flag: int = int32("sysFlag", 0, short="f")
    born_timestamp: int = int64("bornTimestamp", 0, short="g")
    flag: int = int32("flag", 0, short="h")
    properties: str | None = text("properties", None, short="i")
    reconsume_times: int | None = int32("reconsumeTimes", None, short="j")
    unit_mode: bool | None = boolean("unitMode", None, short="k")
    max_reconsume_times: int | None = int32("maxReconsumeTimes", None, short="l")
    batch: bool | None = boolean("batch", None, short="m")
    broker_name: str | None = text("bname", None, short="n")

    @classmethod
    def parse_v2(cls, ext: Mapping[str, str]) -> Self:
        """Read the single-letter spelling.

        Raises:
            FieldError: As :meth:`parse`.
        """
        return cls._parse(ext, "short")

    def to_ext_v2(self) -> dict[str, str]:
        """Write the single-letter spelling."""
        return self._to_ext("short")


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageResponseFields(Fields):
    """Answer to a send. Java's producer crashes on a success without arguments; it also reads the region."""

    msg_id: str = text("msgId")
    queue_id: int = int32("queueId")
    queue_offset: int = int64("queueOffset")
    transaction_id: str | None = text("transactionId", None)
    batch_uniq_id: str | None = text("batchUniqId", None)
    recall_handle: str | None = text("recallHandle", None)
    msg_region: str | None = text("MSG_REGION", None)
    trace_on: str | None = text("TRACE_ON", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBackFields(Fields):
    """CONSUMER_SEND_MSG_BACK 36.

    Attributes:
        offset: Commit log offset of the message.
        delay_level: 0 leaves it to the broker; below 0 straight to the dead letters.
    """

    offset: int = int64("offset")
    group: str = text("group")
    delay_level: int = int32("delayLevel")
    origin_msg_id: str | None = text("originMsgId", None)
    origin_topic: str | None = text("originTopic", None)
    unit_mode: bool = boolean("unitMode", False)
    max_reconsume_times: int | None = int32("maxReconsumeTimes", None)
    broker_name: str | None = text("bname", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionFields(Fields):
    """END_TRANSACTION 37, oneway."""

    producer_group: str = text("producerGroup")
    tran_state_table_offset: int = int64("tranStateTableOffset")
    commit_log_offset: int = int64("commitLogOffset")
    commit_or_rollback: int = int32("commitOrRollback")
    from_transaction_check: bool = boolean("fromTransactionCheck", False)
    msg_id: str = text("msgId", "")
    transaction_id: str | None = text("transactionId", None)
    topic: str | None = text("topic", None)


# Pulling and offsets ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageFields(Fields):
    """PULL_MESSAGE 11.

    Attributes:
        sys_flag: 1 commit the offset, 2 suspend, 4 subscription present, 8 class filter, 16 lite pull.
        commit_offset: Offset to commit for the group, with bit 1.
        suspend_timeout_ms: How long the broker may hold the request, with bit 2.
    """

    consumer_group: str = text("consumerGroup")
    topic: str = text("topic")
    queue_id: int = int32("queueId")
    queue_offset: int = int64("queueOffset")
    max_msg_nums: int = int32("maxMsgNums")
    sys_flag: int = int32("sysFlag", 0)
    commit_offset: int = int64("commitOffset", 0)
    suspend_timeout_ms: int = int64("suspendTimeoutMillis", 0)
    subscription: str | None = text("subscription", None)
    sub_version: int = int64("subVersion", 0)
    expression_type: str | None = text("expressionType", None)
    max_msg_bytes: int | None = int32("maxMsgBytes", None)
    request_source: int | None = int32("requestSource", None)
    broker_name: str | None = text("bname", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageResponseFields(Fields):
    """Answer to 11; the first four are needed in every answer, also when nothing was found."""

    suggest_which_broker_id: int = int64("suggestWhichBrokerId", 0)
    next_begin_offset: int = int64("nextBeginOffset")
    min_offset: int = int64("minOffset")
    max_offset: int = int64("maxOffset")
    offset_delta: int | None = int64("offsetDelta", None)
    topic_sys_flag: int | None = int32("topicSysFlag", None)
    group_sys_flag: int | None = int32("groupSysFlag", None)
    forbidden_type: int | None = int32("forbiddenType", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumerOffsetFields(Fields):
    """QUERY_CONSUMER_OFFSET 14."""

    consumer_group: str = text("consumerGroup")
    topic: str = text("topic")
    queue_id: int = int32("queueId")
    set_zero_if_not_found: bool | None = boolean("setZeroIfNotFound", None)
    broker_name: str | None = text("bname", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConsumerOffsetFields(Fields):
    """UPDATE_CONSUMER_OFFSET 15, often oneway."""

    consumer_group: str = text("consumerGroup")
    topic: str = text("topic")
    queue_id: int = int32("queueId")
    commit_offset: int = int64("commitOffset")
    broker_name: str | None = text("bname", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOffsetFields(Fields):
    """SEARCH_OFFSET_BY_TIMESTAMP 29; ``timestamp`` is Unix ms."""

    topic: str = text("topic")
    queue_id: int = int32("queueId")
    timestamp: int = int64("timestamp")
    boundary_type: str | None = text("boundaryType", None)
    broker_name: str | None = text("bname", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFields(Fields):
    """GET_MAX_OFFSET 30, GET_MIN_OFFSET 31, GET_EARLIEST_MSG_STORETIME 32."""

    topic: str = text("topic")
    queue_id: int = int32("queueId")
    committed: bool | None = boolean("committed", None)
    broker_name: str | None = text("bname", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResponseFields(Fields):
    """Answer to 14, 29, 30, 31."""

    offset: int = int64("offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampResponseFields(Fields):
    """Answer to 32: Unix ms, -1 if there is no message."""

    timestamp: int = int64("timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMessageFields(Fields):
    """VIEW_MESSAGE_BY_ID 33; ``offset`` is the commit log's."""

    offset: int = int64("offset")
    topic: str | None = text("topic", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageFields(Fields):
    """QUERY_MESSAGE 12; instants are Unix ms."""

    topic: str = text("topic")
    key: str = text("key")
    max_num: int = int32("maxNum")
    begin_timestamp: int = int64("beginTimestamp")
    end_timestamp: int = int64("endTimestamp")
    unique_key_query: bool = boolean("_UNIQUE_KEY_QUERY", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageResponseFields(Fields):
    """Answer to 12."""

    index_last_update_timestamp: int = int64("indexLastUpdateTimestamp")
    index_last_update_phyoffset: int = int64("indexLastUpdatePhyoffset")


# Clients and groups ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterClientFields(Fields):
    """UNREGISTER_CLIENT 35."""

    client_id: str = text("clientID")
    producer_group: str | None = text("producerGroup", None)
    consumer_group: str | None = text("consumerGroup", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupFields(Fields):
    """GET_CONSUMER_LIST_BY_GROUP 38, NOTIFY_CONSUMER_IDS_CHANGED 40, GET_CONSUMER_CONNECTION_LIST 203."""

    consumer_group: str = text("consumerGroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerGroupFields(Fields):
    """GET_PRODUCER_CONNECTION_LIST 204."""

    producer_group: str = text("producerGroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupFields(Fields):
    """DELETE_SUBSCRIPTIONGROUP 207; 4.9 and 5.x name the offset switch differently."""

    group_name: str = text("groupName")
    remove_offset: bool | None = boolean("removeOffset", None)
    clean_offset: bool | None = boolean("cleanOffset", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStatsFields(Fields):
    """GET_CONSUME_STATS 208."""

    consumer_group: str = text("consumerGroup")
    topic: str | None = text("topic", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsetFields(Fields):
    """INVOKE_BROKER_TO_RESET_OFFSET 222, RESET_CONSUMER_CLIENT_OFFSET 220; timestamp -1: the maximum."""

    topic: str = text("topic")
    group: str = text("group")
    timestamp: int = int64("timestamp", -1)
    is_force: bool = boolean("isForce", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRunningInfoFields(Fields):
    """GET_CONSUMER_RUNNING_INFO 307."""

    consumer_group: str = text("consumerGroup")
    client_id: str = text("clientId")
    jstack_enable: bool = boolean("jstackEnable", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeMessageDirectlyFields(Fields):
    """CONSUME_MESSAGE_DIRECTLY 309."""

    consumer_group: str = text("consumerGroup")
    client_id: str | None = text("clientId", None)
    msg_id: str | None = text("msgId", None)
    broker_name: str | None = text("brokerName", None)
    topic: str | None = text("topic", None)
