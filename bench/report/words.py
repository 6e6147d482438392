"""Texts for numbers and results, which other modules compute. This module does no I/O and reads no clock."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from routekeeper.bench.report.answers import (
    ARMS,
    LEANING_BLOCKS_MIN,
    TEXTS,
    Answer,
    Grown,
    Pair,
    Primary,
    Summary,
    summary,
)
from routekeeper.bench.report.blocks import VERDICT_BLOCKS_MIN
from routekeeper.bench.report.measures import HARMS, MEASURES, Unit, Values

MINUS: Final = "\N{MINUS SIGN}"
NEVER: Final = "never"

ARM_NAMES: Final[dict[str, str]] = TEXTS["arms"]
SCENARIO_TITLES: Final[dict[str, str]] = TEXTS["scenarios"]
SCENARIO_QUESTIONS: Final[dict[str, str]] = TEXTS["questions"]
CASE_TITLES: Final[dict[str, str]] = TEXTS["cases"]
OP_TITLES: Final[dict[str, str]] = TEXTS["operations"]
CASE_NOTES: Final[dict[str, str]] = TEXTS["notes"]
"""Maps ``SCENARIO/CASE`` to facts that explain the case's figures. docs/benchmark.md explains all other
cases."""
TIMERS: Final[dict[str, str]] = TEXTS["timers"]
"""Names of the settings of timers, as the page shows them above tables."""
_SUFFIX: Final[dict[Unit, str]] = {"count": "", "CPU s": " s", "s/min": " s CPU/min", "/min": "/min"}


def number(value: float, digits: int = 3) -> str:
    """Return ``value`` with ``digits`` significant digits, no exponent, and a true minus sign (U+2212)."""
    if math.isinf(value):
        return f"{MINUS if value < 0 else ''}∞"
    if abs(value) < 1e-9:
        return "0"
    if abs(value) >= 10**digits:
        return f"{MINUS if value < 0 else ''}{abs(value):,.0f}"
    # Round before the digits are counted, because 9.999 becomes 10.0 with one more digit before the point.
    rounded = float(f"{abs(value):.{digits}g}")
    places = min(max(digits - 1 - math.floor(math.log10(rounded)), 0), 9)
    text = f"{rounded:,.{places}f}"
    if rounded == int(rounded):
        text = text.partition(".")[0]
    return f"{MINUS if value < 0 else ''}{text}"


def quantity(value: float, unit: Unit, step: float = 0.0) -> str:
    """Return a value with the unit that makes the number short, such as ``340 µs`` or ``3.02 s``.

    Args:
        step: Resolution of the value. The value is rounded to whole steps.
    """
    if math.isinf(value):
        return NEVER if value > 0 else number(value)
    if step and value:
        if abs(value) < step / 2:
            return f"below {quantity(step, unit)}"
        value = round(value / step) * step
    if unit == "s" and 0 < abs(value) < 1:
        return quantity(value * 1000, "ms")
    if unit == "ms" and abs(value) >= 1000:
        return quantity(value / 1000, "s")
    if unit == "ms" and 0 < abs(value) < 0.9995:
        return f"{number(value * 1000)} µs"
    if unit == "count" and abs(value) < 1000:
        return f"{MINUS if value < 0 else ''}{round(abs(value), 2):g}"  # so that a text has 1.5, not 1.50
    return f"{number(value)}{_SUFFIX.get(unit, f' {unit}')}"


def signed(value: float, unit: Unit, step: float = 0.0) -> str:
    """Return a difference with its sign and unit, or "unknown" for nan."""
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "without end" if value > 0 else f"{MINUS} without end"
    said = quantity(value, unit, step)
    return f"+{said}" if value > 0 and not said.startswith("below") else said


def off_by(more: float, predicted: float) -> str:
    """Return the words for the difference of a measured time from its prediction, in seconds and per cent."""
    if math.isinf(more):
        return "it never ended"
    if not round(more, 3):
        return "as predicted"
    share_of = f" ({abs(more) / predicted:.0%})" if predicted > 0 else ""
    return f"{quantity(abs(more), 's')} {'more' if more > 0 else 'less'} than predicted{share_of}"


def between(low: float, high: float, unit: Unit, step: float = 0.0) -> str:
    """Return a range, such as ``607 to 835 ms``, or an empty text if both ends give the same text."""
    first, last = quantity(low, unit, step), quantity(high, unit, step)
    if first == last:
        return ""
    number_of, _, suffix = first.partition(" ")
    return f"{number_of if suffix and last.endswith(f' {suffix}') else first} to {last}"


def middle_of(summary: Summary, unit: Unit) -> str:
    """Return the median of the rounds as text with its unit.

    ``summary.floor`` is the longest time that may be recorded as 0: a disturbance that is shorter may hit no
    request. So a median of 0 is shown as "below FLOOR".
    """
    return _noticed(summary.middle, summary, unit)


def _noticed(value: float, summary: Summary, unit: Unit) -> str:
    if value or not summary.floor:
        return quantity(value, unit, summary.step)
    return f"below {quantity(summary.floor, unit)}"


def range_of(summary: Summary, unit: Unit) -> str:
    """Return the range of the rounds' values as text, with the number of rounds whose value is infinite."""
    if summary.endless == summary.blocks:
        return ""
    if summary.floor and not summary.low and summary.high:
        # A recorded 0 means only that the time was not longer than ``floor``, because a shorter disturbance
        # may hit no request. So a range that begins with 0 is shown as "below FLOOR to ...". If the highest
        # value is not above ``floor`` either, the text is "all below FLOOR".
        hidden = summary.high <= summary.floor
        spread = f"all below {quantity(summary.floor, unit)}"
        if not hidden:
            spread = f"{_noticed(summary.low, summary, unit)} to {quantity(summary.high, unit, summary.step)}"
    else:
        spread = between(summary.low, summary.high, unit, summary.step)
    if not summary.endless:
        return spread
    never = f"{NEVER} in {summary.endless} of {summary.blocks}"
    return f"{spread or quantity(summary.low, unit, summary.step)}, {never}"


