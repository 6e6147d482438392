"""Compute the figures of a report's first screen again from raw events.

``python tests/bench/recompute.py RESULTS [values.csv]``

This file is plain Python and imports no code of the benchmark. So it cannot repeat a mistake of the report's
code. RESULTS is a result folder, with ``runs/series=.../scenario=.../block=.../arm=.../``.

values.csv is the report's ``marts/values.csv``. If it is given, each computed figure is compared with the
figure in values.csv, and the exit code is 1 if any figure differs.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

Row = dict[str, Any]
Key = tuple[str, str, str, str, int]
"""Key of a figure: scenario, case ("" if the measure has no cases), measure, arm (a design) and round."""

SERIES = ("equal", "rest")
"""Names of the two series of runs that contain the headline measures. No scenario is in both series."""
WAITED = 250_000_000
PAUSE = 20_000_000
"""Pause in ns between two readings of the route lists that a server shows."""
NEVER = 2**62
TOLERANCE = 0.01
"""Allowed relative difference between a figure of this file and the same figure of the report.

The report's medians come from buckets that are 0.8 % wide. All other figures of the report are exact.
"""


class Run:
    """One run folder. All instants are in ns, as in the raw events."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: Row = json.loads((folder / "manifest.json").read_text())
        self.begin, self.end = self.manifest["measure_begin_ns"], self.manifest["measure_end_ns"]
        self.scenario, self.arm, self.block = (self.manifest[name] for name in ("scenario", "arm", "block"))
        self.life = (self.manifest["series"], self.block, self.arm, self.manifest["session"])
        self.faults = sorted(self.rows("faults"), key=lambda row: int(row["n"]))

    def rows(self, kind: str) -> list[Row]:
        return [
            json.loads(line)
            for path in sorted(self.folder.glob(f"{kind}-*.jsonl"))
            for line in path.read_bytes().splitlines()
        ]

    def fault_of(self, due: int) -> Row | None:
        return next((each for each in self.faults if each["from_ns"] <= due < each["until_ns"]), None)


