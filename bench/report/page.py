"""The report page: tables and answers for a person who chooses a design.

The module reads the templates in ``templates/``, and does no other I/O. The templates escape all inserted
values. The page is one file, and loads no other file.
"""

import math
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from importlib.resources import files
from statistics import median
from typing import Any, Final, TypeVar

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from routekeeper.bench.interpreter import NOT_OPTIMISED, WARNING
from routekeeper.bench.report import answers, drawing, words
from routekeeper.bench.report.answers import ARMS, CONTROLS, REAL_PAIRS, SHOWN, Answer, Primary, Row
from routekeeper.bench.report.beside import of_session, with_facts
from routekeeper.bench.report.blocks import VERDICT_BLOCKS_MIN
from routekeeper.bench.report.conditions import (
    BUSY_SHARE,
    FULL_SHARE,
    LATE_MS,
    Conditions,
    conditions,
)
from routekeeper.bench.report.drawing import Timeline
from routekeeper.bench.report.gold import Bin, Currency, Fault, Gold, Outcomes
from routekeeper.bench.report.measures import (
    JUDGED,
    MAIN_SERIES,
    MEASURES,
    OTHERS_CORES,
    SHARE_MIN,
    Place,
    Values,
    downs,
    floors,
    set_by_plan,
)
from routekeeper.bench.report.requests import BIN_NS
from routekeeper.bench.report.silver import Source
from routekeeper.bench.report.unit_costs import unit_costs
from routekeeper.bench.report.used_timers import session_is_lease, undivided_session, used_timers
from routekeeper.bench.report.words import say
from routekeeper.bench.resolution import OBSERVE_EVERY_S
from routekeeper.bench.runfolder import AGAIN, REAL, Line

CASE_OPS: Final = {
    "broker-dies": ("send_once", "lookup", "send"),
    "nameserver-restarts": ("newcomer", "lookup", "registration"),
    "leader-fails": ("lookup", "registration", "send"),
    "partition": ("lookup", "newcomer", "registration"),
    "messages": ("send", "send_once"),
    "new-topic": ("first_send",),
}
"""Operations that are drawn for a scenario. The page shows the first drawing, and folds the others away."""

SECTIONS: Final = (*JUDGED, "equal-described")
"""Series whose scenarios have sections on the page. The last series has fewer rounds and no headline
measures."""
_NUMBER_AND_UNIT: Final = re.compile(r"(?<=[0-9∞]) (?=(?:µs|ms|s|[KMG]iB|%)(?![\w-]))")
_T = TypeVar("_T")
BUSY_CORES: Final = 0.6
"""Number of cores that the load generator may use. If it uses more, requests wait in its own queue.

This wait adds to the measured times. At 25,000 requests a second, p90 consists only of this wait.
"""


