"""Detection of this member's own pauses, because after a pause the silence of others proves no failure.

A pause is a time in which the process did not run, for example because it waited for a processor. After a
pause, a member must not judge other members by their silence, for two reasons:

- Messages of other members may wait in this member's sockets.
- If the whole machine was paused, the other members could send nothing.

Without the following two rules, a leader on a busy machine would step down, although its followers only
waited for a processor:

- Between two readings of the clock, the member reads its sockets. The time between the two readings counts as
  silence for at most :data:`LOOK` heartbeat periods, even if it is longer.
- After a long gap between two readings, the member listens for a moment. While it listens, it asks for no
  votes, gives no vote against a leader, and does not step down.

Only the age of contact (rule 8 of docs/raft-rules.md) counts every pause in full. This module does no I/O.
"""

from __future__ import annotations

import math
from typing import Final

#: Longest planned interval between two readings of the clock, in heartbeat periods.
LOOK: Final = 2
#: An interval longer than this number of heartbeat periods counts as a pause.
GAP: Final = 3
#: Time for which the member listens after a pause, in heartbeat periods.
LISTEN: Final = 2
#: The member listens after at most this number of pauses in a row; a message of the leader ends the row.
#: Without this limit, a member that pauses often would never stand for election.
LISTEN_MAX: Final = 3
#: Length of a time window in seconds. Log lines name the longest gap in the present window and the window
#: before (:attr:`Watch.longest`).
WINDOW_S: Final = 1.0


class Watch:
    """Detector of this member's own pauses: it measures the time between two events of this member.

    Args:
        period: Seconds between two heartbeats of a leader.
    """

    __slots__ = ("_before", "_last", "_longest", "_period", "_row", "_window", "listening_until", "lost")

    def __init__(self, period: float) -> None:
        self._period = period
        self._last = math.nan
        self._row = 0
        self._window = -math.inf
        self._longest = self._before = 0.0  # longest gap in this window, and in the window before
        self.listening_until = -math.inf
        self.lost = 0.0  # total seconds by which readings of the clock were late

    def look(self, now: float) -> float:
        """Record that this member runs at ``now``. Return the seconds by which this call is late, or 0."""
        gap = now - self._last
        self._last = now
        if now - self._window > WINDOW_S:
            self._before = self._longest if now - self._window < 2 * WINDOW_S else 0.0
            self._longest, self._window = 0.0, now
        if gap > self._longest:
            self._longest = gap
        late = gap - LOOK * self._period
        # In the first call, late is nan and must count as not late. "late <= 0.0" would be false for nan.
        if not late > 0.0:
            return 0.0
        self.lost += late
        if gap > GAP * self._period and self._row < LISTEN_MAX:
            self._row += 1
            self.listening_until = now + LISTEN * self._period
        return late

    def restart(self, now: float) -> None:
        """Begin a new measurement after unusual work, so that a long replay does not count as a gap."""
        self._last = now

    def heard(self) -> None:
        """End the row of pauses that :data:`LISTEN_MAX` limits.

        Call this when a message of the leader, or an answer to this leader, has arrived.
        """
        self._row = 0

    @property
    def due(self) -> float:
        """The time by which the member should read the clock again. A later reading counts as late."""
        return self._last + LOOK * self._period

    @property
    def longest(self) -> float:
        """The longest time in seconds between two calls of :meth:`look`, in the last one to two seconds."""
        return max(self._longest, self._before)
