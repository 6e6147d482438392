"""The page: what the tables and answers say, laid out for a person who decides (pure).

Templates lie in ``templates/``; they escape all that is put into them. The page needs nothing but itself.
"""

import math
import re
import shlex
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from statistics import median
from typing import Any, Final

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from routekeeper.bench.interpreter import NOT_OPTIMISED, WARNING
from routekeeper.bench.report import answers, drawing, words
from routekeeper.bench.report.answers import ARMS, CONTROLS, REAL_PAIRS, SHOWN, Answer, Row
from routekeeper.bench.report.conditions import (
    BUSY_SHARE,
    FULL_SHARE,
    LATE_MS,
    OTHERS_CORES,
    Conditions,
    conditions,
)
from routekeeper.bench.report.drawing import Dots, Timeline
from routekeeper.bench.report.gold import Bin, Fault, Gold
from routekeeper.bench.report.measures import (
    MAIN_SERIES,
    MEASURES,
    SHARE_MIN,
    Place,
    Unit,
    Values,
    floors,
    set_by_plan,
    strikes_servers,
)
from routekeeper.bench.report.requests import BIN_NS
from routekeeper.bench.report.silver import Source
from routekeeper.bench.runfolder import REAL, Line, Manifest

CASE_OPS: Final = {
    "broker-dies": ("send_once", "lookup", "send"),
    "nameserver-restarts": ("newcomer", "lookup", "registration"),
    "leader-fails": ("lookup", "registration", "send"),
    "partition": ("lookup", "newcomer", "registration"),
    "messages": ("send", "send_once"),
    "new-topic": ("first_send",),
}
"""Which operations are drawn for a scenario; the first at once, the others folded."""

SCENARIO_ORDER: Final = (
    *("broker-dies", "nameserver-restarts", "leader-fails", "partition", "new-topic", "messages"),
    *("staleness", "quiet", "idle-300"),
)
_NUMBER_AND_UNIT: Final = re.compile(r"(?<=[0-9∞]) (?=(?:µs|ms|s|[KMG]iB|%)(?![\w-]))")
BUSY_CORES: Final = 0.6
"""Above it the generator's own queue is part of what it measures (bench-notes: at 25k/s all of p90)."""


def page(gold: Gold, values: Values) -> str:
    """Return the report as one self-contained HTML page.

    Of runs on a busy machine it tells figures and concludes nothing: no difference, no claim, no choice.
    """
    used = [source for source in gold.sources if source.left_out is None]
    shared = conditions(gold)
    planned = set_by_plan(gold, values)
    every = answers.rows(values, floors(gold), shared.crowded, planned)
    disturbed = bool(shared.disturbances)
    controls = _controls(every, told=not disturbed)
    if disturbed:
        every = [replace(row, pairs=[]) for row in every]
    blocks = len({(source.batch, source.block) for source in used if source.series == MAIN_SERIES})
    arms = _arms(used)
    beside = _is_beside(used)
    if beside:
        every = [replace(row, pairs=[pair for pair in row.pairs if pair.arms in REAL_PAIRS]) for row in every]
    compared = len(arms) > 1 and not beside
    table = {row.place: row for row in every}
    lines = answers.primaries(named_lines(used), MAIN_SERIES, values, shared.crowded, planned)
    context: dict[str, Any] = {
        "css": Markup(_read("page.css")),
        "arms": arms,
        "compared": compared,
        "beside": beside,
        "asking": _asking(used),
        "arms_sentence": _arms_sentence(used),
        "setting": _setting(used, blocks),
        "warnings": _warnings(gold, used, blocks, shared),
        "disturbed": disturbed,
        "blocks": blocks,
        "servers": next((source.manifest.servers for source in used if source.manifest is not None), 0),
        "main_series": words.series_label(MAIN_SERIES),
        "answers": [answers.answer(claim, table, MAIN_SERIES, lines) for claim in answers.CLAIMS]
        if compared
        else [],
        "choices": answers.choices(table, MAIN_SERIES, lines) if compared else [],
        "primaries": _primaries(lines) if compared else [],
        "scenarios": _scenarios(gold, used, every, told=not disturbed),
        "timers": _timers(used, values),
        "controls": controls,
        "other_series": _other_series(used, every),
        "trust": _trust(gold, used, every, shared),
        "left_out": [(source.run, source.left_out) for source in gold.sources if source.left_out],
        "reasons": _reasons(gold, used),
        "facts": _facts(used),
        "runs": [_run(source) for source in used],
    }
    return kept_together(environment().get_template("page.html.j2").render(context))