OUTCOMES: Final[dict[str, str]] = TEXTS["outcomes"]
"""Names of the outcomes of a read, in the order in which they are listed."""


def shares(counted: Mapping[str, int]) -> str:
    """Return the share of each outcome of reads, such as ``62 % right, 38 % old``.

    Outcomes that did not occur are omitted.

    Args:
        counted: Number of reads with each of :data:`OUTCOMES`, and ``n``, the number of all reads.
    """
    n = counted["n"]
    if not n:
        return "none"
    told = [
        f"{share(counted[key], n)} {word}"
        for key, word in OUTCOMES.items()
        if counted[key] or (key == "right" and n)
    ]
    return ", ".join(told)


def share(part: int, whole: int) -> str:
    """Return a share in per cent. The text is 0 % or 100 % only if the share is exactly that."""
    per_cent = 100 * part / whole
    if 0 < per_cent < 1:
        return "below 1 %"
    if 99 < per_cent < 100:
        return "above 99 %"
    return f"{per_cent:.0f} %"


def name(arm: str) -> str:
    """Return the name by which the page calls a design."""
    return ARM_NAMES.get(arm, arm)


def say(sentence: str, **fields: object) -> str:
    """Return a sentence of ``texts.toml``, with values in the place of its fields."""
    return str(TEXTS["sentences"][sentence]).format(**fields)