class Life:
    """All scenarios that ran on one cluster, in order of time.

    Facts about brokers, and route lists that observers have seen, stay valid in the next scenario.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        self.runs = sorted(runs, key=lambda run: int(run.begin))
        self.spans = list(_spans(row for run in self.runs for row in run.rows("views")))
        self.disagreements = {
            "brokers": _disagreements(self.spans, _lists_differ),
            "queues": _disagreements(self.spans, _counts_differ),
        }
        self.holders: dict[str, set[int]] = defaultdict(set)
        truth = [row for run in self.runs for row in run.rows("truth")]
        self.ops = {id(run): run.rows("ops") for run in self.runs}
        for run in self.runs:
            for op in self.ops[id(run)]:
                op["slot"] = run.begin, run.end
                fault = run.fault_of(op["due_ns"])
                op["struck"] = fault["begin_ns"] if fault is not None else NEVER
                if op.get("brokers") is not None:
                    self.holders[op["topic"]] |= set(op["brokers"])
        self.begun: dict[tuple[str, int], int] = {}
        self.acked: dict[tuple[str, int], int] = {}
        for row in truth:
            if row["subject"] == "topic":
                times = self.begun if row["what"] == "changing" else self.acked
                key = row["topic"], row["version"]
                times[key] = min(times.get(key, NEVER), row["t_ns"])
        self.gaps = [*self._gaps_of_everybody(truth), *self._gaps_of_sides()]

    def _gaps_of_everybody(self, truth: list[Row]) -> Iterator[tuple[int, str | None, int, int, int]]:
        """Yield a tuple for each time span in which a broker was absent.

        The fields of the tuple are:

        - number of the broker;
        - side of the clients that cannot reach the broker, or None if no client can reach it;
        - three instants in ns, at which the broker was lost, its process started again, and the broker was
          back.
        """
        starts = [
            (row["index"], row["t_ns"])
            for run in self.runs
            for row in run.rows("processes")
            if row["role"] == "broker" and row.get("event") == "start"
        ]
        for gone, back in (("down", "up"), ("cut", "healed")):
            facts: dict[int, list[tuple[int, str]]] = defaultdict(list)
            for row in truth:
                if row["subject"] == "broker" and row["what"] in (gone, back):
                    facts[row["broker"]].append((row["t_ns"], row["what"]))
            for broker, told in facts.items():
                told.sort()
                for place, (since, what) in enumerate(told):
                    if what == gone:
                        until = told[place + 1][0] if place + 1 < len(told) else NEVER
                        within = [at for index, at in starts if index == broker and since < at < until]
                        yield broker, None, since, min(within) if within and gone == "down" else until, until

    def _gaps_of_sides(self) -> Iterator[tuple[int, str | None, int, int, int]]:
        for run in self.runs:
            sims = {100 + n: f"side-{'ab'[n % 2]}" for n in range(run.manifest["sim_brokers"])}
            places = {n: f"broker-{n}" for n in range(run.manifest["brokers"])} | sims
            for fault in run.faults:
                apart = {frozenset(pair) for pair in fault.get("cut") or []}
                back = [fault[name] for name in ("healed_ns", "end_ns") if fault.get(name) is not None]
                for broker, place in places.items():
                    for side in ("side-a", "side-b"):
                        if place not in fault["targets"] and frozenset((side, place)) in apart:
                            healed, done = (min(back), max(back)) if back else (NEVER, NEVER)
                            yield broker, side, fault["begin_ns"], healed, done

    def verdict(self, op: Row) -> tuple[str, int]:
        """Return the verdict on an answer, and the time in ns for which the answer had been outdated."""
        sent, done = op["sent_ns"], op["done_ns"]
        # Use only the absences of brokers that overlap with the scenario of this operation.
        begin, end = op["slot"]
        gaps = [
            gap
            for gap in self.gaps
            if (gap[1] is None or gap[1] == op.get("client_side")) and gap[2] < end and gap[4] > begin
        ]
        if op["op"] not in ("lookup", "newcomer"):
            return ("right" if op["outcome"] == "ok" else "failed"), 0
        if op["outcome"] not in ("ok", "absent"):
            return "failed", 0
        listed = set(op.get("brokers") or [])
        lacked = {
            broker
            for broker in self.holders[op["topic"]] - listed
            if not any(of == broker and since <= done and back > sent for of, _, since, _, back in gaps)
        }
        # An answer may lack a broker that has returned since this fault began. But a broker that an earlier
        # fault hit was listed again before this fault, so an answer without it is wrong.
        struck = op["struck"]
        came_back = {of for of, _, _, _, back in gaps if back <= sent and (sent < struck or back > struck)}
        if lacked - came_back:
            return "missing", 0
        if self.unreachable(op):
            return "ghost", 0
        if lacked:
            return "returning", 0
        topic, version = op["topic"], op.get("version")
        if op["outcome"] == "ok" and version is not None and (topic, version + 1) in self.begun:
            newer = [at for (of, number), at in self.acked.items() if of == topic and number > version]
            if newer and sent >= min(newer):
                return "stale", int(sent - min(newer))
        return "right", 0

    def unreachable(self, op: Row) -> bool:
        """Return True if a route lists a broker that the client of this operation could not reach."""
        return any(
            of in (op.get("brokers") or [])
            and (side is None or side == op.get("client_side"))
            and since <= op["sent_ns"]
            and started > op["done_ns"]
            for of, side, since, started, _ in self.gaps
        )


def _spans(views: Iterable[Row]) -> Iterator[Row]:
    """Yield the time spans in which an observer saw the same route list, computed from recorded changes.

    Only the earliest and the latest possible instant of each change are known. A span begins and ends in the
    middle between these two instants.
    """
    by_view: dict[tuple[str, int, str], list[Row]] = defaultdict(list)
    for row in views:
        by_view[row["observer"], row["index"], row["topic"]].append(row)
    for (observer, index, topic), rows in by_view.items():
        rows.sort(key=lambda row: int(row["seen_ns"]))
        for row, after in zip(rows, [*rows[1:], None], strict=True):
            if row["state"] == "end":
                continue
            is_open = after is None or after["state"] == "end"
            seen = row["seen_ns"]
            unseen_after = None if after is None else after.get("unseen_ns")
            still = seen if after is None else unseen_after if unseen_after is not None else after["seen_ns"]
            until = (
                seen if after is None else after["seen_ns"] if is_open else (still + after["seen_ns"]) // 2
            )
            unseen = row.get("unseen_ns")
            yield {
                "observer": observer,
                "index": index,
                "topic": topic,
                "state": row["state"],
                "brokers": sorted(row.get("brokers") or []),
                "version": row.get("version"),
                "unseen": seen if unseen is None else unseen,
                "since": ((seen if unseen is None else unseen) + seen) // 2,
                "seen": seen,
                "until": until,
                "still": still,
                "gone": seen if after is None else after["seen_ns"],
                "open": is_open,
            }


def _recovered(asked: list[tuple[int, int, str, int]]) -> float:
    """Return the time in s after the fault at which requests were right again, or infinity if never.

    Return 0 if the fault disturbed no request.

    Args:
        asked: A tuple for each request. Its first two fields are instants in ns since the fault: the request
            was due, and the request was done. Then come the verdict on the answer, and the time in ns for
            which the answer had been outdated.
    """
    disturbed = [
        due
        for due, done, verdict, behind in asked
        if verdict in ("missing", "ghost", "failed") or done - due > WAITED or behind > WAITED
    ]
    if not disturbed:
        return 0.0
    again = [done for _, done, verdict, _ in asked if verdict == "right" and done >= max(disturbed)]
    return max(min(again), 0) / 1e9 if again else math.inf


def _in_fault(run: Run, ops: Iterable[Row], fault: Row) -> list[Row]:
    return [
        op
        for op in ops
        if run.begin <= op["due_ns"] < run.end
        and run.fault_of(op["due_ns"]) is fault
        and (op["due_ns"] >= fault["begin_ns"] or op["done_ns"] > fault["begin_ns"])
    ]


def _registrations(ops: Iterable[Row]) -> list[Row]:
    """Join a broker's registrations at all servers at one instant into one operation.

    The operation ends when the first server accepts the registration.
    """
    groups: dict[tuple[int, int, int], list[Row]] = defaultdict(list)
    for op in ops:
        if op["op"] == "announce" and op.get("change") is not None:
            groups[op["user"], op["due_ns"], op["change"]].append(op)
    made = []
    for told in groups.values():
        accepted = [op["done_ns"] for op in told if op["outcome"] == "ok"]
        done = min(accepted) if accepted else max(op["done_ns"] for op in told)
        made.append({**told[0], "done_ns": done, "outcome": "ok" if accepted else "unknown"})
    return made


def _of_requests(life: Life, run: Run, fault: Row) -> Iterator[tuple[str, float]]:
    every = life.ops[id(run)]
    by_op: dict[str, list[Row]] = defaultdict(list)
    for op in _in_fault(run, every, fault):
        by_op[op["op"]].append(op)
    by_op["registration"] = _in_fault(run, _registrations(every), fault)

    def recovered(ops: list[Row]) -> float:
        since = fault["begin_ns"]
        return _recovered([(op["due_ns"] - since, op["done_ns"] - since, *life.verdict(op)) for op in ops])

    parted = fault["kind"] == "partition" and fault["case"] != "broker-nameserver"
    for kind, measure in (("lookup", "right_again"), ("registration", "announce_again")):
        for side in ("side-a", "side-b") if parted else (None,):
            mine = [each for each in by_op[kind] if side is None or each.get("client_side") == side]
            if mine:
                yield f"{measure}_{side.replace('-', '_')}_s" if side else f"{measure}_s", recovered(mine)
    servers = {op.get("target") for op in by_op["newcomer"]}
    if servers:
        each = {server: [op for op in by_op["newcomer"] if op.get("target") == server] for server in servers}
        yield "newcomer_right_s", max(map(recovered, each.values()))
        others = [ops for server, ops in each.items() if f"nameserver-{server}" not in fault["targets"]]
        if 0 < len(others) < len(each):
            yield "newcomer_others_right_s", max(map(recovered, others))
    if by_op["lookup"]:
        right = [op for op in by_op["lookup"] if life.verdict(op)[0] == "right"]
        slowest = max((op["done_ns"] - op["due_ns"] for op in right), default=math.inf)
        yield "slowest_lookup_s", slowest / 1e9
        routes = [op for op in by_op["lookup"] if op["outcome"] in ("ok", "absent")]
        yield "unreachable_lookups", sum(map(life.unreachable, routes))
        yield "missing_lookups", sum(life.verdict(op)[0] == "missing" for op in routes)
    for kind, measure in (("send", "failed_sends"), ("send_once", "failed_sends_once")):
        if by_op[kind]:
            yield measure, sum(each["outcome"] != "ok" for each in by_op[kind])


def _left_out(life: Life, fault: Row, observer: str) -> float | None:
    """Return the time in s after the fault until none of these observers listed a lost broker any more.

    Return None if none of them listed a lost broker after the fault.

    Args:
        observer: Kind of the observers: "nameserver" or "client".
    """
    gone = [int(name.rpartition("-")[2]) for name in fault["targets"] if name.startswith("broker-")]
    back = fault.get("healed_ns") or fault["until_ns"]
    times = [
        math.inf
        if span["open"] or span["until"] > fault["until_ns"]
        else max(span["until"] - fault["begin_ns"], 0) / 1e9
        for span in life.spans
        if span["observer"] == observer
        and set(gone) & set(span["brokers"])
        and span["seen"] < back
        and span["gone"] > fault["begin_ns"]
    ]
    return max(times) if times else None


Piece = tuple[int, int, int, int]
"""Time in which two nameservers gave different answers, as four instants in ns.

