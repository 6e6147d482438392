"""Messages between members: a closed set, encoded as msgpack after one format byte.

Fields are positional; a later version may append fields with defaults (older members skip them) and raises
:data:`FORMAT` when an older member could not understand the message (docs/formats.md).
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from routekeeper.nameserver.raft.types import ELECTION_TIMEOUT_MS_MAX, ELECTION_TIMEOUT_MS_MIN
from routekeeper.remoting.lenient import UNREADABLE

#: The first byte of each message. A message of another format ends the link, with a line that names both.
FORMAT: Final = 1

#: Largest number in a message; the next one still fits into every field of messages and journal.
NUMBER_MAX: Final = 2**62
#: Largest step by which one message raises a member's term. Without it, a few messages could use up all
#: terms. A group with 100 elections a second takes over a year for so many.
TERM_STEP_MAX: Final = 2**32

Index = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Term = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
#: The name of a cluster, or of one life of a directory. It is stored and logged, so its length is bounded.
Name = Annotated[str, msgspec.Meta(max_length=64)]


class MessageError(Exception):
    """A peer sent bytes that are no message, or of an unknown format."""


class Greeting(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """First message on a link; sent again when the sender's member state changes.

    ``instance`` names one life of a data directory. ``empty``: the sender never took part in the cluster.
    ``founders`` are the instances that founded it, as far as the sender knows. ``cluster`` is the cluster's
    name; an empty sender names the cluster that it would found. ``http`` is the address where operators reach
    the sender, empty if unknown. ``last_term`` and ``last_index`` are those of its log when it sent this.
    ``durability`` is its setting, empty if it does not state it.
    """

    instance: Name
    voter: bool
    empty: bool
    election_timeout_ms: Annotated[int, msgspec.Meta(ge=ELECTION_TIMEOUT_MS_MIN, le=ELECTION_TIMEOUT_MS_MAX)]
    founders: Annotated[dict[str, str], msgspec.Meta(max_length=64)]
    term: Term
    cluster: Name = ""
    http: Annotated[str, msgspec.Meta(max_length=300)] = ""
    last_term: Term = 0
    last_index: Index = 0
    durability: Annotated[str, msgspec.Meta(max_length=20)] = ""


class _OfTerm(msgspec.Struct, array_like=True, frozen=True):
    """Base of all messages except the greeting: the first field is the sender's term."""

    term: Term


class PreVote(_OfTerm, frozen=True, tag=1):
    """Ask whether the receiver would vote for the sender in ``term``. Changes nothing on either side."""

    last_index: Index
    last_term: Term


class PreVoteReply(_OfTerm, frozen=True, tag=2):
    """Answer to :class:`PreVote`: the sender would vote for the receiver in ``term``."""


class RequestVote(_OfTerm, frozen=True, tag=3):
    """``transfer``: the leader itself asked for this election, so its followers need not protect it."""

    last_index: Index
    last_term: Term
    transfer: bool


class VoteReply(_OfTerm, frozen=True, tag=4):
    """The sender votes for the receiver in ``term``."""


class Stale(_OfTerm, frozen=True, tag=5):
    """The receiver's term is over; ``term`` is the newer one."""


class TimeoutNow(_OfTerm, frozen=True, tag=6):
    """Order of the leader: the receiver must stand for election now."""


class Append(_OfTerm, frozen=True, tag=7):
    """Log entries, commit index and contact.

    Attributes:
        entries: (term, command) from ``prev_index + 1`` on.
        last: The leader's last index.
        beat: Answer at once; otherwise answer when the entries are durable.
        clock, echo, age: See :mod:`routekeeper.nameserver.raft.consensus.contact`; seconds. ``age``
            belongs to ``commit``: no member has applied an entry beyond that.
    """

    seq: int
    commit: Index
    prev_index: Index
    prev_term: Term
    entries: list[tuple[Term, bytes]]
    last: Index
    beat: bool
    clock: float
    echo: float | None
    age: float | None


#: Values of ``state`` in an :class:`AppendReply`: each gives ``index`` another meaning.
MATCH: Final = 0  # the log equals the leader's up to this index, and is durable
RESET: Final = 1  # send entries from this index on
ALIVE: Final = 2  # ignore the index; only the clocks count


class AppendReply(_OfTerm, frozen=True, tag=8):
    seq: int
    state: int
    index: Index
    learner: bool
    clock: float
    echo: float | None


class SnapshotPart(_OfTerm, frozen=True, tag=9):
    """A piece of the snapshot at ``index``; says nothing about the commit index (D2).

    ``configuration`` is in force at ``index``.
    """

    seq: int
    index: Index
    index_term: Term
    size: Index
    offset: Index
    data: bytes
    last: Index
    clock: float
    echo: float | None
    configuration: bytes = b""


class SnapshotReply(_OfTerm, frozen=True, tag=10):
    """``offset``: bytes of the snapshot at ``index`` that have arrived without a gap.

    An offset of 0 after some have arrived: the snapshot could not be stored; begin again.
    """

    index: Index
    offset: Index
    learner: bool
    clock: float
    echo: float | None


class Removed(_OfTerm, frozen=True, tag=11):
    """The receiver must stop: the leader's committed configuration at ``index`` does not contain it."""

    index: Index


#: Messages of elections.
Electoral = PreVote | PreVoteReply | RequestVote | VoteReply | Stale | TimeoutNow
Message = Greeting | Electoral | Append | AppendReply | SnapshotPart | SnapshotReply | Removed

_FORMAT_BYTE: Final = bytes((FORMAT,))
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return the format byte and the message."""
    return _FORMAT_BYTE + _encoder.encode(message)


def decode(data: bytes | memoryview) -> Message:
    """Read one message.

    Raises:
        MessageError: The sender is broken or newer than we are.
    """
    written = data[0] if data else "none"
    if written != FORMAT:
        raise MessageError(f"peer message of format {written}, this program knows {FORMAT}")
    try:
        return _decoder.decode(data[1:])
    except UNREADABLE as error:
        raise MessageError(f"peer message of {len(data)} bytes: {error}") from error