def page(gold: Gold, values: Values, neighbours: Collection[str] = ()) -> str:
    """Return the report as one self-contained HTML page.

    If the machine was busy, the page shows only figures: no differences, no claims and no advice.

    Args:
        neighbours: File names of other pages in the same folder.
    """
    used = [source for source in gold.sources if source.left_out is None]
    shared = conditions(gold)
    planned = set_by_plan(gold, values)
    below = floors(gold)
    every = answers.rows(values, below, shared.crowded, planned)
    disturbed = bool(shared.disturbances)
    controls = _controls(every, told=not disturbed)
    if disturbed:
        every = [replace(row, pairs=[]) for row in every]
    blocks = len({(source.batch, source.block) for source in used if source.series == MAIN_SERIES})
    beside = _is_beside(used)
    if beside:
        every = [replace(row, pairs=[pair for pair in row.pairs if pair.arms in REAL_PAIRS]) for row in every]
    compared = len(_arms(used)) > 1 and not beside and not any(source.arm in AGAIN for source in used)
    arms = list(ARMS) if compared else _arms(used)
    table = {row.place: row for row in every}
    lines = answers.primaries(named_lines(used), values, shared.crowded, planned, below)
    lines = with_facts(lines, used, values)
    scenarios = _scenarios(gold, used, every, arms, told=not disturbed)
    other_series = _other_series(used, every)
    costs = unit_costs()
    ids = {"timers", "trust", *(each["id"] for each in (*scenarios, *other_series))}
    if costs is not None:
        ids.add("unit-costs")
    claims = [answers.answer(claim, table, lines) for claim in answers.CLAIMS]
    context: dict[str, Any] = {
        "css": Markup(_read("page.css")),
        "arms": arms,
        "compared": compared,
        "beside": beside,
        "designs": words.listed([words.name(arm) for arm in _arms(used)]),
        "setting": _setting(used, arms),
        "warnings": _warnings(gold, used, blocks, shared),
        "disturbed": disturbed,
        "no_proof": _no_proof(lines, blocks) if compared and not disturbed else "",
        "main_timers": words.TIMERS[MAIN_SERIES],
        "sentences": words.sentences(lines),
        "session": of_session(lines, used, values),
        "claims": [(each, _chart(each, gold, used, values)) for each in claims] if compared else [],
        "choices": [(arm, reasons) for arm in ARMS if (reasons := words.chosen(lines, arm))],
        "equivalent": [line for line in lines if line.found == "equivalent"],
        "untold": [line for line in lines if line.winner is None and line.found != "equivalent"],
        "lines_of": _timers_of(line.named.series for line in lines),
        "lines": [(line, _interval(line)) for line in lines],
        "questions": _questions(ids, neighbours) if compared else [],
        "neighbours": [(name, NEIGHBOURS[name]) for name in NEIGHBOURS if name in neighbours],
        "scenarios": scenarios,
        "timers": _timers(gold, used, values, arms),
        "controls": controls,
        "other_series": other_series,
        "unit_costs": costs,
        "trust": _trust(gold, used, every, shared),
        "left_out": [
            (source.run.partition("/")[2], source.left_out) for source in gold.sources if source.left_out
        ],
        "reasons": _reasons(gold, used),
        "facts": _facts(used),
        "runs": [(*_run(source), shared.of_run(source.run)) for source in used],
    }
    return kept_together(environment().get_template("page.html.j2").render(context))


NO_TIMERS: Final = ("rss_mib",)
"""Measures whose values do not depend on any timer."""
NEIGHBOURS: Final = {
    "scale.html": "Sizes, distances and numbers of servers",
    "timers.html": "Recoveries at three settings of the timers",
    "real.html": "RocketMQ's own brokers and client",
}
"""File names and titles of pages that may lie in the same folder as this page."""

QUESTIONS: Final[list[tuple[str, list[str]]]] = answers.TEXTS["asked"]
"""Ten questions of a reader who must choose a design, each with links to its answer, the best link first."""


def _questions(ids: Collection[str], neighbours: Collection[str]) -> list[tuple[str, str]]:
    """Return each question of a reader with a link to its answer: the first link whose target exists.

    The target of the last link always exists.
    """
    there = {*(f"#{each}" for each in (*ids, "claim-d", "beyond")), *neighbours}

    def best(places: Sequence[str]) -> str:
        return next((each for each in places if {each, each.partition("#")[0]} & there), "#beyond")

    return [(asked, best(places)) for asked, places in QUESTIONS]


def _chart(answer: Answer, gold: Gold, used: Sequence[Source], values: Values) -> dict[str, Any] | None:
    """Draw the first figure of a claim. Figures that a headline measure compares come first.

    For each design, the drawing shows the rounds, their median, and the value with RocketMQ's own timers.
    Return None if the claim has no figure.
    """
    headline = {line.place for line in answer.lines}
    figures = sorted(answer.found, key=lambda each: each[1].place not in headline)
    if not figures:
        return None
    evidence, row = figures[0]
    unit = row.measure.unit
    rounds = {arm: list(values[row.place].get(arm, {}).values()) for arm in ARMS}
    drawn = drawing.strips(rounds, unit=unit, what=evidence.words)
    real = _undivided(row.place, gold, used, values)
    divisors = {each.manifest.divisor for each in used if each.manifest and each.series == row.place.series}
    absent = "the same" if row.measure.key in NO_TIMERS or divisors == {1.0} else "not run"
    return {
        "words": evidence.words,
        "rows": [(strip, real.get(strip.arm, absent if rounds[strip.arm] else "not run")) for strip in drawn],
        "row": row,
        "others": figures[1:],
        "label": _timers_of(row.place.series for _, row in figures[1:]),
    }