def kept_together(html: str) -> str:
    """Return the page with no line ever broken between a number and its unit."""
    return _NUMBER_AND_UNIT.sub("\N{NO-BREAK SPACE}", html)


def environment() -> Environment:
    """Return the templates' environment: everything is escaped, an unknown name is an error."""
    loader = DictLoader({name: _read(name) for name in ("page.html.j2", "macros.html.j2")})
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    made.globals.update(
        name=words.name,
        quantity=words.quantity,
        middle_of=words.middle_of,
        range_of=words.range_of,
        verdict=words.verdict,
        choice=words.choice,
        difference=words.difference,
        because=words.because,
        described=words.described,
        leaning=words.leaning,
        W=drawing.WIDTH,
        H=drawing.HEIGHT,
        LEFT=drawing.LEFT,
        TOP=drawing.TOP,
        BOTTOM=drawing.BOTTOM,
        holds_class=holds_class,
        holds=words.holds,
        by_design=words.by_design,
    )
    return made


def _read(name: str) -> str:
    return files("routekeeper.bench.report").joinpath("templates", name).read_text(encoding="utf-8")


def holds_class(answer: Answer) -> str:
    """Return how a claim's word is coloured: green is good for the independent design; only verdicts are."""
    price = answer.claim.of_asking
    if not answer.is_verdict:
        return "open"
    match answer.holds:
        case "holds":
            return "no" if price else "yes"
        case "does not hold":
            return "yes" if price else "no"
        case "holds in part":
            return "part"
        case _:
            return "open"


def _arms_sentence(used: Sequence[Source]) -> str:
    described = {
        "independent": "RocketMQ's design (independent nameservers)",
        "raft": "the same nameserver with one replicated log (raft)",
        "zookeeper": "a ZooKeeper ensemble as RocketMQ's predecessor used it",
        "independent-again": "the same nameservers once more",
        "apache": "RocketMQ's own nameservers",
        "independent-real": "independent nameservers with RocketMQ's own brokers and Java client",
        "raft-real": "the replicated ones with RocketMQ's own brokers and Java client",
    }
    there = [text for arm, text in described.items() if any(source.arm == arm for source in used)]
    return words.listed(there) if there else "nothing that could be used"


def _setting(used: Sequence[Source], blocks: int) -> str:
    main = [source.manifest for source in used if source.series == MAIN_SERIES and source.manifest]
    if not main:
        return "No run of the main series could be used."
    m = main[0]
    if m.links == "none":
        return (
            f"A cluster that ran already: nameservers: {m.servers}, brokers: {m.brokers}. Load, simulated "
            f"brokers ({m.sim_brokers}) and the observer ran on {m.machine.cpu}, {m.machine.cores} cores. "
            "Nothing was struck; what the servers themselves use is not known here."
        )
    divisors = sorted({each.divisor for each in main})
    return (
        f"{blocks} block{'s' if blocks != 1 else ''} of one run per arm, {m.servers} servers, "
        f"{m.brokers} brokers "
        f"and {m.sim_brokers} simulated ones, {m.machine.cpu}, {m.machine.cores} cores, one machine, "
        f"{'network namespaces' if m.links == 'kernel' else 'loopback'}. "
        "Timers by which brokers and clients report, ask and are given up are alike in all arms and "
        "divided by "
        f"{words.listed([f'{each:g}' for each in divisors])}, so that a fault fits into seconds; time-outs "
        "of "
        "elections are not. The times below are not those of an installation: “Timers” tells what is known "
        "of "
        "those. Every write is synced to disk where a design stores anything."
    )


