"""Effects of a step: values, in the order in which they must be performed.

As in other protocols without IO, the caller takes the effects after each call of the engine and performs them
before the next call: :meth:`EffectQueue.take` of :attr:`.engine.Engine.effects`.
"""

from __future__ import annotations

import msgspec

from .log import Op, RaftLog
from .members import MemberState
from .messages import Greeting, Message


class Effect(msgspec.Struct, frozen=True):
    """One action that a step asks for."""


class Send(Effect, frozen=True):
    """Send a message over the link, in order."""

    peer: str
    message: Message


class WriteJournal(Effect, frozen=True):
    """Write to the journal; :meth:`.engine.Engine.durable` follows, in order of position.

    ``silent``: no wake-up is needed when the write ends. A leader of several voters looks for the end with
    their next answer, and cannot commit before that anyway.
    """

    position: int
    ops: list[Op]
    silent: bool


class StoreVote(Effect, frozen=True):
    """Make term and vote durable before any later message leaves, and before :meth:`.engine.Engine.durable`
    is called again. Nothing else waits for the disk.
    """

    term: int
    vote: str | None


class StoreStanding(Effect, frozen=True):
    """Make the member state durable, under the rules of :class:`StoreVote` and after it."""

    standing: MemberState


class Committed(msgspec.Struct, frozen=True):
    """One committed entry.

    Attributes:
        payload: None for an entry that the state machine does not see.
        live: False for entries that this member already had in its log when it started.
    """

    index: int
    term: int
    payload: bytes | None
    live: bool


class Apply(Effect, frozen=True):
    """Apply these entries to the state machine, in order, for as long as the loop can wait.

    :meth:`.engine.Engine.applied` or ``apply_failed`` follows at once. Always the last effect.
    """

    entries: list[Committed]


class _ImageEffect(Effect, frozen=True):
    """Store a snapshot of the state at ``index``, where ``configuration`` is in force."""

    index: int
    term: int
    configuration: bytes


class MakeImage(_ImageEffect, frozen=True):
    """Encode the state as it is now; store it in the background; ``Images.made`` or ``failed`` follows."""


class InstallImage(_ImageEffect, frozen=True):
    """Prepare and store a snapshot from a leader in the background; ``Images.installed`` or
    ``install_failed`` follows.
    """

    image: bytearray


class Trim(Effect, frozen=True):
    """Delete the journal up to ``index``, which nothing needs any more."""

    index: int


class KeepLinks(Effect, frozen=True):
    """Keep links to these members from now on; a link to any other peer is not dialled again."""

    members: tuple[str, ...]


class Leave(Effect, frozen=True):
    """Stop for good: the cluster has removed this member."""

    reason: str


class Fail(Effect, frozen=True):
    """Stop this member."""

    reason: str


class Wake(Effect, frozen=True):
    """Call :meth:`.engine.Engine.step` soon."""


class Changed(Effect, frozen=True):
    """Something in the public state may have changed."""


_WAKE, _CHANGED = Wake(), Changed()


class EffectQueue:
    """Collects the effects that the parts of one member ask for.

    Attributes:
        wanted: The effects since the last :meth:`take`, in order.
        links: Peers to which a link is up.
        greeted: The newest greeting of each linked peer that has sent one.
        stopped: This member takes no part any more.
    """

    def __init__(self, log: RaftLog) -> None:
        self._log = log
        self.wanted: list[Effect] = []
        self.links: set[str] = set()
        self.greeted: dict[str, Greeting] = {}
        self.stopped = False

    def take(self) -> list[Effect]:
        """Return the effects since the last call, in order, to be performed now."""
        wanted, self.wanted = self.wanted, []
        return wanted

    def add(self, effect: Effect) -> None:
        self.wanted.append(effect)

    def send(self, peer: str, message: Message) -> None:
        """Send a message to a peer that has sent its greeting. Any other linked peer gets only greetings."""
        if peer in self.greeted or (isinstance(message, Greeting) and peer in self.links):
            if self._log.vote_dirty:  # nearly never
                self.store_vote()
            self.wanted.append(Send(peer, message))

    def store_vote(self) -> None:
        """Store term and vote before any message leaves that depends on them."""
        log = self._log
        if log.vote_dirty:
            log.vote_dirty = False
            self.wanted.append(StoreVote(log.term, log.vote))

    def wake(self) -> None:
        self.wanted.append(_WAKE)

    def changed(self) -> None:
        self.wanted.append(_CHANGED)

    def fail(self, reason: str) -> None:
        """Stop this member for ``reason``: if it went on, it would break a promise."""
        self.stopped = True
        self.wanted.append(Fail(reason))