def _undivided(place: Place, gold: Gold, used: Sequence[Source], values: Values) -> dict[str, str]:
    """Return each design's value with RocketMQ's own timers (divisor 1), if it was measured or predicted.

    If a design has sessions, its text also has the session time-out, because the time-out differs between
    series.
    """
    apart = answers.taken_apart(values, divisors_of(used), downs(gold))
    found = {
        taken.arm: f"{_taken(taken)[0]}{_of_session(used, MAIN_SERIES, taken.arm)}"
        for taken in apart
        if taken.place == place and taken.is_prediction
    }
    for series in ("equal-undivided", "defaults"):
        measured = values.get(Place(series, place.scenario, place.case, place.measure), {})
        for arm, rounds in measured.items():
            middle = answers.summary(list(rounds.values())).middle
            told = f"{words.quantity(middle, MEASURES[place.measure].unit)} measured"
            found[arm] = f"{told}{_of_session(used, series, arm)}"
    return found


def _of_session(used: Sequence[Source], series: str, arm: str) -> str:
    session = undivided_session(used, series, arm)
    return f" (session {session})" if session else ""


def _timers_of(series: Iterable[str]) -> str:
    """Return the descriptions of these series' timers as one text. Equal descriptions appear once."""
    return "; ".join(words.TIMERS[each] for each in dict.fromkeys(series))


def divisors_of(used: Sequence[Source]) -> dict[str, float]:
    """Map each series to its divisor, for the series that differ only in the divisor of their timers."""
    timed = (each for each in used if each.series in answers.TIMER_SERIES)
    return {each.series: each.manifest.divisor for each in timed if each.manifest is not None}


def kept_together(html: str) -> str:
    """Return the page with a no-break space between each number and its unit."""
    return _NUMBER_AND_UNIT.sub("\N{NO-BREAK SPACE}", html)


def environment() -> Environment:
    """Return Jinja's environment, which contains the page's templates.

    The environment escapes inserted values. An unknown name in a template is an error.
    """
    loader = DictLoader({name: _read(name) for name in ("page.html.j2", "macros.html.j2")})
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    functions = (
        *(words.name, words.quantity, words.middle_of, words.range_of, words.verdict, words.topic),
        *(words.difference, words.leaning, words.answered, say),
    )
    made.globals.update({each.__name__: each for each in functions}, measure_of=MEASURES.get)
    made.globals.update(W=drawing.WIDTH, H=drawing.HEIGHT, LEFT=drawing.LEFT)
    made.globals.update(TOP=drawing.TOP, BOTTOM=drawing.BOTTOM)
    return made


def _read(name: str) -> str:
    return files("routekeeper.bench.report").joinpath("templates", name).read_text(encoding="utf-8")


def _no_proof(lines: Sequence[Primary], blocks: int) -> str:
    """Return the warning that few rounds prove nothing, or an empty text if no warning is needed.

    The warning names the number of rounds of the main series. If the main series has enough rounds, the
    warning is about the other headline measures that have few rounds.
    """
    few = [line.blocks for line in lines if answers.LEANING_BLOCKS_MIN <= line.blocks < VERDICT_BLOCKS_MIN]
    return words.no_proof(blocks, len(lines)) or words.no_proof(min(few, default=0), len(few))


def _setting(used: Sequence[Source], arms: Sequence[str]) -> str:
    main = [source.manifest for source in used if source.series == MAIN_SERIES and source.manifest]
    if not main:
        return "No run with equal timers could be used."
    m = main[0]
    where = f"{m.machine.cpu}, {m.machine.cores} cores"
    if m.links == "none":
        return say("attached", servers=m.servers, brokers=m.brokers, played=m.sim_brokers, where=where)
    return say(
        "setting",
        rounds=_rounds_of_designs(used, arms),
        servers=m.servers,
        brokers=m.brokers,
        played=m.sim_brokers,
        divisors=words.listed([f"{each:g}" for each in sorted({each.divisor for each in main})]),
        where=where,
        links="network namespaces" if m.links == "kernel" else "loopback",
    )


