"""Names of the checks of a run.

The text of a violation begins with its time and the name of the check.
"""

from __future__ import annotations

from enum import StrEnum, unique


@unique
class Oracle(StrEnum):
    """A check. Its name is the rule that must hold."""

    AGREEMENT = "agreement"
    """All members apply the same log. So the verdicts of the commands and the resulting states are equal."""
    REVISIONS = "revisions"
    """No command is applied twice, or to a state that is newer than the state that it was computed from."""
    TABLE = "table"
    """A command changes the table exactly as its sender intended."""
    GOING_BACK = "going-back"
    """A broker's listed data version never becomes older, unless the broker was restored from a backup."""
    REGISTER = "register"
    """An old value of a register does not come back after another value has replaced it."""
    HISTORY = "history"
    """Answers to clients are linearizable, or stale within a bound, depending on the kind of the read."""
    BARRIER = "barrier"
    """A linearizable read sees all changes that were acknowledged before the read arrived."""
    CONTACT = "contact"
    """A member in contact with its leader has applied all changes that the group acknowledged earlier.

    Changes that were acknowledged less than one election timeout ago may be missing.
    """
    DURABILITY = "durability"
    """A member that is the only voter applies no entry that its journal lacks."""
    HELD_ENTRIES = "held-entries"
    """A member has all entries that it has acknowledged to its leader."""
    ELECTIONS = "elections"
    """Each term has at most one leader, and the term of a member never decreases."""
    EVICTION_TERM = "eviction-term"
    """An eviction is logged in the term in which the leader decided it."""
    EVICTION_CLOSE = "eviction-close"
    """A broker is evicted before its lease ends only if a member reported that its connection closed.

    The report must name the same revision of the broker's record as the eviction.
    """
    EVICTION_LINK = "eviction-link"
    """A broker is evicted before its lease ends only if it has no connection to a member in contact."""
    EVICTION_SILENCE = "eviction-silence"
    """A broker is evicted at the end of its lease only if it sent no message during the whole lease.

    No member that the leader reaches may have received such a message during the lease.
    """
    GHOSTS = "ghosts"
    """A dead broker is evicted soon after its lease, or within 1 s if members saw its connections close."""
    ANSWERS = "answers"
    """Every request gets exactly one answer, in time, and with an expected code."""
    STARTS = "starts"
    """A member starts with the data of its last process, but a removed member must not start."""
    PROCESS = "process"
    """No member stops, raises an error or logs an error, unless the scenario caused it."""
    DISK_WAITS = "disk-waits"
    """The event loop never waits for the disk."""
    RECOVERY = "recovery"
    """Soon after all faults have ended, every member works again and accepts writes."""
