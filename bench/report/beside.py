"""Facts that the page shows with a headline measure, because the measure's name alone would mislead.

A fact is true only for the runs of the page. The page shows the fact wherever the page names the measure.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from routekeeper.bench.report.answers import COSTS, Primary
from routekeeper.bench.report.measures import MAIN_SERIES, MEASURES, Place, Values
from routekeeper.bench.report.silver import Source
from routekeeper.bench.report.used_timers import session_is_lease, timers_of, undivided_session
from routekeeper.bench.report.words import TIMERS, listed, name, quantity, say

KILLED: Final = ("broker-dies", "kill", "left_by_clients_s")
"""Scenario, case and measure of the time until clients drop a killed broker. With ZooKeeper, this time
follows from the session time-out."""


def with_facts(lines: Sequence[Primary], sources: Sequence[Source], values: Values) -> list[Primary]:
    """Return the headline measures, each with the facts that a reader needs to understand it."""
    return [replace(line, beside="; ".join(_facts(line, sources, values))) for line in lines]


def _facts(line: Primary, sources: Sequence[Source], values: Values) -> list[str]:
    named, arms = line.named, line.pair.arms
    manifests = {
        each.arm: each.manifest
        for each in sources
        if each.manifest is not None and each.series == named.series
    }
    found = []
    if named.measure == "disagree_s":
        place = Place(named.series, named.scenario, named.case, "unanswering_s")
        silent = {arm: median(rounds.values()) for arm, rounds in values.get(place, {}).items() if rounds}
        told = [f"{quantity(silent[arm], 's')} with {name(arm)}" for arm in arms if silent.get(arm)]
        if told:
            found.append(say("silent", times=listed(told)))
    watching = [arm for arm in arms if arm in manifests and manifests[arm].watches]
    if named.measure == "visible_clients_ms_p50" and len(watching) == 1:
        poll = timers_of(sources, named.series).get("pollNameServerInterval")
        if poll is not None and poll.documented_ms is not None:
            used, documented = (quantity(each, "ms") for each in (poll.used_ms, poll.documented_ms))
            found.append(say("watches", used=used, documented=documented))
    if "zookeeper" in arms and _is(line, KILLED) and session_is_lease(sources, named.series):
        found.append(say("as-lease"))
    divisors = {each.divisor for each in manifests.values() if each.divisor != 1}
    if named.series != MAIN_SERIES:
        label = TIMERS[named.series]
        found.append(f"{label[0].lower()}{label[1:]}" if divisors else say("own"))
    if divisors and MEASURES[named.measure].unit in COSTS:
        found.append(say("divided", divisors=listed([f"{each:g}" for each in sorted(divisors)])))
    return found


def _is(line: Primary, place: tuple[str, str, str]) -> bool:
    return (line.named.scenario, line.named.case, line.named.measure) == place


def of_session(lines: Sequence[Primary], sources: Sequence[Source], values: Values) -> str:
    """Return the sentence on the time until clients drop a killed broker, with each system's own timers.

    The text is empty in two cases:

    - No headline measure compares this time with ZooKeeper.
    - ZooKeeper's session time-out differs from RocketMQ's lease.
    """
    line = next((each for each in lines if _is(each, KILLED) and "zookeeper" in each.pair.arms), None)
    if line is None or not session_is_lease(sources, line.named.series):
        return ""
    told = say("killed", session=undivided_session(sources, line.named.series, "zookeeper"))
    found = values.get(Place("defaults", *KILLED), {})
    if not all(found.get(arm) for arm in line.pair.arms):
        return told
    each = [f"{name(arm)} {quantity(median(found[arm].values()), 's')}" for arm in line.pair.arms]
    session = undivided_session(sources, "defaults", "zookeeper")
    return f"{told} {say('killed-own', session=session, times=listed(each))}"
