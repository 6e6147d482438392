"""Numbers and findings in words (pure). Nothing here invents a number: each comes from an estimate or a
manifest."""

import math
from collections.abc import Sequence
from html import escape
from typing import Final

from bench.report.findings import Comparison, Unit
from bench.report.intervals import Estimate

MINUS: Final = "\N{MINUS SIGN}"
UNIT_SUFFIX: Final[dict[Unit, str]] = {
    "ms": " ms",
    "per_s": "/s",
    "percent": " %",
    "mib": " MiB",
    "per_10k": "",
}
_NAMED_MAX: Final = 6
"""Figures without a difference that are named one by one; more would hide what was found."""

_MORE: Final[dict[Unit, tuple[str, str]]] = {
    "ms": ("longer", "shorter"),
    "per_s": ("more", "fewer"),
    "percent": ("more", "less"),
    "mib": ("more", "less"),
    "per_10k": ("more", "fewer"),
}


def number(value: float, digits: int = 3) -> str:
    """Return ``value`` with ``digits`` significant digits, no exponent, a real minus sign."""
    if math.isinf(value):
        return f"{MINUS if value < 0 else ''}∞"
    if abs(value) < 1e-9:
        return "0"
    if abs(value) >= 10**digits:
        return f"{MINUS if value < 0 else ''}{abs(value):,.0f}"
    rounded = float(f"{abs(value):.{digits}g}")  # first: 9.999 has one digit before the point, 10.0 has two
    places = min(max(digits - 1 - math.floor(math.log10(rounded)), 0), 9)
    return f"{MINUS if value < 0 else ''}{rounded:,.{places}f}"


def plain(value: float) -> str:
    """Return a setting as a person writes it: ``3``, ``0.5``."""
    return f"{value:g}"


def quantity(value: float, unit: Unit) -> str:
    """Return a value with its unit, in the magnitude that reads best: ``340 µs``, ``2.10 ms``, ``3.02 s``."""
    if unit == "ms":
        if math.isinf(value):
            return "never seen" if value > 0 else number(value)
        if value == 0:
            return "0 ms"
        if abs(value) >= 1000:
            return f"{number(value / 1000)} s"
        return f"{number(value)} ms" if abs(value) >= 0.9995 else f"{number(value * 1000)} µs"
    return f"{number(value)}{UNIT_SUFFIX[unit]}"


def span(low: float, high: float, unit: Unit) -> str:
    """Return an interval: ``1.50 ms to 2.20 ms``."""
    return f"{quantity(low, unit)} to {quantity(high, unit)}"


def with_interval(estimate: Estimate | None, unit: Unit) -> str:
    """Return a table cell: the value and below it the interval, or why there is none."""
    if estimate is None:
        return '<span class="none">not measured</span>'
    if estimate.low is None or estimate.high is None:
        return f"{quantity(estimate.value, unit)}<small>{runs(estimate.runs)}, no interval</small>"
    if math.isinf(estimate.low):
        endless = f"without end in {sum(estimate.endless)} of {runs(estimate.runs)}"
        return f"{quantity(estimate.value, unit)}<small>no interval: {endless}</small>"
    return f"{quantity(estimate.value, unit)}<small>{span(estimate.low, estimate.high, unit)}</small>"


def value_cell(estimate: Estimate | None, unit: Unit) -> str:
    """Return a table cell with the bare value; the interval of the difference stands beside it."""
    return '<span class="none">not measured</span>' if estimate is None else quantity(estimate.value, unit)


