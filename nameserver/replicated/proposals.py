"""Commands on their way into the log: proposals without an outcome (the book), and the leader's queue.

The proposer is the process that makes a proposal. It learns the outcome when it applies the entry with the
proposal; no message tells it the outcome.

- A proposal may be sent again: after a leader change or a lost link, the proposer sends it again at once.
  This is safe, because a command is applied at most once, and never to a newer state than the state for which
  it was decided.
- A request may be decided again, and then becomes another command. The new command is proposed only when no
  copy of the former command can be applied any more. Otherwise the request could take effect twice.
- While an entry is in flight, the leader gathers new proposals for the next entry. It does not append a
  registration that is certain to be *moved* (decided for a state that has changed). Instead it answers with
  an index: after the entry with this index, the proposer must decide again.

This module does no I/O and reads no clock: callers pass the time of the event loop in seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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
"""Seconds within which every write is answered, even if its outcome is still unknown."""

BOOK_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest total size in bytes of the commands of one process that have no outcome yet."""

BOOK_MAX: Final = 4096
"""Largest number of proposals of one process that have no outcome yet."""

RESEND_S: Final = 1.0
"""Seconds after which a proposal without an outcome is sent again, even over the same link."""

#: Largest work of an entry, measured in bytes of uncompressed commands. Applying an entry delays the reads
#: that the entry may affect. The limit is about 20,000 registered topics, 40,000 removed topics or 2,000
#: small commands, which take 20 ms on one processor core. A larger command has an entry to itself.
_ENTRY_WORK_MAX: Final = 2 * 1024 * 1024
_COMMAND_WORK: Final = 1000
_PAIR_WORK: Final = 50


# -- the proposer's side --------------------------------------------------------------------------------


OnOutcome: TypeAlias = Callable[[Verdict | ConsistencyError], None]
"""Function that is called once with the outcome of a proposal.

The outcome is a verdict, or the error NoQuorum or OutcomeUnknown. The verdict *Moved* means that the request
must be decided again: the state for which it was decided has changed, or a leader deferred the proposal.
After Moved or NoQuorum, no copy of the proposal can be applied any more.
"""


Registrant: TypeAlias = tuple[BrokerKey, ConnectionId]
"""A broker, and the connection over which it registers."""