def _asking(used: Sequence[Source]) -> str:
    """Say how often clients asked, where that is not RocketMQ's own interval."""
    intervals = {
        (timer.used_ms, timer.documented_ms)
        for source in used
        if source.series == MAIN_SERIES
        and source.manifest is not None
        and (timer := source.manifest.timers.get("pollNameServerInterval")) is not None
    }
    if len(intervals) != 1:
        return ""
    ((asked_ms, own_ms),) = intervals
    if own_ms is None or asked_ms == own_ms:
        return ""
    return (
        f"Clients asked every {words.quantity(asked_ms, 'ms')} here, in every arm, not every "
        f"{words.quantity(own_ms, 'ms')}: with RocketMQ's own timers, what they learn by asking takes up to "
        f"{own_ms / asked_ms:g} times as long as these figures."
    )


def _warnings(gold: Gold, used: Sequence[Source], blocks: int, shared: Conditions) -> list[str]:
    found = []
    if shared.disturbances:
        found.append(
            f"The machine was busy: {'; '.join(shared.disturbances)}. The figures below contain that, so "
            "nothing is concluded from them, and they are not to be published: run it again on a quiet "
            "machine."
        )
    if 0 < blocks < answers.LEANING_BLOCKS_MIN and len(_arms(used)) > 1 and not _is_beside(used):
        found.append(
            f"Only {blocks} block{'s' if blocks != 1 else ''}: fewer than {answers.LEANING_BLOCKS_MIN}, "
            "so no "
            "difference is told. The figures are description."
        )
    crowded: dict[str, list[str]] = defaultdict(list)
    for (series, scenario, arm), (full, runs) in shared.crowded.items():
        if series == MAIN_SERIES and arm in SHOWN:
            crowded[arm].append(f"“{_title(scenario)}” ({full} of {runs} runs)")
    for arm, where in crowded.items():
        found.append(
            f"{words.name(arm)} filled the machine: servers, load and harness together used more than "
            f"{FULL_SHARE:.0%} of its cores in {words.listed(where)}. Requests waited for a processor there, "
            "in every design: these times and failures are shown and compared with nothing; a machine "
            "with more cores can judge them."
        )
    found += _backward(gold, used)
    lost = [source for source in used if source.manifest is not None and source.manifest.lost]
    for source in lost:
        assert source.manifest is not None
        found.append(
            f"{words.name(source.arm)} lost “{_title(source.scenario)}” in block {source.block}: a "
            "server died by "
            f"itself ({source.manifest.lost}). All its figures there count as “never”."
        )
    return found


def _backward(gold: Gold, used: Sequence[Source]) -> list[str]:
    """Say in which designs answers of servers went backwards; nothing if in none."""
    arm_of = {source.run: source.arm for source in used}
    times: Counter[str] = Counter()
    longest_s: dict[str, float] = defaultdict(float)
    for row in gold.backward:
        arm = arm_of[row.run]
        times[arm] += row.fell + row.relisted
        longest_s[arm] = max(longest_s[arm], row.longest_ns / 1e9)
    if not times.total():
        return []
    runs = {row.run for row in gold.backward}
    bad = {row.run for row in gold.backward if row.fell + row.relisted}
    arms = words.listed(
        [
            f"{words.name(arm)} {count} times, for {words.quantity(longest_s[arm], 's')} at the longest"
            for arm, count in sorted(times.items())
            if count
        ]
    )
    return [
        f"Answers of servers went backwards {times.total()} times in {len(bad)} of {len(runs)} runs, where "
        f"none may: {arms}."
    ]


def _title(scenario: str) -> str:
    return words.SCENARIO_TITLES.get(scenario, scenario)


def named_lines(used: Sequence[Source]) -> list[Line]:
    """Return the primary lines that the runs of the main series name, each once."""
    found: dict[tuple[object, ...], Line] = {}
    for source in used:
        if source.manifest is not None and source.series == MAIN_SERIES:
            for line in source.manifest.lines:
                found.setdefault((line.scenario, line.case, line.measure, line.arms), line)
    return list(found.values())


