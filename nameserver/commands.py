"""The closed set of changes to the route table, and how they are written to a log.

A command names the state that it was computed from: the revision of each thing it changes. For a thing that
is absent it names the table's revision at the decision. :func:`bases` lists these; the table answers *moved*
if one of these things has changed since. Commands hold resolved settings only: applying one reads no clock,
no randomness, no setting.

Log form of one command: one byte format version, one byte packing (0 plain, 1 zlib), then a msgpack array
that starts with the command's kind. A release may add fields at the end, with defaults. A new kind, or a
changed meaning, needs a new format version, with which its log form starts. Members propose it only when
every member understands it. Older kinds keep their version.
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
"""Newest format of commands that this program reads; it reads all older ones. 2 brought :class:`Update`."""

FIRST_FORMAT: Final = 1
"""Format version of the kinds of command that every release knows."""

UPDATE_FORMAT: Final = 2
"""First format in which a member knows :class:`Update`."""

LIMITS_FORMAT: Final = 3
"""First format in which a member obeys :class:`TableLimits`; older members would apply rejected commands."""

BATCH_FORMAT: Final = 1
"""Format of batches, with any commands in them."""

COMMAND_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest command in its log form, in bytes."""
ENTRY_BYTES_MAX: Final = 5 * 1024 * 1024
"""Largest log entry, batch included, in bytes."""
INFLATED_BYTES_MAX: Final = 128 * 1024 * 1024
"""Largest command before it is compressed, in bytes; a registration of 200,000 topics needs some 20 MB.

Writers and readers of commands both check it, because repetitive text compresses to a thousandth of its size.
"""

_PLAIN: Final = 0
_ZLIB: Final = 1
_PACKED_WORK: Final = 40
_LONG_BYTES: Final = 2048  # Size of a command, in bytes, with some 1,000 topics, compressed.
_PACK_FROM: Final = 1024  # Below this size, compression costs the members more time than it saves.
#: Number of topics, and uncompressed size in bytes, from which on a command is written and read in steps.
#: 20,000 topics take 2 ms to write and 3 ms to read; in steps, reading takes 1.5 times as long in all.
_TOPICS_SLICED: Final = 20_000
_BYTES_SLICED: Final = 512 * 1024
# Topic lists repeat themselves: zlib's highest level saves few bytes more and costs ten times the time.
_ZLIB_LEVEL: Final = 1


class CommandFormatError(Exception):
    """Bytes that are no command this program understands. The member that read them must stop."""


class CommandTooLarge(Exception):
    """A command above the limit of one log entry. Nothing was changed.

    Attributes:
        size: Bytes in the log's encoding.
        limit: Bytes allowed.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"command of {size} bytes is above the limit of {limit}")
        self.size = size
        self.limit = limit


class _Wire(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Base of the values in a log: immutable, compared by value, written as arrays."""


class TopicQueues(_Wire, frozen=True, gc=False):
    """A topic's configuration at one broker, as the nameserver keeps it."""

    topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class BrokerQueues(_Wire, frozen=True):
    """Queues of one topic at one named broker (request 217)."""

    broker_name: BrokerName
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class QueueMapping(_Wire, frozen=True):
    """Mapping info of a static topic (5.x).

    Attributes:
        epoch: A stored info is replaced only by one with a greater epoch.
        info: The whole info as canonical JSON text.
    """

    topic: str
    epoch: int
    info: str


class TableLimits(_Wire, frozen=True):
    """Bounds of the table, from the proposer's settings: a command must not make the table grow beyond them.

    Attributes:
        topics: Topics listed.
        pairs: Pairs of a topic and a broker name that has queue data of it.
        brokers: Records.
        size: Bytes of the texts of all of them.
        host: The host that sent the request; what the command adds is counted against it. Empty: nothing is
            counted.
        host_percent: Percentage of each bound that one host may use.
    """

    topics: int
    pairs: int
    brokers: int
    size: int
    host: str = ""
    host_percent: int = 100


class _OfBroker(_Wire, frozen=True):
    """Base of the commands about one broker: its identity comes first."""

    cluster_name: ClusterName
    broker_name: BrokerName
    broker_addr: BrokerAddr

    @property
    def broker(self) -> BrokerKey:
        return BrokerKey(self.cluster_name, self.broker_addr)


