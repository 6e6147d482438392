"""Application of committed entries to the state machine, a few entries at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from routekeeper.nameserver.raft.consensus.effects import Committed
from routekeeper.nameserver.raft.types import StateMachine, StopMember
from routekeeper.remoting.histogram import Histogram
from routekeeper.remoting.steps import Steps

logger = logging.getLogger(__name__)

#: Two bounds for one call of :meth:`Applier.apply`, so that the event loop can do other work: the number of
#: steps (an entry has one or more steps), and the time in seconds.
APPLY_STEPS: Final = 512
APPLY_S: Final = 0.003


class Applier:
    """Applies the committed entries of one member to its state machine.

    Args:
        times: Records for each entry the time from the entry's first step to its last step. This time
            includes other work that the event loop does between the steps.

    Attributes:
        failure: The reason why an entry could not be applied, else empty. After a failure no further entry is
            applied.
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
        """True if an entry is half applied; the state is then not the state at any index."""
        return self._steps is not None

    def apply(self, entries: Sequence[Committed]) -> int:
        """Apply some of these entries, in order; return the number of entries that are applied completely.

        The first entry may be half applied already. The caller must check :attr:`failure` afterwards.
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
        """Apply an entry once and completely; stop the member if the entry cannot be read or applied (D11).

        The error may have happened on this member only (lack of memory, a defect). If this member skipped the
        entry, its state would differ from the other members' state. The entry stays in the log, and the next
        start of the member tries again to apply it.
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
