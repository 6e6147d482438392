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

#: Largest number of steps in one call of :meth:`Applier.apply`, so that the event loop can do other work. An
#: entry has one or more steps.
APPLY_STEPS: Final = 512
#: Time in seconds after which one call of :meth:`Applier.apply` begins no further step.
APPLY_S: Final = 0.003


class Applier:
    """Applies the committed entries of one member to its state machine.

    Args:
        times: Records for each entry the time from the entry's first step to its last step. This time
            includes other work that the event loop does between the steps.

    Attributes:
        failure: The reason why an entry could not be applied; empty if there was no failure. After a failure,
            the caller applies no further entry.
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
        """True if some, but not all, steps of an entry are applied. The state then belongs to no index."""
        return self._steps is not None

    def apply(self, entries: Sequence[Committed]) -> int:
        """Apply some of these entries, in order. Return the number of entries that are applied completely.

        Some steps of the first entry may be applied already. The caller must check :attr:`failure`
        afterwards, because no entry after a failed entry may be applied.
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
        """Forget a partly applied entry, because a snapshot that contains the entry replaced the state."""
        self._steps = None

    def _applying(self, entry: Committed) -> Steps[None]:
        """Apply an entry once and completely, or stop the member (repairs PySyncObj defect D11).

        An error may have happened on this member only, for example for lack of memory. If this member skipped
        the entry, its state would differ from the other members' state. The entry stays in the log, and the
        member tries to apply it again at its next start.

        Raises:
            StopMember: The entry cannot be read or applied.
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