class RegisterBroker(_OfBroker, frozen=True, tag=1):
    """Request 103: a broker's registration.

    Attributes:
        topics: Each topic at most once.
        incremental: The body has exactly one topic (5.x's own criterion).
        filter_servers: None leaves the stored list as it is, empty removes it.
        lease_ms: How long the broker may be silent; resolved from the request or the default of 120,000.
        enable_acting_master: None if the broker did not send it: brokers before 5.0 do not.
        delete_absent: Setting ``deleteTopicWithBrokerRegistration``; has no effect on an incremental
            registration.
        record_revision: Revision of the (cluster, address) record.
        name_revision: Revision of the broker name.
        limits: None applies the command however large the table is.
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
    """A registration that changes nothing, without its topics: only the record's revision rises.

    It names no revision. Instead the record must still be as described here, else the answer is *moved*.

    Attributes:
        data_version: The record's data version. That of an incremental registration may be older.
        complete: The record's flag: no incremental registration came after its last full one.
    """

    broker_id: int
    ha_server_addr: str
    data_version: DataVersion
    complete: bool
    lease_ms: int
    enable_acting_master: bool | None
    zone_name: str | None


class UnregisterBroker(_OfBroker, frozen=True, tag=3):
    """Request 104 over a connection on which the broker never registered. Matches by address and name."""

    broker_id: int
    record_revision: int
    name_revision: int


class Evict(_Wire, frozen=True, tag=4):
    """Evict a broker that is gone; changes nothing unless its record is exactly at this revision."""

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
    """Request 327: set the permission of every queue data of a broker name to exactly 6."""

    broker_name: BrokerName
    name_revision: int


class DeleteTopic(_Wire, frozen=True, tag=7):
    """Request 216: drop a topic, or its queue data at one cluster's brokers."""

    topic: str
    cluster_name: ClusterName | None
    topic_revision: int


class RegisterTopic(_Wire, frozen=True, tag=8):
    """Request 217: put queue data of one topic, if every broker named is known."""

    topic: str
    queues: tuple[BrokerQueues, ...]
    topic_revision: int
    limits: TableLimits | None = None


class PutKv(_Wire, frozen=True, tag=9):
    """Request 100. A value of None is stored as such."""

    namespace: str
    key: str
    value: str | None
    key_revision: int


class DeleteKv(_Wire, frozen=True, tag=10):
    """Request 102. The namespace stays, also when it is empty."""

    namespace: str
    key: str
    key_revision: int


class ImportKv(_Wire, frozen=True, tag=11):
    """The KV file found at the first start; rejected once the table has held any KV configuration."""

    table: dict[str, dict[str, str | None]]


class Update(_OfBroker, frozen=True, tag=12):
    """A registration as the difference that it makes, for a broker whose own facts have not changed.

    It has the same result as the whole registration; :meth:`RouteTable.shortened` makes it. The results are
    equal only if the table still has the same state of this broker. So the table compares all that the
    command names exactly: both revisions, the fields of a broker name that change without a new revision, and
    its number of topics. While a name's revision is unchanged, no topic of it can have been added or changed.
    But :class:`DeleteTopic` can have removed a topic that the registration names and the difference omits.

    Attributes:
        topics: The topics whose queue data differ, with the queue data that the table is to store.
        incremental: Whether the registration was incremental.
        enable_acting_master, zone_name: Values of the broker name, which the registration repeats.
        topic_count: Number of topics of the broker name before this command.
        record_revision: Revision of the (cluster, address) record.
        name_revision: Revision of the broker name.
        limits: None if none of the topics is new to the broker name; else as in :class:`RegisterBroker`.
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
    """One thing that a command was computed from.

    Attributes:
        key: BrokerKey for a record, the text for a broker name or topic, (namespace, key) for a KV key.
        revision: Revision of the thing's last change, or of the table if the thing was absent.
    """

    kind: BaseKind
    key: Hashable
    revision: int


def bases(command: Command) -> tuple[Base, ...]:
    """Return the things that a command was computed from; it has moved if one of them has changed since.

    Two commands of one log conflict if they name the same thing.
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
    """A command on its way through a log, with the mark by which its proposer recognises it.

    Attributes:
        boot_id: Random number of the proposing process.
        sequence: Number of the proposal within that process. It stays the same when the proposal is sent
            again.
        command: Its log form, so that a process that forwards it need not encode it again.
    """

    boot_id: int
    sequence: int
    command: bytes