def _primaries(lines: Sequence[answers.Primary]) -> list[dict[str, Any]]:
    drawn = []
    for line in lines:
        unit: Unit = MEASURES[line.named.measure].unit if line.named.measure in MEASURES else "count"
        told = line.pair.estimate
        interval = ""
        if told is not None and math.isnan(told.value):
            interval = "never in either"
        elif told is not None:
            interval = f"middle {words.signed(told.value, unit)}"
            if told.blocks > 1:
                low, high = words.signed(told.low, unit), words.signed(told.high, unit)
                interval += f", {low} to {high}"
        drawn.append(
            {
                "line": line,
                "unit": unit,
                "interval": interval,
                "dots": drawing.dots(
                    line.pair.found, told, unit=unit, margin=line.named.margin, what=line.named.name
                ),
            }
        )
    return drawn


def _scenarios(
    gold: Gold, used: Sequence[Source], every: Sequence[Row], *, told: bool
) -> list[dict[str, Any]]:
    main = [row for row in every if row.place.series == MAIN_SERIES]
    there = {row.place.scenario for row in main}
    order = [name for name in SCENARIO_ORDER if name in there] + sorted(there - set(SCENARIO_ORDER))
    found = []
    for scenario in order:
        mine = [row for row in main if row.place.scenario == scenario]
        cases = [_case(gold, used, scenario, case, mine, told=told) for case in _cases(mine)]
        found.append(
            {
                "id": f"scenario-{scenario}",
                "title": _title(scenario),
                "question": words.SCENARIO_QUESTIONS.get(scenario, ""),
                "cases": cases,
                "measures": list({row.measure.key: row.measure for row in mine}.values()),
                "currency": _currency(gold, used) if scenario == "staleness" else [],
                "has_timelines": any(case["timelines"] for case in cases),
            }
        )
    return found


