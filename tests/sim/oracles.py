"""What judges a run: each violation begins with the instant and the name of the oracle that saw it."""

from __future__ import annotations

from enum import StrEnum, unique


@unique
class Oracle(StrEnum):
    """By what it holds."""

    AGREEMENT = "agreement"
    """All members apply one log, with the same verdicts, to the same states."""
    REVISIONS = "revisions"
    """Nothing applies twice, nor over anything younger than what it was computed from."""
    TABLE = "table"
    """A command leaves the table as who sent it wants it."""
    REGISTER = "register"
    """A value that is sent once does not come back when it is gone."""
    HISTORY = "history"
    """What clients were told is as promised: linearizable, or stale within a bound."""
    BARRIER = "barrier"
    """Behind a barrier nothing is missed that was acknowledged before."""
    CONTACT = "contact"
    """Whoever is in contact misses nothing acknowledged longer ago than an election timeout."""
    HELD_ENTRIES = "held-entries"
    """A member holds what it has acknowledged to its leader."""
    ELECTIONS = "elections"
    """A term has one leader, and no member's term falls."""
    EVICTION_TERM = "eviction-term"
    """An eviction is in the log of the term in which it was judged."""
    EVICTION_CLOSE = "eviction-close"
    """Who is evicted as gone was seen to close, at the revision that is evicted."""
    EVICTION_LINK = "eviction-link"
    """Who is evicted as gone has a connection with nobody whom the leader hears."""
    EVICTION_SILENCE = "eviction-silence"
    """Who is evicted as silent was heard by nobody whom the leader hears."""
    GHOSTS = "ghosts"
    """Dead brokers go in a lease, in a second where the end of their connections was seen."""
    ANSWERS = "answers"
    """Every request is answered once, in time, with something expected."""
    STARTS = "starts"
    """A member starts on what its last life left; one that was removed does not."""
    PROCESS = "process"
    """No member stops, raises or logs an error that the scenario has not caused."""
    DISK_WAITS = "disk-waits"
    """The loop does not wait for the disk."""
    RECOVERY = "recovery"
    """Once all faults have ended all is well soon, and every member takes writes."""