class PendingProposal(msgspec.Struct, kw_only=True):
    """One proposal of this process without an outcome. All times are loop times in seconds.

    Attributes:
        entered: Time at which the proposal was made.
        deadline: Time by which the request must be answered.
        on_outcome: Called with the outcome; None if no request waits.
        registrant: Broker and connection that register by this proposal; None if this proposal is not a
            registration.
        route: Term and link number of the leader to which this process sent the proposal last; None before
            the first time.
        handed_at: Time at which the proposal was last handed to a leader.
        attempts: Number of times that the proposal was handed to a leader.
        copies: For each copy that may have reached a log, the term of the leader that got the copy.
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
        """True if a log may contain a copy of the proposal that this process has not applied yet."""
        return bool(self.copies)


class ProposalBook:
    """Proposals of one process, from the decision to the outcome or the deadline.

    Attributes:
        deferred: Proposals that a leader deferred, by sequence: the leader's term, and the index that must be
            applied before the proposer decides again. Mostly there are none.
    """

    def __init__(self, *, boot_id: int) -> None:
        self.boot_id = boot_id
        self._bytes = 0
        self._sequence = 0
        self._waiting: dict[int, PendingProposal] = {}
        # Proposals in _waiting that the present leader may not have yet. Mostly there are none.
        self._fresh: dict[int, PendingProposal] = {}
        self.deferred: dict[int, tuple[int, int]] = {}
        self._applied_term = 0
        self._route: tuple[int, int] | None = None
        self._stale_at = math.inf  # before this time, no proposal is sent again over the same route

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[PendingProposal]:
        return iter(self._waiting.values())

    def has_room(self, command: bytes) -> bool:
        """Return True if one more command fits within :data:`BOOK_MAX` and :data:`BOOK_BYTES_MAX`."""
        return len(self._waiting) < BOOK_MAX and self._bytes + len(command) <= BOOK_BYTES_MAX

    def next_sequence(self) -> int:
        """Return the next sequence number.

        Call this method only for a proposal whose outcome no request waits for. For other proposals, call
        :meth:`add`, which also stores the proposal.
        """
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
        """Enter a command as a new proposal; return the proposal's sequence number."""
        sequence = self.next_sequence()
        proposal = Proposal(boot_id=self.boot_id, sequence=sequence, command=command)
        self._waiting[sequence] = self._fresh[sequence] = PendingProposal(
            proposal=proposal, entered=now, deadline=deadline, on_outcome=on_outcome, registrant=registrant
        )
        self._bytes += len(command)
        return sequence

    def outgoing(self, route: tuple[int, int], *, now: float, understood: int) -> Iterator[PendingProposal]:
        """Yield the proposals that the leader at this route may not have yet, the oldest first.

        The caller must call :meth:`handed` for each proposal that it hands to the leader.

        Args:
            route: The leader's term, and the number of the link to the leader.
            understood: Newest command format that this leader may append. Proposals of newer formats are
                skipped, see :meth:`beyond`.
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
            may_reach_log: True if the proposal was sent to another process. False if this process leads:
                :meth:`appended` is called when the proposal reaches the log.
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

        Only the answer to the newest copy counts:

        - An answer to an older copy does not say whether the leader appended a newer copy.
        - When the leader answers the newest copy, no older copy can reach the leader any more. Copies reach
          it in the order in which they were sent, because a new link replaces the old link.
        - If the leader has appended an older copy, the index of that entry is not above the index in the
          answer. So the proposer applies that entry before it decides again.
        """
        waiting = self._waiting.get(deferral.sequence)
        if waiting is None or deferral.boot_id != self.boot_id:
            return
        if waiting.route is not None and waiting.route[0] == term:
            if waiting.route[1] and term in waiting.copies:
                waiting.copies.remove(term)  # the leader says that it did not append this copy
            if deferral.attempt == waiting.attempts:
                self.deferred[deferral.sequence] = (term, deferral.index)

    def applied(self, term: int) -> None:
        """Record that this process has applied an entry of this term.

        Call this method after the entry's proposals were removed from the book.

        A leader's first entry follows all entries of former terms that can ever be committed. So a copy that
        was handed to a former leader is now settled: either it was applied here, or it never will be applied.
        """
        if term <= self._applied_term:
            return
        self._applied_term = term
        for waiting in self._waiting.values():
            if waiting.route is not None and waiting.route[0] <= term:
                waiting.copies = [of for of in waiting.copies if of >= term]

    def released(self, *, applied_index: int) -> tuple[int, ...]:
        """Return the sequences of deferred proposals that can be decided again.

        A proposal can be decided again when this process has applied the entry that the deferral names, or an
        entry of a later term. By then, each copy of the proposal was applied, was not appended by the leader,
        or can never be applied: see :meth:`defer` and :meth:`applied`.
        """
        # Compare term and index: another leader may have appended another entry with this index.
        applied = (self._applied_term, applied_index)
        return tuple(sequence for sequence, needed in self.deferred.items() if needed <= applied)

    def beyond(self, understood: int) -> tuple[int, ...]:
        """Return the sequences of proposals to decide again, because some member does not understand them.

        Their format is newer than ``understood``, so the new decision must use an older format. The result
        has only proposals that are in no log. The others wait until all members understand their format, or
        until no log can hold a copy.
        """
        return tuple(
            sequence
            for sequence, waiting in self._waiting.items()
            if not waiting.in_doubt and format_of(waiting.proposal.command) > understood
        )

    def remove(self, sequence: int) -> PendingProposal | None:
        """Remove a proposal: it has its outcome, its deadline has passed, or it is decided again."""
        waiting = self._waiting.pop(sequence, None)
        if waiting is not None:
            self._bytes -= len(waiting.proposal.command)
            self._fresh.pop(sequence, None)
            self.deferred.pop(sequence, None)
        return waiting


# -- the leader's side --------------------------------------------------------------------------------