def _currency(gold: Gold, used: Sequence[Source]) -> list[dict[str, Any]]:
    """Plot how many nameservers and clients knew a change, by the time since it began, of all blocks."""
    arm_of = {
        source.run: source.arm
        for source in used
        if source.series == MAIN_SERIES and source.scenario == "staleness"
    }
    counted: dict[tuple[str, int, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in gold.currency:
        if row.run in arm_of:
            total = counted[row.observer, row.age_ms, arm_of[row.run]]
            total[0] += row.n
            total[1] += row.current
    arms = [arm for arm in ARMS if arm in arm_of.values()]
    rows = []
    for observer, title in (("nameserver", "Nameservers"), ("client", "Clients")):
        for age_ms in sorted({key[1] for key in counted if key[0] == observer}):
            cells = []
            for arm in arms:
                n, current = counted.get((observer, age_ms, arm), (0, 0))
                cells.append(f"{100 * current / n:.1f} %" if n >= SHARE_MIN else "too few changes")
            rows.append({"title": f"{title}, {words.quantity(age_ms, 'ms')} after it", "cells": cells})
    return rows


def _cases(rows: Sequence[Row]) -> list[str | None]:
    there = {row.place.case for row in rows}
    order: list[str | None] = [None, *words.CASE_TITLES]
    return [case for case in order if case in there] + sorted(
        case for case in there - set(order) if case is not None
    )


def _case(
    gold: Gold, used: Sequence[Source], scenario: str, case: str | None, rows: Sequence[Row], *, told: bool
) -> dict[str, Any]:
    mine = [row for row in rows if row.place.case == case]
    differing = [row for row in mine if row.differs or row.unjudged]
    arms = [arm for arm in _arms(used) if any(arm in row.arms for row in mine)]
    few = not differing and _blocks(mine) < answers.LEANING_BLOCKS_MIN
    beside = _is_beside(used)
    every = few or not told or len(_arms(used)) == 1  # there is no difference to tell
    shown = mine if every else differing
    alike = [] if every else [row for row in mine if not row.differs]
    if beside:
        alike = [row for row in mine if not any(each.low or each.high for each in row.arms.values())]
        shown = [row for row in mine if row not in alike]
    has_ages = scenario in ("partition", "staleness", "quiet")
    return {
        "title": words.CASE_TITLES.get(case, case).capitalize() if case is not None else "",
        "arms": arms,
        "note": words.CASE_NOTES.get((scenario, case), "") if case is not None else "",
        "differ": any(row.differs for row in differing),
        "rows": shown,
        "null": words.no_difference(alike),
        "dots": _dots(shown if beside and told else differing, described=beside),
        "timelines": _timelines(gold, used, scenario, case) if case is not None else [],
        "sides": _sides(gold, used, scenario, case, arms) if case is not None else [],
        "servers": _servers(gold, used, scenario, case, arms) if case is not None else [],
        "ages": _ages(gold, used, scenario, case, arms) if has_ages else [],
    }


def _blocks(rows: Sequence[Row]) -> int:
    return max((each.blocks for row in rows for each in row.arms.values()), default=0)


def _dots(rows: Sequence[Row], *, described: bool) -> list[dict[str, Any]]:
    """Draw the blocks' differences.

    Args:
        described: Whether all of them, not only those that differ in every block by as much as matters.
    """
    drawn = []
    for row in rows:
        for pair in row.pairs:
            if not set(pair.arms) <= set(SHOWN) or (pair.leaning == "none" and not described):
                continue
            if not any(pair.found):
                continue
            first, second = (words.name(arm) for arm in pair.arms)
            title = f"{row.measure.title}: {first} minus {second}"
            shown: Dots = drawing.dots(
                pair.found, pair.estimate, unit=row.measure.unit, margin=pair.material, what=title
            )
            drawn.append({"title": title, "arm": pair.arms[0], "dots": shown})
    return drawn


def _faults(gold: Gold, used: Sequence[Source], scenario: str, case: str) -> dict[str, tuple[Source, Fault]]:
    sources = {
        source.run: source
        for source in used
        if source.series == MAIN_SERIES and source.scenario == scenario and source.arm in SHOWN
    }
    return {
        row.run: (sources[row.run], row) for row in gold.faults if row.run in sources and row.case == case
    }


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
    for op in CASE_OPS.get(scenario, ("lookup",)):
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


def _sides(
    gold: Gold, used: Sequence[Source], scenario: str, case: str, arms: Sequence[str]
) -> list[dict[str, Any]]:
    """Plot outcomes of reads on each side of a partition, during it and after it: shares of all blocks."""
    faults = _faults(gold, used, scenario, case)
    if not any(fault.kind == "partition" for _, fault in faults.values()):
        return []
    counted: dict[tuple[str, str, str], dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for row in gold.outcomes:
        if row.run in faults and faults[row.run][1].fault == row.fault and row.side is not None:
            total = counted[row.op, row.side, row.stage][faults[row.run][0].arm]
            total["n"] += row.n
            for name in words.OUTCOMES:
                total[name] += getattr(row, name)
    stages = {"during": "while it lasts", "after": "after the healing"}
    rows = []
    for op, side in sorted({(op, side) for op, side, _ in counted}):
        for stage, when in stages.items():
            if (op, side, stage) in counted:
                by_arm = counted[op, side, stage]
                title = f"{words.OP_TITLES.get(op, op)}, side {side.rpartition('-')[2]}, {when}"
                cells = [words.shares(by_arm[arm]) if arm in by_arm else "not measured" for arm in arms]
                rows.append({"title": title, "cells": cells})
    return rows


AGE_BINS: Final = (6, 14, 20)
"""Edges of the classes in which answers are counted, in half powers of two of a millisecond."""


def _ages(
    gold: Gold, used: Sequence[Source], scenario: str, case: str | None, arms: Sequence[str]
) -> list[dict[str, Any]]:
    """Plot the share of look-ups that got the current route, by the age of the acknowledged change."""
    faults = _faults(gold, used, scenario, case) if case is not None else {}
    arm_of = {
        source.run: source.arm
        for source in used
        if source.series == MAIN_SERIES and source.scenario == scenario and source.arm in arms
    }
    counted: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for row in gold.staleness:
        if row.op != "lookup" or row.run not in arm_of:
            continue
        if case is None and row.phase == "fault":
            continue
        if case is not None and (row.phase != "fault" or row.run not in faults):
            continue
        if case is not None and faults[row.run][1].fault != row.fault:
            continue
        total = counted[bisect_right(AGE_BINS, row.bin)][arm_of[row.run]]
        total[0] += row.n
        total[1] += row.current
    edges = [words.quantity(2 ** (place / 2), "ms") for place in AGE_BINS]
    titles = [
        f"less than {edges[0]} ago",
        *(f"{low} to {high} ago" for low, high in pairwise(edges)),
        f"{edges[-1]} ago and more",
    ]
    rows = []
    for place, by_arm in sorted(counted.items()):
        cells = []
        for arm in arms:
            n, current = by_arm.get(arm, (0, 0))
            cells.append(f"{100 * current / n:.1f} % of {n:,}" if n >= SHARE_MIN else "too few")
        rows.append({"title": titles[place], "cells": cells})
    return rows


def _servers(
    gold: Gold, used: Sequence[Source], scenario: str, case: str, arms: Sequence[str]
) -> list[dict[str, Any]]:
    """On which servers the disturbance fell: median recovery and how many requests failed."""
    faults = _faults(gold, used, scenario, case)
    found: dict[tuple[str, str], dict[str, list[tuple[float, int]]]] = defaultdict(lambda: defaultdict(list))
    titles = {"struck": "at servers that were struck", "others": "at the other servers"}
    for row in gold.recoveries:
        if row.run in faults and faults[row.run][1].fault == row.fault and row.scope in titles:
            if row.scope == "others" and not strikes_servers(faults[row.run][1]):
                continue
            again = float("inf") if row.recovered_ns is None else row.recovered_ns / 1e9
            disturbed = row.missing + row.ghost + row.refused + row.failed
            found[row.op, row.scope][faults[row.run][0].arm].append((again, disturbed))
    rows = []
    for (op, scope), by_arm in sorted(found.items()):
        cells = []
        for arm in arms:
            each = by_arm.get(arm)
            if not each:
                cells.append("not measured")
                continue
            middle = answers.summary([value for value, _ in each]).middle
            wrong = words.quantity(answers.summary([count for _, count in each]).middle, "count")
            right = f"right again after {words.quantity(middle, 's')}" if middle else "not disturbed"
            if answers.endless(middle):
                right = "never right again"
            cells.append(f"{right}, {wrong} failed or wrong")
        rows.append({"title": f"{words.OP_TITLES.get(op, op)}, {titles[scope]}", "cells": cells})
    return rows


def _timers(used: Sequence[Source], values: Values) -> dict[str, Any]:
    divisors = {
        source.series: source.manifest.divisor
        for source in used
        if source.manifest is not None and source.series in answers.TIMER_SERIES
    }
    predicted = len(set(divisors.values()) - {1.0}) > 1
    by_row: dict[tuple[str, str], dict[str, answers.Taken]] = defaultdict(dict)
    for taken in answers.taken_apart(values, divisors):
        title = f"{_title(taken.place.scenario)}, {_case_title(taken.place.case)}"
        by_row[title, MEASURES[taken.place.measure].title][taken.arm] = taken
    rows = []
    for (where, what), arms in by_row.items():
        cells = [_taken(arms[arm]) if arm in arms else ("not disturbed", []) for arm in _arms(used)]
        rows.append({"title": f"{where}: {what}", "cells": cells})
    used_timers: dict[str, tuple[str, str]] = {}
    for source in used:
        if source.manifest is not None and source.series == MAIN_SERIES:
            for timer, told in source.manifest.timers.items():
                documented = (
                    "none" if told.documented_ms is None else words.quantity(told.documented_ms, "ms")
                )
                scaled = "divided" if told.scaled else "as it is"
                key = (
                    timer if source.arm in ("independent", "raft") else f"{timer} ({words.name(source.arm)})"
                )
                used_timers.setdefault(key, (f"{words.quantity(told.used_ms, 'ms')}, {scaled}", documented))
    by = words.listed([f"{divisor:g}" for divisor in sorted(set(divisors.values()) - {1.0}, reverse=True)])
    if all(divisor == 1 for divisor in divisors.values()):
        sentence = "The timers of clients and simulated brokers were RocketMQ's own."
    elif predicted:
        sentence = (
            f"Recoveries were measured with timers divided by {by}. From these follows which part a timer "
            "scales and which part it does not; with RocketMQ's own timers a recovery takes the sum of both. "
            "Where chance would make a part negative, the other alone is fitted. "
        ) + (
            "Where undivided timers were measured too, what they gave stands below the prediction, and how "
            "far the prediction is off."
            if 1.0 in divisors.values()
            else "That was not checked with undivided timers."
        )
    elif len(divisors) > 1:
        sentence = (
            "Recoveries were measured with divided and with undivided timers. From both follows which "
            "part a timer "
            "scales and which part it does not; with RocketMQ's own timers a recovery takes the sum of both. "
            "Where chance would make a part negative, the other alone is fitted. "
            "That is no prediction: what was measured with RocketMQ's own timers is one of the two."
        )
    else:
        sentence = (
            "Only one divisor was run, so a recovery cannot be taken apart here. With RocketMQ's own "
            "timers it takes at "
            "least as long as measured (if no timer has a part in it) and at most that times the "
            "divisor (if it is all "
            "timer)."
        )
    label = words.series_label(*(divisors or [MAIN_SERIES]))
    folded = len(divisors) == 1  # of one divisor only bounds are known
    return {
        "sentence": sentence,
        "rows": rows,
        "label": label,
        "folded": folded,
        "used": [(key, *told) for key, told in used_timers.items()],
    }


def _arms(used: Sequence[Source]) -> list[str]:
    """Return the arms of which there are runs; controls only where there is nothing else."""
    there = {source.arm for source in used}
    return [arm for arm in SHOWN if arm in there] or sorted(there) or list(ARMS)


def _is_beside(used: Sequence[Source]) -> bool:
    """Return whether RocketMQ's own brokers and client ran beside ours: then the page is about that alone."""
    return any(source.arm in REAL for source in used)


def _case_title(case: str | None) -> str:
    return words.CASE_TITLES.get(case, case) if case is not None else ""


def _taken(taken: answers.Taken) -> tuple[str, list[str]]:
    """Say what a recovery takes with RocketMQ's own timers, of which parts, and how far that is off."""
    apart, measured = taken.split, taken.measured
    if apart is None:
        return words.NEVER, []
    if apart.fixed is None or apart.scaled is None:
        return f"{words.quantity(apart.low, 's')} to {words.quantity(apart.high, 's')}", []
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
        if not there:
            continue
        differing = [
            f"{_title(row.place.scenario)} {_case_title(row.place.case)}: {row.measure.title.lower()} "
            f"({words.leaning(each, row.measure.unit)})"
            for row, each in there
            if each.leaning != "none"
        ]
        enough = any(row.can_tell for row, _ in there)
        said = "; ".join(differing) or ("none" if enough else "too few blocks to tell")
        found.append(
            {
                "pair": f"{words.name(pair[0])} and {words.name(pair[1])}",
                "measures": str(len(there)),
                "differing": said if told else "not told: the machine was busy",
            }
        )
    return found


def _other_series(used: Sequence[Source], every: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    for series in sorted({source.series for source in used} - {MAIN_SERIES}):
        mine = [row for row in every if row.place.series == series]
        rows = [
            {"title": f"{_title(row.place.scenario)}{_of_case(row.place)}: {row.measure.title}", "row": row}
            for row in mine
        ]
        blocks = len({(source.batch, source.block) for source in used if source.series == series})
        found.append(
            {
                "id": f"series-{series}",
                "label": words.series_label(series),
                "blocks": blocks,
                "rows": rows,
            }
        )
    return found


def _of_case(place: Place) -> str:
    return f", {_case_title(place.case)}" if place.case else ""


def _links(used: Sequence[Source]) -> list[str]:
    """Say it where the kernel cut links: such figures do not go together with others."""
    of_kernel = sum(source.manifest is not None and source.manifest.links == "kernel" for source in used)
    if not of_kernel:
        return []
    return [
        f"In {of_kernel} of {len(used)} runs the kernel cut the links, between network namespaces: packets "
        "vanish and TCP repeats them after pauses that grow, so recoveries after a cut take longer than "
        "behind the proxy, and nobody counts the bytes of links."
    ]


def _trust(gold: Gold, used: Sequence[Source], every: Sequence[Row], shared: Conditions) -> list[str]:
    foreign = any(source.manifest is not None and source.manifest.links == "none" for source in used)
    kernel = _links(used)
    found = [
        "Simulated load from one machine: its way to the servers is part of every figure."
        if foreign
        else f"One machine, {'network namespaces' if kernel else 'loopback'}, simulated load: figures "
        "compare designs; they are not those of an installation.",
        *kernel,
        f"{len(used)} of {len(gold.sources)} runs were used; {sum(row.lines for row in gold.files):,} "
        "lines read, "
        f"{sum(row.bad for row in gold.files):,} of them damaged.",
    ]
    inside = [row for row in gold.recoveries if row.scope == "all"]
    if inside:
        worst = max(inside, key=lambda row: row.lateness_ns)
        queued, total = sum(row.queued for row in inside), sum(row.n for row in inside)
        found.append(
            f"Inside fault windows {queued:,} of {total:,} operations had to wait for a free user of "
            "the generator; the "
            f"latest left {words.quantity(worst.lateness_ns / 1e6, 'ms')} after it was due "
            f"({words.OP_TITLES.get(worst.op, worst.op).lower()}, {_short(worst.run)}). Latency counts "
            "from the due "
            "instant and contains this."
        )
    if gold.backward and not any(row.fell + row.relisted for row in gold.backward):
        found.append(
            f"No server's answer was older than one that the same process had given before, in "
            f"{len({row.run for row in gold.backward})} runs."
        )
    busy = {row.run: row.busiest for row in gold.costs if row.role == "generator" and row.busiest is not None}
    over = [run for run, cores in busy.items() if cores > BUSY_CORES]
    if busy:
        top = max(busy.values())
        found.append(
            f"The busiest load generator used {top:.0%} of a core"
            + (
                f"; {len(over)} runs are above {BUSY_CORES:.0%}, where its own queue becomes part of "
                "the latencies."
                if over
                else f", below the {BUSY_CORES:.0%} above which its own queue becomes part of the latencies."
            )
        )
    if any(NOT_OPTIMISED in s.manifest.versions.get("python", "") for s in used if s.manifest is not None):
        found.append(f"Warning: {WARNING}. Figures of such runs compare with each other only.")
    others, late = list(shared.others_cores.values()), list(shared.late_ms.values())
    if others:
        found.append(
            f"Programs that do not belong to the comparison used {median(others):.1f} cores in the middle "
            f"run and {max(others):.1f} in the worst one; above {OTHERS_CORES:g} in more than "
            f"{BUSY_SHARE:.0%} of the runs nothing would be concluded."
        )
    if late:
        found.append(
            f"Nineteen of twenty operations left at most {words.quantity(median(late), 'ms')} after they "
            f"were due in the middle run, {words.quantity(max(late), 'ms')} in the worst one; above "
            f"{words.quantity(LATE_MS, 'ms')} in more than {BUSY_SHARE:.0%} of the runs nothing would be "
            "concluded."
        )
    compared = [pair for row in every for pair in row.pairs if pair.estimate is not None]
    most = max((pair.estimate.blocks for pair in compared if pair.estimate is not None), default=0)
    if most >= answers.LEANING_BLOCKS_MIN:
        found.append(
            f"{len(compared)} pairs of figures stand on this page. Of pairs that do not differ at all, one "
            f"in {2 ** (most - 1):,} agrees in all {most} blocks by chance. So the answers above and the "
            "choices rest on the primary lines alone, which were named before anything ran; all else is "
            "description."
        )
    return found


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
    manifests = [source.manifest for source in used if source.manifest is not None]

    def different(values: Sequence[str]) -> list[str]:
        return list(dict.fromkeys(values))[:6]

    return [
        (title, texts)
        for title, texts in (
            ("Machine", different([_machine(m) for m in manifests])),
            ("Profile", different([m.profile for m in manifests])),
            ("Commit", different([m.commit for m in manifests])),
            ("Versions", different([_pairs(m.versions) for m in manifests])),
            ("Command", different([shlex.join(m.command) for m in manifests])),
        )
        if texts
    ]


def _machine(m: Manifest) -> str:
    gib = words.number(m.machine.memory_bytes / 2**30)
    return f"{m.machine.cpu}, {m.machine.cores} cores, {gib} GiB, {m.machine.system}"


def _pairs(values: dict[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _run(source: Source) -> tuple[str, str, str, str]:
    m = source.manifest
    assert m is not None, "a run without one is not used"
    return _short(source.run), str(m.seed), str(m.order_in_block + 1), m.started_at
