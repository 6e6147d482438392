"""The smallest difference that each measure of the comparison can show (pure)."""

from __future__ import annotations

from typing import Final

WAITED_NS: Final = 250_000_000
"""A request that waited for longer is disturbed, and a recovery lasts as long as requests are: so shorter
recoveries are not told from none."""

OBSERVE_EVERY_S: Final = 0.02
"""Pause between two readings of what a server lists."""

_OBSERVED: Final = (
    *("left_by_nameservers_s", "back_by_nameservers_s", "given_up_s", "disagree_s", "agree_s"),
    *("disagree_queues_s", "agree_queues_s", "backward_s", "unanswering_s"),
)
_RECOVERIES: Final = (
    *("right_again_s", "right_again_side_a_s", "right_again_side_b_s", "newcomer_right_s"),
    *("newcomer_others_right_s", "announce_again_s", "announce_again_side_a_s", "announce_again_side_b_s"),
)
STEPS: Final = {**dict.fromkeys(_OBSERVED, OBSERVE_EVERY_S), "visible_ms_p50": 1000 * OBSERVE_EVERY_S}
"""Measure that is read off to the time between two readings of it, in the measure's unit: a figure is told in
whole steps of that."""

RESOLUTION_S: Final = {
    **dict.fromkeys(_RECOVERIES, WAITED_NS / 1e9),
    **dict.fromkeys(_OBSERVED, OBSERVE_EVERY_S),
}
"""Measure to its resolution; measures that are not here are exact."""