def listed(words: Sequence[str]) -> str:
    """Return the words as a list in English: ``a``, or ``a and b``, or ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def leaning(pair: Pair, unit: Unit) -> str:
    """Return a clear difference of two designs: ``raft 1.2 s more than independent, in all 6 rounds``.

    Return an empty text if the designs do not differ clearly.
    """
    if pair.leaning == "none" or pair.estimate is None:
        return ""
    value = pair.estimate.value
    if math.isinf(value):
        loser, other = pair.arms if value > 0 else pair.arms[::-1]
        endless = sum(each == value for each in pair.found)
        never = f"never in {endless}" if endless < len(pair.found) else "never in any"
        return f"{name(loser)} more than {name(other)} in {_blocks(pair)}, {never} of them"
    size = quantity(abs(value), unit, pair.step)
    more = "more" if pair.leaning == "higher" else "less"
    return f"{name(pair.arms[0])} {size} {more} than {name(pair.arms[1])}, in {_blocks(pair)}"


def difference(pair: Pair, unit: Unit) -> str:
    """Return the difference of two designs, without a conclusion: ``raft: +1.2 s (-0.4 s to +3 s)``.

    The text names the second design only, because the column's heading names the first design.
    """
    told = pair.estimate
    if told is None:
        return ""
    arm = name(pair.arms[1])
    if all(map(math.isnan, pair.found)):
        return f"{arm}: never in either"
    ends = (
        (min(pair.found), max(pair.found)) if not any(map(math.isnan, pair.found)) else (told.low, told.high)
    )
    low, high = (signed(end, unit, pair.step) for end in ends)
    spread = f" ({low} to {high})" if low != high else ""
    unknown = "median " if math.isnan(told.value) else ""
    return f"{arm}: {unknown}{signed(told.value, unit, pair.step)}{spread}"


def _blocks(pair: Pair) -> str:
    assert pair.estimate is not None
    same, rounds = max(pair.estimate.below, pair.estimate.above), pair.estimate.blocks
    return f"all {rounds} rounds" if same == rounds else f"{same} of {rounds} rounds"


def no_proof(rounds: int, lines: int) -> str:
    """Return the warning that a page with few rounds proves nothing.

    The text is empty if the page has enough rounds, or compares nothing.
    """
    if not LEANING_BLOCKS_MIN <= rounds < VERDICT_BLOCKS_MIN or not lines:
        return ""
    chance = 1 - (1 - 2 / 2**rounds) ** lines
    return say("no-proof", rounds=rounds, measures=lines, chance=chance)


def verdict(primary: Primary) -> str:
    """Return a headline measure's result in words: ``ZooKeeper slower than independent in all 6 rounds``."""
    first, second = (name(arm) for arm in primary.pair.arms)
    match primary.found:
        case "not measured":
            return f"{first} and {second} were not compared"
        case "unjudged":
            return f"unclear: runs of {listed([*map(name, primary.unjudged)])} filled the machine"
        case "set by the plan":
            arms = listed([*map(name, primary.set_by_plan)])
            return f"unclear: the times of {arms} only show a length that the plan sets"
        case "too coarse":
            return f"unclear: the measure cannot show differences below {primary.resolution_s:g} s"
        case "equivalent":
            return f"{first} and {second} are equivalent"
        case "better" | "worse" if primary.grown is not None:
            return _growing(primary.grown)
        case "better" | "worse":
            lower = (primary.found == "better") == (primary.named.better == "lower")
            rounds = "" if primary.is_verdict else f" in {_blocks(primary.pair)}"
            return f"{first} {_way(primary, lower=lower)} than {second}{rounds}"
        case _ if primary.is_hidden:
            most = [
                f"{name(arm)}'s times of 0 may be up to {each:g} s" for arm, each in primary.hidden.items()
            ]
            return f"unclear: {listed(most)}"
        case _ if primary.is_verdict:
            return f"{first} and {second}: unclear"
        case _:
            return _undecided(primary)


def _growing(grown: Grown) -> str:
    """Return the words for a harm that lasts as long as the fault in one design, and never in the other."""
    lease = " beyond the lease of two undivided minutes" if grown.spared else ""
    longest = f"for {quantity(grown.longest, 's')} at most" if grown.longest else "not at all"
    return f"{name(grown.arm)} as long as the cut lasts{lease}, {name(grown.other)} {longest}"


def _way(primary: Primary, *, lower: bool) -> str:
    """Return the word that compares the first design with the second, such as "faster" or "more".

    Args:
        lower: True if the first design has the lower values, False if it has the higher values.
    """
    ways = {"s": ("faster", "slower"), "ms": ("faster", "slower"), "count": ("fewer", "more")}
    measure = MEASURES.get(primary.named.measure)
    less, more = ways.get(measure.unit if measure else "", ("less", "more"))
    if primary.named.measure in HARMS:
        less, more = "shorter", "longer"
    return less if lower else more


