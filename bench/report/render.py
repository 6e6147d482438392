"""One self-contained HTML page from the tables and what was found in them (pure but for matplotlib's
memory)."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from bench.manifest import Manifest
from bench.report import plots
from bench.report.findings import (
    FAULT_NAMES,
    FAULTS,
    GENERATOR_CORES_MAX,
    HEADLINES,
    MODES,
    OP_NAMES,
    OPS,
    PARTS,
    RULES,
    Comparison,
    Scenario,
    flagged_generators,
    part_of,
    where,
)
from bench.report.intervals import RUNS_MIN
from bench.report.marts import Marts, Window
from bench.report.wording import (
    difference_cell,
    in_short,
    meaning,
    number,
    plain,
    quantity,
    runs,
    value_cell,
    verdict_cell,
    with_interval,
)

OUTCOMES: Final = ("ok", "refused", "error", "wrong", "unknown")
_REASONS_SHOWN: Final = 12
_PERCENTILES: Final = (("p50", "p50"), ("p99", "p99"), ("p999", "p99.9"))

_TERMS: Final = (
    ("broker", "A RocketMQ server that stores messages. Producers send to it, consumers read from it."),
    (
        "topic, route",
        "A topic is a named stream of messages. Its route says which brokers hold it, and where.",
    ),
    (
        "nameserver",
        "A small server that knows the routes. Brokers report to every nameserver; clients ask one of them.",
    ),
    (
        "registration",
        "A broker's report of its topics, sent at start, at each change and then at fixed intervals.",
    ),
    (
        "independent mode",
        "RocketMQ as documented: each nameserver believes what brokers tell it, keeps it in memory only, and "
        "knows nothing of the others.",
    ),
    (
        "raft mode",
        "The same nameserver, but a registration counts only when a majority of the nameservers has it in a "
        "common log, which survives restarts. One nameserver leads; if it dies, the others elect a new one.",
    ),
    (
        "p50, p99, p99.9",
        "Percentiles: half of the requests were faster than p50, 99 of 100 faster than p99. They are read "
        "from all requests of all runs together, never averaged.",
    ),
    (
        "due, latency, service time",
        "Requests are sent on a fixed timetable, whether or not earlier ones are answered. Latency counts "
        "from when a request was due, so waiting behind a stalled server shows; service time counts from "
        "when it was sent.",
    ),
    (
        "pair, 95 % interval",
        "Each run of one mode has a partner of the other mode right before or after it, so that both meet "
        "the same machine. The interval says between which values the true one lies, judging by how much the "
        "runs differ (bootstrap over runs; 1 of 20 such intervals is expected to miss).",
    ),
    (
        "refused, failed, unknown, wrong",
        "Refused: the server said that it did not do it. Failed: certainly not done. Unknown: sent, but no "
        "answer came in time, so it may have been done. Wrong: answered, but not truthfully: no route for a "
        "topic that has one.",
    ),
)


def page(tables: Marts, scenarios: Sequence[Scenario]) -> str:
    """Return the whole page; works without a network, without scripts, and on paper."""
    style = files("bench.report").joinpath("report.css").read_text(encoding="utf-8")
    parts = [first_screen(tables, scenarios)]
    for scenario in scenarios:
        if len(scenarios) > 1:
            parts.append(f'<h2 class="scenario">Scenario {escape(scenario.name)}</h2>')
        prefix = f"{scenario.name}-" if len(scenarios) > 1 else ""
        parts += [
            _section(f"{prefix}latency", "Latency and throughput", _latency(tables, scenario)),
            _section(
                f"{prefix}visible",
                "Time until a registration is visible everywhere",
                _visible(tables, scenario),
            ),
            _section(f"{prefix}faults", "Unavailability when nameservers die", _faults(tables, scenario)),
            _section(f"{prefix}sends", "Failed sends", _sends(tables, scenario)),
            _section(f"{prefix}cost", "CPU and memory", _cost(tables, scenario)),
        ]
    parts += [
        _section("quality", "Can these figures be trusted?", _quality(tables, scenarios)),
        _section("terms", "Terms", _terms()),
        _section("appendix", "Appendix: runs, machine, how to reproduce", _appendix(tables)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<title>RouteKeeper benchmark: independent and raft nameservers</title>"
        f"<style>{style}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def first_screen(tables: Marts, scenarios: Sequence[Scenario]) -> str:
    """Return what was compared, what came out, and which mode fits whom (HTML, no plots)."""
    body = [
        '<header><p class="kicker">RouteKeeper benchmark</p>'
        "<h1>Nameservers on their own, or as a Raft group?</h1>"
        f"{_compared(tables, scenarios)}{_warnings(tables)}</header>"
    ]
    if not scenarios:
        body.append("<p><b>No run could be used.</b> The section on trust says why.</p>")
    for scenario in scenarios:
        of = f": {escape(scenario.name)}" if len(scenarios) > 1 else ""
        body.append(f"<section id='result'><h2>What came out{of}</h2>{_came_out(scenario)}")
        body.append(f"<h2>Which mode fits you{of}</h2>{_advice(scenario)}</section>")
        links = (
            ("latency", "Latency"),
            ("visible", "Visibility"),
            ("faults", "Faults"),
            ("sends", "Sends"),
            ("cost", "Cost"),
        )
        prefix = f"{scenario.name}-" if len(scenarios) > 1 else ""
        body.append(
            "<nav>"
            + "".join(f'<a href="#{escape(prefix)}{anchor}">{text}</a>' for anchor, text in links)
            + '<a href="#quality">Trust</a><a href="#terms">Terms</a><a href="#appendix">Appendix</a></nav>'
        )
    return "".join(body)


def _compared(tables: Marts, scenarios: Sequence[Scenario]) -> str:
    """Say in words what was compared."""
    manifests = [run.manifest for scenario in scenarios for run in scenario.runs if run.manifest is not None]
    if not manifests:
        return ""
    pairs = sum(len(scenario.pairs) for scenario in scenarios)
    per_mode = Counter(manifest.mode for manifest in manifests)
    modes = " and ".join(
        f'{per_mode[mode]} in <span class="mode {mode}">{mode}</span> mode'
        for mode in MODES
        if per_mode[mode]
    )
    seconds = _range((m.measure_end_ns - m.measure_begin_ns) / 1e9 for m in manifests)
    levels = sorted({m.durability for m in manifests if m.durability is not None})
    kept = f" Raft kept its log at durability level <b>{', '.join(levels)}</b>." if levels else ""
    divisors = sorted({m.timer_divisor for m in manifests})
    if divisors == [1]:
        timers = "Broker, client and scan timers had their documented values."
    else:
        factor = " or ".join(plain(each) for each in divisors)
        timers = (
            f"Broker, client and scan timers were <b>divided by {factor} in both modes</b>, so that short "
            "runs show what they do; times that come from them are shorter here than with RocketMQ's "
            "defaults."
        )
    machines = sorted({f"{m.machine.cpu}, {m.machine.cores} cores" for m in manifests})
    kinds = {window.kind for window in tables.windows}
    faults = [FAULT_NAMES[kind] for kind in FAULTS if kind in kinds]
    injected = (
        f" Injected in each run: {'; '.join(faults)} (kill -9)." if faults else " No fault was injected."
    )
    return (
        f'<p class="lead">{_range(m.nameservers for m in manifests)} nameservers and '
        f"{_range(m.brokers for m in manifests)} brokers, real processes on one machine "
        f"({escape('; '.join(machines))}), measured for {seconds} s in each of {runs(len(manifests))}: "
        f"{modes}, {runs(pairs, 'pair') if pairs else 'no pair'} run back to back.{injected}{kept} "
        f"{timers}</p>"
    )


def _warnings(tables: Marts) -> str:
    notes = []
    left_out = [run for run in tables.runs if run.left_out]
    if left_out:
        notes.append(
            f"{runs(len(left_out))} of {len(tables.runs)} left out of all figures, "
            '<a href="#quality">see why</a>.'
        )
    flagged = flagged_generators(tables)
    if flagged:
        notes.append(
            f"In {runs(len(flagged))} the load generator used more than {GENERATOR_CORES_MAX:.0%} of a core "
            f"(up to {max(flagged.values()):.0%}): latencies of these runs contain its own queue."
        )
    return "".join(f'<p class="warning">{note}</p>' for note in notes)


def _came_out(scenario: Scenario) -> str:
    headlines = [scenario.comparisons[key] for key in HEADLINES if key in scenario.comparisons]
    if not headlines:
        return "<p>Nothing that both modes were measured for.</p>"
    groups = (
        ("Raft is better", [each for each in headlines if each.verdict == "raft"]),
        ("Independent is better", [each for each in headlines if each.verdict == "independent"]),
        ("No difference could be shown", [each for each in headlines if each.verdict == "none"]),
        (
            f"Too few pairs to say (an interval needs {RUNS_MIN})",
            [each for each in headlines if each.verdict in ("few", "unpaired")],
        ),
    )
    better = {name: len(members) for name, members in groups}
    summary = (
        f"<p>Of {len(headlines)} figures, raft is better in <b>{better['Raft is better']}</b> and "
        f"independent in <b>{better['Independent is better']}</b>; in "
        f"<b>{better['No difference could be shown']}</b> no difference could be shown. A difference counts "
        "as shown if its 95 % interval, which is judged from how much the pairs of runs differ, does not "
        "contain 0.</p>"
    )
    body = ""
    for name, members in groups:
        if members:
            body += f'<tr class="group"><th colspan="4">{name}</th></tr>'
        for each in members:
            body += (
                f"<tr><td>{escape(HEADLINES[each.key])}</td>"
                f"<td>{value_cell(each.independent, each.unit)}</td>"
                f"<td>{value_cell(each.raft, each.unit)}</td><td>{difference_cell(each)}</td></tr>"
            )
    head = f"<th></th><th>{_mode('independent')}</th><th>{_mode('raft')}</th><th>Raft minus independent</th>"
    return (
        f'{summary}<div class="scroll"><table class="compare headlines"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _advice(scenario: Scenario) -> str:
    rows = []
    won: Counter[str] = Counter()
    for rule in RULES:
        comparison = scenario.comparisons.get(rule.key)
        if comparison is None:
            rows.append((escape(rule.need), '<span class="none">not measured</span>', ""))
            continue
        won[comparison.verdict] += 1
        match comparison.verdict:
            case "none":
                choice = '<span class="none">either</span>'
            case "few" | "unpaired":
                choice = '<span class="none">cannot be told</span>'
            case winner:
                choice = _mode(winner)
        because = f'<span class="because">{escape(HEADLINES[rule.key])}: {in_short(comparison)}</span>'
        rows.append((escape(rule.need), choice, because))
    summary = (
        f"<p>Of these {len(RULES)} needs, the runs speak for raft in {won['raft']}, for independent in "
        f"{won['independent']}, and show no difference in {won['none']}. Weigh the ones that matter to "
        "you.</p>"
    )
    return summary + _table(("What matters to you", "Choose", "Because"), rows, kind="advice")


def _latency(tables: Marts, scenario: Scenario) -> str:
    names = {run.run for run in scenario.runs}
    mode_of = {name: mode for mode in MODES for name in scenario.of_mode(mode)}
    curves: dict[str, dict[str, dict[str, list[tuple[float, int]]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for bucket in tables.histogram:
        if bucket.run in names and bucket.measure == "latency":
            curves[bucket.op][mode_of[bucket.run]][bucket.run].append((bucket.value_ns / 1e6, bucket.n))
    lines: dict[str, dict[str, dict[int, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    ends = [
        (m.manifest.measure_end_ns - m.manifest.measure_begin_ns) / 1e9 for m in scenario.runs if m.manifest
    ]
    for second in tables.seconds:
        if second.run in names and second.second < int(min(ends)):
            lines[second.op][mode_of[second.run]][second.second].append(second.ok)
    windows = [window for window in tables.windows if window.run in names]
    drawn = [plots.percentile_curves(_title(OP_NAMES[op]), curves[op]) for op in OPS if op in curves]
    drawn += [
        plots.timeline(_title(OP_NAMES[op]), lines[op], windows, label="right answers per second")
        for op in OPS
        if op in lines
    ]
    latency = _chosen(scenario, [f"latency.{p}.{op}" for op in OPS for p in ("p50", "p99", "p999")])
    groups = [
        (
            OP_NAMES[op],
            _named(
                scenario,
                (
                    *((f"latency.{key}.{op}", f"latency {name}") for key, name in _PERCENTILES),
                    *((f"service.{key}.{op}", f"service time {name}") for key, name in _PERCENTILES),
                    (f"throughput.{op}", "right answers per second"),
                ),
            ),
        )
        for op in OPS
    ]
    throughput = _chosen(scenario, [f"throughput.{op}" for op in OPS])
    return (
        "<p>How long a request takes in quiet times: before the first fault and again once the system has "
        "settled after one. Only successful requests; the failed ones have their own section. A line is all "
        "runs of a mode together, its band the range of the single runs. The lower plots show how many "
        "requests per second were answered rightly during the whole run; grey is the time of a fault.</p>"
        f"{_figures(drawn)}{_comparison_table(groups)}"
        f"<h3>What it means</h3>{meaning([*latency, *throughput])}"
        "<p class='quiet'>The timetable fixes how many requests are sent, so throughput differs between "
        "modes only if one cannot keep up. It is no measure of how much a nameserver could answer at "
        "most.</p>"
    )


def _visible(tables: Marts, scenario: Scenario) -> str:
    names = {run.run for run in scenario.runs}
    mode_of = {name: mode for mode in MODES for name in scenario.of_mode(mode)}
    quiet: dict[str, list[float]] = defaultdict(list)
    disturbed: dict[str, list[float]] = defaultdict(list)
    unsure = sorted(
        each.unsure_ns / 1e6 for each in tables.visible if each.run in names and each.unsure_ns is not None
    )
    for each in tables.visible:
        if each.run in names:
            side = quiet if each.steady else disturbed
            side[mode_of[each.run]].append(float("inf") if each.visible_ns is None else each.visible_ns / 1e6)
    label = "time since its sender began to send it"
    drawn = [plots.reached("In quiet times", quiet, label=label)] if quiet else []
    drawn += [plots.reached("Changes around a fault", disturbed, label=label)] if disturbed else []
    chosen = _chosen(
        scenario, [f"{key}.{p}" for key in ("visible", "acked", "visible_fault") for p in ("p50", "p99")]
    )
    groups = [
        (heading, _named(scenario, ((f"{key}.p50", "typical (p50)"), (f"{key}.p99", "slowest 1 % (p99)"))))
        for key, heading in (
            ("visible", "Visible on all nameservers, in quiet times"),
            ("acked", "Acknowledged by all nameservers, in quiet times"),
            ("visible_fault", "Visible on all nameservers, around a fault"),
        )
    ]
    hidden = Counter(
        mode_of[each.run] for each in tables.visible if each.run in names and each.visible_ns is None
    )
    never = "".join(
        f"<p>In {mode} mode {hidden[mode]} of {len(quiet[mode]) + len(disturbed[mode])} changes were not "
        "seen on all nameservers before polling gave up; they count as never seen.</p>"
        for mode in MODES
        if hidden[mode]
    )
    late = (
        "<p class='quiet'>Nameservers are asked again and again, so each time is found late by at most one "
        f"polling interval: {number(unsure[len(unsure) // 2])} ms in the middle of all changes.</p>"
        if unsure
        else ""
    )
    return (
        "<p>A broker announces a new topic to all nameservers. The clock starts when it begins to send the "
        "first registration, in both modes, and stops when the last nameserver is seen to answer with the "
        "new route. The curves show which share of the changes was visible everywhere after a given time. "
        "The table also says when all nameservers had acknowledged the registration.</p>"
        f"{_figures(drawn)}{_comparison_table(groups)}{never}{late}<h3>What it means</h3>{meaning(chosen)}"
    )


def _faults(tables: Marts, scenario: Scenario) -> str:
    names = {run.run for run in scenario.runs}
    windows = [window for window in tables.windows if window.run in names]
    if not windows:
        return "<p>No fault was injected in these runs.</p>"
    parts = [
        "<p>For each request it is known when it was due and how it ended. Failures, refusals, missing and "
        "wrong answers that follow each other within a second (or three times the interval of the requests) "
        "are one outage; it lasts from the first to the last request in it. Requests to a killed nameserver "
        "are counted apart from those to the surviving ones. A dot is one run, a bar the mean of the runs "
        "with its 95 % interval.</p>"
    ]
    for kind in FAULTS:
        if kind in {window.kind for window in windows}:
            parts.append(_fault(tables, scenario, kind, [each for each in windows if each.kind == kind]))
    parts.append(f"<h3>Why requests failed</h3>{_reasons(tables, scenario)}")
    return "".join(parts)


def _fault(tables: Marts, scenario: Scenario, kind: str, windows: Sequence[Window]) -> str:
    leaders = sum(window.role == "leader" for window in windows)
    raft = sum(window.run in scenario.of_mode("raft") for window in windows)
    what = f"In raft mode it was the leader in {leaders} of {runs(raft)}. " if leaders else ""
    down = _range((each.end_ns - each.begin_ns) / 1e9 for each in windows if each.end_ns is not None)
    took = f"From the kill until the restarted processes were ready: {down} s." if down else ""
    drawn: list[str] = []
    groups = []
    for part in PARTS:
        for name, title in (
            ("unavailable", "time without right answers"),
            ("recovery", "from the kill to the last failure"),
            ("failed", "failed requests until it had settled"),
        ):
            rows = _named(scenario, ((f"{name}.{kind}.{op}.{part}", OP_NAMES[op]) for op in OPS))
            groups.append((f"{where(kind, part)}: {title}", rows))
            if rows and name != "failed" and part != "brokers":
                drawn.append(plots.dots(f"{_title(where(kind, part))}: {title}", rows))
    lengths = [each for heading, rows in groups if "failed req" not in heading for _, each in rows]
    return (
        f"<h3>{_title(FAULT_NAMES[kind])} (kill -9)</h3><p>{what}{took}</p>{_figures(drawn)}"
        f"{_comparison_table(groups)}<h4>What it means</h4>{meaning(lengths, heading=FAULT_NAMES[kind])}"
        "<details><summary>How requests ended, from the kill until the system had settled</summary>"
        f"{_endings(tables, scenario, kind, windows)}</details>"
    )


def _endings(tables: Marts, scenario: Scenario, kind: str, windows: Sequence[Window]) -> str:
    mode_of = {name: mode for mode in MODES for name in scenario.of_mode(mode)}
    chosen = {(window.run, window.fault) for window in windows}
    counts: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    slowest: dict[tuple[str, str, str], int] = defaultdict(int)
    for row in tables.outcomes:
        if not row.steady and row.fault is not None and (row.run, row.fault) in chosen:
            place = (row.op, part_of(row.op, struck=row.struck), mode_of[row.run])
            counts[place][row.outcome] += row.n
            if row.outcome == "ok":
                slowest[place] = max(slowest[place], row.slowest_ns)
    rows = [
        (
            *(escape(_title(OP_NAMES[op])), escape(where(kind, part)), _mode(mode)),
            *(f"{counts[op, part, mode][outcome]:,}" for outcome in OUTCOMES),
            quantity(slowest[op, part, mode] / 1e6, "ms"),
        )
        for op in OPS
        for part in PARTS
        for mode in MODES
        if (op, part, mode) in counts
    ]
    return _table(("", "", "", *map(_title, OUTCOMES), "Slowest ok"), rows)


def _reasons(tables: Marts, scenario: Scenario) -> str:
    mode_of = {name: mode for mode in MODES for name in scenario.of_mode(mode)}
    counts: Counter[tuple[str, str, str, str, str]] = Counter()
    for row in tables.reasons:
        if row.run in mode_of:
            code = "" if row.code is None else str(row.code)
            counts[mode_of[row.run], OP_NAMES.get(row.op, row.op), row.outcome, code, row.remark or ""] += (
                row.n
            )
    if not counts:
        return "<p>No request failed in any run.</p>"
    rows = [
        (_mode(mode), escape(op), escape(outcome), escape(code), f"<code>{escape(remark)}</code>", f"{n:,}")
        for (mode, op, outcome, code, remark), n in counts.most_common(_REASONS_SHOWN)
    ]
    rest = len(counts) - len(rows)
    more = f"<p class='quiet'>{rest} rarer reasons are in marts/failure_reasons.csv.</p>" if rest > 0 else ""
    return (
        _table(("Mode", "Request", "Outcome", "Code", "Remark (numbers as #)", "Count"), rows, kind="reasons")
        + more
    )


def _sends(tables: Marts, scenario: Scenario) -> str:
    chosen = _chosen(scenario, ["sends.failed", "sends.unknown"])
    if not chosen:
        return "<p>No messages were sent in these runs.</p>"
    mode_of = {name: mode for mode in MODES for name in scenario.of_mode(mode)}
    counts: dict[str, Counter[str]] = {mode: Counter() for mode in MODES}
    for row in tables.outcomes:
        if row.op == "send" and row.run in mode_of:
            counts[mode_of[row.run]][row.outcome] += row.n
    rows = [
        (_mode(mode), f"{counts[mode].total():,}", *(f"{counts[mode][outcome]:,}" for outcome in OUTCOMES))
        for mode in MODES
        if counts[mode].total()
    ]
    names = {"sends.failed": "failed for certain", "sends.unknown": "unknown outcome"}
    drawn = [plots.dots("Of 10,000 sends", [(names[each.key], each) for each in chosen])]
    return (
        "<p>Producers send through the brokers all the time, faults included. They keep the last route they "
        "saw, so a nameserver's death need not fail a send; this counts whether it did. A send without an "
        "answer is not a failed one: the message may be stored. Both are counted apart, over the whole "
        f"run.</p>{_figures(drawn)}{_table(('Mode', 'Sends', *map(_title, OUTCOMES)), rows)}"
        f"{_comparison_table([('', [(each.label, each) for each in chosen])])}<h3>What it "
        f"means</h3>{meaning(chosen)}"
    )


def _cost(tables: Marts, scenario: Scenario) -> str:
    chosen = _chosen(
        scenario,
        [f"{what}.{role}" for role in ("nameserver", "broker", "generator") for what in ("cpu", "rss")],
    )
    if not chosen:
        return "<p>No process samples were taken in these runs.</p>"
    names = {"nameserver": "per nameserver", "broker": "per broker", "generator": "load generator"}
    cpu = [(names[each.key.partition(".")[2]], each) for each in chosen if each.key.startswith("cpu.")]
    rss = [(names[each.key.partition(".")[2]], each) for each in chosen if each.key.startswith("rss.")]
    generator = [row for row in cpu if row[1].key == "cpu.generator"]
    servers = [row for row in cpu if row[1].key != "cpu.generator"]
    drawn = [plots.dots("CPU, % of one core", servers)] if servers else []
    drawn += [plots.dots("Memory, peak resident size", rss)] if rss else []
    if generator:
        drawn.append(
            plots.dots(
                "CPU of the load generator; dashed: its limit", generator, limit=plots.generator_limit()
            )
        )
    mode_of = {name: mode for mode in MODES for name in scenario.of_mode(mode)}
    each_one: dict[tuple[str, str, int], list[tuple[float | None, int]]] = defaultdict(list)
    for cost in tables.costs:
        if cost.run in mode_of and cost.role in names:
            each_one[cost.role, mode_of[cost.run], cost.index].append((cost.cores, cost.rss_bytes_max))
    rows = [
        (
            f"{escape(role)} {index}",
            _mode(mode),
            _span([100 * cores for cores, _ in used if cores is not None], " %"),
            _span([rss / 2**20 for _, rss in used], " MiB"),
        )
        for (role, mode, index), used in sorted(
            each_one.items(), key=lambda item: (item[0][0], item[0][2], item[0][1])
        )
    ]
    return (
        "<p>User and system time of each process while measuring, as a share of one core, and the most "
        "memory it had. A nameserver that was killed and restarted counts for the time it lived. The load "
        f"generator is measured too: above {GENERATOR_CORES_MAX:.0%} of a core its own queue becomes part of "
        "the latencies, and the run is flagged.</p>"
        f"{_figures(drawn)}{_comparison_table([('', [(each.label, each) for each in chosen])])}"
        f"<h3>What it means</h3>{meaning(chosen)}"
        "<details><summary>Each process: lowest, middle and highest run</summary>"
        f"{_table(('Process', 'Mode', 'CPU', 'Memory'), rows)}</details>"
    )


def _quality(tables: Marts, scenarios: Sequence[Scenario]) -> str:
    used = sum(len(scenario.runs) for scenario in scenarios)
    lines = sum(file.lines for file in tables.files)
    bad = sum(file.bad for file in tables.files)
    text = (
        f"<p>{runs(len(tables.runs))} found, {used} used. {lines:,} lines in "
        f"{runs(len(tables.files), 'file')}, {bad:,} of them damaged. A killed process may leave one cut "
        "line in each of its files; a file with more, a run that was never completed, or one that its "
        "harness voided is left out of every figure.</p>"
    )
    left_out = [(escape(run.run), escape(run.left_out)) for run in tables.runs if run.left_out]
    text += _table(("Left out", "Why"), left_out, kind="text") if left_out else "<p>No run was left out.</p>"
    damaged = [
        (escape(file.run), escape(file.file), f"{file.lines:,}", f"{file.bad:,}")
        for file in tables.files
        if file.bad
    ]
    if damaged:
        text += _table(("Run", "File with damaged lines", "Lines", "Damaged"), damaged)
    flagged = flagged_generators(tables)
    if flagged:
        rows = [(escape(run), f"{cores:.0%}") for run, cores in flagged.items()]
        text += "<h3>Flagged: the generator was busy</h3>" + _table(("Run", "Of one core"), rows)
    else:
        text += f"<p>No load generator used more than {GENERATOR_CORES_MAX:.0%} of a core.</p>"
    late = [row for row in tables.percentiles if row.measure == "lateness"]
    if late:
        worst = max(late, key=lambda row: row.p99_ns)
        text += (
            f"<p>Requests left the generator late by at most {number(worst.p99_ns / 1e6)} ms in 99 of 100 "
            f"cases (worst: {escape(OP_NAMES.get(worst.op, worst.op))} in run {escape(worst.run)}). Latency "
            "contains this, service time does not.</p>"
        )
    compared = sum(
        comparison.verdict in ("none", *MODES)
        for scenario in scenarios
        for comparison in scenario.comparisons.values()
    )
    if compared:
        text += (
            f"<p>{compared} differences were tested at 95 %. About {max(round(compared / 20), 1)} of them "
            "would appear by chance if the modes did not differ at all: believe a pattern rather than a "
            "single figure.</p>"
        )
    return text


def _terms() -> str:
    return (
        "<dl>" + "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in _TERMS) + "</dl>"
    )


def _appendix(tables: Marts) -> str:
    rows = []
    for run in tables.runs:
        m = run.manifest
        if m is None:
            rows.append((escape(run.run), *[""] * 6, "left out"))
            continue
        rows.append(
            (
                *(escape(run.run), str(m.pair), "first" if m.order_in_pair == 0 else "second", str(m.seed)),
                *(escape(m.durability or "none"), escape(m.started_at), escape(m.commit)),
                "left out" if run.left_out else "used",
            )
        )
    manifests = [run.manifest for run in tables.runs if run.manifest is not None]
    text = _table(
        ("Run", "Pair", "In pair", "Seed", "Durability", "Started", "Commit", ""), rows, kind="text"
    )
    facts: list[tuple[str, str]] = []
    for title, values in (
        ("Machine", [_machine(m) for m in manifests]),
        ("Profile", [m.profile for m in manifests]),
        ("Workload", [_pairs(m.workload) for m in manifests]),
        ("Timers in ms, as used", [_pairs(m.timers_ms) for m in manifests]),
        ("Settling time after a fault", [f"{m.settle_ms} ms" for m in manifests]),
        ("Versions", [_pairs(m.versions) for m in manifests]),
        ("Command", [shlex.join(m.command) for m in manifests]),
    ):
        different = list(dict.fromkeys(values))
        body = "<br>".join(escape(value) for value in different)
        facts.append((title, f"<code>{body}</code>" if title == "Command" else body))
    text += _table(("", ""), facts, kind="text facts")
    return text + (
        "<p>The same report from the same run folders: <code>mqbench report RUN_FOLDER... --out DIR</code>, "
        "or <code>spark-submit --master URL bench/report/job.py RUN_FOLDER... --out DIR</code> on a cluster. "
        "All tables lie beside this page in <code>marts/</code> as CSV and Parquet; "
        "<code>marts/comparisons.csv</code> holds every figure of this page with its interval.</p>"
    )


def _machine(manifest: Manifest) -> str:
    machine = manifest.machine
    return (
        f"{machine.cpu}, {machine.cores} cores, {number(machine.memory_bytes / 2**30)} GiB, {machine.system}"
    )


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _chosen(scenario: Scenario, keys: Iterable[str]) -> list[Comparison]:
    return [scenario.comparisons[key] for key in keys if key in scenario.comparisons]


def _comparison_table(groups: Iterable[tuple[str, Sequence[tuple[str, Comparison]]]]) -> str:
    """Return both modes and their difference, in groups with a heading each; empty groups are left out."""
    body = ""
    for heading, members in groups:
        if members and heading:
            body += f'<tr class="group"><th colspan="5">{escape(_title(heading))}</th></tr>'
        for name, each in members:
            cells = (
                escape(_title(name)),
                with_interval(each.independent, each.unit),
                with_interval(each.raft, each.unit),
                difference_cell(each),
                verdict_cell(each),
            )
            body += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    heads = ("", _mode("independent"), _mode("raft"), "Raft minus independent", "Result")
    head = "".join(f"<th>{each}</th>" for each in heads)
    table = f'<table class="compare"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>' if body else ""


def _named(scenario: Scenario, names: Iterable[tuple[str, str]]) -> list[tuple[str, Comparison]]:
    """Return (name, comparison) of those (key, name) that were measured."""
    return [(name, scenario.comparisons[key]) for key, name in names if key in scenario.comparisons]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "") -> str:
    """Return a table; cells and heads are HTML already."""
    head = "".join(f"<th>{each}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    top = f"<thead><tr>{head}</tr></thead>" if any(heads) else ""
    return f'<div class="scroll"><table class="{kind}">{top}<tbody>{body}</tbody></table></div>'


def _figures(drawn: Sequence[str]) -> str:
    return (
        '<div class="figures">' + "".join(f"<figure>{svg}</figure>" for svg in drawn) + "</div>"
        if drawn
        else ""
    )


def _section(anchor: str, title: str, body: str) -> str:
    return f'<section id="{escape(anchor)}"><h2>{escape(title)}</h2>{body}</section>'


def _mode(mode: str) -> str:
    return f'<span class="mode {mode}">{mode}</span>'


def _title(text: str) -> str:
    return text[:1].upper() + text[1:]


def _range(values: Iterable[float]) -> str:
    """Return ``30``, or ``28 to 31`` if the values differ; empty if there are none."""
    rounded = sorted({round(value, 1) for value in values})
    if not rounded:
        return ""
    return plain(rounded[0]) if len(rounded) == 1 else f"{plain(rounded[0])} to {plain(rounded[-1])}"


def _span(values: Sequence[float], unit: str) -> str:
    if not values:
        return '<span class="none">not measured</span>'
    ordered = sorted(values)
    return " / ".join(number(each) for each in (ordered[0], ordered[len(ordered) // 2], ordered[-1])) + unit
