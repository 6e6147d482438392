"""Applying committed entries to the state machine, a few at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from routekeeper.nameserver.raft.consensus.effects import Committed
from routekeeper.nameserver.raft.types import StateMachine, StopMember
from routekeeper.remoting.histogram import Histogram
from routekeeper.remoting.steps import Steps

logger = logging.getLogger(__name__)

#: At most this many entries, or steps of entries, are applied in one turn of the loop, and for at most this
#: many seconds. The rest follows in the next turn.
APPLY_STEPS: Final = 512
APPLY_S: Final = 0.005


class Applier:
    """Applies the committed entries of one member to its state machine.

    Args:
        times: Records the time of each entry from its first to its last step, including other work of the
            loop in between.

    Attributes:
        failure: Why an entry could not be applied, else empty. After a failure nothing more is applied.
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
        """Return whether an entry is half applied: the state then belongs to no index."""
        return self._steps is not None

    def apply(self, entries: Sequence[Committed]) -> int:
        """Apply some of these entries, in order; return how many are applied completely.

        The first one may be half applied already. The caller checks :attr:`failure` afterwards.
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
        """Forget a half applied entry, because a snapshot that contains it replaced the state."""
        self._steps = None

    def _applying(self, entry: Committed) -> Steps[None]:
        """D11: apply an entry once and completely; stop the member if it cannot be read or applied.

        The error may concern this member alone (lack of memory, a defect). Skipping the entry would make this
        member's state differ from the others'. The log keeps the entry, and the next start applies it again.
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
