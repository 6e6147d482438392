"""The proposer: it decides registrations and other changes, proposes them, and answers the requests.

A registration that changes nothing is answered without the log, if this process may confirm the broker's
record alone. All other changes enter the :class:`.proposals.ProposalBook`, which decides when a change is
sent to the leader again. This process learns an outcome when it applies the entry. One timer answers all
requests whose outcome does not come in time. The leader's work is in :mod:`.leader`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgspec.structs import replace

from routekeeper.nameserver.commands import (
    FIRST_FORMAT,
    FORMAT_VERSION,
    LIMITS_FORMAT,
    UPDATE_FORMAT,
    Command,
    CommandFormatError,
    CommandTooLarge,
    Limited,
    Proposal,
    RegisterBroker,
    RegisterTopic,
    Update,
    format_of,
    written_and_read,
)
from routekeeper.nameserver.handlers import Renewal, answer_for, deciding_registration, table_limits
from routekeeper.nameserver.modes.interface import (
    NO_QUORUM_TAG,
    ConsistencyError,
    NoQuorum,
    NoRoom,
    OutcomeUnknown,
)
from routekeeper.nameserver.modes.repeats import SECRET_SIZE, Repeats
from routekeeper.nameserver.modes.serving import decide_received, refusal_of, refusal_of_failure
from routekeeper.nameserver.modes.waiters import resolve
from routekeeper.nameserver.registration import Registration, decoding_registration
from routekeeper.nameserver.routes.registrations import excess_of_registration, has_bounds_of_its_own
from routekeeper.nameserver.types import Answer, BrokerKey, ConnectionId, Request, refusal
from routekeeper.nameserver.verdicts import Applied, Moved, NoChange, RegisterReply, Verdict
from routekeeper.remoting.histogram import Histogram
from routekeeper.remoting.steps import STEP, Steps, finish

from .leader import Leader
from .peer_messages import Deferred, Propose, in_parts
from .proposals import WRITE_DEADLINE_S, OnOutcome, PendingProposal, ProposalBook, Registrant
from .reader import ANSWER_MARGIN_S, Reader
from .reports import Reports
from .surroundings import Component, Surroundings

logger = logging.getLogger(__name__)

PROPOSED: Final = Answer()
"""Placeholder for an answer that comes later, with the outcome of the proposal."""

NOT_BEGUN: Final = refusal(
    f"{NO_QUORUM_TAG} not applied: its turn did not come in time, or its connection has closed"
)
"""Answer to a registration that was neither decided nor proposed."""

_GIVEN_UP_MAX: Final = 256
"""Largest number of late proposals that are ended in one iteration of the loop."""

PROPOSE_BYTES: Final = 1024 * 1024
"""Largest size in bytes of the commands in one message to the leader.