def runs(count: int, noun: str = "run") -> str:
    """Return ``1 run``, ``2 runs``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def difference_cell(comparison: Comparison) -> str:
    """Return the table cell of the difference: never a value without its interval."""
    found = comparison.difference
    match comparison.verdict:
        case "unpaired":
            return '<span class="none">no pair</span>'
        case "few":
            return f'<span class="none">{runs(found.runs if found else 0, "pair")}: no interval</span>'
        case "none":
            assert found is not None
            assert found.low is not None
            assert found.high is not None
            if found.low == found.high == 0:
                return '<span class="none">none: equal in every pair</span>'
            return f'<span class="none">not shown<small>{_between(found, comparison.unit)}</small></span>'
        case winner:
            assert found is not None
            assert found.low is not None
            assert found.high is not None
            value = "without end" if math.isinf(found.value) else _signed(found.value, comparison.unit)
            between = _between(found, comparison.unit)
            return f'<span class="shown {winner}">{value}<small>{between}</small></span>'


def verdict_cell(comparison: Comparison) -> str:
    """Return who is better, in a word."""
    match comparison.verdict:
        case "none":
            return '<span class="none">no difference shown</span>'
        case "few" | "unpaired":
            return '<span class="none">cannot be told</span>'
        case winner:
            return f'<span class="mode {winner}">{winner}</span> better'


def sentence(comparison: Comparison, *, name: str) -> str:
    """Say what came out for one quantity whose difference is shown, with both values and the interval
    (HTML)."""
    found = comparison.difference
    assert comparison.verdict in ("raft", "independent")
    assert found is not None
    assert comparison.independent is not None
    assert comparison.raft is not None
    more, less = _MORE[comparison.unit]
    by = "without end" if math.isinf(found.value) else quantity(abs(found.value), comparison.unit)
    return (
        f"<b>{name[:1].upper()}{name[1:]}:</b> {quantity(comparison.raft.value, comparison.unit)} with "
        f'<span class="mode raft">raft</span>, '
        f"{quantity(comparison.independent.value, comparison.unit)} with "
        f'<span class="mode independent">independent</span>. Raft: '
        f"{by} {more if found.value > 0 else less} "
        f"(95 % interval: {_size(found, comparison.unit)}, {runs(found.runs, 'pair')})."
    )


def in_short(comparison: Comparison) -> str:
    """Say both values and the interval of the difference, or that none is shown, in half a line (HTML)."""
    sides = ", ".join(
        f"{quantity(estimate.value, comparison.unit)} {mode}"
        for mode, estimate in (("independent", comparison.independent), ("raft", comparison.raft))
        if estimate is not None
    )
    found = comparison.difference
    if found is None:
        return f"{sides}; no pair to compare"
    if found.low is None or found.high is None:
        return f"{sides}; {runs(found.runs, 'pair')}, too few for an interval"
    if found.low == found.high == 0:
        return f"{sides}; equal in every pair"
    more, less = _MORE[comparison.unit]
    if comparison.verdict == "none":
        return f"{sides}; no difference shown ({_between(found, comparison.unit)})"
    return f"{sides}; raft {more if found.value > 0 else less}: {_size(found, comparison.unit)}"


def meaning(comparisons: Sequence[Comparison], *, heading: str = "") -> str:
    """Sum a section up: the shown differences as sentences, the others named; their numbers are in the table
    (HTML).

    ``heading``: of the section; labels that begin with it do not repeat it.
    """

    def name(comparison: Comparison) -> str:
        return escape(comparison.label.removeprefix(f"{heading}: "))

    items = [
        f"<li>{sentence(each, name=name(each))}</li>"
        for each in comparisons
        if each.verdict in ("raft", "independent")
    ]
    null = [name(each) for each in comparisons if each.verdict == "none"]
    if null:
        listed = "; ".join(null) if len(null) <= _NAMED_MAX else f"the other {len(null)} figures of the table"
        items.append(f"<li><b>No difference could be shown</b> in: {listed}.</li>")
    open_ones = [name(each) for each in comparisons if each.verdict in ("few", "unpaired")]
    if open_ones:
        items.append(f"<li><b>Too few pairs</b> to say anything about: {'; '.join(open_ones)}.</li>")
    return f'<ul class="findings">{"".join(items)}</ul>' if items else "<p>Nothing was measured.</p>"


def _between(found: Estimate, unit: Unit) -> str:
    """Return the interval of a difference with signs, or which end it lacks and why."""
    assert found.low is not None
    assert found.high is not None
    if math.isinf(found.low) and math.isinf(found.high):
        return f"no bounds: {_why_endless(found)}"
    if math.isinf(found.low):
        return f"at most {_signed(found.high, unit)}, no lower bound: {_why_endless(found)}"
    if math.isinf(found.high):
        return f"at least {_signed(found.low, unit)}, no upper bound: {_why_endless(found)}"
    return f"{_signed(found.low, unit)} to {_signed(found.high, unit)}"


def _size(found: Estimate, unit: Unit) -> str:
    """Return the interval of a shown difference without signs, or which end it lacks and why."""
    assert found.low is not None
    assert found.high is not None
    low, high = sorted((abs(found.low), abs(found.high)))
    if math.isinf(low):
        return f"no bounds: {_why_endless(found)}"
    if math.isinf(high):
        return f"at least {quantity(low, unit)}, no upper bound: {_why_endless(found)}"
    return span(low, high, unit)


def _why_endless(found: Estimate) -> str:
    """Say in which pairs something never came, so that their difference has no size."""
    of = runs(found.runs, "pair")
    sides = [
        f"in {count} of {of} some changes were never seen with {mode}"
        for mode, count in zip(("independent", "raft"), found.endless, strict=True)
        if count
    ]
    return ", ".join(sides)


def _signed(value: float, unit: Unit) -> str:
    return f"{'+' if value > 0 else ''}{quantity(value, unit)}"
