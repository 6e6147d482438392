"""Messages of members to each other: closed set of messages, msgpack, one format byte in front.

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

#: The next one still fits into every field of messages and journal.
NUMBER_MAX: Final = 2**62
#: One message raises a member's term by so much at most. One from further ahead is refused, or a few would
#: use up the terms that there are; a group with 100 elections a second takes over a year for so many.
TERM_STEP_MAX: Final = 2**32

Index = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Term = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
#: The name of a cluster, or of one life of a directory: it is kept, and stands in lines of the log.
Name = Annotated[str, msgspec.Meta(max_length=64)]


class MessageError(Exception):
    """A peer sent bytes that are no message of ours, or of a format that this program does not know."""


class Greeting(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """First message on a link, and again when the standing changes.

    ``instance`` names one life of a data directory; ``empty`` says that this one never took part in the
    cluster; ``founders`` are the instances that founded it, as far as the sender knows. ``cluster`` is the
    cluster's name; an empty sender's is only what it would found. ``http`` is where operators reach the
    sender; empty if nowhere, or if that is not known. ``last_term`` and ``last_index`` are those of its log
    when it said so; ``durability`` is its setting, empty if it does not say.
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
    """Every message but the greeting begins with the sender's term."""

    term: Term


class PreVote(_OfTerm, frozen=True, tag=1):
    """Would you vote for me in ``term``? Changes nothing at either side."""

    last_index: Index
    last_term: Term


class PreVoteReply(_OfTerm, frozen=True, tag=2):
    """I would, in ``term``."""


class RequestVote(_OfTerm, frozen=True, tag=3):
    """``transfer``: the leader itself asked for this election, so its followers need not protect it."""

    last_index: Index
    last_term: Term
    transfer: bool


class VoteReply(_OfTerm, frozen=True, tag=4):
    """You have my vote in ``term``."""


class Stale(_OfTerm, frozen=True, tag=5):
    """Your term is over; ``term`` is the newer one."""


class TimeoutNow(_OfTerm, frozen=True, tag=6):
    """From the leader: stand for election now."""


class Append(_OfTerm, frozen=True, tag=7):
    """Log entries, commit index and contact.

    Attributes:
        entries: (term, command) from ``prev_index + 1`` on.
        last: The leader's last index.
        beat: Answer at once; otherwise an answer follows when the entries are durable.
        clock, echo, age: See :mod:`routekeeper.nameserver.raft.consensus.contact`; seconds. ``age`` is stated
            together with ``commit``: no member has applied anything beyond it.
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


#: The meaning of ``index`` in an :class:`AppendReply`.
MATCH: Final = 0  # the log is the leader's up to here, and durable
RESET: Final = 1  # send from here
ALIVE: Final = 2  # nothing; only the clocks count


class AppendReply(_OfTerm, frozen=True, tag=8):
    seq: int
    state: int
    index: Index
    learner: bool
    clock: float
    echo: float | None


class SnapshotPart(_OfTerm, frozen=True, tag=9):
    """A piece of the state image at ``index``; says nothing about the commit index (D2).

    ``configuration`` is the one in force at ``index``.
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
    """``offset``: how much of the image at ``index`` has arrived without a gap.

    0, when some of it had arrived: it could not be stored; begin again.
    """

    index: Index
    offset: Index
    learner: bool
    clock: float
    echo: float | None


class Removed(_OfTerm, frozen=True, tag=11):
    """From a leader: the committed configuration at ``index`` has no place for you: stop."""

    index: Index


#: Messages of elections.
Electoral = PreVote | PreVoteReply | RequestVote | VoteReply | Stale | TimeoutNow
Message = Greeting | Electoral | Append | AppendReply | SnapshotPart | SnapshotReply | Removed

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return the format byte and the message."""
    return bytes((FORMAT,)) + _encoder.encode(message)


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
