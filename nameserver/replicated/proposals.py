"""Commands on their way into the log: the proposer's book, and the leader's queue.

The proposer learns an outcome by applying the entry, never from an answer. After a leader change or a lost
link it may send a proposal again at once, because a command applies at most once, and never over a newer
state than it saw. A request that is decided again becomes another command. The new command is proposed only
when no copy of the former command can be applied any more; else the request could take effect twice.

The leader gathers proposals that arrive while a commit is in flight into the next entry. It does not append a
registration that is certain to be *moved*: it names the entry after which to decide again.

Pure: deadlines are loop times in seconds that are passed in.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import msgspec

from routekeeper.nameserver.commands import (
    Batch,
    Command,
    Proposal,
    RegisterBroker,
    Update,
    format_of,
    work_of,
)
from routekeeper.nameserver.modes.interface import ConsistencyError
from routekeeper.nameserver.types import BrokerKey, ConnectionId
from routekeeper.nameserver.verdicts import Verdict

from .peer_messages import Deferral, in_parts

WRITE_DEADLINE_S: Final = 2.5
"""A write is answered within this time in seconds in any case."""

BOOK_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of commands that one process may have on their way."""

RESEND_S: Final = 1.0
"""A proposal without an outcome is sent again after this time in seconds, even over the same link."""

#: Largest work of an entry. While members apply it, they are behind the leader and serve no reads. It is
#: measured in bytes of uncompressed commands: some 20,000 topics that are registered, 40,000 that are removed
#: or 2,000 small commands. That is 20 ms on one processor core. A larger command has an entry to itself.
_ENTRY_WORK_MAX: Final = 2 * 1024 * 1024
_COMMAND_WORK: Final = 1000
_PAIR_WORK: Final = 50


# -- the proposer's side --------------------------------------------------------------------------------


OnOutcome: TypeAlias = Callable[[Verdict | ConsistencyError], None]
"""Called once with the outcome of a proposal.

*Moved* also stands for a leader's advice to decide again; an error is NoQuorum or OutcomeUnknown. After Moved
and NoQuorum no copy of the proposal can be applied any more.
"""


Registrant: TypeAlias = tuple[BrokerKey, ConnectionId]
"""A broker, and the connection over which it registers."""


class PendingProposal(msgspec.Struct, kw_only=True):
    """One proposal of this process without an outcome.

    Attributes:
        entered: Time at which it was made.
        deadline: Time by which its request must be answered.
        on_outcome: Called with its outcome; None if no request waits.
        registrant: The broker and connection that register by it; None if it is no registration.
        route: Term and link number of its last recipient; None before the first.
        handed_at: Time at which it was last handed over.
        attempts: Number of times that it was handed over.
        copies: The term of each log that it may have reached, once for each copy.
    """

    proposal: Proposal
    entered: float
    deadline: float
    on_outcome: OnOutcome | None = None
    registrant: Registrant | None = None
    route: tuple[int, int] | None = None
    handed_at: float = 0.0
    attempts: int = 0
    copies: list[int] = []

    @property
    def in_doubt(self) -> bool:
        """Return whether some log may hold a copy of the proposal that is not applied here yet."""
        return bool(self.copies)


