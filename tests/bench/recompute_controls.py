"""Compute the tables of docs/results/controls.md from the raw events of the profile ``controls``.

``python -m tests.bench.recompute_controls RESULTS values.csv`` prints the rows of the tables. RESULTS is a
folder into which the archives of docs/results/controls were unpacked.

Times after a restart come from the events. The counts of measures come from values.csv, which recompute.py
checks. This file imports no code of the benchmark.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from tests.bench.recompute import Key, Life, Run, figures

AGAIN = "-again"
"""Ending of the name of a design that runs a second time in each round."""
DESIGNS = {"independent": "independent", "raft": "raft", "zookeeper": "ZooKeeper"}
OURS, THEIRS = "independent", "apache"
RESTARTS = {"one-empty": "one restarts without data", "all": "all three restart"}

Rounds = dict[int, float]
"""Values of one design, by round."""
Places = dict[tuple[str, str, str], dict[str, Rounds]]
"""Values of all measures. The first key is (scenario, case, measure), and the second key is the design."""


def lives(results: Path) -> Iterator[Life]:
    by_life: dict[object, list[Run]] = defaultdict(list)
    for path in sorted(results.glob("runs/series=equal/*/*/*/manifest.json")):
        run = Run(path.parent)
        if run.manifest["void"] is None and run.manifest["ended_ns"] is not None:
            by_life[run.life].append(run)
    return map(Life, by_life.values())


def after_restarts(results: Path) -> Places:
    """Return the times in s of restarts, by scenario, case and name, and then by design.

    The time "answers" lasts from the fault until the restarted servers answer. ``newcomer_right_s`` and
    ``announce_again_s`` begin when the restarted servers answer. ``disagree_s`` is how long the nameservers
    disagree.
    """
    found: Places = defaultdict(lambda: defaultdict(dict))
    known = figures(results)
    for life in lives(results):
        for run in life.runs:
            for fault in run.faults if run.scenario == "nameserver-restarts" else ():
                answers_s = (fault["end_ns"] - fault["begin_ns"]) / 1e9
                times = {"answers": answers_s}
                for measure in ("newcomer_right_s", "announce_again_s"):
                    key: Key = run.scenario, fault["case"], measure, run.arm, run.block
                    if key in known:
                        times[measure] = known[key] - answers_s
                times["disagree_s"] = known[run.scenario, fault["case"], "disagree_s", run.arm, run.block]
                for name, value in times.items():
                    found[run.scenario, fault["case"], name][run.arm][run.block] = value
    return found


def measured(values: Path) -> Places:
    found: Places = defaultdict(lambda: defaultdict(dict))
    with values.open(newline="") as file:
        for figure in csv.DictReader(file):
            place = figure["scenario"], figure["case"], figure["measure"]
            found[place][figure["arm"]][int(figure["block"])] = float(figure["value"])
    return found


def compared(places: Places, one: str, other: str) -> dict[str, list[tuple[str, str, str]]]:
    """Sort the measures that both designs have in the same rounds into four groups.

    - "0": both designs have 0 in every round.
    - "larger": the first design (``one``) has the larger value in every round.
    - "smaller": the first design has the smaller value in every round.
    - "neither": all other measures.
    """
    found: dict[str, list[tuple[str, str, str]]] = {"0": [], "larger": [], "smaller": [], "neither": []}
    for place, by_design in sorted(places.items()):
        mine, theirs = by_design.get(one, {}), by_design.get(other, {})
        if not mine or mine.keys() != theirs.keys():
            continue
        if not any(mine.values()) and not any(theirs.values()):
            found["0"].append(place)
        elif all(mine[number] > theirs[number] for number in mine):
            found["larger"].append(place)
        elif all(mine[number] < theirs[number] for number in mine):
            found["smaller"].append(place)
        else:
            found["neither"].append(place)
    return found


def seconds(value: float) -> str:
    if math.isinf(value):
        return "not seen"
    return f"{value:.2f}" if abs(value) < 1 else f"{value:.1f}"


def spread(values: list[float], form: Callable[[float], str] = seconds) -> str:
    return f"{form(median(values))} ({form(min(values))} to {form(max(values))})"


def tables(results: Path, values: Path) -> list[str]:
    """Return the rows of both tables as Markdown."""
    places = measured(values)
    of_restarts = after_restarts(results)
    rows = []
    pairs = {f"{name} and itself": (design, design + AGAIN) for design, name in DESIGNS.items()}
    for label, pair in {**pairs, "independent and RocketMQ's own": (OURS, THEIRS)}.items():
        equal = {place: value for place, value in places.items() if place[0] != "idle-300"}
        found = compared(equal, *pair)
        counts = [sum(map(len, found.values())), *(len(found[name]) for name in ("0", "neither"))]
        differ = len(found["larger"]) + len(found["smaller"])
        rows.append("| " + " | ".join([label, *map(str, counts), str(differ)]) + " |")

    def row(label: str, found: dict[str, Rounds], form: Callable[[float], str] = seconds) -> str:
        ours, theirs = found[OURS], found[THEIRS]
        more = [theirs[number] - ours[number] for number in sorted(ours)]
        cells = [spread(list(ours.values()), form), spread(list(theirs.values()), form), spread(more, form)]
        return "| " + " | ".join([label, *cells]) + " |"

    for case, label in RESTARTS.items():
        titles = {
            "answers": f"{label}: answers again after",
            "newcomer_right_s": "from then on: new clients get right routes after",
            "announce_again_s": "from then on: brokers can register after",
            "disagree_s": "nameservers list different brokers for",
        }
        rows += [
            row(title, of_restarts["nameserver-restarts", case, name])
            for name, title in titles.items()
            if (case, name) != ("one-empty", "announce_again_s")
        ]
    rows.append(
        row("resident memory of three servers, in MiB", places["quiet", "", "rss_mib"], "{:.0f}".format)
    )
    rows.append(
        row(
            "300 idle brokers: processor time of three servers, s a minute",
            places["idle-300", "", "cpu_s_per_min"],
        )
    )
    return rows


def main(results: Path, values: Path) -> None:
    print("\n".join(tables(results, values)))
    places = measured(values)
    for one, other in [*((design, design + AGAIN) for design in DESIGNS), (OURS, THEIRS)]:
        found = compared(places, one, other)
        for name in ("larger", "smaller"):
            for place in found[name]:
                both = [spread(list(places[place][design].values())) for design in (one, other)]
                print(f"{one} {name} than {other}: {' '.join(filter(None, place))}: {both[0]} and {both[1]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
