"""Comparison of the words that 4.9's mqadmin and our mqadmin print; ours uses the words of 5.x."""

from __future__ import annotations

import re
from typing import Final

#: Patterns of words that 4.9's mqadmin prints and our mqadmin does not print, by the beginning of a run's
#: name. Our mqadmin must print all other words of 4.9's output.
LOST: Final = {
    "deleteSubGroup-c": r"delete|topic|%(RETRY|DLQ)%Made|from|NameServer|cluster|DefaultCluster|success\.",
    "resetOffsetByTime": r"rollback|specified|consumerGroup|timestamp\(long\)|-1",
    "updateSubGroup": "SubscriptionGroupConfig",
}


def lost(name: str, theirs: str, ours: str) -> list[str]:
    """Return the words of ``theirs`` that ``ours`` lacks, except for words that :data:`LOST` permits."""
    reasons = [pattern for begin, pattern in LOST.items() if name.startswith(begin)]
    missing = sorted(_words(theirs) - _words(ours))
    return [word for word in missing if not any(re.fullmatch(reason, word) for reason in reasons)]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\s,\[\]{}]+", text))
