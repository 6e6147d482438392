"""The leader's side of writes: takes proposals, appends them, says when to decide again.

What goes into which entry is decided by the :class:`Sequencer`, which is pure.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from nameserver.commands import (
    FIRST_FORMAT,
    Command,
    CommandFormatError,
    Proposal,
    decode_command,
    encode_batch,
    encode_command,
    format_of,
)
from nameserver.raft import Role

from . import peer_messages
from .leadership import Leadership
from .peer_messages import Deferral, Deferred
from .proposals import ProposalBook
from .surroundings import Part, Surroundings


class LogQueue(Part):
    """Carries proposals, its own and those of other members, into the log while this member leads."""

    def __init__(self, given: Surroundings, leadership: Leadership, book: ProposalBook) -> None:
        super().__init__(given)
        self.leadership = leadership
        self._decoded = leadership.decoded
        self._book = book

    def offer(self, proposal: Proposal, member: str, *, attempt: int = 1) -> None:
        """Take a proposal into the queue, or say when to decide again. Only while this member leads.

        Args:
            attempt: How many times its proposer has handed it over.
        """
        leadership = self.leadership
        sequencer = leadership.sequencer
        assert sequencer is not None, "offered without leading"
        needed = format_of(proposal.command)
        if needed > FIRST_FORMAT and needed > leadership.understood():
            # Whoever proposed it was told otherwise by a former leader; it is sent again, and told anew.
            self._peer_log.write(
                logging.WARNING,
                member,
                "proposal refused member=%s format=%d understood=%d",
                member,
                needed,
                leadership.understood(),
            )
            return
        mark = (proposal.boot_id, proposal.sequence)
        command = self._decoded.get(mark)
        if command is None:
            try:
                command = decode_command(proposal.command)
            except CommandFormatError as error:
                self._peer_log.write(
                    logging.ERROR, member, "proposal refused member=%s error=%s", member, error
                )
                return
            self._decoded[mark] = command
        moved = self._table.moved(command)
        applied_index = self._member.applied_index if moved else 0
        deferral = sequencer.offer(
            proposal, command, member, moved=moved, applied_index=applied_index, attempt=attempt
        )
        if deferral is not None:
            self._send_deferrals([(member, deferral)])

    def offer_unwatched(self, command: Command) -> int:
        """Take a command of this leader's own, whose verdict nobody waits for; returns its sequence."""
        sequence = self._book.next_sequence()
        data = encode_command(command)
        self.offer(Proposal(boot_id=self._book.boot_id, sequence=sequence, command=data), self._me)
        return sequence

    def withdraw(self, sequence: int) -> None:
        """Take a proposal of this process out of the queue, if it is there: it will not be applied."""
        if self.leadership.sequencer is not None:
            self.leadership.sequencer.withdraw(self._book.boot_id, sequence)

    def append(self) -> None:
        """Append what waits, unless an entry of ours is in flight."""
        sequencer = self.leadership.sequencer
        if sequencer is None:
            return
        batch = sequencer.next_batch()
        if batch is None:
            return
        index = self._member.append(encode_batch(batch), term=sequencer.term)
        if index is None:
            if self._member.role is Role.LEADER and self._member.term == sequencer.term:
                sequencer.not_appended()  # it hands over, perhaps in vain: the next tick tries again
            else:
                self.leadership.end()
            return
        for proposal in batch.proposals:
            if proposal.boot_id == self._book.boot_id:
                self._book.appended(proposal.sequence)
        deferrals = sequencer.appended(index)
        if deferrals:
            self._send_deferrals(deferrals)

    def _send_deferrals(self, deferrals: Iterable[tuple[str, Deferral]]) -> None:
        by_member: dict[str, list[Deferral]] = {}
        for member, deferral in deferrals:
            self._decoded.pop((deferral.boot_id, deferral.sequence), None)
            by_member.setdefault(member, []).append(deferral)
        for member, told in by_member.items():
            term = self._member.term
            if member == self._me:
                for deferral in told:
                    self._book.defer(deferral, term=term)
            else:
                # A lost one is no harm: the proposal is sent again.
                self._member.send(member, peer_messages.encode(Deferred(term=term, deferrals=tuple(told))))
