"""A summary of the results of many seeds.

The summary also counts the faults, changes and calls of all seeds. These counts show how strong the evidence
is if no seed failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from .scenario import Result

FAULT, BROKER, SETTING, CALL = "fault ", "broker ", "setting ", "judged "
"""Prefixes of the names of counts.

They mark faults of members and links, changes of brokers, settings of runs, and checked client calls.
"""
NAMED = (
    ("acknowledged", "commands acknowledged"),
    ("barriers", "barriers"),
    ("promises", "answers held to the promise of contact"),
    ("answers", "requests answered"),
    ("elections", "elections won"),
)
"""Counts that the summary shows first, each with its description."""


class Summary:
    """The sums of the results of all seeds so far.

    In its methods, ``took_s`` is the time in seconds since the first seed began.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.count: Counter[str] = Counter()
        self.failed: list[int] = []
        self.played = 0
        self._seeds = seeds
        self._cpu_s = self._virtual_s = 0.0
        self._events = 0

    def add(self, result: Result) -> None:
        self.played += 1
        self.count += result.count
        self._cpu_s += result.cpu_s
        self._virtual_s += result.seconds
        self._events += result.events
        if result.violations:
            self.failed.append(result.seed)

    def left_s(self, took_s: float) -> float:
        """Return the estimated seconds for the remaining seeds, from the average time of the seeds before."""
        return (len(self._seeds) - self.played) * took_s / max(self.played, 1)

    def progress(self, took_s: float, ends: str) -> str:
        """Return a line about the progress. ``ends`` is the time of day at which the run should end."""
        return (
            f"{self.played} of {len(self._seeds)} seeds, {len(self.failed)} failed, "
            f"{self.played / max(took_s, 1e-9):.1f}/s, ends about {ends} ({self.left_s(took_s) / 60:.0f} min)"
        )

    def lines(self, took_s: float) -> Iterator[str]:
        """Yield lines about the seeds that have run, and about their faults, changes and calls."""
        seeds = self._seeds
        cpu = f", {self._cpu_s / self.played:.2f} CPU s each" if self.played else ""
        yield (
            f"seeds {seeds[0]}-{seeds[-1]}: {self.played} played, {len(self.failed)} failed, "
            f"{took_s:.1f} s{cpu}"
        )
        left = Counter(self.count)
        runs = _take(left, SETTING)
        yield f"  {self._virtual_s:,.0f} s of virtual time, {self._events:,} events; runs: {runs}"
        named = [f"{left.pop(key):,} {text}" for key, text in NAMED if key in left]
        parts = [
            ("covered", ", ".join(named)),
            ("judged as histories", _take(left, CALL)),
            ("faults", _take(left, FAULT)),
            ("brokers", _take(left, BROKER)),
            ("also", ", ".join(f"{name} {count:,}" for name, count in sorted(left.items()))),
        ]
        yield from (f"  {title}: {text}" for title, text in parts if text)
        if self.failed:
            yield f"failed: {' '.join(map(str, self.failed))}"


def _take(count: Counter[str], begins: str) -> str:
    """Remove the counts whose names begin with this prefix; return their text, the largest count first."""
    found = {name: count.pop(name) for name in sorted(count) if name.startswith(begins)}
    ranked = sorted(found.items(), key=lambda item: -item[1])
    return ", ".join(f"{name.removeprefix(begins)} {number:,}" for name, number in ranked)
