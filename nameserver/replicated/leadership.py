"""Whether this member leads, and what it holds while it does.

Decides nothing: what a leader holds is pure (:class:`Sequencer`, :class:`Rounds`, :class:`FailureDetector`).
"""

from __future__ import annotations

import logging

from nameserver.commands import FIRST_FORMAT, Batch, Command, encode_batch
from nameserver.raft import Role

from .barriers import Rounds
from .failure_detector import FailureDetector
from .peer_messages import Report
from .proposals import Sequencer
from .surroundings import Part, Surroundings

logger = logging.getLogger(__name__)

Decoded = dict[tuple[int, int], Command]
"""Commands by boot id and sequence, each decoded once: kept until it is applied or given up."""


class Leadership(Part):
    """What this member holds while it leads, all of it of one term.

    Attributes:
        sequencer: What is appended next; None if it does not lead.
        rounds: The barriers that it is asked for; None if it does not lead.
        failure_detector: What it was told of brokers; None before an entry of its own term is applied.
        early: Reports that came before that, by member, each with the link that it came over.
        decoded: What was decoded of commands on their way; those of others only while it leads.
    """

    def __init__(self, given: Surroundings) -> None:
        self.sequencer: Sequencer | None = None
        self.rounds: Rounds | None = None
        self.failure_detector: FailureDetector | None = None
        self.early: dict[str, tuple[Report, int]] = {}
        self.decoded: Decoded = {}
        super().__init__(given)
        self._mark_due = False  # the mark of this leadership could not be appended yet

    def follow(self) -> None:
        """Lead if this member leads, in its present term.

        Also called when a proposal arrives: members may know of a new leader before its own loop turns.
        """
        member, term = self._member, self._member.term
        if member.role is not Role.LEADER:
            self.end()
        elif self.sequencer is None or self.sequencer.term != term:
            self.end()
            self.sequencer = Sequencer(term=term)
            self.rounds = Rounds(term=term)
            logger.info("leading term=%d", term)
            self._mark_due = True
            self.mark()

    def understood(self) -> int:
        """Return the newest command format that every member understands, as far as this leader was told."""
        return FIRST_FORMAT if self.failure_detector is None else self.failure_detector.understood()

    def rounds_of(self, term: int) -> Rounds | None:
        """Return the rounds of a term, if this member leads in it."""
        if self.rounds is None or self.rounds.term != term:
            self.follow()
        return self.rounds if self.rounds is not None and self.rounds.term == term else None

    def mark(self) -> None:
        """Mark in the log who leads, see FailureDetector.prior_term; again if it was not the time for it."""
        if self._mark_due and self.sequencer is not None:
            mark = encode_batch(Batch(proposals=()))
            self._mark_due = self._member.append(mark, term=self.sequencer.term) is None

    def end(self) -> None:
        """Forget all that a leader holds, if this member led."""
        if self.sequencer is None:
            return
        logger.info("no longer leading term=%d", self.sequencer.term)
        self.sequencer = None
        self.rounds = None
        self.failure_detector = None
        self.early.clear()
        for mark in [mark for mark in self.decoded if mark[0] != self._boot_id]:
            del self.decoded[mark]