def _rounds_of_designs(used: Sequence[Source], arms: Sequence[str]) -> str:
    """Return the number of rounds of each design with equal timers. If they differ, name each design."""
    rounds: dict[str, set[tuple[str, int]]] = {arm: set() for arm in arms}
    for source in used:
        if source.series == MAIN_SERIES:
            rounds.setdefault(source.arm, set()).add((source.batch, source.block))
    counts = {arm: len(found) for arm, found in rounds.items()}
    if len(set(counts.values())) == 1:
        return f"{_rounds(max(counts.values()))} of each design"
    return words.listed([f"{_rounds(count)} of {words.name(arm)}" for arm, count in counts.items()])


def _rounds(count: int) -> str:
    return f"{count} round{'s' if count != 1 else ''}"


def _warnings(gold: Gold, used: Sequence[Source], blocks: int, shared: Conditions) -> list[str]:
    found = []
    if shared.disturbances:
        found.append(say("busy", why="; ".join(shared.disturbances)))
    if 0 < blocks < answers.LEANING_BLOCKS_MIN and len(_arms(used)) > 1 and not _is_beside(used):
        found.append(say("few", rounds=_rounds(blocks), least=answers.LEANING_BLOCKS_MIN))
    crowded: dict[str, list[str]] = defaultdict(list)
    for (series, scenario, arm), (full, runs) in shared.crowded.items():
        if series in JUDGED and arm in SHOWN:
            crowded[arm].append(f"“{_title(scenario)}” ({full} of {runs} runs)")
    for arm, where in crowded.items():
        found.append(say("full", design=words.name(arm), share=FULL_SHARE, where=words.listed(where)))
    found += _backward(gold, used)
    for source in used:
        if source.manifest is not None and source.manifest.lost:
            design, title, why = words.name(source.arm), _title(source.scenario), source.manifest.lost
            found.append(say("lost", design=design, scenario=title, round=source.block, why=why))
    return found


def _backward(gold: Gold, used: Sequence[Source]) -> list[str]:
    """Return a warning about the designs whose servers gave answers that went backwards.

    The result is empty if no answer went backwards.
    """
    arm_of = {source.run: source.arm for source in used}
    bad = [row for row in gold.backward if row.fell + row.relisted]
    if not bad:
        return []
    told = []
    for arm in sorted({arm_of[row.run] for row in bad}):
        mine = [row for row in bad if arm_of[row.run] == arm]
        longest = words.quantity(max(row.longest_ns for row in mine) / 1e9, "s")
        times = sum(row.fell + row.relisted for row in mine)
        told.append(f"{words.name(arm)} {times} times, for {longest} at the longest")
    times = sum(row.fell + row.relisted for row in bad)
    runs, of_runs = ({row.run for row in rows} for rows in (bad, gold.backward))
    return [say("backwards", times=times, runs=len(runs), all=len(of_runs), designs=words.listed(told))]


def _title(scenario: str) -> str:
    return words.SCENARIO_TITLES.get(scenario, scenario)


def named_lines(used: Sequence[Source]) -> list[Line]:
    """Return the headline measures from the manifests of the runs, without repetitions."""
    found: dict[tuple[object, ...], Line] = {}
    for source in used:
        if source.manifest is not None:
            for line in source.manifest.lines:
                found.setdefault((line.series, line.scenario, line.case, line.measure, line.arms), line)
    return list(found.values())


def _interval(line: Primary) -> str:
    """Return the median difference of a headline measure and the interval of this difference, as text."""
    unit, told = MEASURES[line.named.measure].unit, line.pair.estimate
    if told is None:
        return ""
    if all(map(math.isnan, line.pair.found)):
        return "never in either"
    middle, low, high = (words.signed(each, unit) for each in (told.value, told.low, told.high))
    hidden = [f"below {words.quantity(most, unit)} ({words.name(arm)})" for arm, most in line.hidden.items()]
    zero = f"; a value of 0 is {words.listed(hidden)}" if hidden else ""
    return f"{f'median {middle}, {low} to {high}' if told.blocks > 1 else middle}{zero}"


