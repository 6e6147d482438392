"""Comparison of 4.9's mqadmin with ours, which uses the words of 5.x."""

from __future__ import annotations

import re
from typing import Final

#: Words of 4.9's tool, by run, that ours has no counterpart for; all others are there. A name stands for all
#: that begin with it.
LOST: Final = {
    "deleteSubGroup-c": r"delete|topic|%(RETRY|DLQ)%Made|from|NameServer|cluster|DefaultCluster|success\.",
    "resetOffsetByTime": r"rollback|specified|consumerGroup|timestamp\(long\)|-1",
    "updateSubGroup": "SubscriptionGroupConfig",
}


def lost(name: str, theirs: str, ours: str) -> list[str]:
    """Return the words of theirs that ours lacks without a reason."""
    reasons = [pattern for begin, pattern in LOST.items() if name.startswith(begin)]
    missing = sorted(_words(theirs) - _words(ours))
    return [word for word in missing if not any(re.fullmatch(reason, word) for reason in reasons)]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\s,\[\]{}]+", text))
