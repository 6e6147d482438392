"""The commands that change the route table, and their form in the log.

A member computes a command from the state of its table. The command names the revision of each item that it
changes (see :func:`bases`). An item is a broker record, a broker name, a topic or a KV key. For an absent
item, the command names the revision of the whole table. If one of these items has changed since the member
computed the command, the table answers *moved*.

A command contains the values of all settings that it needs. Applying a command reads no clock, no random
number and no setting.

Log form of one command:

- one byte: the format version;
- one byte: the packing (0 plain, 1 zlib);
- a msgpack array that starts with the command's kind.

A release may add fields with defaults at the end of the array. A new kind of command, or a kind with a
changed meaning, gets a new format version; older kinds keep their version. Members propose a command of a new
version only when every member understands this version.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias, assert_never

import msgspec
from msgspec.structs import replace

from routekeeper.nameserver.types import BrokerAddr, BrokerKey, BrokerName, ClusterName, LeaveReason
from routekeeper.remoting.lenient import UNREADABLE
from routekeeper.remoting.route import DataVersion
from routekeeper.remoting.steps import Steps, finish, in_chunks

FORMAT_VERSION: Final = 3
"""Newest format of commands that this program reads; it also reads all older formats.

Format 2 added :class:`Update`.
"""

FIRST_FORMAT: Final = 1
"""Oldest format of commands: every release reads commands of this format."""

UPDATE_FORMAT: Final = 2
"""First format version with the command :class:`Update`."""

LIMITS_FORMAT: Final = 3
"""First format in which a member obeys :class:`TableLimits`.

Older members would apply a command that these limits reject.
"""

BATCH_FORMAT: Final = 1
"""Format version of batches. It does not depend on the commands in a batch."""

COMMAND_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size limit of one command as the log stores it, in bytes."""
ENTRY_BYTES_MAX: Final = 5 * 1024 * 1024
"""Size limit of one log entry, in bytes; the entry may be a batch of commands."""
INFLATED_BYTES_MAX: Final = 128 * 1024 * 1024
"""Size limit of one uncompressed command, in bytes. A registration of 200,000 topics needs some 20 MB.

Repetitive text compresses to a thousandth of its size, so the bytes in the log do not bound the memory.
Writers and readers of commands both check this limit.
"""

_PLAIN: Final = 0
_ZLIB: Final = 1
_PACKED_WORK: Final = 40
#: A command above this size in bytes is compressed or decompressed in a step of its own. Other work of the
#: event loop can then run before and after this step. A compressed command with some 1,000 topics has this
#: size.
_LONG_BYTES: Final = 2048
#: Commands below this size in bytes are not compressed: compression would cost more time than it saves.
_PACK_FROM: Final = 1024
#: Number of topics, and uncompressed size in bytes, from which a command is written and read in steps. 20,000
#: topics take 2 ms to write and 3 ms to read. Reading in steps takes 1.5 times as long in total.
_TOPICS_SLICED: Final = 20_000
_BYTES_SLICED: Final = 512 * 1024
# Use zlib's lowest level. Topic lists are repetitive: the highest level would save few more bytes and take
# ten times as long.
_ZLIB_LEVEL: Final = 1


class CommandFormatError(Exception):
    """Bytes in the log that this program cannot read as a command.

    The member that read them must stop. Without this command, its table would differ from the other tables.
    """


class CommandTooLarge(Exception):
    """A command is larger than a log entry may be. Nothing was changed.

    Attributes:
        size: Size of the command in the log, in bytes.
        limit: Largest size allowed, in bytes.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"command of {size} bytes is above the limit of {limit}")
        self.size = size
        self.limit = limit


class _Wire(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Base class of all values in a log. They are immutable, compared by value, and encoded as arrays."""


class TopicQueues(_Wire, frozen=True, gc=False):
    """A topic's configuration at one broker, as the nameserver stores it."""

    topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class BrokerQueues(_Wire, frozen=True):
    """Queues of one topic at one broker name (request 217)."""

    broker_name: BrokerName
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class QueueMapping(_Wire, frozen=True):
    """Mapping info of a static topic (5.x).

    Attributes:
        epoch: Version of the info. The table replaces a stored info only by an info with a greater epoch.
        info: The whole mapping info as canonical JSON text.
    """

    topic: str
    epoch: int
    info: str