def _scenarios(
    gold: Gold, used: Sequence[Source], every: Sequence[Row], arms: Sequence[str], *, told: bool
) -> list[dict[str, Any]]:
    main = [row for row in every if row.place.series in SECTIONS]
    there = {row.place.scenario for row in main}
    order = [name for name in words.SCENARIO_TITLES if name in there]
    order += sorted(there.difference(order))
    found = []
    for scenario in order:
        mine = [row for row in main if row.place.scenario == scenario]
        cases = [_case(gold, used, scenario, case, mine, arms, told=told) for case in _cases(mine)]
        found.append(
            {
                "id": f"scenario-{scenario}",
                "title": _title(scenario),
                "question": words.SCENARIO_QUESTIONS.get(scenario, ""),
                "cases": cases,
                "timers": words.TIMERS[mine[0].place.series],
                "measures": list({row.measure.key: row.measure for row in mine}.values()),
                "currency": _currency(gold, used, arms) if scenario == "staleness" else [],
                "has_timelines": any(case["timelines"] for case in cases),
            }
        )
    return found


def _crossed(
    found: Iterable[tuple[tuple[Any, ...], str, _T]],
    arms: Sequence[str],
    cell: Callable[[list[_T]], Any],
) -> list[dict[str, Any]]:
    """Arrange results as a table with a column for each design.

    Args:
        found: Triples (sort key of the table row, design, result). The last part of the key is the row's
            title.
        cell: Makes a cell from the results of one design in one row.
    """
    by_row: dict[tuple[Any, ...], dict[str, list[_T]]] = defaultdict(lambda: defaultdict(list))
    for key, arm, each in found:
        by_row[key][arm].append(each)
    return [
        {"title": key[-1], "cells": [cell(by_arm.get(arm, [])) for arm in arms]}
        for key, by_arm in sorted(by_row.items())
    ]


def _currency(gold: Gold, used: Sequence[Source], arms: Sequence[str]) -> list[dict[str, Any]]:
    """Return a table of the share of nameservers and clients that knew a change, by the age of the change."""
    arm_of = {each.run: each.arm for each in used if each.series in SECTIONS and each.scenario == "staleness"}

    def cell(rows: Sequence[Currency]) -> str:
        if not rows:
            return "not measured"
        n = sum(row.n for row in rows)
        return f"{100 * sum(row.current for row in rows) / n:.1f} %" if n >= SHARE_MIN else "too few changes"

    found = []
    for row in gold.currency:
        if row.run in arm_of:
            title = f"{row.observer.capitalize()}s, {words.quantity(row.age_ms, 'ms')} after the change"
            found.append(((row.observer == "client", row.age_ms, title), arm_of[row.run], row))
    return _crossed(found, arms, cell)


def _cases(rows: Sequence[Row]) -> list[str | None]:
    there = {row.place.case for row in rows}
    order: list[str | None] = [None, *words.CASE_TITLES]
    return [case for case in order if case in there] + sorted(
        case for case in there - set(order) if case is not None
    )


def _case(
    gold: Gold,
    used: Sequence[Source],
    scenario: str,
    case: str | None,
    rows: Sequence[Row],
    arms: Sequence[str],
    *,
    told: bool,
) -> dict[str, Any]:
    """Return the figures of a case. Figures without a clear difference of the designs are hidden at first.

    Args:
        told: False if the machine was busy. Then all figures are visible, because the page does not compare
            them.
    """
    mine = [row for row in rows if row.place.case == case]
    differing = [row for row in mine if row.differs or row.unjudged or row.set_by_plan or row.is_endless]
    few = not differing and not any(row.can_tell for row in mine)
    shown = mine if few or not told or len(arms) == 1 else differing
    if _is_beside(used):
        shown = [row for row in mine if any(each.low or each.high for each in row.arms.values())]
    return {
        "title": words.CASE_TITLES.get(case, case).capitalize() if case is not None else "",
        "arms": arms,
        "note": words.CASE_NOTES.get(f"{scenario}/{case}", ""),
        "differ": any(row.differs for row in shown),
        "rows": shown,
        "alike": [row for row in mine if row not in shown],
        "timelines": _timelines(gold, used, scenario, case) if case is not None else [],
        "sides": _sides(gold, used, scenario, case, arms) if case is not None else [],
    }


def _faults(gold: Gold, used: Sequence[Source], scenario: str, case: str) -> dict[str, tuple[Source, Fault]]:
    mine = (
        each for each in used if each.series in SECTIONS and each.scenario == scenario and each.arm in SHOWN
    )
    sources = {each.run: each for each in mine}
    faults = (row for row in gold.faults if row.run in sources and row.case == case)
    return {row.run: (sources[row.run], row) for row in faults}


