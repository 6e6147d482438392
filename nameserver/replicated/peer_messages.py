"""Messages between the nameservers of a group, outside the log: proposals, liveness reports, barriers.

Messages travel over the members' authenticated links, in order on each link. A message is one byte of format
version, followed by a msgpack array of the fields. A later version of this program may change messages in two
ways:

- It may append fields with defaults; older members ignore these fields.
- It may add a message that older members do not understand. The message then has a newer format, and is sent
  only to members that know the format (rule 7 of docs/raft-rules.md). Each member states in its reports which
  format it knows. The leader states this in its acknowledgements.

Times are seconds on the sender's liveness clock. Each message with times also holds the present reading of
that clock. The receiver turns the times into ages, and the ages into times of its own clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec

from routekeeper.nameserver.commands import FIRST_FORMAT, Proposal
from routekeeper.nameserver.types import BrokerAddr, BrokerKey, ClusterName
from routekeeper.remoting.lenient import UNREADABLE

FORMAT: Final = 2
"""Newest message format that this program reads. Format 2 added barriers."""

BARRIER_FORMAT: Final = 2
"""First message format with the four messages for read barriers, ``ReadIndex...``."""


_Item = TypeVar("_Item")


class PeerMessageError(Exception):
    """Error: a member sent bytes that are not a known message, or a message of a newer format."""


Instant = Annotated[float, msgspec.Meta(le=1e12)]
"""Time on a liveness clock in seconds; -inf means never. Times above 1e12 s are refused as impossible."""
Reading = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
"""Reading of a liveness clock in seconds. The clock starts at 0 when its process starts."""


class _Wire(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Base of all messages and their parts: immutable, compared by value, written as arrays."""


class _OfBroker(_Wire, frozen=True):
    """Base of messages about one broker: the broker's key, and the time at which the broker was last seen."""

    cluster_name: ClusterName
    broker_addr: BrokerAddr
    heard_at: Instant

    @property
    def broker(self) -> BrokerKey:
        return BrokerKey(self.cluster_name, self.broker_addr)


class BrokerContact(_OfBroker, frozen=True):
    """Evidence that one broker is alive or gone, from the broker's connections to one member.

    Attributes:
        connected: True if the last connection over which the broker registered is open, and the broker has
            not unregistered over this connection.
        closed_at: Time at which this connection closed, or at which the broker unregistered. None if neither
            happened, or if the member saw the broker again afterwards.
        closed_revision: Revision of the broker's record in the route table at the time ``closed_at``. None if
            the table had no such record.
        unregistered: True if the broker unregistered; False if only its connection closed.
    """

    connected: bool
    closed_at: Instant | None = None
    closed_revision: int | None = None
    unregistered: bool = False


class Hearing(_OfBroker, frozen=True):
    """The latest time at which any member saw a broker, in seconds of the leader's liveness clock."""


def size_of(line: _OfBroker) -> int:
    """Return an upper bound of the bytes that a contact or a last-seen time occupies in a message."""
    return 4 * (len(line.cluster_name) + len(line.broker_addr)) + 64


def in_parts(items: Iterable[_Item], size: Callable[[_Item], int], part_size: int) -> Iterator[list[_Item]]:
    """Yield the items in order, in lists with a total ``size`` of at most ``part_size`` each.

    An item that is larger than ``part_size`` gets a list of its own.
    """
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
    """A member's report to the leader of ``term``: brokers' last-seen times and connections.

    It contains the changes after version ``base`` up to ``version``.

    Attributes:
        boot_id: Id of the reporting process; versions of two processes are not compared.
        base: Version of the member's last-seen times and connections that the leader has acknowledged; 0 for
            a full report.
        clock: Reading of the reporting member's liveness clock, in seconds.
        hearings_seen: Version up to which the reporting member has received the leader's last-seen times.
        handed: Last-seen times of brokers, as the former leader (of ``handed_term``) knew them. Reports
            contain these times until the leader of ``term`` has acknowledged a whole report. Afterwards this
            field is empty.
        understands: Newest command format that the reporting member can apply.
        reads: Newest format of these messages that the reporting member knows.
        more: True if another part follows, which begins at ``version``. The missing parts may name open
            connections. So the leader evicts no broker for a closed connection until the last part has
            arrived.
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
    """The leader's answer to a report: the leader has received the member's changes up to ``version``.

    If an earlier report was lost, this version is older than the version in the report.

    Attributes:
        boot_id: The boot id in the report.
        clock: Reading of the leader's liveness clock, in seconds.
        hearings: Last-seen times that changed after ``hearings_base`` up to ``hearings_version``.
        reads: Newest format of these messages that the leader knows.
        understood: Newest command format that every member can apply, as far as the leader knows. Commands of
            a newer format must not be proposed, because some member might be unable to apply them (rule 7 of
            docs/raft-rules.md).
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
    """Commands for the log, sent to the leader of ``term``; no other leader may append them.

    Attributes:
        attempts: For each command, the number of times that the sender has sent it, including this time.
    """

    term: int
    proposals: tuple[Proposal, ...]
    attempts: tuple[int, ...]


class Deferral(_Wire, frozen=True):
    """A proposal that the leader did not append, so that the proposer must decide the request again.

    Before that, the proposer must apply the entry with this ``index``.

    Attributes:
        attempt: Number of the copy that this message answers. The proposer may send several copies of one
            proposal, numbered from 1, and the leader may still append another copy.
    """

    boot_id: int
    sequence: int
    index: int
    attempt: int = 1


class Deferred(_Wire, frozen=True, tag=4):
    """The leader's answer to proposals that are *moved*: decided for a state that is outdated.

    The leader's table shows that this state has changed, or an entry in flight will change it.
    """

    term: int
    deferrals: tuple[Deferral, ...]


class ReadIndex(_Wire, frozen=True, tag=5):
    """A question to the leader of ``term``: which index must be applied before waiting reads are answered?

    Attributes:
        number: Number of the sender's barrier.
        voter: True if the sender is a voter. A voter that sends this message also confirms that it still is
            in ``term``.
    """

    term: int
    number: int
    voter: bool


class ReadIndexReply(_Wire, frozen=True, tag=6):
    """The leader's answer to barrier ``number``: apply entries up to ``index`` before answering reads."""

    number: int
    index: int


class ReadIndexCheck(_Wire, frozen=True, tag=7):
    """The question of the leader of ``term`` to a voter: is the voter still in that term?"""

    term: int
    number: int


class ReadIndexCheckReply(_Wire, frozen=True, tag=8):
    """A voter's answer to the question with this ``number``: the voter is still in ``term``."""

    term: int
    number: int


BarrierMessage: TypeAlias = ReadIndex | ReadIndexReply | ReadIndexCheck | ReadIndexCheckReply
Message: TypeAlias = Report | Acknowledgement | Propose | Deferred | BarrierMessage

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return the message as bytes: the format byte, then msgpack."""
    needed = BARRIER_FORMAT if isinstance(message, BarrierMessage) else 1
    return bytes((needed,)) + _encoder.encode(message)


def decode(data: bytes) -> Message:
    """Decode one message.

    Raises:
        PeerMessageError: The bytes are not a valid message, or have a newer format than this program knows.
    """
    if not data or not 1 <= data[0] <= FORMAT:
        found = data[0] if data else "none"
        raise PeerMessageError(f"message of format {found}, this program knows 1 to {FORMAT}")
    try:
        return _decoder.decode(data[1:])
    except UNREADABLE as error:
        raise PeerMessageError(f"message of {len(data)} bytes: {error}") from error
