"""Coverage of the seeds of one call, in words: it shows how much a "clean" result means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from .scenario import Result

FAULT, BROKER, SETTING, CALL = "fault ", "broker ", "setting ", "judged "
"""How counts begin that belong together: trouble of members and ways, of brokers, kinds of runs, calls."""
NAMED = (
    ("acknowledged", "commands acknowledged"),
    ("barriers", "barriers"),
    ("promises", "answers held to the promise of contact"),
    ("answers", "requests answered"),
    ("elections", "elections won"),
)
"""What is said first, of all that is counted."""


class Summary:
    """Adds up results. ``took_s`` is the time since the call began, in seconds."""

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
        """Return the time that the rest takes, if it goes on like this."""
        return (len(self._seeds) - self.played) * took_s / max(self.played, 1)

    def progress(self, took_s: float, ends: str) -> str:
        """One line in the middle of it; ``ends`` is the time of day at which it should be over."""
        return (
            f"{self.played} of {len(self._seeds)} seeds, {len(self.failed)} failed, "
            f"{self.played / max(took_s, 1e-9):.1f}/s, ends about {ends} ({self.left_s(took_s) / 60:.0f} min)"
        )

    def lines(self, took_s: float) -> Iterator[str]:
        """Return lines on the seeds played and their coverage."""
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
    """Remove the counts with this prefix; return them in words, the most frequent first."""
    found = {name: count.pop(name) for name in sorted(count) if name.startswith(begins)}
    ranked = sorted(found.items(), key=lambda item: -item[1])
    return ", ".join(f"{name.removeprefix(begins)} {number:,}" for name, number in ranked)
