"""Program that writes docs/why-not-zookeeper.md in both languages.

The command ``python -m tests.tidy.article`` fills two templates with the figures of the published run.

A template has placeholders of the form ``{{series:scenario/case measure design}}``. "-" stands for no case.
The default series is "equal" (equal timers). In place of a placeholder, the article has the median of the
rounds with its unit. Two series are special:

- "own": the time that the run's page gives for RocketMQ's own timers.
- "scale": the scenario is the name of a point of ``mqbench scale``. In the name, a hyphen replaces each
  character that is no letter or digit.
"""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PUBLISHED: Final = DOCS / "results" / "full"
ARTICLES: Final = ("why-not-zookeeper.md", "why-not-zookeeper.zh-CN.md")
PLACEHOLDER: Final = re.compile(r"\{\{(?:([a-z-]+):)?([a-z0-9-]+)/([a-z0-9-]+) ([a-z0-9_]+) ([a-z]+)\}\}")
_UNITS: Final = {
    "_ms_p50": "ms",
    "_ms_last": "ms",
    "_ms": "ms",
    "_mb": "MB",
    "cpu_s_per_min": "s",
    "_mib": "MiB",
    "_kib_per_s": "KiB/s",
    "_s": "s",
}

Place = tuple[str, ...]
"""The place of a figure: series, scenario, case ("" if there is none), measure, design."""


def published() -> tuple[dict[Place, list[tuple[float, float]]], dict[Place, tuple[float, float]]]:
    """Return the published figures.

    Returns:
        Two mappings by :data:`Place`. The first has for each round the value, and the value's floor in
        seconds. The run may have recorded a time below the floor as 0. The second mapping has the recovery
        times with RocketMQ's own timers (series "own"), each as (least, most).
    """
    rounds: dict[Place, list[tuple[float, float]]] = defaultdict(list)
    with (PUBLISHED / "values.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            place = row["series"], row["scenario"], row["case"], row["measure"], row["arm"]
            rounds[place].append((float(row["value"]), float(row["floor"])))
    with (PUBLISHED / "scale-figures.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            point = re.sub("[^a-z0-9]", "-", row["point"].lower())
            rounds["scale", point, "", row["figure"], row["design"]].append((float(row["value"]), 0.0))
    with (PUBLISHED / "undivided.csv").open(newline="") as file:
        own: dict[Place, tuple[float, float]] = {
            ("own", row["scenario"], row["case"], row["measure"], row["arm"]): (
                float(row["least"] or math.inf),
                float(row["most"] or math.inf),
            )
            for row in csv.DictReader(file)
        }
    return rounds, own


def written(template: str, *, chinese: bool) -> str:
    """Return an article: the template with all placeholders replaced.

    Raises:
        KeyError: If the published run has no such figure.
    """
    rounds, own = published()

    def figure(match: re.Match[str]) -> str:
        series, scenario, case, measure, design = match.groups()
        place = series or "equal", scenario, "" if case == "-" else case, measure, design
        if place in own:
            least, most = own[place]
            assert least == most, f"{match.group()}: the page has only bounds"
            return figure_of([(least, 0.0)], measure, chinese=chinese)
        if place not in rounds:
            raise KeyError(match.group())
        return figure_of(rounds[place], measure, chinese=chinese)

    return PLACEHOLDER.sub(figure, template)


def figure_of(rounds: Sequence[tuple[float, float]], measure: str, *, chinese: bool) -> str:
    """Return the median of the values with its unit.

    Args:
        rounds: The value of each round, and its floor in seconds. The run may have recorded a time below the
            floor as 0.
        measure: Name of the measure. Its ending decides the unit.
        chinese: True to write words in Chinese, False to write them in English.
    """
    unit = next((unit for end, unit in _UNITS.items() if measure.endswith(end)), "")
    value, floor = median(value for value, _ in rounds), max(floor for _, floor in rounds)
    if value < floor and unit == "s":
        below = f"{floor * 1000:.0f} ms"
        return f"不到 {below}" if chinese else f"less than {below}"
    if math.isinf(value):
        return "从未" if chinese else "never"
    digits = 0 if value >= 10 or not unit or not value else 1 if value >= 1 or unit == "ms" else 2
    return f"{value:.{digits}f} {unit}".strip()


def main() -> None:
    for name in ARTICLES:
        template = (DOCS / "article" / name).read_text(encoding="utf-8")
        (DOCS / name).write_text(written(template, chinese="zh" in name), encoding="utf-8")


if __name__ == "__main__":
    main()