class TableLimits(_Wire, frozen=True):
    """Bounds of the table, from the proposer's settings. No command may make the table exceed these bounds.

    Attributes:
        topics: Number of topics.
        pairs: Number of pairs of a topic and a broker name that has queue data of the topic.
        brokers: Number of broker records.
        size: Size of the texts of topics, pairs and records together, in bytes.
        host: Host that sent the request; the command's additions count against this host. If empty, the
            additions count against no host.
        host_percent: Percentage of each bound that one host may use.
    """

    topics: int
    pairs: int
    brokers: int
    size: int
    host: str = ""
    host_percent: int = 100


class _OfBroker(_Wire, frozen=True):
    """Base of the commands about one broker. Their first fields identify the broker."""

    cluster_name: ClusterName
    broker_name: BrokerName
    broker_addr: BrokerAddr

    @property
    def broker(self) -> BrokerKey:
        return BrokerKey(self.cluster_name, self.broker_addr)


class RegisterBroker(_OfBroker, frozen=True, tag=1):
    """Request 103: a broker's registration.

    Attributes:
        topics: The broker's topics, each at most once.
        incremental: True if the body has exactly one topic. RocketMQ 5.x uses the same criterion.
        filter_servers: None keeps the stored list; an empty tuple removes it.
        lease_ms: Longest time without contact from the broker, in ms. The request may give it; the default is
            120,000 ms.
        enable_acting_master: None if the request lacks it, as with brokers before 5.0.
        delete_absent: Value of the setting ``deleteTopicWithBrokerRegistration``. It has no effect on an
            incremental registration.
        record_revision: Revision of the (cluster, address) record.
        name_revision: Revision of the broker name.
        limits: Bounds of the table; with None, the table's size is not checked.
    """

    broker_id: int
    ha_server_addr: str
    data_version: DataVersion
    topics: tuple[TopicQueues, ...]
    incremental: bool
    filter_servers: tuple[str, ...] | None
    mappings: tuple[QueueMapping, ...]
    lease_ms: int
    enable_acting_master: bool | None
    zone_name: str | None
    delete_absent: bool
    record_revision: int
    name_revision: int
    limits: TableLimits | None = None


class Touch(_OfBroker, frozen=True, tag=2):
    """A registration that equals the stored registration. The command only raises the record's revision.

    The command does not contain the registration's topics, and names no revision. Instead the table compares
    the record with the command's fields, and returns the verdict ``Moved`` if they differ.

    Attributes:
        data_version: The record's data version. An incremental registration may have an older version.
        complete: The record's flag: true if no incremental registration followed its last full registration.
    """

    broker_id: int
    ha_server_addr: str
    data_version: DataVersion
    complete: bool
    lease_ms: int
    enable_acting_master: bool | None
    zone_name: str | None


class UnregisterBroker(_OfBroker, frozen=True, tag=3):
    """Request 104 (unregister a broker), sent over a connection on which the broker never registered.

    The table finds the record by address and broker name.
    """

    broker_id: int
    record_revision: int
    name_revision: int


class Evict(_Wire, frozen=True, tag=4):
    """Eviction of a broker that is gone.

    It changes nothing if the broker's record has another revision than ``revision``, for example because the
    broker has registered again in the meantime.
    """

    cluster_name: ClusterName
    broker_addr: BrokerAddr
    revision: int
    reason: LeaveReason

    @property
    def broker(self) -> BrokerKey:
        return BrokerKey(self.cluster_name, self.broker_addr)


class WipeWritePerm(_Wire, frozen=True, tag=5):
    """Request 205: clear the write bit of every queue data of a broker name."""

    broker_name: BrokerName
    name_revision: int


class AddWritePerm(_Wire, frozen=True, tag=6):
    """Request 327: set the permission of every queue data of a broker name to 6 (read and write)."""

    broker_name: BrokerName
    name_revision: int


class DeleteTopic(_Wire, frozen=True, tag=7):
    """Request 216: drop a topic, or its queue data at one cluster's brokers."""

    topic: str
    cluster_name: ClusterName | None
    topic_revision: int


class RegisterTopic(_Wire, frozen=True, tag=8):
    """Request 217: store queue data of one topic, if the table knows every broker in the request."""

    topic: str
    queues: tuple[BrokerQueues, ...]
    topic_revision: int
    limits: TableLimits | None = None


