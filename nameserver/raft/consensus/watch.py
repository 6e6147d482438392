"""Detection of pauses of this member, after which the silence of others proves nothing. Pure.

After a pause, or a long wait for a processor, a member has heard from nobody. But messages may wait in its
sockets, and if the whole machine was paused, the others were silent for the same reason. So each gap between
two looks counts for at most :data:`LOOK` periods as silence, and the sockets are read in between. Otherwise a
leader on a busy machine would step down because its followers waited for a processor, as it did itself.

After a gap the member listens for a moment before it judges others: it asks for no votes, votes for nobody
against a leader, and does not step down. Contact (rule 8) is different: its clocks count every pause in full.
"""

from __future__ import annotations

import math
from typing import Final

#: In heartbeat periods: the interval of looks, the gap that counts as a pause, and the listening time after
#: one.
LOOK: Final = 2
GAP: Final = 3
LISTEN: Final = 2
#: Pauses in a row after which a member acts although it has heard no leader.
LISTEN_MAX: Final = 3
#: Gaps are remembered for one to two times this long, in seconds, for the log.
WINDOW_S: Final = 1.0


class Watch:
    """Measures the gaps between events of this member.

    Args:
        period: Seconds between two heartbeats of a leader.
    """

    __slots__ = ("_before", "_last", "_longest", "_period", "_row", "_window", "listening_until", "lost")

    def __init__(self, period: float) -> None:
        self._period = period
        self._last = math.nan
        self._row = 0
        self._window = -math.inf
        self._longest = self._before = 0.0  # in this window and in the window before
        self.listening_until = -math.inf
        self.lost = 0.0  # all the seconds by which looks were late

    def look(self, now: float) -> float:
        """Note that the member runs at ``now``; return the seconds by which it is late, 0 if it is not."""
        gap = now - self._last
        self._last = now
        if now - self._window > WINDOW_S:
            self._before = self._longest if now - self._window < 2 * WINDOW_S else 0.0
            self._longest, self._window = 0.0, now
        if gap > self._longest:
            self._longest = gap
        late = gap - LOOK * self._period
        if not late > 0.0:  # nan at the first look
            return 0.0
        self.lost += late
        if gap > GAP * self._period and self._row < LISTEN_MAX:
            self._row += 1
            self.listening_until = now + LISTEN * self._period
        return late

    def restart(self, now: float) -> None:
        """Begin anew after work that is done once (a replay), so that it counts as no gap."""
        self._last = now

    def heard(self) -> None:
        """Record a message from the leader, or as a leader from a majority: it ends the row of pauses."""
        self._row = 0

    @property
    def due(self) -> float:
        """Return the time by which the member should look again, so that a gap can be recognised."""
        return self._last + LOOK * self._period

    @property
    def longest(self) -> float:
        """Return the longest gap between two looks in the last one to two seconds."""
        return max(self._longest, self._before)
