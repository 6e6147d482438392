"""Effects: actions that the engine asks its caller to perform, in the given order.

After each call of the engine, the caller takes the effects from :attr:`.engine.Engine.effects` (see
:meth:`EffectQueue.take`). The caller performs all of them before it calls the engine again.
"""

from __future__ import annotations

import msgspec

from .log import Op, RaftLog
from .members import MemberState
from .messages import Greeting, Message


class Effect(msgspec.Struct, frozen=True):
    """One action that the caller of the engine must perform."""


class Send(Effect, frozen=True):
    """Send a message to ``peer`` over its link, in the order of the effects."""

    peer: str
    message: Message


class WriteJournal(Effect, frozen=True):
    """Write ``ops`` to the journal. Then call :meth:`.engine.Engine.durable`, in order of ``position``.

    Attributes:
        silent: True if the writer need not wake the event loop when the write ends. A leader with other
            voters sets this flag, because it cannot commit before a follower answers. It looks for finished
            writes when the follower's answer arrives.
    """

    position: int
    ops: list[Op]
    silent: bool


class StoreVote(Effect, frozen=True):
    """Make term and vote durable before any later message leaves this member.

    Until term and vote are durable, the caller must not call :meth:`.engine.Engine.durable` either. Otherwise
    an only voter would commit entries before its vote is stored. All other work continues.
    """

    term: int
    vote: str | None


class StoreStanding(Effect, frozen=True):
    """Make the member state (for example, voter or learner) durable before any later message leaves.

    An earlier :class:`StoreVote` must be durable first, because the member state may depend on the vote.
    """

    standing: MemberState


class Committed(msgspec.Struct, frozen=True):
    """One committed entry.

    Attributes:
        payload: None for an entry that the state machine does not receive.
        live: False for an entry that this member already had in its log when it started.
    """

    index: int
    term: int
    payload: bytes | None
    live: bool


class Apply(Effect, frozen=True):
    """Apply ``entries`` to the state machine, in order.

    The caller may stop before the last entry if the event loop has other work. When it stops, it reports the
    number of applied entries at once: it calls :meth:`.engine.Engine.applied`, or ``apply_failed`` if an
    entry failed. This effect is always the last in the queue.
    """

    entries: list[Committed]


class _ImageEffect(Effect, frozen=True):
    """Store a snapshot of the state at ``index``. The ``configuration`` is in force at this index."""

    index: int
    term: int
    configuration: bytes


class MakeImage(_ImageEffect, frozen=True):
    """Encode the present state, and store it in the background. Then call ``Images.made`` or ``failed``."""


class InstallImage(_ImageEffect, frozen=True):
    """Prepare and store a snapshot from a leader in the background.

    The caller then calls ``Images.installed`` or ``install_failed``.
    """

    image: bytearray


class Trim(Effect, frozen=True):
    """Delete the journal's entries up to ``index``, because a snapshot covers them."""

    index: int


class KeepLinks(Effect, frozen=True):
    """Keep links to these members from now on, and dial no other peer again."""

    members: tuple[str, ...]


class Leave(Effect, frozen=True):
    """Stop for ever, because the cluster has removed this member."""

    reason: str


class Fail(Effect, frozen=True):
    """Stop this member because of an error."""

    reason: str


class Wake(Effect, frozen=True):
    """Call :meth:`.engine.Engine.step` soon."""


class Changed(Effect, frozen=True):
    """Report that the member's role, term, indexes, links or contact may have changed."""


_WAKE, _CHANGED = Wake(), Changed()


class EffectQueue:
    """Queue of the effects that the parts of one engine request.

    Attributes:
        wanted: The effects since the last :meth:`take`, in order.
        links: Peers to which a link is up.
        greeted: The newest greeting of each linked peer that has sent a greeting.
        stopped: True if this member takes no further part in the cluster.
    """

    def __init__(self, log: RaftLog) -> None:
        self._log = log
        self.wanted: list[Effect] = []
        self.links: set[str] = set()
        self.greeted: dict[str, Greeting] = {}
        self.stopped = False

    def take(self) -> list[Effect]:
        """Return the effects since the last call, in order, and empty the queue.

        The caller must perform the effects now.
        """
        wanted, self.wanted = self.wanted, []
        return wanted

    def add(self, effect: Effect) -> None:
        self.wanted.append(effect)

    def send(self, peer: str, message: Message) -> None:
        """Send a message to a peer that has sent its greeting. Any other linked peer gets only greetings."""
        if peer in self.greeted or (isinstance(message, Greeting) and peer in self.links):
            if self._log.vote_dirty:  # This test is faster than the call, and the flag is rarely set.
                self.store_vote()
            self.wanted.append(Send(peer, message))

    def store_vote(self) -> None:
        """Store a changed term or vote before any message leaves that depends on the change."""
        log = self._log
        if log.vote_dirty:
            log.vote_dirty = False
            self.wanted.append(StoreVote(log.term, log.vote))

    def wake(self) -> None:
        self.wanted.append(_WAKE)

    def changed(self) -> None:
        self.wanted.append(_CHANGED)

    def fail(self, reason: str) -> None:
        """Stop this member for ``reason``, for example because it cannot read or apply an entry."""
        self.stopped = True
        self.wanted.append(Fail(reason))