class PutKv(_Wire, frozen=True, tag=9):
    """Request 100: store a KV value. It is None if the request has no value; RocketMQ stores null then."""

    namespace: str
    key: str
    value: str | None
    key_revision: int


class DeleteKv(_Wire, frozen=True, tag=10):
    """Request 102: delete a KV key. The table keeps the namespace, even if it is then empty."""

    namespace: str
    key: str
    key_revision: int


class ImportKv(_Wire, frozen=True, tag=11):
    """The content of the KV file that the nameserver found at its first start.

    A table that ever stored a KV configuration rejects this command.
    """

    table: dict[str, dict[str, str | None]]


class Update(_OfBroker, frozen=True, tag=12):
    """A registration that contains only the topics that it changes. The broker's own fields have not changed.

    :meth:`RouteTable.shortened` creates this command. The command has the same result as the whole
    registration only if the table's state of this broker is still the same. So the table compares three
    parts of this state with the command:

    - the revisions of the record and of the broker name;
    - the broker name's fields that change without a new revision;
    - the broker name's number of topics.

    The number of topics is needed because :class:`DeleteTopic` may remove a topic without raising the name's
    revision. The whole registration may contain the removed topic, but this command does not contain it.

    Attributes:
        topics: Topics whose queue data differ from the table's, each with its new queue data.
        incremental: True if the registration was incremental.
        enable_acting_master, zone_name: Fields of the broker name. The registration has the same values.
        topic_count: Number of topics of the broker name before this command.
        record_revision: Revision of the (cluster, address) record.
        name_revision: Revision of the broker name.
        limits: None if the broker name already has all these topics; otherwise as in :class:`RegisterBroker`.
    """

    data_version: DataVersion
    topics: tuple[TopicQueues, ...]
    incremental: bool
    enable_acting_master: bool
    zone_name: str | None
    topic_count: int
    record_revision: int
    name_revision: int
    limits: TableLimits | None = None


Command: TypeAlias = (
    RegisterBroker
    | Update
    | Touch
    | UnregisterBroker
    | Evict
    | WipeWritePerm
    | AddWritePerm
    | DeleteTopic
    | RegisterTopic
    | PutKv
    | DeleteKv
    | ImportKv
)

Limited: TypeAlias = RegisterBroker | Update | RegisterTopic
"""Commands that can make the table of brokers and topics grow."""

BaseKind: TypeAlias = Literal["record", "name", "topic", "key"]


class Base(msgspec.Struct, frozen=True):
    """One item of the table from which a command was computed.

    Attributes:
        key: A BrokerKey for a record, text for a broker name or topic, (namespace, key) for a KV key.
        revision: Revision of the item's last change, or of the table if the item was absent.
    """

    kind: BaseKind
    key: Hashable
    revision: int


def bases(command: Command) -> tuple[Base, ...]:
    """Return the items from which a command was computed.

    The table returns the verdict ``Moved`` if any of these items has changed since the command was computed.

    Two commands in one log conflict if they name the same item.
    """
    match command:
        case RegisterBroker() | Update() | UnregisterBroker():
            return (
                Base("record", command.broker, command.record_revision),
                Base("name", command.broker_name, command.name_revision),
            )
        case Evict():
            return (Base("record", command.broker, command.revision),)
        case WipeWritePerm() | AddWritePerm():
            return (Base("name", command.broker_name, command.name_revision),)
        case DeleteTopic() | RegisterTopic():
            return (Base("topic", command.topic, command.topic_revision),)
        case PutKv() | DeleteKv():
            return (Base("key", (command.namespace, command.key), command.key_revision),)
        case Touch() | ImportKv():
            return ()
    assert_never(command)


class Proposal(_Wire, frozen=True):
    """A command on its way through a log, with numbers by which its proposer recognises it.

    Attributes:
        boot_id: Random number of the proposing process.
        sequence: Number of the proposal within that process. It stays the same when the process sends the
            proposal again.
        command: Log form of the command: a process that forwards the proposal need not encode it again.
    """

    boot_id: int
    sequence: int
    command: bytes


class Batch(_Wire, frozen=True):
    """One log entry: proposals that members apply one by one in this order."""

    proposals: tuple[Proposal, ...]


_OfTopics: TypeAlias = RegisterBroker | Update
"""Commands that contain the topics of one broker. One command may have many topics."""