_SWEPT: Final = ("-half", "-twice", "-four")
"""Endings of the names of cases that vary the length of a fault. For these cases the page draws one kind of
request."""


def _timelines(gold: Gold, used: Sequence[Source], scenario: str, case: str) -> list[dict[str, Any]]:
    faults = _faults(gold, used, scenario, case)
    if not faults:
        return []
    bins: dict[tuple[str, str], dict[str, list[Bin]]] = defaultdict(lambda: defaultdict(list))
    for row in gold.timelines:
        if row.run in faults and faults[row.run][1].fault == row.fault:
            bins[row.op, faults[row.run][0].arm][row.run].append(row)
    until_s = max((fault.until_ns - fault.begin_ns) / 1e9 for _, fault in faults.values())
    earliest = min((row.bin for runs in bins.values() for rows in runs.values() for row in rows), default=-20)
    from_s = max(earliest * BIN_NS / 1e9, -2.0)
    healed = [(f.healed_ns - f.begin_ns) / 1e9 for _, f in faults.values() if f.healed_ns is not None]
    healed_s = sorted(healed)[len(healed) // 2] if healed else None
    drawn = []
    ops = CASE_OPS.get(scenario, ("lookup",))
    for op in ops[:1] if case.endswith(_SWEPT) else ops:
        title = words.OP_TITLES.get(op, op)
        panels: list[Timeline] = [
            drawing.timeline(
                arm, bins[op, arm], from_s=from_s, until_s=until_s, healed_s=healed_s, what=title
            )
            for arm in SHOWN
            if (op, arm) in bins
        ]
        if panels:
            drawn.append({"title": title, "panels": panels})
    return drawn


_STAGES: Final = {"during": "during the fault", "after": "after the fault"}


def _sides(
    gold: Gold, used: Sequence[Source], scenario: str, case: str, arms: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a table of the outcomes of reads on each side of a partition, during and after the partition."""
    faults = _faults(gold, used, scenario, case)
    if not any(fault.kind == "partition" for _, fault in faults.values()):
        return []

    def cell(rows: Sequence[Outcomes]) -> str:
        counted = {key: sum(getattr(row, key) for row in rows) for key in ("n", *words.OUTCOMES)}
        return words.shares(counted) if rows else "not measured"

    found = []
    for row in gold.outcomes:
        if row.run in faults and faults[row.run][1].fault == row.fault and row.side and row.stage in _STAGES:
            side = row.side.rpartition("-")[2]
            title = f"{words.OP_TITLES.get(row.op, row.op)}, side {side}, {_STAGES[row.stage]}"
            found.append(((row.op, side, row.stage != "during", title), faults[row.run][0].arm, row))
    return _crossed(found, arms, cell)


def _timers(gold: Gold, used: Sequence[Source], values: Values, arms: Sequence[str]) -> dict[str, Any]:
    """Return the data for the section on timers: recoveries with RocketMQ's own timers, and used timers."""
    divisors = divisors_of(used)
    order = {place: number for number, place in enumerate(values)}
    apart = {(taken.place, taken.arm): taken for taken in answers.taken_apart(values, divisors, downs(gold))}
    found = []
    for place in dict.fromkeys(place for place, _ in apart):
        title = f"{_where(place)}: {MEASURES[place.measure].title}"
        for arm in values[place]:
            taken = apart.get((place, arm))
            told = _taken(taken) if taken else ("not disturbed", [])
            found.append(((order[place], title), arm, told))
    divided = sorted(set(divisors.values()) - {1.0}, reverse=True)
    return {
        "divided": words.listed([f"{divisor:g}" for divisor in divided]),
        "rows": _crossed(found, arms, lambda each: each[0] if each else ("not measured", [])),
        "label": words.listed([words.TIMERS[series] for series in divisors or [MAIN_SERIES]]),
        "folded": len(divisors) == 1,  # fold away the table, because a single divisor gives only bounds
        "used": used_timers(used, MAIN_SERIES),
        "session": undivided_session(used, MAIN_SERIES, "zookeeper"),
        "session_is_lease": session_is_lease(used, MAIN_SERIES),
    }


def _arms(used: Sequence[Source]) -> list[str]:
    """Return the designs that have a column in the page's tables, in the order of the columns.

    These are the designs of ``SHOWN`` that have runs. If there are none, they are all designs that have runs.
    If there are no runs, they are all designs of the comparison.
    """
    there = {source.arm for source in used}
    return [arm for arm in SHOWN if arm in there] or sorted(there) or list(ARMS)


def _is_beside(used: Sequence[Source]) -> bool:
    """Return True if there are runs with RocketMQ's own brokers and client.

    In this case the page only compares them with our brokers and clients.
    """
    return any(source.arm in REAL for source in used)


def _where(place: Place) -> str:
    case = f", {words.CASE_TITLES.get(place.case, place.case)}" if place.case else ""
    return f"{_title(place.scenario)}{case}"


def _taken(taken: answers.Taken) -> tuple[str, list[str]]:
    """Return a recovery time with RocketMQ's own timers as text, and notes on this time.

    The first note divides the time into a fixed part and a part that grows with the timers. If the time was
    predicted and also measured, the second note has the measured time and its difference from the prediction.
    """
    apart, measured = taken.split, taken.measured
    if apart is None:
        return words.NEVER, []
    if apart.fixed is None or apart.scaled is None:
        return words.between(apart.low, apart.high, "s") or words.quantity(apart.low, "s"), []
    fixed, scaled = (words.quantity(part, "s") for part in (apart.fixed, apart.scaled))
    told = [f"{fixed} fixed, {scaled} by timers"]
    if taken.is_prediction and measured is not None:
        off = taken.off
        assert off is not None
        told.append(f"measured: {words.quantity(measured, 's')}, {words.off_by(off, apart.low)}")
    return words.quantity(apart.low, "s"), told


def _controls(every: Sequence[Row], *, told: bool) -> list[dict[str, str]]:
    found = []
    for pair in CONTROLS:
        there = [(row, each) for row in every if (each := row.pair(*pair)) is not None]
        differing = [
            f"{_where(row.place)}: {row.measure.title.lower()} ({words.leaning(each, row.measure.unit)})"
            for row, each in there
            if each.leaning != "none"
        ]
        alike = "none" if any(row.can_tell for row, _ in there) else "too few rounds to tell"
        if there:
            said = ("; ".join(differing) or alike) if told else "not shown: the machine was busy"
            names = f"{words.name(pair[0])} and {words.name(pair[1])}"
            kinds = [row.control(each) for row, each in there]
            counts = (kinds.count("zero"), kinds.count("equal"), kinds.count("open"))
            zero, equal, unclear = (str(each) if told else "not shown" for each in counts)
            found.append(
                {
                    "pair": names,
                    "measures": str(len(there)),
                    "zero": zero,
                    "equal": equal,
                    "unclear": unclear,
                    "differing": said,
                }
            )
    return found


def _other_series(used: Sequence[Source], every: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            "id": f"series-{series}",
            "label": words.TIMERS[series],
            "blocks": len({(source.batch, source.block) for source in used if source.series == series}),
            "rows": [
                {"title": f"{_where(row.place)}: {row.measure.title}", "row": row}
                for row in every
                if row.place.series == series
            ],
        }
        for series in sorted({source.series for source in used} - set(SECTIONS))
    ]


def _trust(gold: Gold, used: Sequence[Source], every: Sequence[Row], shared: Conditions) -> list[str]:
    """Return the sentences that say how far a reader can trust the figures."""
    manifests = [source.manifest for source in used if source.manifest is not None]
    kernel = sum(each.links == "kernel" for each in manifests)
    where = "network namespaces" if kernel else "loopback"
    attached = any(each.links == "none" for each in manifests)
    found = [say("foreign") if attached else say("one-machine", where=where)]
    if kernel:
        found.append(say("kernel", runs=kernel, all=len(used)))
    lines, bad = sum(row.lines for row in gold.files), sum(row.bad for row in gold.files)
    found.append(say("read", runs=len(used), all=len(gold.sources), lines=lines, bad=bad))
    inside = [row for row in gold.recoveries if row.scope == "all"]
    if inside:
        worst = max(inside, key=lambda row: row.lateness_ns)
        found.append(
            say(
                "queued",
                queued=sum(row.queued for row in inside),
                all=sum(row.n for row in inside),
                late=words.quantity(worst.lateness_ns / 1e6, "ms"),
                operation=words.OP_TITLES.get(worst.op, worst.op).lower(),
                run=_short(worst.run),
            )
        )
    if gold.backward and not any(row.fell + row.relisted for row in gold.backward):
        compared = sum(row.compared for row in gold.backward)
        found.append(say("monotone", compared=compared, runs=len({row.run for row in gold.backward})))
    apart = [row.apart_ns for row in gold.observed if row.observer == "nameserver" and row.apart_ns]
    if apart:
        typical, longest = (words.quantity(each / 1e6, "ms") for each in (median(apart), max(apart)))
        step = words.quantity(OBSERVE_EVERY_S, "s")
        found.append(say("readings", middle=typical, worst=longest, step=step))
    if any(NOT_OPTIMISED in each.versions.get("python", "") for each in manifests):
        found.append(f"Warning: {WARNING}. Compare figures of such runs with each other only.")
    busiest = [row.busiest for row in gold.costs if row.role == "generator" and row.busiest is not None]
    found += _watched(
        "Cores that the load generator used", busiest, BUSY_CORES, "above it, latencies include its own queue"
    )
    nothing = say("nothing", share=BUSY_SHARE)
    others, late = list(shared.others_cores.values()), list(shared.late_ms.values())
    found += _watched("Cores that other programs used", others, OTHERS_CORES, nothing)
    found += _watched("Lateness in ms of the latest twentieth of the operations", late, LATE_MS, nothing)
    busy_runs = sum(bool(shared.of_run(source.run)) for source in used)
    if busy_runs:
        found.append(say("disturbed", runs=busy_runs, all=len(used)))
    blocks = [pair.estimate.blocks for row in every for pair in row.pairs if pair.estimate is not None]
    rounds = [each for each in blocks if each >= answers.LEANING_BLOCKS_MIN]
    if rounds:
        ways = sorted(set(rounds), reverse=True)
        agree = [f"one in {2 ** (each - 1):,} agrees in all {each} rounds" for each in ways]
        found.append(say("chance", pairs=len(rounds), agree=words.listed(agree)))
    return found


def _watched(name: str, values: Sequence[float], limit: float, beyond: str) -> list[str]:
    """Return a sentence on a condition that was measured in each run, or an empty list without values.

    The sentence gives the median, the worst value, and the number of runs whose value is above the limit.
    ``beyond`` is the text that says what a value above the limit means.
    """
    if not values:
        return []
    middle, worst = (words.number(each, 2) for each in (median(values), max(values)))
    over = sum(value > limit for value in values)
    fields = {"name": name, "middle": middle, "worst": worst, "over": over, "beyond": beyond}
    return [say("watched", runs=len(values), limit=limit, **fields)]


def _short(run: str) -> str:
    return run.partition("/")[2].replace("/", " ")


def _reasons(gold: Gold, used: Sequence[Source]) -> list[tuple[str, str, str]]:
    arm_of = {source.run: source.arm for source in used}
    total: dict[tuple[str, str, str], int] = defaultdict(int)
    for row in gold.reasons:
        if row.run in arm_of:
            total[arm_of[row.run], row.op, row.remark or f"{row.outcome}, no remark"] += row.n
    most = sorted(total.items(), key=lambda item: -item[1])[:40]
    return [
        (f"{words.name(arm)}, {words.OP_TITLES.get(op, op).lower()}", remark, f"{n:,}")
        for (arm, op, remark), n in most
    ]


def _facts(used: Sequence[Source]) -> list[tuple[str, list[str]]]:
    facts: dict[str, dict[str, None]] = defaultdict(dict)
    for m in (source.manifest for source in used if source.manifest is not None):
        gib = words.number(m.machine.memory_bytes / 2**30)
        facts["Machine"][f"{m.machine.cpu}, {m.machine.cores} cores, {gib} GiB, {m.machine.system}"] = None
        facts["Profile"][m.profile] = facts["Commit"][m.commit] = None
        facts["Versions"][", ".join(f"{key} {value}" for key, value in m.versions.items())] = None
        facts["Command"][shlex.join(m.command)] = None
    return [(title, list(texts)[:6]) for title, texts in facts.items()]


def _run(source: Source) -> tuple[str, str, str, str]:
    m = source.manifest
    assert m is not None, "a run without one is not used"
    return _short(source.run), str(m.seed), str(m.order_in_block + 1), m.started_at
