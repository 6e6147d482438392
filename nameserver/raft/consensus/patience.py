"""How long a member waits for others, and that its own standing still is nobody's silence."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nameserver.raft.library import LEADER, Library

from .contact import Contact
from .watch import Watch

if TYPE_CHECKING:
    import random

logger = logging.getLogger(__name__)

#: A leader that a majority has not answered for so many election timeouts steps down (D8).
FALLBACK: Final = 1.5
#: What takes long to apply is expected to take others as long, up to so many election timeouts.
APPLY_PATIENCE: Final = 4


@dataclass(eq=False, repr=False)
class Patience:
    """The election deadline, who was heard when, and what a late look at the clock is worth.

    Attributes:
        heard: When the leader was heard last.
        watch: Whether this member itself stood still.
        last_look_at: The election deadline that is the last look into the sockets, see :mod:`.elections`.
    """

    me: str
    greeted: Collection[str]
    contact: Contact
    library: Library
    clock: Callable[[], float]
    rng: random.Random
    period: float
    timeout: float

    def __post_init__(self) -> None:
        self.heard = -math.inf
        self.watch = Watch(self.period)
        self.watch.look(self.clock())
        self.last_look_at = math.nan

    def look(self) -> None:
        """Look at the clock, at each event; notice if this member stood still."""
        now = self.clock()
        late = self.watch.look(now)
        if late:
            self._forgive(now, late)

    def hear(self) -> None:
        """The leader was heard."""
        self.heard = self.clock()
        self.watch.heard()

    def _forgive(self, now: float, late: float) -> None:
        """This member stood still for so long: that was nobody's silence (see :mod:`.watch`)."""
        library, until = self.library, self.watch.listening_until
        if until > now:
            level = logging.WARNING if late > self.timeout else logging.DEBUG
            logger.log(level, "member stood still me=%s ms=%.0f", self.me, late * 1000)
        self.heard = max(self.heard, min(now, self.heard + late))
        if library.state == LEADER:
            # The library steps down when answers are older than leaderFallbackTimeout; -inf never counts.
            times, oldest = library.answered, until - FALLBACK * self.timeout
            for name, answered in times.items():
                if answered > -math.inf:
                    times[name] = max(answered, min(now, answered + late), oldest)
            return
        deadline = library.election_deadline
        if math.isfinite(deadline):
            library.election_deadline = max(deadline + late, until)
            if deadline == self.last_look_at:
                self.last_look_at = library.election_deadline  # one last look is enough

    def expect_silence(self, took: float) -> None:
        """What took this member so long to apply takes the others as long: they say nothing meanwhile."""
        now, took, library = self.clock(), min(took, APPLY_PATIENCE * self.timeout), self.library
        if library.state == LEADER:
            times = library.answered
            for name, answered in times.items():
                if answered > -math.inf:
                    times[name] = now + took
        elif library.leader is not None and math.isfinite(library.election_deadline):
            self.heard = now + took
            self.postpone(self.heard)

    def postpone(self, now: float) -> None:
        """Wait for a whole election timeout from ``now`` on."""
        self.library.election_deadline = now + self.library.draw_timeout()

    def ask_again_soon(self, now: float, *, syncs: bool = False) -> None:
        """Without a leader a refused or split attempt is repeated soon; asking first makes that harmless.

        Not as soon if votes are under way: two disks must sync one, and asking anew makes it worthless.
        """
        least, most = (3, 6) if syncs else (1, 3)
        self.library.election_deadline = now + self.rng.uniform(least, most) * self.period

    def stand_now(self) -> None:
        """Do not wait for the election timeout (the only member; the one asked to take over)."""
        self.library.election_deadline = -math.inf

    def hears_leader(self, now: float) -> bool:
        """Whether a leader works as far as this member can tell (stickiness)."""
        listening = now < self.watch.listening_until
        if self.library.state == LEADER:
            return listening or now - self.contact.majority_date(now) < self.timeout
        leader = self.library.leader
        if leader is None or leader not in self.greeted:
            return False
        return listening or now - self.heard < self.timeout

    def link_down(self, peer: str) -> None:
        """A killed leader's links close at once. Asking early is harmless: whoever hears it refuses (D4)."""
        library = self.library
        if library.state != LEADER and peer == library.leader:
            soon = self.clock() + self.rng.uniform(0.0, self.timeout / 2)
            library.election_deadline = min(library.election_deadline, soon)

    def silence(self, now: float) -> str:
        """What this member heard last, for the log."""
        heard = f"{(now - self.heard) * 1000:.0f}" if math.isfinite(self.heard) else "never"
        return f"last_heard_ms={heard} own_gap_ms={self.watch.longest * 1000:.0f}"