_encoder: Final = msgspec.msgpack.Encoder()
_array_decoder: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_topics_decoder: Final = msgspec.msgpack.Decoder(list[TopicQueues])
#: Position of the topics in a command's log form, by the encoded kind.
_TOPICS_AT: Final = {
    _encoder.encode(kind.__struct_config__.tag): 1 + kind.__struct_fields__.index("topics")
    for kind in (RegisterBroker, Update)
}
_command_decoder: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(Command)
_batch_decoder: Final = msgspec.msgpack.Decoder(Batch)


def encode_command(command: Command) -> bytes:
    """Return the log form of a command.

    Raises:
        CommandTooLarge: If the log form exceeds :data:`COMMAND_BYTES_MAX`, or the uncompressed form exceeds
            :data:`INFLATED_BYTES_MAX`.
    """
    data = _encoder.encode(command)
    _check_inflated(len(data))
    packing = _PLAIN if len(data) < _PACK_FROM else _ZLIB
    if packing == _ZLIB:
        data = zlib.compress(data, _ZLIB_LEVEL)
    return _log_form(command, packing, data)


def _check_inflated(size: int) -> None:
    if size > INFLATED_BYTES_MAX:
        raise CommandTooLarge(size, INFLATED_BYTES_MAX)


def _log_form(command: Command, packing: int, data: bytes) -> bytes:
    if len(data) + 2 > COMMAND_BYTES_MAX:
        raise CommandTooLarge(len(data) + 2, COMMAND_BYTES_MAX)
    return bytes((_format_for(command), packing)) + data


def _format_for(command: Command) -> int:
    if isinstance(command, Limited) and command.limits is not None:
        return LIMITS_FORMAT
    return UPDATE_FORMAT if type(command) is Update else FIRST_FORMAT


def written_and_read(command: Command) -> Steps[tuple[bytes, Command]]:
    """Return a command's log form, and the command as every member will read it.

    A proposer sends only a command that it can read back. Otherwise all members might stop at this command,
    or a member might apply a different command than the other members.

    Raises:
        CommandTooLarge: As :func:`encode_command`.
        CommandFormatError: If the command cannot be read back, which is a defect of this program.
    """
    if isinstance(command, _OfTopics) and len(command.topics) >= _TOPICS_SLICED:
        return (yield from _writing_long(command))
    data = encode_command(command)
    if len(data) > _LONG_BYTES:
        yield
    return data, (yield from decoding_command(data))


def _writing_long(command: _OfTopics) -> Steps[tuple[bytes, Command]]:
    """Write a command with many topics in steps, as :func:`encode_command` does, and read it back."""
    rest = _encoder.encode(replace(command, topics=()))
    fields = _array_decoder.decode(rest)
    at, begin = _TOPICS_AT[bytes(fields[0])], len(rest) - sum(map(len, fields))
    head = b"".join((rest[:begin], *fields[:at], _array_head(len(command.topics))))
    stream, size = zlib.compressobj(_ZLIB_LEVEL), 0
    plain, packed = [], []
    for piece in _pieces(head, command.topics, b"".join(fields[at + 1 :])):
        size += len(piece)
        _check_inflated(size)
        plain.append(piece)
        packed.append(stream.compress(piece))
        yield
    packed.append(stream.flush())
    data = _log_form(command, _ZLIB, b"".join(packed))
    yield
    if _inflate(data[2:]) != b"".join(plain):
        raise CommandFormatError(f"command of {len(data)} bytes: its zlib stream holds something else")
    return data, replace(_command_decoder.decode(rest), topics=command.topics)


def _pieces(head: bytes, topics: Sequence[TopicQueues], tail: bytes) -> Iterator[bytes]:
    """Yield the encoded pieces of a command. Check that each piece's topics can be read back unchanged."""
    yield head
    for chunk in in_chunks(topics):
        piece = _encoder.encode(chunk)
        if _topics_decoder.decode(piece) != chunk:
            raise CommandFormatError(f"{len(chunk)} topics are read otherwise than they were written")
        yield piece[len(_array_head(len(chunk))) :]
    yield tail


def _array_head(count: int) -> bytes:
    """Return msgpack's header of an array of ``count`` items, as msgspec writes it."""
    if count < 16:
        return bytes((0x90 | count,))
    return struct.pack(">BH", 0xDC, count) if count < 65536 else struct.pack(">BI", 0xDD, count)