The instants are: earliest possible start, certain start, certain end, latest possible end.
"""


def _disagreements(spans: list[Row], differ: Callable[[Row, Row], bool]) -> dict[str, list[Piece]]:
    """Return, by topic, the times in which two nameservers certainly gave different answers."""
    by_topic: dict[str, list[Row]] = defaultdict(list)
    for span in spans:
        if span["observer"] == "nameserver" and span["state"] in ("routed", "absent"):
            by_topic[span["topic"]].append(span)
    found: dict[str, list[Piece]] = defaultdict(list)
    for topic, shown in by_topic.items():
        shown.sort(key=lambda span: int(span["seen"]))
        for place, one in enumerate(shown):
            for other in shown[place + 1 :]:
                if other["seen"] >= one["still"]:
                    break  # all later spans begin after this one, too
                end = min(one["still"], other["still"])
                if one["index"] != other["index"] and other["seen"] < end and differ(one, other):
                    unseen = max(one["unseen"], other["unseen"])
                    found[topic].append((unseen, other["seen"], end, min(one["gone"], other["gone"])))
    return found


def _disagreed(life: Life, fault: Row, about: str) -> float:
    """Return the time in s for which it is certain that two nameservers gave different answers."""
    return _covered(
        [
            (max(begin, fault["begin_ns"]), min(end, fault["until_ns"]))
            for pieces in life.disagreements[about].values()
            for _, begin, end, _ in pieces
        ]
    )


def _agreed(life: Life, fault: Row, about: str) -> float:
    """Return the time in s from the end of the fault until all nameservers gave the same answers.

    Return infinity if a disagreement lasted beyond the fault's window. Leave out disagreements that are
    shorter than the pause between two readings. Also leave out short disagreements about queues that began
    after the fault, because the harness changes the queues all the time.
    """
    latest = fault["healed_ns"]
    for pieces in life.disagreements[about].values():
        whole: list[tuple[int, int, int]] = []
        for unseen, begin, end, gone in sorted(pieces):
            before = whole.pop() if whole and unseen <= whole[-1][2] else (begin, end, gone)
            whole.append((min(before[0], begin), max(before[1], end), max(before[2], gone)))
        for begin, end, _ in whole:
            lasted = min(end, fault["until_ns"]) - begin
            is_ordinary = about == "queues" and begin >= fault["healed_ns"] and lasted <= WAITED
            if lasted < PAUSE or is_ordinary:
                continue
            if end >= fault["until_ns"]:
                return math.inf
            latest = max(latest, end)
    return float(latest - fault["healed_ns"]) / 1e9


def _unanswering(life: Life, fault: Row) -> float:
    """Return the time in s for which it is certain that at least one nameserver gave no answer."""
    pieces = [
        (max(span["seen"], fault["begin_ns"]), min(span["still"], fault["until_ns"]))
        for span in life.spans
        if span["observer"] == "nameserver" and span["state"] not in ("routed", "absent")
    ]
    return _covered(pieces)


def _covered(pieces: list[tuple[int, int]]) -> float:
    """Return the time in s that is covered by at least one of these intervals, given in ns."""
    total, known = 0, 0
    for begin, end in sorted(pieces):
        total += max(end - max(begin, known), 0)
        known = max(known, end)
    return total / 1e9


def _lists_differ(one: Row, other: Row) -> bool:
    return bool(one["brokers"] != other["brokers"])


def _counts_differ(one: Row, other: Row) -> bool:
    return None not in (one["version"], other["version"]) and one["version"] != other["version"]


def _known_to_clients(life: Life, run: Run) -> list[float]:
    """Return the time in ms from each change without a fault until all clients showed the change."""
    found = []
    for (topic, version), begun in life.begun.items():
        fault = run.fault_of(begun)
        is_quiet = fault is None and run.scenario in ("quiet", "staleness", "idle-300")
        is_before = fault is not None and begun < fault["begin_ns"]
        if not run.begin <= begun < run.end or not (is_quiet or is_before):
            continue
        shown: dict[int, list[int]] = defaultdict(list)
        for span in life.spans:
            if span["observer"] == "client" and span["topic"] == topic and span["version"] is not None:
                shown[span["index"]] += [span["since"]] if span["version"] >= version else []
        if shown:
            last = max(min(times, default=NEVER) for times in shown.values())
            found.append(math.inf if last == NEVER else max(last - begun, 0) / 1e6)
    return found


def _costs(run: Run) -> Iterator[tuple[str, float]]:
    used: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in run.rows("processes"):
        if row["role"] == "nameserver" and run.begin <= row["t_ns"] <= run.end:
            used[row["index"], row["pid"]].append(row)
    if used:
        times = [row["t_ns"] for rows in used.values() for row in rows]
        cpu = [[row["cpu_ns"] for row in rows] for rows in used.values()]
        if max(times) > min(times):
            spent = sum(max(each) - min(each) for each in cpu)
            yield "cpu_s_per_min", spent / 1e9 / ((max(times) - min(times)) / 60e9)
        most: dict[int, int] = defaultdict(int)
        for (index, _), rows in used.items():
            most[index] = max(most[index], *(row["rss_bytes"] for row in rows))
        yield "rss_mib", sum(most.values()) / 2**20
    links: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in run.rows("links"):
        if row["acceptor"].startswith("nameserver-") and run.begin <= row["t_ns"] <= run.end:
            links[row["dialler"], row["acceptor"]].append(row)
    rates = []
    for rows in links.values():
        times = [row["t_ns"] for row in rows]
        both = [(row["forward_bytes"], row["back_bytes"]) for row in rows]
        grown = sum(max(each) - min(each) for each in zip(*both, strict=True))
        if max(times) > min(times):
            rates.append(grown / 1024 / ((max(times) - min(times)) / 1e9))
    if rates:
        yield "network_kib_per_s", sum(rates)
    disks: dict[int, list[Row]] = defaultdict(list)
    for row in run.rows("disks"):
        if row["role"] == "nameserver":
            disks[row["index"]].append(row)
    ends = [(rows[0], rows[-1]) for rows in (sorted(each, key=_instant) for each in disks.values())]
    spans = [last["t_ns"] - first["t_ns"] for first, last in ends]
    if spans and max(spans):
        minutes = max(spans) / 60e9
        for name, measure, size in (
            ("written_bytes", "written_mib_per_min", 2**20),
            ("syncs", "syncs_per_min", 1),
        ):
            grown = [last[name] - first[name] for first, last in ends]
            if min(grown) >= 0:  # a server whose file was replaced has lost count
                yield measure, sum(grown) / size / minutes


def _instant(row: Row) -> int:
    return int(row["t_ns"])


def figures(results: Path) -> dict[Key, float]:
    """Return the value of each figure in each round. A round runs every design once, with the same seed.

    If a server of a design ended by itself in a run, all figures of this run are infinite.
    """
    by_life: dict[object, list[Run]] = defaultdict(list)
    for series in SERIES:
        for path in results.glob(f"runs/series={series}/*/*/*/manifest.json"):
            run = Run(path.parent)
            if run.manifest["void"] is None and run.manifest["ended_ns"] is not None:
                by_life[run.life].append(run)
    found: dict[Key, float] = {}
    known: dict[tuple[str, int], list[float]] = defaultdict(list)
    for life in map(Life, by_life.values()):
        for run in life.runs:
            for case, measure, value in _of_run(life, run):
                found[run.scenario, case, measure, run.arm, run.block] = value
            if run.scenario not in ("staleness", "idle-300"):
                known[run.arm, run.block] += _known_to_clients(life, run)
    for (arm, block), times in known.items():
        if len(times) >= 20:
            middle = sorted(times)[math.ceil(len(times) / 2) - 1]
            found["quiet", "", "visible_clients_ms_p50", arm, block] = middle
    lost = {
        (run.scenario, run.arm, run.block)
        for runs in by_life.values()
        for run in runs
        if run.manifest["lost"] is not None
    }
    return {key: math.inf if (key[0], *key[3:]) in lost else value for key, value in found.items()}


def _of_run(life: Life, run: Run) -> Iterator[tuple[str, str, float]]:
    if run.scenario in ("quiet", "rest", "idle-300"):
        yield from (("", measure, value) for measure, value in _costs(run))
    watched = any(span["observer"] == "nameserver" for span in life.spans)
    for fault in run.faults:
        case = fault["case"]
        yield from ((case, measure, value) for measure, value in _of_requests(life, run, fault))
        for observer in ("nameserver", "client"):
            left = None if fault["kind"] == "partition" else _left_out(life, fault, observer)
            if left is not None:
                yield case, f"left_by_{observer}s_s", left
        if watched:
            for about, of_what in (("brokers", ""), ("queues", "_queues")):
                yield case, f"disagree{of_what}_s", _disagreed(life, fault, about)
                if fault.get("healed_ns") is not None:
                    yield case, f"agree{of_what}_s", _agreed(life, fault, about)
            yield case, "unanswering_s", _unanswering(life, fault)


def differences(found: dict[Key, float], values: Path) -> tuple[int, list[str]]:
    """Compare figures with a report's figures. A figure that the report lacks is a difference, too.

    The same measure in several arms and rounds counts as one measure. Each case of a measure counts
    separately.

    Returns:
        The number of compared measures, and a line of text for each difference.
    """
    seen: set[Key] = set()
    told = []
    with values.open(newline="") as file:
        for row in csv.DictReader(file):
            key = row["scenario"], row["case"], row["measure"], row["arm"], int(row["block"])
            if row["series"] not in SERIES or key not in found:
                continue
            seen.add(key)
            mine, said = found[key], float(row["value"])
            if mine != said and not math.isclose(mine, said, rel_tol=TOLERANCE, abs_tol=1e-6):
                told.append(f"{' '.join(map(str, key))}: the report says {said:g}, the events {mine:g}")
    told += [f"{' '.join(map(str, key))}: the report has no value" for key in found if key not in seen]
    return len({key[:3] for key in seen}), told


def main(results: str, values: str | None = None) -> int:
    """Print the median of each figure for each design. If `values` is given, compare all figures with it."""
    found = figures(Path(results))
    rounds: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for (scenario, case, measure, arm, _), value in found.items():
        rounds[scenario, case, measure, arm].append(value)
    for place, each in sorted(rounds.items()):
        print(f"{' '.join(filter(None, place))}: {median(each):g} ({len(each)} rounds)")
    if values is None:
        return 0
    compared, told = differences(found, Path(values))
    print(f"{compared} figures compared, {len(told)} differ")
    print("\n".join(told))
    return 1 if told or not compared else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