class _Queued(msgspec.Struct, frozen=True):
    """A proposal in the leader's queue, with its proposer and the broker whose record it would change."""

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
    """The leader's queue during one term; it decides which proposals are appended next.

    One entry at a time is in flight. Proposals that arrive during that time go together into the next entry.
    """

    def __init__(self, *, term: int) -> None:
        self.term = term
        self._queue: dict[tuple[int, int], _Queued] = {}
        self._queued_of: Counter[BrokerKey] = Counter()  # number of queued commands for each broker
        self._known: set[tuple[int, int]] = set()  # proposals that are queued or in flight
        # Key: a broker whose record will be changed by a queued command, or by a command of the entry in
        # flight. Value: None if a command is queued; else the index of the entry in flight. Commands without
        # a broker share the key None.
        self._touching: dict[BrokerKey | None, int | None] = {}
        # Proposals that will be deferred as soon as a queued command of the same broker is appended. The
        # deferral must name the index of that command's entry, which is not known before.
        self._held: list[_Queued] = []
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
        """Queue a proposal for the log, or defer it.

        Args:
            command: The proposal's command, decoded.
            member: The member that made the proposal.
            moved_at: The index up to which the leader's table is applied, if this table shows that the
                command has moved (is outdated); else None.
            attempt: Number of times that the proposer has handed the proposal to a leader.
            pairs: Number of the broker's topics that the command changes without naming them.

        Returns:
            A deferral to send back now. None if the proposal was queued, was in the queue already, or gets
            its deferral when the next entry is appended.
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
        self._enqueue([queued])
        if broker is not None:
            self._touching[broker] = None
        return None

    def _enqueue(self, proposals: Iterable[_Queued]) -> None:
        for queued in proposals:
            self._queue[queued.mark] = queued
            if queued.broker is not None:
                self._queued_of[queued.broker] += 1

    def _dequeue(self, mark: tuple[int, int]) -> _Queued | None:
        queued = self._queue.pop(mark, None)
        if queued is not None and queued.broker is not None:
            self._queued_of[queued.broker] -= 1
            if not self._queued_of[queued.broker]:
                del self._queued_of[queued.broker]
        return queued

    def knows(self, proposal: Proposal) -> bool:
        """Return True if a copy of a proposal is queued or in flight; :meth:`offer` ignores another copy."""
        return (proposal.boot_id, proposal.sequence) in self._known

    def next_batch(self) -> Batch | None:
        """Return the next entry; None if an entry is in flight or the queue is empty.

        The caller must call :meth:`appended` or :meth:`not_appended` afterwards.
        """
        if not self._queue or self._in_flight > self._applied or self._batch:
            return None
        taken = next(in_parts(self._queue.values(), _work_of, _ENTRY_WORK_MAX))
        self._batch = tuple(taken)
        for queued in taken:
            self._dequeue(queued.mark)
        return Batch(proposals=tuple(queued.proposal for queued in taken))

    def not_appended(self) -> None:
        """Put the last batch's proposals back at the head of the queue; the log accepts no entry now."""
        behind = list(self._queue.values())
        self._queue.clear()
        self._queued_of.clear()
        self._enqueue((*self._batch, *behind))
        self._batch = ()

    def withdraw(self, boot_id: int, sequence: int) -> None:
        """Remove a proposal from the queue, because the client will be answered "not applied"."""
        self._known.discard((boot_id, sequence))
        queued = self._dequeue((boot_id, sequence))
        if queued is not None and queued.broker is not None and queued.broker not in self._queued_of:
            del self._touching[queued.broker]

    def appended(self, index: int) -> tuple[tuple[str, Deferral], ...]:
        """Record the index of the entry that contains the batch's proposals.

        Return pairs of a member and a deferral that must be sent to this member now.
        """
        self._in_flight = index
        for queued in self._batch:
            if queued.broker is not None and queued.broker not in self._queued_of:
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
        """Record that entries up to ``index`` are applied, and forget their proposals."""
        self._applied = max(self._applied, index)
        if self._in_flight <= self._applied:  # nothing is in flight, so only queued proposals stay known
            self._known = {queued.mark for queued in (*self._batch, *self._queue.values())}
            self._touching = {broker: None for broker, at in self._touching.items() if at is None}
