"""The smallest difference between designs that each measure of the comparison can show.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from typing import Final

WAITED_NS: Final = 250_000_000
"""Longest time in ns that an undisturbed request may wait.

A recovery lasts until no request is disturbed any more. So a recovery that is shorter than this time stays
unnoticed.
"""

OBSERVE_EVERY_S: Final = 0.02
"""Pause in s between two readings of the routes that a server lists.

The time between two readings is longer, because a reading takes time.
"""

_OBSERVED: Final = (
    *("left_by_nameservers_s", "back_by_nameservers_s", "given_up_s", "disagree_s", "agree_s"),
    *("disagree_queues_s", "agree_queues_s", "backward_s", "unanswering_s"),
)
_RECOVERIES: Final = (
    *("right_again_s", "right_again_side_a_s", "right_again_side_b_s", "newcomer_right_s"),
    *("newcomer_others_right_s", "announce_again_s", "announce_again_side_a_s", "announce_again_side_b_s"),
)
STEPS: Final = {**dict.fromkeys(_OBSERVED, OBSERVE_EVERY_S), "visible_ms_p50": 1000 * OBSERVE_EVERY_S}
"""Maps a measure made from repeated readings to the pause between two readings, in the measure's unit.

Figures of such a measure are shown in whole steps of this pause.
"""

RESOLUTION_S: Final = {
    **dict.fromkeys(_RECOVERIES, WAITED_NS / 1e9),
    **dict.fromkeys(_OBSERVED, OBSERVE_EVERY_S),
}
"""Maps a measure to its resolution in s. Measures that are missing in the map are exact."""