def format_of(command: bytes) -> int:
    """Return the format version that a member must know to apply a command. ``command`` is the log form."""
    return command[0] if command else 0


def work_of(command: bytes) -> int:
    """Return the cost of applying a command, from the bytes of its log form.

    Each plain byte costs 1 and each compressed byte 40, because a compressed topic takes only two or three
    bytes.
    """
    return len(command) * (_PACKED_WORK if command[1] == _ZLIB else 1)


def decode_command(data: bytes) -> Command:
    """Read the log form of a command in one step; see :func:`decoding_command`."""
    return finish(decoding_command(data))


def decoding_command(data: bytes) -> Steps[Command]:
    """Read the log form of a command in steps, with bounded memory.

    Raises:
        CommandFormatError: If the log form has a newer format, has an unknown kind, or is damaged.
    """
    if len(data) < 3 or not FIRST_FORMAT <= data[0] <= FORMAT_VERSION or data[1] not in (_PLAIN, _ZLIB):
        raise CommandFormatError(
            f"command of {len(data)} bytes starts with {data[:2].hex()}, "
            f"not with a format of {FIRST_FORMAT} to {FORMAT_VERSION}"
        )
    if len(data) > COMMAND_BYTES_MAX:
        raise CommandFormatError(f"command of {len(data)} bytes is above the limit of {COMMAND_BYTES_MAX}")
    payload = data[2:]
    if data[1] == _ZLIB:
        payload = _inflate(payload)
        if len(data) > _LONG_BYTES:
            yield
    if len(payload) >= _BYTES_SLICED:
        read = yield from _reading_long(payload)
        if read is not None:
            return read
    try:
        command: Command = _command_decoder.decode(payload)
    except UNREADABLE as error:
        raise CommandFormatError(f"command of {len(data)} bytes: {error}") from None
    return command


def _reading_long(payload: bytes) -> Steps[Command | None]:
    """Read a command with many topics in steps; return None for other commands and damaged commands."""
    try:
        fields = _array_decoder.decode(payload)
        at = _TOPICS_AT.get(bytes(fields[0])) if fields else None
        if at is None or at >= len(fields):
            return None
        yield
        encoded = _array_decoder.decode(fields[at])
        topics: list[TopicQueues] = []
        for chunk in in_chunks(encoded):
            yield
            topics += _topics_decoder.decode(_encoder.encode(chunk))
        command: _OfTopics = _command_decoder.decode(_encoder.encode([*fields[:at], (), *fields[at + 1 :]]))
    except UNREADABLE:
        return None
    return replace(command, topics=tuple(topics))


def encode_batch(batch: Batch) -> bytes:
    """Return the log form of a batch.

    Raises:
        CommandTooLarge: If the log form exceeds :data:`ENTRY_BYTES_MAX`.
    """
    data = bytes((BATCH_FORMAT,)) + _encoder.encode(batch)
    if len(data) > ENTRY_BYTES_MAX:
        raise CommandTooLarge(len(data), ENTRY_BYTES_MAX)
    return data


def decode_batch(data: bytes) -> Batch:
    """Read the log form of a batch. Its commands stay encoded.

    Raises:
        CommandFormatError: If the batch has a newer format or is damaged.
    """
    if not data or data[0] != BATCH_FORMAT:
        raise CommandFormatError(f"batch of {len(data)} bytes is not of format {BATCH_FORMAT}")
    try:
        return _batch_decoder.decode(data[1:])
    except UNREADABLE as error:
        raise CommandFormatError(f"batch of {len(data)} bytes: {error}") from None


def _inflate(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        # Allow one byte more than the limit. If zlib had to stop at exactly the limit, it would not see the
        # end of its stream.
        plain = stream.decompress(data, INFLATED_BYTES_MAX + 1)
    except zlib.error as error:
        raise CommandFormatError(f"command's zlib stream of {len(data)} bytes: {error}") from None
    if len(plain) > INFLATED_BYTES_MAX:
        raise CommandFormatError(
            f"command's zlib stream of {len(data)} bytes is above the limit of {INFLATED_BYTES_MAX}"
        )
    if not stream.eof:
        raise CommandFormatError(f"command's zlib stream of {len(data)} bytes is cut")
    return plain