class ProposalBook:
    """Proposals of one process, from the decision to the outcome or the deadline.

    Attributes:
        deferred: The proposals that a leader deferred; for each the leader's term, and the index that
            must be applied before deciding again. In most turns there are none.
    """

    def __init__(self, *, boot_id: int) -> None:
        self.boot_id = boot_id
        self._bytes = 0
        self._sequence = 0
        self._waiting: dict[int, PendingProposal] = {}
        # Proposals in _waiting that the present leader may not have yet; in most turns there are none.
        self._fresh: dict[int, PendingProposal] = {}
        self.deferred: dict[int, tuple[int, int]] = {}
        self._applied_term = 0
        self._route: tuple[int, int] | None = None
        self._stale_at = math.inf  # before this time, nothing is sent again over the same route

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[PendingProposal]:
        return iter(self._waiting.values())

    def has_room(self, command: bytes) -> bool:
        """Return whether there is room for one more command of this size."""
        return self._bytes + len(command) <= BOOK_BYTES_MAX

    def next_sequence(self) -> int:
        """Return a number for a proposal for which no request waits."""
        self._sequence += 1
        return self._sequence

    def add(
        self,
        command: bytes,
        *,
        deadline: float,
        now: float = 0.0,
        on_outcome: OnOutcome | None = None,
        registrant: Registrant | None = None,
    ) -> int:
        """Enter a command; return its sequence."""
        sequence = self.next_sequence()
        proposal = Proposal(boot_id=self.boot_id, sequence=sequence, command=command)
        self._waiting[sequence] = self._fresh[sequence] = PendingProposal(
            proposal=proposal, entered=now, deadline=deadline, on_outcome=on_outcome, registrant=registrant
        )
        self._bytes += len(command)
        return sequence

    def outgoing(self, route: tuple[int, int], *, now: float, understood: int) -> Iterator[PendingProposal]:
        """Yield proposals that the leader at this route lacks, the oldest first; see :meth:`handed`.

        Args:
            understood: The newest format for this leader; for proposals of newer formats see :meth:`beyond`.
        """
        if route != self._route or now >= self._stale_at:
            self._route = route
            self._fresh = dict(self._waiting)
            self._stale_at = math.inf
        for waiting in list(self._fresh.values()):
            if waiting.proposal.sequence in self.deferred or now >= waiting.deadline:
                continue
            if format_of(waiting.proposal.command) > understood:
                continue
            if waiting.route != route or now - waiting.handed_at >= RESEND_S:
                yield waiting
            else:
                del self._fresh[waiting.proposal.sequence]
                self._stale_at = min(self._stale_at, waiting.handed_at + RESEND_S)

    def handed(
        self, waiting: PendingProposal, route: tuple[int, int], *, now: float, may_reach_log: bool
    ) -> None:
        """Record that a proposal was handed to a leader.

        Args:
            may_reach_log: The proposal left this process. In the leader's own process, whether it reaches the
                log is known only later, see :meth:`appended`.
        """
        waiting.route = route
        waiting.handed_at = now
        waiting.attempts += 1
        if may_reach_log:
            waiting.copies.append(route[0])
        self._fresh.pop(waiting.proposal.sequence, None)
        self._stale_at = min(self._stale_at, now + RESEND_S)

    def appended(self, sequence: int, *, term: int) -> None:
        """Record that this process, as leader, appended one of its own proposals."""
        waiting = self._waiting.get(sequence)
        if waiting is not None:
            waiting.copies.append(term)

    def defer(self, deferral: Deferral, *, term: int) -> None:
        """Record that the leader of ``term`` did not append a copy of a proposal, see :meth:`released`.

        Only the answer to the newest copy counts. Copies reach the leader in the order in which they were
        sent, because links follow one another. So when the leader answers the newest copy, no older copy can
        reach it any more. If it appended an older copy, that entry is not after the index in its answer. The
        answer to an older copy does not say whether a newer copy was appended.
        """
        waiting = self._waiting.get(deferral.sequence)
        if waiting is None or deferral.boot_id != self.boot_id:
            return
        if waiting.route is not None and waiting.route[0] == term:
            if waiting.route[1] and term in waiting.copies:
                waiting.copies.remove(term)  # the answered copy is in no log
            if deferral.attempt == waiting.attempts:
                self.deferred[deferral.sequence] = (term, deferral.index)

    def applied(self, term: int) -> None:
        """Record that an entry of this term was applied here, and its proposals were removed.

        A leader's first entry follows all entries of former terms that can ever be committed. So a copy that
        was handed to a former leader has been applied here and had its outcome, or never will be applied.
        """
        if term <= self._applied_term:
            return
        self._applied_term = term
        for waiting in self._waiting.values():
            if waiting.route is not None and waiting.route[0] <= term:
                waiting.copies = [of for of in waiting.copies if of >= term]

    def released(self, *, applied_index: int) -> tuple[int, ...]:
        """Return deferred proposals to decide again: the entry that they wait for is applied, or the term is
        over.

        Each copy handed to this leader or a former one is then applied, was not appended, or never will be:
        see :meth:`defer`.
        """
        # Compare the term, too: another leader may have an entry with this index.
        applied = (self._applied_term, applied_index)
        return tuple(sequence for sequence, needed in self.deferred.items() if needed <= applied)

    def beyond(self, understood: int) -> tuple[int, ...]:
        """Return proposals of a newer format than ``understood`` that can be decided again, in an older one.

        The others wait until the format is understood, or until they are known to be in no log.
        """
        return tuple(
            sequence
            for sequence, waiting in self._waiting.items()
            if not waiting.in_doubt and format_of(waiting.proposal.command) > understood
        )

    def remove(self, sequence: int) -> PendingProposal | None:
        """Remove a proposal that has its outcome, whose deadline has passed, or that is decided again."""
        waiting = self._waiting.pop(sequence, None)
        if waiting is not None:
            self._bytes -= len(waiting.proposal.command)
            self._fresh.pop(sequence, None)
            self.deferred.pop(sequence, None)
        return waiting


# -- the leader's side --------------------------------------------------------------------------------


