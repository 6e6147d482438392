"""Detection of pauses of this member, after which the silence of others proves nothing. Pure: time comes in.

A member that was paused, or waited long for a processor, finds everybody silent. But what they said waits in
its sockets, and if the whole machine stood still, they had the same reason. So the time by which it is late
is no silence of anybody: each look counts for at most :data:`LOOK` periods, and sockets are read in between.
Otherwise a leader on a busy machine gives up because its followers wait for a processor as it did itself. And
after a gap the member listens for a moment before it judges anybody: it asks for no votes, gives none against
a leader, and does not step down. Contact (rule 8) is not concerned: its clocks count every pause in full.
"""

from __future__ import annotations

import math
from typing import Final

#: In heartbeat periods: how often a member looks, which gap counts as standing still, how long it listens.
LOOK: Final = 2
GAP: Final = 3
LISTEN: Final = 2
#: A member that is paused again and again without hearing a leader must act at last.
LISTEN_MAX: Final = 3
#: Gaps are remembered for one to two of these, for the log.
WINDOW_S: Final = 1.0


class Watch:
    """Looks at the clock at each sign of its own life.

    Args:
        period: Seconds between two heartbeats of a leader.
    """

    __slots__ = ("_last", "_longest", "_period", "_row", "_window", "listening_until", "lost")

    def __init__(self, period: float) -> None:
        self._period = period
        self._last = math.nan
        self._row = 0
        self._window = -math.inf
        self._longest = (0.0, 0.0)  # in this window and in the one before
        self.listening_until = -math.inf
        self.lost = 0.0  # all the seconds by which looks were late

    def look(self, now: float) -> float:
        """Note that the member runs at ``now``; return the seconds by which it is late, 0 if it is not."""
        gap = now - self._last
        self._last = now
        this, before = self._longest
        if now - self._window > WINDOW_S:
            before = this if now - self._window < 2 * WINDOW_S else 0.0
            this, self._window = 0.0, now
        if gap > this:
            this = gap
        self._longest = (this, before)
        late = gap - LOOK * self._period
        if not late > 0.0:  # nan at the first look
            return 0.0
        self.lost += late
        if gap > GAP * self._period and self._row < LISTEN_MAX:
            self._row += 1
            self.listening_until = now + LISTEN * self._period
        return late

    def restart(self, now: float) -> None:
        """Begin anew: the time before was work that is done once (a replay), no gap."""
        self._last = now

    def heard(self) -> None:
        """A leader, or as a leader a majority, was heard: the next gap is a new one."""
        self._row = 0

    @property
    def due(self) -> float:
        """The instant by which the member should look again, so that a gap is one."""
        return self._last + LOOK * self._period

    @property
    def longest(self) -> float:
        """The longest gap between two looks in the last one to two seconds."""
        return max(self._longest)
