"""Applies committed entries to the state machine, a part at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from routekeeper.nameserver.raft.consensus.effects import Committed
from routekeeper.nameserver.raft.types import StateMachine, StopMember
from routekeeper.remoting.histogram import Histogram
from routekeeper.remoting.steps import Steps

logger = logging.getLogger(__name__)

#: Entries, and steps of entries, that are applied at once, and for how many seconds; the rest is applied when
#: the loop has come round.
APPLY_STEPS: Final = 512
APPLY_S: Final = 0.005


class Applier:
    """Feeds the state machine of one member with what its engine says is committed.

    Args:
        times: Takes how long each entry took from its first step to its last one, other work in between
            included.

    Attributes:
        failure: Why an entry could not be applied; empty as long as all could. Nothing more is applied then.
    """

    def __init__(
        self, machine: StateMachine, clock: Callable[[], float], times: Histogram | None = None
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._steps: Steps[None] | None = None
        self._begun = 0.0
        self._times = Histogram() if times is None else times
        self.failure = ""

    @property
    def within(self) -> bool:
        """Return whether an entry is half applied: the state is that of no index."""
        return self._steps is not None

    def apply(self, entries: Sequence[Committed]) -> int:
        """Apply some of these entries, in order; return how many are applied wholly.

        The first one may have begun before. Look at :attr:`failure` afterwards.
        """
        now, done = self._clock(), 0
        until = now + APPLY_S
        for _ in range(APPLY_STEPS):
            if done == len(entries):
                break
            if self._steps is None:
                self._steps, self._begun = self._applying(entries[done]), now
            whole = False
            try:
                next(self._steps)
            except StopIteration:
                self._steps = None
                done += 1
                whole = True
            except StopMember as error:
                self.failure = str(error)
                break
            now = self._clock()
            if whole:
                self._times.observe(now - self._begun)
            if now >= until:
                break
        return done

    def replaced(self) -> None:
        """Forget an entry that has begun: the state is that of an image which has it."""
        self._steps = None

    def _applying(self, entry: Committed) -> Steps[None]:
        """D11: apply an entry, once and whole; one that cannot be read, or fails, stops the member.

        What raises here may do so on this member alone (memory, a defect): passed over, it would make this
        member's state differ from the others'. The log has the entry; the next start applies it again.
        """
        if entry.payload is None:
            return
        index, term = entry.index, entry.term
        try:
            steps = self._machine.apply(entry.payload, index=index, term=term, live=entry.live)
            if steps is not None:
                yield from steps
        except StopMember as error:
            raise StopMember(f"entry {index}: {error}") from error
        except Exception as error:
            logger.exception("apply raised index=%d term=%d", index, term)
            raise StopMember(f"entry {index} was not applied: {type(error).__name__}: {error}") from error