class _Queued(msgspec.Struct, frozen=True):
    """A proposal that waits for the log, its proposer, and the broker whose record it would change."""

    proposal: Proposal
    member: str
    broker: BrokerKey | None
    attempt: int
    pairs: int

    @property
    def mark(self) -> tuple[int, int]:
        return self.proposal.boot_id, self.proposal.sequence

    def deferral(self, index: int) -> Deferral:
        proposal = self.proposal
        return Deferral(
            boot_id=proposal.boot_id, sequence=proposal.sequence, index=index, attempt=self.attempt
        )


def _work_of(queued: _Queued) -> int:
    return work_of(queued.proposal.command) + _COMMAND_WORK + queued.pairs * _PAIR_WORK


class Sequencer:
    """Queue of the leader of one term: decides which proposals are appended next.

    One entry at a time is in flight; proposals that arrive meanwhile go together into the next one.
    """

    def __init__(self, *, term: int) -> None:
        self.term = term
        self._queue: deque[_Queued] = deque()
        self._known: set[tuple[int, int]] = set()  # proposals that are queued or in flight
        # Brokers with a command here: the index of its entry in flight, or None while it is queued.
        self._touching: dict[BrokerKey | None, int | None] = {}
        self._held: list[_Queued] = []  # deferred once the queued command of the same broker has its index
        self._batch: tuple[_Queued, ...] = ()
        self._in_flight = 0
        self._applied = 0

    def offer(
        self,
        proposal: Proposal,
        command: Command,
        member: str,
        *,
        moved_at: int | None,
        attempt: int = 1,
        pairs: int = 0,
    ) -> Deferral | None:
        """Queue a proposal for the log.

        Args:
            command: The proposal's command, decoded.
            member: Its proposer.
            moved_at: If the leader's table shows that the command has moved, the index up to which that table
                is applied; else None.
            attempt: Number of times that its proposer has handed it over.
            pairs: Number of the broker's topics that the command changes and does not name.

        Returns:
            A deferral to send back now. None if the proposal was queued, was here already, or gets its
            deferral with the next entry.
        """
        broker: BrokerKey | None = getattr(command, "broker", None)
        queued = _Queued(proposal, member, broker, attempt, pairs)
        if queued.mark in self._known:
            return None
        if moved_at is not None:
            return queued.deferral(moved_at)
        if broker in self._touching and isinstance(command, RegisterBroker | Update):
            index = self._touching[broker]
            if index is not None:
                return queued.deferral(index)
            self._held.append(queued)
            return None
        self._known.add(queued.mark)
        if broker is not None:
            self._touching[broker] = None
        self._queue.append(queued)
        return None

    def knows(self, proposal: Proposal) -> bool:
        """Return whether a copy of a proposal is queued or in flight; :meth:`offer` ignores another copy."""
        return (proposal.boot_id, proposal.sequence) in self._known

    def next_batch(self) -> Batch | None:
        """Return the next entry, None if one is in flight or nothing waits.

        :meth:`appended` or :meth:`not_appended` must follow.
        """
        if not self._queue or self._in_flight > self._applied or self._batch:
            return None
        taken = next(in_parts(self._queue, _work_of, _ENTRY_WORK_MAX))
        self._batch = tuple(taken)
        for _ in taken:
            self._queue.popleft()
        return Batch(proposals=tuple(queued.proposal for queued in taken))

    def not_appended(self) -> None:
        """Put the batch back unchanged, because nothing can be appended now."""
        self._queue.extendleft(reversed(self._batch))
        self._batch = ()

    def withdraw(self, boot_id: int, sequence: int) -> None:
        """Remove a proposal from the queue, because its proposer will answer "not applied"."""
        self._known.discard((boot_id, sequence))
        for queued in self._queue:
            if queued.mark == (boot_id, sequence):
                self._queue.remove(queued)
                if queued.broker is not None and all(other.broker != queued.broker for other in self._queue):
                    del self._touching[queued.broker]
                return

    def appended(self, index: int) -> tuple[tuple[str, Deferral], ...]:
        """Record the index of the batch; return the deferrals that waited for it, each with its proposer."""
        self._in_flight = index
        still_queued = {queued.broker for queued in self._queue}
        for queued in self._batch:
            if queued.broker is not None and queued.broker not in still_queued:
                self._touching[queued.broker] = index
        self._batch = ()
        released, held = [], []
        for waiting in self._held:
            known = self._touching.get(waiting.broker, index)
            if known is None:
                held.append(waiting)
            else:
                released.append((waiting.member, waiting.deferral(known)))
        self._held = held
        return tuple(released)

    def applied(self, index: int) -> None:
        """Forget the entries up to ``index``, which are applied."""
        self._applied = max(self._applied, index)
        if self._in_flight <= self._applied:  # only the entry in flight has an index
            self._known = {queued.mark for queued in (*self._batch, *self._queue)}
            self._touching = {broker: None for broker, at in self._touching.items() if at is None}