A larger command is not split; it is sent in a message of its own.
"""

LATE_MAX: Final = 10_000
"""Largest number of remembered registrations that were answered "unknown", but may still be applied."""


@dataclass(slots=True)
class _Registering:
    """A registration that this process has begun and has not answered yet.

    The process decides the registration, proposes the command, and waits for the outcome. If another entry
    has changed the broker's record meanwhile, it decides the registration again, unless the connection was
    closed. Callbacks do these steps; there is no asyncio task for them.

    Attributes:
        answered: Called once with the answer, unless ``register`` returned the answer at once.
        host: The host whose limit of table entries applies to this registration.
        turn_of: The host for which this registration counts in the queue of long work (:class:`Line`).
        renewal: The decision by which the registration was answered without the log; else None.
        broker: The registering broker, once the request is decoded.
    """

    request: Request
    origin: ConnectionId
    deadline: float
    answered: Callable[[Answer], None]
    host: str
    turn_of: str
    renewal: Renewal | None = None
    broker: BrokerKey | None = None


class Proposer(Component):
    """The part of a member that answers registrations, and proposes this process's changes for the log.

    Attributes:
        book: Proposals of this process without an outcome.
        refused: Number of changes answered "not applied".
        unknown: Number of changes answered "may apply yet".
        commit_times: Seconds from the entry of a change in ``book`` until this process applied the change.
    """

    def __init__(
        self,
        given: Surroundings,
        *,
        book: ProposalBook,
        leader: Leader,
        reports: Reports,
        reader: Reader,
    ) -> None:
        super().__init__(given)
        self._settings = given.settings
        self.book = book
        self.refused = self.unknown = 0
        self.commit_times = Histogram()
        self._leader = leader
        self._reports = reports
        self._reporter = reports.reporter
        self._reader = reader
        self._registering: Counter[Registrant] = Counter()  # registrations that have no answer yet
        self._under_way: Counter[ConnectionId] = Counter()  # the same registrations, by connection
        self._closed: set[ConnectionId] = set()  # closed connections of these registrations
        self._repeats = Repeats(os.urandom(SECRET_SIZE))
        self._timer: asyncio.Handle | None = None
        self._timer_at = math.inf  # loop time of the timer; some timer handles of uvloop do not return it
        self._settled: list[tuple[OnOutcome, Verdict]] = []  # outcomes of the entry that is being applied
        # Registrations that were answered "outcome unknown", by their proposal's sequence number. If such a
        # proposal is applied later, this member still reports to the leader that the broker registered here.
        self._late: OrderedDict[int, Registrant] = OrderedDict()

    # -- registrations ------------------------------------------------------------------------------------

    def register(
        self,
        request: Request,
        origin: ConnectionId,
        *,
        deadline: float,
        answered: Callable[[Answer], None],
        host: str,
        turn_of: str,
    ) -> Answer | None:
        """Return the answer to a registration, or None if ``answered`` is called with the answer later."""
        repeat = self._repeats.find(request, origin, self._table, self._settings.current)
        if repeat is not None:
            broker = repeat.renewal.record.broker
            self._reports.note_registration(broker, origin, lease_s=repeat.lease_ms / 1000)
            renewed = self.renew(repeat.renewal, origin, registration=True)
            if isinstance(renewed, Answer):
                return renewed
        deadline = min(deadline, self._loop.time() + WRITE_DEADLINE_S)
        on = _Registering(request, origin, deadline, answered, host, turn_of)
        answer = self._line.run(
            self._begin(on),
            partial(self._decided, on),
            sender=origin,
            host=turn_of,
            otherwise=NOT_BEGUN,
            failed=refusal_of_failure,
            until=deadline - ANSWER_MARGIN_S,
        )
        return None if answer is None or answer is PROPOSED else self._counted(answer)

    def _decided(self, on: _Registering, answer: Answer) -> None:
        """Answer a registration that waited in the queue of long work, unless its command was proposed."""
        if answer is not PROPOSED:
            on.answered(self._counted(answer))

    def _counted(self, answer: Answer) -> Answer:
        self.refused += answer is NOT_BEGUN
        return answer

    def _begin(self, on: _Registering) -> Steps[Answer]:
        """Decode and decide a registration; return :data:`PROPOSED` if the answer comes later."""
        if self._loop.time() >= on.deadline:
            return NOT_BEGUN
        decoded = yield from decoding_registration(on.request)
        if isinstance(decoded, Answer):
            return decoded
        if decoded.broker not in self._table.brokers.records:
            answer = yield from self._no_room(decoded, on.host)
            if answer is not None:
                return answer
        on.broker = decoded.broker
        self._reports.note_registration(decoded.broker, on.origin, lease_s=decoded.lease_ms / 1000)
        answer = yield from self._decide(on, decoded)
        if answer is PROPOSED:
            self._registering[decoded.broker, on.origin] += 1
            self._under_way[on.origin] += 1
        elif on.renewal is not None:
            settings = self._settings.current
            self._repeats.remember(on.request, decoded, on.renewal, on.origin, self._table, settings)
        return answer

    def renew(
        self, renewal: Renewal, origin: ConnectionId, *, registration: bool = False
    ) -> Answer | Command:
        """Answer a request that changes nothing, if this process may confirm the record alone.

        Rule 3 of docs/raft-rules.md describes when it may.

        Args:
            registration: True for a registration; False for a heartbeat or for QUERY_DATA_VERSION.

        Returns:
            The answer. If this process may not confirm the record without the leader: the decision that
            ``renewal`` holds for this case (``renewal.otherwise``).
        """
        broker, lease_s = renewal.record.broker, renewal.record.lease_ms / 1000
        in_contact = self._member.in_contact()
        if renewal.is_current:
            self._liveness.note_current(broker)
        if not registration:
            self._reports.note_heartbeat(broker, origin, lease_s=lease_s)
        if not self._reporter.may_vouch(broker, origin, in_contact=in_contact, lease_s=lease_s):
            return renewal.otherwise
        if registration:
            self._reports.note_registered(broker, origin, revision=renewal.record.revision)
            self._observer.renewed(renewal.answer)
        return renewal.answer

    def is_answering(self, broker: BrokerKey, origin: ConnectionId) -> bool:
        """Return True if a registration of this broker over this connection has no answer yet."""
        return (broker, origin) in self._registering

    def closed(self, origin: ConnectionId) -> None:
        """Forget the last registration of a closed connection; it was kept to recognize its repetitions.

        A registration of this connection that waits for its outcome is not decided again. If it were, an old
        version could make a broker appear again whose newer registration was removed meanwhile.
        """
        self._repeats.forget(origin)
        if origin in self._under_way:
            self._closed.add(origin)

    def _decide(self, on: _Registering, decoded: Registration) -> Steps[Answer]:
        """Decide a registration by the present table; return :data:`PROPOSED` if a command is proposed."""
        settings = self._settings.current
        try:
            # This process's table may be out of date. The command then has the outcome Moved, and the
            # registration is decided again. As soon as every member understands differences from the table
            # (:class:`Update`), nearly all registrations become differences.
            decision = yield from decide_received(
                self._table,
                self._liveness,
                decoded,
                on.origin,
                settings,
                differences=self._reporter.understood >= UPDATE_FORMAT,
                host=on.host,
            )
            command: Command | Answer
            if isinstance(decision, Renewal):
                command = self.renew(decision, on.origin, registration=True)
                if isinstance(command, Answer):
                    on.renewal = decision
                    return command
            else:
                command = decision
            kept = command
            if isinstance(command, RegisterBroker | Update) and len(command.topics) > STEP:
                kept = replace(command, topics=())  # the answer does not need the topics
            if isinstance(kept, RegisterBroker) and kept.mappings:
                kept = replace(kept, mappings=())
            on_outcome, registrant = partial(self._conclude, on, kept), (decoded.broker, on.origin)
            yield from self._entering(
                command, deadline=on.deadline, on_outcome=on_outcome, registrant=registrant
            )
        except (ConsistencyError, CommandTooLarge, CommandFormatError) as error:
            return refusal_of(on.request, error)
        return PROPOSED

    def _no_room(self, decoded: Registration, host: str) -> Steps[Answer | None]:
        """Return the refusal of a broker without a record if the table has no space for it; else None.

        The member then neither notes the broker as seen nor proposes the registration. Otherwise any client
        could fill the memory of all members, because members keep the names of registered brokers for
        minutes.
        """
        settings = self._settings.current
        limits = table_limits(settings, host)
        if self._table.has_ample_room(decoded, limits):
            return None
        command = yield from deciding_registration(self._table.view, decoded, settings, limits=limits)
        assert isinstance(command, RegisterBroker), "no record is there that it could renew"
        rejected = yield from excess_of_registration(self._table, command)
        return None if rejected is None else answer_for(command, rejected, settings)

    def _conclude(self, on: _Registering, command: Command, outcome: Verdict | ConsistencyError) -> None:
        """Answer a registration by its command's outcome, or decide it again if the record has changed."""
        if isinstance(outcome, Moved):
            done = partial(self._answer, on)
            answer = self._line.run(
                self._decide_again(on),
                done,
                sender=on.origin,
                host=on.turn_of,
                otherwise=NOT_BEGUN,
                until=on.deadline - ANSWER_MARGIN_S,
            )
            if answer is not None:
                done(answer)
            return
        try:
            if isinstance(outcome, ConsistencyError):
                answer = refusal_of(on.request, outcome)
            else:
                answer = answer_for(command, outcome, self._settings.current)
        except Exception as error:  # the failure of one request must not stop other requests
            answer = self._failed(on, error)
        self._answer(on, answer)

    def _decide_again(self, on: _Registering) -> Steps[Answer]:
        # Look at this here, because the connection may be closed while this work waits for its turn.
        if on.origin in self._closed:
            return NOT_BEGUN
        try:
            # Decode the request again. A hundred large registrations may wait for outcomes, and keeping them
            # decoded would take too much memory.
            decoded = yield from decoding_registration(on.request)
            assert isinstance(decoded, Registration), "it was decoded before"
            return (yield from self._decide(on, decoded))
        except Exception as error:  # the failure of one request must not stop other requests
            return self._failed(on, error)

    def _failed(self, on: _Registering, error: Exception) -> Answer:
        logger.exception("registration failed broker=%s", on.broker)
        return refusal_of_failure(error)

    def _answer(self, on: _Registering, answer: Answer) -> None:
        """Answer a registration, unless it was proposed again."""
        if answer is PROPOSED:
            return
        assert on.broker is not None, "it was decoded"
        registrant = on.broker, on.origin
        self._registering[registrant] -= 1
        if not self._registering[registrant]:
            del self._registering[registrant]
        self._under_way[on.origin] -= 1
        if not self._under_way[on.origin]:
            del self._under_way[on.origin]
            self._closed.discard(on.origin)
        on.answered(self._counted(answer))

    # -- proposals ----------------------------------------------------------------------------------------

    async def propose(self, command: Command, *, deadline: float) -> Verdict:
        """Propose a command and wait for its outcome.

        Raises:
            NoQuorum, OutcomeUnknown, CommandTooLarge, CommandFormatError: See :meth:`Mode.propose`.
        """
        waiter: asyncio.Future[Verdict] = self._loop.create_future()
        steps = self._entering(command, deadline=deadline, on_outcome=partial(resolve, waiter))
        sequence = finish(steps)
        try:
            return await waiter
        finally:
            self._forget(sequence, late=True)

    def _entering(
        self,
        command: Command,
        *,
        deadline: float,
        on_outcome: OnOutcome,
        registrant: Registrant | None = None,
    ) -> Steps[int]:
        """Store a command as a new proposal in :attr:`book`.

        Args:
            on_outcome: Called later with the outcome. It must not block.
            registrant: The broker and connection that register by this command; None if this is no
                registration.

        Returns:
            The proposal's sequence number.

        Raises:
            NoQuorum, NoRoom, CommandTooLarge, CommandFormatError: Nothing was proposed.
        """
        if isinstance(command, Limited) and command.limits is not None:
            # All members must decide alike, but members of older releases do not know every limit. So this
            # process itself checks the limits that some member may not know.
            alone = self._reporter.understood < LIMITS_FORMAT
            rejected = None
            if isinstance(command, RegisterBroker):
                if alone or has_bounds_of_its_own(self._table, command):
                    rejected = yield from excess_of_registration(self._table, command)
            elif alone or isinstance(command, RegisterTopic):
                rejected = self._table.excess(command)
            if rejected is not None:
                raise NoRoom(rejected.remark)
            if alone:
                command = replace(command, limits=None)
        data, command = yield from written_and_read(command)
        if self._given.closing:
            raise NoQuorum("not applied: this name server is shutting down")
        needed = format_of(data)
        if needed > self._reporter.understood:
            raise NoQuorum(
                f"not applied: it needs format {needed}, and a member knows only "
                f"{self._reporter.understood}, or has not said yet: it runs an older release"
            )
        if not self.book.has_room(data):
            raise NoQuorum("not applied: too many changes are under way here")
        now = self._loop.time()
        sequence = self.book.add(
            data, deadline=deadline, now=now, on_outcome=on_outcome, registrant=registrant
        )
        if deadline - ANSWER_MARGIN_S < self._timer_at:
            self._give_up_at(deadline - ANSWER_MARGIN_S)
        proposal = Proposal(boot_id=self.book.boot_id, sequence=sequence, command=data)
        self._leader.keep_decoded(proposal, command)
        self._work_soon()
        return sequence

    def hand_over(self) -> None:
        """Hand the leader all proposals that it may not have yet."""
        if not self.book:
            return
        now, term, leader = self._loop.time(), self._member.term, self._member.leader
        understood = self._reporter.understood
        sequencer = self._leader.sequencer
        if sequencer is not None and sequencer.term == term:
            for pending in self.book.outgoing((term, 0), now=now, understood=understood):
                self.book.handed(pending, (term, 0), now=now, may_reach_log=False)
                self._leader.offer(pending.proposal, attempt=pending.attempts)
            return
        if leader is None or leader not in self._links:
            return
        route = (term, self._links[leader])
        outgoing = self.book.outgoing(route, now=now, understood=understood)
        for chunk in in_parts(outgoing, lambda pending: len(pending.proposal.command), PROPOSE_BYTES):
            proposals = tuple([pending.proposal for pending in chunk])
            attempts = tuple([pending.attempts + 1 for pending in chunk])
            if not self._send(leader, Propose(term=term, proposals=proposals, attempts=attempts)):
                return
            for pending in chunk:
                self.book.handed(pending, route, now=now, may_reach_log=True)

    def take_deferrals(self, message: Deferred) -> None:
        """Record which proposals of this process the leader did not append (deferred).

        A leader defers a proposal if the state for which it was decided has changed, or is about to change.
        This process must then decide the proposal again.
        """
        for deferral in message.deferrals:
            self.book.defer(deferral, term=message.term)
        self._work_soon()

    def decide_deferred(self) -> None:
        """Decide again proposals that a leader did not append, or that some member cannot understand."""
        if self.book.deferred:
            for sequence in self.book.released(applied_index=self._member.applied_index):
                self._end(sequence, Moved(revision=self._table.revision))
        if self._reporter.understood < FORMAT_VERSION:
            for sequence in self.book.beyond(self._reporter.understood):
                self._end(sequence, Moved(revision=self._table.revision))

    def table_replaced(self, *, term: int) -> None:
        """End proposals whose outcome cannot be learned, because a snapshot replaced their entries.

        Args:
            term: Term of the last leader before the snapshot.
        """
        # The callbacks run in a later loop iteration, because the engine calls this method during its work.
        for pending in [pending for pending in self.book if pending.in_doubt]:
            unknown_yet = OutcomeUnknown("a state image came meanwhile, which holds the change or not")
            self._end(pending.proposal.sequence, unknown_yet, later=True)
        # Decide again each proposal that is a difference from the table (:class:`Update`). A difference is
        # valid only for the table from which it was computed, but the new table may have the same revision
        # by chance.
        for sequence in self.book.beyond(FIRST_FORMAT):
            self._end(sequence, Moved(revision=self._table.revision), later=True)
        self.book.applied(term)
        # Forget the stored registrations: they belong to the old table, but the new table may by chance have
        # the old table's revision.
        self._repeats.clear()

    def settle(self, sequence: int, verdict: Verdict) -> None:
        """Record the outcome of a proposal of this process.

        :meth:`answer_settled` answers the request later, after the whole entry is applied.
        """
        pending = self.book.remove(sequence)
        if pending is not None:
            self.commit_times.observe(self._loop.time() - pending.entered)
        registrant = self._late.pop(sequence, None) if pending is None else pending.registrant
        reply = verdict.reply if isinstance(verdict, Applied | NoChange) else None
        if registrant is not None and isinstance(reply, RegisterReply) and reply.revision is not None:
            self._reports.note_registered(*registrant, revision=reply.revision)
        if pending is not None and pending.on_outcome is not None:
            self._observer.settled(verdict)
            self._settled.append((pending.on_outcome, verdict))

    def answer_settled(self, *, index: int) -> None:
        """Pass the outcomes of the entry that was just applied to the waiting requests."""
        settled, self._settled = self._settled, []
        for on_outcome, verdict in settled:
            try:
                on_outcome(verdict)
            except Exception:
                logger.exception("a change was not answered index=%d", index)

    def end(self) -> None:
        """Answer all waiting requests, because this process ends."""
        for pending in list(self.book):
            self._give_up(pending)

    def _forget(self, sequence: int, *, late: bool) -> OnOutcome | None:
        """Forget a proposal; return the callback that waits for its outcome, or None if none waits.

        Args:
            late: True if the proposal may still be applied later. False to remove it also from the leader's
                queue, if this process leads.
        """
        self._leader.forget_proposal(sequence, withdraw=not late)
        pending = self.book.remove(sequence)
        if pending is None:
            return None
        if late and pending.registrant is not None:
            self._late[sequence] = pending.registrant
            if len(self._late) > LATE_MAX:
                self._late.popitem(last=False)
        return pending.on_outcome

    def _give_up_at(self, until: float) -> None:
        """Set the timer that all waiting proposals share.

        A timer for each proposal would be wasted: nearly all proposals have their outcome long before.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(until, self._give_up_late), until

    def _give_up_late(self) -> None:
        if self._given.closing:
            return
        self._timer, self._timer_at = None, math.inf
        now = self._loop.time() + ANSWER_MARGIN_S
        late = [pending for pending in self.book if pending.deadline <= now]
        for pending in late[:_GIVEN_UP_MAX]:
            self._give_up(pending)
        if len(late) > _GIVEN_UP_MAX:
            self._give_up_at(self._loop.time())  # end the other late proposals in the next iteration
        elif self.book:
            self._give_up_at(min(pending.deadline for pending in self.book) - ANSWER_MARGIN_S)

    def _give_up(self, pending: PendingProposal) -> None:
        """End a proposal that has no outcome in time.

        The outcome is "not applied" if the proposal cannot be in any log, else unknown.
        """
        why = self._reader.why_not()
        outcome: ConsistencyError = NoQuorum(f"not applied: {why}")
        if pending.in_doubt:
            outcome = OutcomeUnknown(f"no outcome is known, it may apply yet: {why}")
        self._end(pending.proposal.sequence, outcome)

    def _end(self, sequence: int, outcome: Moved | ConsistencyError, *, later: bool = False) -> None:
        """End a proposal before its entry is applied: forget it, and pass ``outcome`` to its request.

        Args:
            later: True to pass the outcome in a later loop iteration.
        """
        unknown = isinstance(outcome, OutcomeUnknown)
        on_outcome = self._forget(sequence, late=unknown)
        self.unknown += unknown
        self.refused += isinstance(outcome, NoQuorum)
        if on_outcome is not None and later:
            self._loop.call_soon(on_outcome, outcome)
        elif on_outcome is not None:
            on_outcome(outcome)