class Batch(_Wire, frozen=True):
    """One log entry: proposals, which are applied one by one in this order."""

    proposals: tuple[Proposal, ...]


_OfTopics: TypeAlias = RegisterBroker | Update
"""Commands with the topics of one broker, of which there may be many."""

_encoder: Final = msgspec.msgpack.Encoder()
_array_decoder: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_topics_decoder: Final = msgspec.msgpack.Decoder(list[TopicQueues])
#: The place of the topics in the log form of a command, by the encoded kind.
_TOPICS_AT: Final = {
    _encoder.encode(kind.__struct_config__.tag): 1 + kind.__struct_fields__.index("topics")
    for kind in (RegisterBroker, Update)
}
_command_decoder: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(Command)
_batch_decoder: Final = msgspec.msgpack.Decoder(Batch)


def encode_command(command: Command) -> bytes:
    """Return the log form of a command.

    Raises:
        CommandTooLarge: If it is above :data:`COMMAND_BYTES_MAX`, or above :data:`INFLATED_BYTES_MAX` before
            it is compressed.
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
    """Return the log form of a command, and the command as every member reads it.

    A proposer writes only a command that it could read back. A member that could not read it would stop, and
    one that read another command would differ from the others.

    Raises:
        CommandTooLarge: As :func:`encode_command`.
        CommandFormatError: If it cannot be read back: a defect of this program.
    """
    if isinstance(command, _OfTopics) and len(command.topics) >= _TOPICS_SLICED:
        return (yield from _writing_long(command))
    data = encode_command(command)
    if len(data) > _LONG_BYTES:
        yield
    return data, (yield from decoding_command(data))


def _writing_long(command: _OfTopics) -> Steps[tuple[bytes, Command]]:
    """Write a command with many topics as :func:`encode_command` does, and read it, in steps."""
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
    """Yield a command in encoded pieces, after making sure that topics are read as they were."""
    yield head
    for chunk in in_chunks(topics):
        piece = _encoder.encode(chunk)
        if _topics_decoder.decode(piece) != chunk:
            raise CommandFormatError(f"{len(chunk)} topics are read otherwise than they were written")
        yield piece[len(_array_head(len(chunk))) :]
    yield tail


def _array_head(count: int) -> bytes:
    """Return msgpack's head of an array of so many items, as msgspec writes it."""
    if count < 16:
        return bytes((0x90 | count,))
    return struct.pack(">BH", 0xDC, count) if count < 65536 else struct.pack(">BI", 0xDD, count)


def format_of(command: bytes) -> int:
    """Return the format version that a member must know to apply a command, given in its log form."""
    return command[0] if command else 0


def work_of(command: bytes) -> int:
    """Return the cost of applying a command, given in its log form: its bytes; 40 for each compressed byte.

    Compressed topics have two or three bytes each.
    """
    return len(command) * (_PACKED_WORK if command[1] == _ZLIB else 1)


def decode_command(data: bytes) -> Command:
    """Read the log form of a command in one step; see :func:`decoding_command`."""
    return finish(decoding_command(data))


def decoding_command(data: bytes) -> Steps[Command]:
    """Read the log form of a command in steps, within a bound of memory.

    Raises:
        CommandFormatError: If it is of a newer format, an unknown kind, or damaged.
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
    """Read a command with many topics in steps; None for any other, and if it is damaged."""
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
        CommandTooLarge: If it is above :data:`ENTRY_BYTES_MAX`.
    """
    data = bytes((BATCH_FORMAT,)) + _encoder.encode(batch)
    if len(data) > ENTRY_BYTES_MAX:
        raise CommandTooLarge(len(data), ENTRY_BYTES_MAX)
    return data


def decode_batch(data: bytes) -> Batch:
    """Read the log form of a batch; its commands stay encoded.

    Raises:
        CommandFormatError: If it is of a newer format or damaged.
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
        # Allow one byte more: at exactly the limit, zlib has not yet seen the end of its stream.
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
