"""Messages between members: a fixed set of types, encoded as msgpack after one format byte.

Fields are positional. A later version of this program may append fields with defaults, because older members
skip unknown fields at the end. If older members could not understand a changed message, the later version
must increase :data:`FORMAT` (docs/formats.md).
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from routekeeper.nameserver.raft.types import ELECTION_TIMEOUT_MS_MAX, ELECTION_TIMEOUT_MS_MIN
from routekeeper.remoting.lenient import UNREADABLE

#: The first byte of each message. A member that receives another format closes the link, and logs both
#: formats.
FORMAT: Final = 1

#: Largest number that a message may contain. This number plus one still fits into the 64-bit fields of the
#: journal.
NUMBER_MAX: Final = 2**62
#: Largest number by which one message may raise a member's term. Without this bound, a few messages could use
#: up all terms. A cluster with 100 elections per second needs more than a year to use this number of terms.
TERM_STEP_MAX: Final = 2**32

Index = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Term = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
#: The name of a cluster or of a data directory's instance. It is stored and logged, so its length is bounded.
Name = Annotated[str, msgspec.Meta(max_length=64)]


class MessageError(Exception):
    """A peer sent bytes that are not a message, or a message of an unknown format."""


class Greeting(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """The first message on a link. The sender repeats it when its member state changes.

    Attributes:
        instance: Random name of the sender's data directory; a directory that was emptied gets another name.
        empty: True if the sender never took part in a cluster.
        founders: The instance of each member that founded the cluster, as far as the sender knows.
        cluster: The cluster's name. An empty sender names the cluster that it would form.
        http: Address at which operators reach the sender; empty if unknown.
        last_term: Term of the last entry in the sender's log.
        last_index: Index of the last entry in the sender's log.
        durability: The sender's ``durability`` setting; empty if the sender does not state it.
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
    """Base class of all messages except the greeting. The first field is the sender's term."""

    term: Term


class PreVote(_OfTerm, frozen=True, tag=1):
    """The question if the receiver would vote for the sender in ``term``. No member changes its state."""

    last_index: Index
    last_term: Term


class PreVoteReply(_OfTerm, frozen=True, tag=2):
    """Answer to :class:`PreVote`: the sender would vote for the receiver in ``term``."""


class RequestVote(_OfTerm, frozen=True, tag=3):
    """A request for the receiver's vote.

    Attributes:
        transfer: True if the leader itself asked for this election. The receiver then votes even while it
            still receives the leader's messages.
    """

    last_index: Index
    last_term: Term
    transfer: bool


class VoteReply(_OfTerm, frozen=True, tag=4):
    """The sender's vote for the receiver in ``term``."""


class Stale(_OfTerm, frozen=True, tag=5):
    """Answer to a message of an old term; ``term`` is the newer term."""


class TimeoutNow(_OfTerm, frozen=True, tag=6):
    """The leader's request that the receiver stands for election now."""


class Append(_OfTerm, frozen=True, tag=7):
    """Log entries, commit index and age of the contact, from the leader to a follower.

    Attributes:
        entries: (term, command) of the entries from ``prev_index + 1`` on.
        last: The last index of the leader's log.
        beat: True if the receiver must answer at once; otherwise it answers when the entries are durable.
        clock, echo, age: Times in seconds, see :mod:`routekeeper.nameserver.raft.consensus.contact`. The
            leader reads ``age`` and ``commit`` at the same moment. At this moment, no member has applied an
            entry beyond ``commit``.
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


#: Values of ``state`` in an :class:`AppendReply`; the meaning of ``index`` depends on the value.
MATCH: Final = 0  # the sender's log equals the leader's log, and is durable, up to this index
RESET: Final = 1  # the leader must send entries from this index on
ALIVE: Final = 2  # the leader must ignore the index and use only the clocks


class AppendReply(_OfTerm, frozen=True, tag=8):
    seq: int
    state: int
    index: Index
    learner: bool
    clock: float
    echo: float | None


class SnapshotPart(_OfTerm, frozen=True, tag=9):
    """A piece of the snapshot at ``index``.

    The message does not raise the receiver's commit index (repairs PySyncObj defect D2).

    Attributes:
        configuration: The encoded configuration that is in force at ``index``.
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
    """Answer to :class:`SnapshotPart`.

    Attributes:
        offset: Number of bytes of the snapshot at ``index`` that have arrived without a gap. If the number
            falls to 0, the snapshot could not be stored, and the leader must begin again.
    """

    index: Index
    offset: Index
    learner: bool
    clock: float
    echo: float | None


class Removed(_OfTerm, frozen=True, tag=11):
    """Notice that the receiver must stop, because the cluster has removed it.

    The leader's committed configuration at ``index`` does not name the receiver.
    """

    index: Index


#: The messages that elections use.
Electoral = PreVote | PreVoteReply | RequestVote | VoteReply | Stale | TimeoutNow
Message = Greeting | Electoral | Append | AppendReply | SnapshotPart | SnapshotReply | Removed

_FORMAT_BYTE: Final = bytes((FORMAT,))
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Encode a message, with the format byte in front."""
    return _FORMAT_BYTE + _encoder.encode(message)


def decode(data: bytes | memoryview) -> Message:
    """Decode one message.

    Raises:
        MessageError: The data is not a message that this program knows; the sender may be a newer program.
    """
    written = data[0] if data else "none"
    if written != FORMAT:
        raise MessageError(f"peer message of format {written}, this program knows {FORMAT}")
    try:
        return _decoder.decode(data[1:])
    except UNREADABLE as error:
        raise MessageError(f"peer message of {len(data)} bytes: {error}") from error
