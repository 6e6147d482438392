"""How long a member waits for others, and that its own standing still is nobody's silence."""

from __future__ import annotations

import logging
import math
from typing import Final

from nameserver.raft.library import seam

from .core import FALLBACK, LEADER, CoreState, Surroundings
from .watch import Watch

logger = logging.getLogger(__name__)

#: What takes long to apply is expected to take others as long, up to so many election timeouts.
APPLY_PATIENCE: Final = 4


class Patience(CoreState):
    """The election deadline, who was heard when, and what a late look at the clock is worth."""

    def __init__(self, given: Surroundings) -> None:
        self._heard = -math.inf
        self._watch = Watch(given.period)
        self._watch.look(given.clock())
        self._last_look_at = math.nan
        self._go = False  # a majority would vote for us: stand in the next tick
        super().__init__(given)

    def enter(self) -> None:
        """Make the library use this core's clock and random source; notice if this member stood still."""
        seam.clock = self._clock
        seam.rng = self._rng
        now = self._clock()
        late = self._watch.look(now)
        if late:
            self._forgive(now, late)

    def restart_watch(self) -> None:
        """What took long just now happens once: the member did not stand still."""
        self._watch.restart(self._clock())

    @property
    def lost(self) -> float:
        """Seconds by which this member was late so far: nobody was slow meanwhile (see :mod:`.watch`)."""
        return self._watch.lost

    def _forgive(self, now: float, late: float) -> None:
        """This member stood still for so long: that was nobody's silence (see :mod:`.watch`)."""
        until = self._watch.listening_until
        if until > now:
            level = logging.WARNING if late > self._timeout else logging.DEBUG
            logger.log(level, "member stood still me=%s ms=%.0f", self.selfNode.id, late * 1000)
        self._heard = max(self._heard, min(now, self._heard + late))
        if self.state == LEADER:
            # The library steps down when answers are older than leaderFallbackTimeout; -inf never counts.
            times, oldest = self._SyncObj__lastResponseTime, until - FALLBACK * self._timeout
            for node, answered in times.items():
                if answered > -math.inf:
                    times[node] = max(answered, min(now, answered + late), oldest)
            return
        deadline = self._SyncObj__raftElectionDeadline
        if math.isfinite(deadline) and not self._go:
            self._SyncObj__raftElectionDeadline = max(deadline + late, until)
            if deadline == self._last_look_at:
                self._last_look_at = self._SyncObj__raftElectionDeadline  # one last look is enough

    def _expect_silence(self, took: float) -> None:
        """What took this member so long to apply takes the others as long: they say nothing meanwhile."""
        now, took = self._clock(), min(took, APPLY_PATIENCE * self._timeout)
        if self.state == LEADER:
            times = self._SyncObj__lastResponseTime
            for node, answered in times.items():
                if answered > -math.inf:
                    times[node] = now + took
        elif self._SyncObj__raftLeader is not None and math.isfinite(self._SyncObj__raftElectionDeadline):
            self._heard = now + took
            self._postpone(self._heard)

    def _postpone(self, now: float) -> None:
        self._SyncObj__raftElectionDeadline = now + self._SyncObj__generateRaftTimeout()

    def _ask_again_soon(self, now: float, *, syncs: bool = False) -> None:
        """Without a leader a refused or split attempt is repeated soon; asking first makes that harmless.

        Not as soon if votes are under way: two disks must sync one, and asking anew makes it worthless.
        """
        least, most = (3, 6) if syncs else (1, 3)
        self._SyncObj__raftElectionDeadline = now + self._rng.uniform(least, most) * self._period

    def stand_now(self) -> None:
        """Do not wait for the election timeout (the only member; the one asked to take over)."""
        self._SyncObj__raftElectionDeadline = -math.inf

    def _hears_leader(self, now: float) -> bool:
        """Whether a leader works as far as this member can tell (stickiness)."""
        listening = now < self._watch.listening_until
        if self.state == LEADER:
            return listening or now - self._contact.majority_date(now) < self._timeout
        leader = self.leader_id
        if leader is None or not self._host.linked_to(leader):
            return False
        return listening or now - self._heard < self._timeout

    def _silence(self, now: float) -> str:
        heard = f"{(now - self._heard) * 1000:.0f}" if math.isfinite(self._heard) else "never"
        return f"last_heard_ms={heard} own_gap_ms={self._watch.longest * 1000:.0f}"
