"""The timers of the runs as texts: the used value, the reason for this value, and the documented value.

This module does no I/O and reads no clock.
"""

from collections.abc import Sequence
from typing import Final

from routekeeper.bench.report import words
from routekeeper.bench.report.silver import Source
from routekeeper.bench.report.words import quantity, say
from routekeeper.bench.runfolder import Timer

LOOK_MS: Final = 250.0
"""Shortest interval in ms at which our nameservers look for brokers whose lease ran out."""
LEADER_LOOK_MS: Final = 1000.0
"""Interval in ms at which raft mode's leader looks for brokers whose lease has run out at every member."""
OURS: Final = ("independent", "raft")
_ELECTION: Final = "raftElectionTimeoutMs"
_OF_SILENT_LEADERS: Final = ("tickTime", "syncLimit")
"""Names of ZooKeeper's timers by which its servers notice that their leader is silent."""


def used_timers(sources: Sequence[Source], series: str) -> list[tuple[str, str, str]]:
    """Return the rows of the table of timers: the timer, its value with the reason, the documented value."""
    found: dict[str, tuple[str, str, str]] = {}
    known = timers_of(sources, series)
    for source in sources:
        if source.manifest is None or source.series != series:
            continue
        for timer, told in source.manifest.timers.items():
            key = timer if source.arm in OURS else f"{timer} ({words.name(source.arm)})"
            used = f"{quantity(told.used_ms, 'ms')}, {_reason(timer, told, known)}"
            if timer == "scanNotActiveBrokerInterval" and source.arm in OURS and told.used_ms < LOOK_MS:
                used += (
                    f"; {say('look', every=quantity(LOOK_MS, 'ms'), leader=quantity(LEADER_LOOK_MS, 'ms'))}"
                )
            documented = "none" if told.documented_ms is None else quantity(told.documented_ms, "ms")
            found[key] = (key, used, documented)
        if source.arm == "zookeeper":
            found["ping"] = (say("ping", design=words.name("zookeeper")), say("ping-used"), "none")
    return list(found.values())


def timers_of(sources: Sequence[Source], series: str, arm: str | None = None) -> dict[str, Timer]:
    """Return the timers of a series by name, for the design ``arm``, or for all designs if it is None."""
    found: dict[str, Timer] = {}
    for source in sources:
        if source.manifest is not None and source.series == series and arm in (None, source.arm):
            found |= source.manifest.timers
    return found


def undivided_session(sources: Sequence[Source], series: str, arm: str) -> str:
    """Return a design's session time-out without division of its timers, as a text with the unit.

    The text is empty if the design has no sessions.
    """
    session = timers_of(sources, series, arm).get("sessionTimeout")
    divisors = [each.manifest.divisor for each in sources if each.manifest and each.series == series]
    if session is None or not divisors:
        return ""
    return quantity(session.used_ms * (divisors[0] if session.scaled else 1), "ms")


def session_is_lease(sources: Sequence[Source], series: str) -> bool:
    """Return True if ZooKeeper's session time-out is as long as RocketMQ's lease."""
    known = timers_of(sources, series)
    session, lease = known.get("sessionTimeout"), known.get("brokerLease")
    return session is not None and lease is not None and session.used_ms == lease.used_ms


def _reason(name: str, told: Timer, known: dict[str, Timer]) -> str:
    """Return the reason for a timer's value, in words."""
    lease, election, silence = (known.get(each) for each in ("brokerLease", _ELECTION, "syncLimit"))
    if name == "sessionTimeout" and lease is not None and told.used_ms == lease.used_ms:
        return "equal to RocketMQ's lease"
    if told.used_ms == told.documented_ms:
        return "as documented"
    if told.scaled:
        return "divided"
    if name in _OF_SILENT_LEADERS and election is not None and silence is not None:
        mean_ms = 1.5 * election.used_ms  # a time-out is random, from its least value to twice this value
        if abs(silence.used_ms - mean_ms) <= 0.01 * mean_ms:
            return "set to match raft mode's election time-out"
    return "set by the plan"
