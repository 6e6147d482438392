"""Messages between the nameservers of a group, outside the log: proposals, liveness reports, barriers.

Messages travel over the members' authenticated links, in order on each link. A message is one byte of format
version and then positional msgpack. A later version may append fields with defaults. A kind of message that
an older member could not understand has a newer format, and is sent only to members that know it (rule 7):
members state the format that they know in their reports, and the leader in its acknowledgements.

Times are seconds on the sender's liveness clock, sent with that clock's reading. The receiver turns them into
ages, and these into times of its own clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec

from routekeeper.nameserver.commands import FIRST_FORMAT, Proposal
from routekeeper.nameserver.types import BrokerAddr, BrokerKey, ClusterName
from routekeeper.remoting.lenient import UNREADABLE

FORMAT: Final = 2
"""Newest format that this program reads. Format 2 added barriers."""

BARRIER_FORMAT: Final = 2
"""The first format with barriers: :class:`ReadIndex`, :class:`ReadIndexReply` and rounds."""


_Item = TypeVar("_Item")


class PeerMessageError(Exception):
    """A member sent bytes that are no known message, or of a newer format."""


Instant = Annotated[float, msgspec.Meta(le=1e12)]
"""Seconds on a liveness clock; -inf means never. Other values that no clock can have are refused."""
Reading = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
"""Reading of a liveness clock, which begins with its process."""


class _Wire(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Base of all messages and their parts: immutable, compared by value, written as arrays."""


class _OfBroker(_Wire, frozen=True):
    """Base of statements about one broker: its key, and the time at which it was last seen."""

    cluster_name: ClusterName
    broker_addr: BrokerAddr
    heard_at: Instant

    @property
    def broker(self) -> BrokerKey:
        return BrokerKey(self.cluster_name, self.broker_addr)


class BrokerContact(_OfBroker, frozen=True):
    """Evidence of one member about one broker, from its own connections.

    Attributes:
        closed_at: Time at which its connection closed or it unregistered; None if neither happened, or if
            the broker was seen since.
        closed_revision: The record's revision at that time; None if there was no record.
        unregistered: The broker unregistered.
    """

    connected: bool
    closed_at: Instant | None = None
    closed_revision: int | None = None
    unregistered: bool = False


class Hearing(_OfBroker, frozen=True):
    """The latest time at which a broker was seen, as a leader counts it."""


def size_of(line: _OfBroker) -> int:
    """Return an upper bound of the bytes that a contact or a last-seen time takes in a message."""
    return 4 * (len(line.cluster_name) + len(line.broker_addr)) + 64


def in_parts(items: Iterable[_Item], size: Callable[[_Item], int], part_size: int) -> Iterator[list[_Item]]:
    """Yield items in order, in parts of at most ``part_size``; a larger item is a part of its own."""
    part: list[_Item] = []
    total = 0
    for item in items:
        total += size(item)
        if part and total > part_size:
            yield part
            part, total = [], size(item)
        part.append(item)
    if part:
        yield part


class Report(_Wire, frozen=True, tag=1):
    """A member's evidence for the leader of ``term``: changes after version ``base`` up to ``version``.

    Attributes:
        boot_id: The reporting process; versions of two processes are not compared.
        base: Version that the leader acknowledged; 0 for a full report.
        clock: Reading of the reporter's liveness clock.
        hearings_seen: Version of the leader's last-seen times that the reporter holds.
        handed: Last-seen times that the leader of ``handed_term`` counted, until the first
            acknowledgement of this term; then empty.
        understands: Newest command format that the reporter can apply.
        reads: Newest format of these messages that the reporter knows.
        more: Another part follows, which begins at ``version``. Until the last part has arrived, nothing
            is known of the brokers that it may name.
    """

    term: int
    boot_id: int
    base: int
    version: int
    clock: Reading
    contacts: tuple[BrokerContact, ...]
    hearings_seen: int = 0
    handed_term: int = 0
    handed: tuple[Hearing, ...] = ()
    understands: int = FIRST_FORMAT
    reads: int = 1
    more: bool = False


class Acknowledgement(_Wire, frozen=True, tag=2):
    """The leader's answer to a report; ``version`` is the version it holds now, even after a gap.

    Attributes:
        boot_id: The boot id in the report.
        clock: Reading of the leader's liveness clock.
        hearings: Last-seen times that changed after ``hearings_base`` up to ``hearings_version``.
        reads: Newest format of these messages that the leader knows.
        understood: Newest command format that every member can apply, as far as the leader knows.
            Commands of a newer format must not be proposed (rule 7).
    """

    term: int
    boot_id: int
    version: int
    clock: Reading
    hearings_base: int
    hearings_version: int
    hearings: tuple[Hearing, ...]
    reads: int = 1
    understood: int = FIRST_FORMAT


class Propose(_Wire, frozen=True, tag=3):
    """Commands for the log, to the leader of ``term``; no other leader may append them.

    Attributes:
        attempts: For each command, how often the sender has handed it over, this time included.
    """

    term: int
    proposals: tuple[Proposal, ...]
    attempts: tuple[int, ...]


class Deferral(_Wire, frozen=True):
    """One proposal that was not appended: decide again once everything up to ``index`` is applied.

    Attributes:
        attempt: Number of the copy that this answers; other copies may still be appended.
    """

    boot_id: int
    sequence: int
    index: int
    attempt: int = 1


class Deferred(_Wire, frozen=True, tag=4):
    """The leader's answer to proposals that its table, or an entry already appended, makes *moved*."""

    term: int
    deferrals: tuple[Deferral, ...]


class ReadIndex(_Wire, frozen=True, tag=5):
    """Ask the leader of ``term`` for the index that must be applied before waiting reads are answered.

    Attributes:
        number: Number of the sender's barrier.
        voter: The sender is a voter; by sending this in ``term`` it confirms the leader.
    """

    term: int
    number: int
    voter: bool


class ReadIndexReply(_Wire, frozen=True, tag=6):
    """The leader's answer to barrier ``number``: apply up to ``index``."""

    number: int
    index: int


class ReadIndexCheck(_Wire, frozen=True, tag=7):
    """The leader of ``term`` asks a voter whether it is still in that term."""

    term: int
    number: int


class ReadIndexCheckReply(_Wire, frozen=True, tag=8):
    """A voter's answer to round ``number``: it is in ``term``."""

    term: int
    number: int


BarrierMessage: TypeAlias = ReadIndex | ReadIndexReply | ReadIndexCheck | ReadIndexCheckReply
Message: TypeAlias = Report | Acknowledgement | Propose | Deferred | BarrierMessage

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return the format byte and the message."""
    needed = BARRIER_FORMAT if isinstance(message, BarrierMessage) else 1
    return bytes((needed,)) + _encoder.encode(message)


def decode(data: bytes) -> Message:
    """Read one message.

    Raises:
        PeerMessageError: The sender is broken, or newer than this program.
    """
    if not data or not 1 <= data[0] <= FORMAT:
        found = data[0] if data else "none"
        raise PeerMessageError(f"message of format {found}, this program knows 1 to {FORMAT}")
    try:
        return _decoder.decode(data[1:])
    except UNREADABLE as error:
        raise PeerMessageError(f"message of {len(data)} bytes: {error}") from error