def _undecided(primary: Primary) -> str:
    """Return the words for an open result: rounds that disagree, differ too little, or are too few."""
    first, second = (name(arm) for arm in primary.pair.arms)
    told = primary.pair.estimate
    assert told is not None
    if told.blocks < LEANING_BLOCKS_MIN:
        return f"too few rounds to tell: {told.blocks} of {LEANING_BLOCKS_MIN}"
    never = sum(map(math.isnan, primary.pair.found))
    alike = told.blocks - told.below - told.above - never
    if never == told.blocks:
        return f"{NEVER} in either, in any of {told.blocks} rounds"
    if alike == told.blocks:
        return f"no difference in any of {told.blocks} rounds"
    lower, higher = (_way(primary, lower=lower) for lower in (True, False))
    if told.blocks in (told.below, told.above):
        way = lower if told.below else higher
        return f"{first} {way} than {second} in {_blocks(primary.pair)}, by less than matters"
    counts = ((lower, told.below), (higher, told.above), ("alike", alike), (f"{NEVER} in either", never))
    each = [f"{way} in {number}" for way, number in counts if number]
    if told.below or told.above:
        each[0] = each[0].replace(" in ", f" than {second} in ")
    else:
        first = f"{first} and {second}"
    return f"mixed: {first} {', '.join(each)} of {told.blocks} rounds"


NOT_JUDGED: Final = ("not measured", "too coarse", "set by the plan", "unjudged")
"""Outcomes of a headline measure that do not compare the two designs."""


def topic(primary: Primary) -> str:
    """Return the words that name a headline measure within a sentence."""
    named = primary.named
    own = f"{named.name[0].lower()}{named.name[1:]}"
    words = TEXTS["topics"].get(f"{named.scenario}/{named.case or ''}/{named.measure}", own)
    return f"{words} ({primary.beside})" if primary.beside else str(words)


def sentences(lines: Sequence[Primary]) -> list[str]:
    """Return the page's answer: one sentence for each pair of designs."""
    return [
        _first_up(_compared(lines, first, second))
        for first, second in (("independent", "zookeeper"), ("raft", "independent"), ("raft", "zookeeper"))
    ]


def _compared(lines: Sequence[Primary], first: str, second: str) -> str:
    """Return a sentence that compares two designs and groups the headline measures by their results."""
    mine = [line for line in lines if set(line.pair.arms) == {first, second}]
    if not mine:
        return f"no headline measure compares {name(first)} with {name(second)}."
    groups = (
        ("better", [line for line in mine if line.winner == first]),
        ("worse", [line for line in mine if line.winner == second]),
        ("as good", [line for line in mine if line.found == "equivalent"]),
        ("not clearly better or worse", [line for line in mine if line.found == "open"]),
        ("not judged", [line for line in mine if line.found in NOT_JUDGED]),
    )
    told = [f"{how}{_in_rounds(group)} at {listed([*map(topic, group)])}" for how, group in groups if group]
    return f"compared with {name(second)}, {name(first)} was {'; '.join(told)}."


def _in_rounds(lines: Sequence[Primary]) -> str:
    """Return "in all N rounds" for clear results with too few rounds for a verdict, else an empty text."""
    if any(line.winner is None for line in lines) or all(line.is_verdict for line in lines):
        return ""
    return f" in all {min(line.blocks for line in lines)} rounds"


def _first_up(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def answered(answer: Answer) -> str:
    """Return the answer to a claim, made of the results of its headline measures.

    If the claim is true by design, the answer says so. The answer contains no opinion: numbers cannot show
    whether a server is "light" or "enough".
    """
    said = "; ".join(f"at {topic(line)}, {verdict(line)}" for line in answer.lines)
    told = [say("by-design")] if answer.claim.by_design else []
    told += [f"{_first_up(said)}."] if said else []
    if not told:
        told = [say("described" if answer.found else "not-measured")]
    return " ".join(told)


def values(found: Values, line: Primary) -> str:
    """Return the title of a headline measure, and its median in every design."""
    measure, arms = MEASURES[line.named.measure], found.get(line.place, {})
    medians = {arm: summary(list(arms[arm].values())) for arm in ARMS if arms.get(arm)}
    told = ", ".join(f"{name(arm)} {middle_of(each, measure.unit)}" for arm, each in medians.items())
    return f"{measure.title}: {told}"


def chosen(lines: Sequence[Primary], arm: str) -> list[str]:
    """Return the reasons to choose a design: headline measures in which it is better than another design."""
    return [f"{topic(line)} counts most ({verdict(line)})" for line in lines if line.winner == arm]
