"""Curves made from raw rows, and sentences about the bends and crossings of curves.

This module does no I/O and reads no clock.

A curve shows one figure of one design over one size, such as the number of brokers. Each point of the curve
has the median and the range of the rounds. A sentence is a template, filled with such numbers.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from routekeeper.bench.runfolder import Arm
from routekeeper.bench.scale.points import (
    BASE_BROKERS,
    BASE_TOPICS,
    FAILOVER_S,
    ROUNDS,
    ROUNDS_AT_CROSSINGS,
    SHOWN_S,
    Part,
    Point,
    Row,
    Turn,
)

NAMES: Final[dict[str, str]] = {
    "independent": "independent mode",
    "raft": "raft mode",
    "zookeeper": "ZooKeeper",
    "apache": "RocketMQ's nameserver",
}
#: Smallest difference that counts as a bend: the difference between the exponents of growth before and after
#: a point (see :func:`growth`).
BEND: Final = 0.4
#: Largest spread of a curve that "hardly changes", as a share of its largest value.
FLAT: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One diagram: a figure on the y-axis, and a size (such as the number of brokers) on the x-axis.

    Attributes:
        key: The figure's name in the rows.
        x: Returns the size of a point.
        chosen: Returns True for the points that lie on the curve.
        linear: True if the x-axis is linear, False if it is logarithmic. Round-trip times need a linear axis,
            because they begin at 0, which has no logarithm.
        within_s: Seconds after which the harness ends the wait for this event; a row has no figure then. None
            for a figure that a row without it does not count against the design.
    """

    name: str
    title: str
    part: Part
    key: str
    unit: str
    x: Callable[[Point], float]
    x_name: str
    chosen: Callable[[Point], bool]
    linear: bool = False
    within_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One point of a curve.

    Attributes:
        median: Median of the rounds. A round in which the event did not happen in time counts as longer than
            all others. NaN if no round, or less than half of these rounds, has a value.
        low, high: Range of the values; NaN if no round has a value.
        failures: Number of rounds in which the design failed at this point, or the event did not happen.
        missing: Number of rounds in which the event did not happen in time.
    """

    x: float
    median: float
    low: float
    high: float
    rounds: int
    failures: int
    missing: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    design: Arm
    dots: list[Dot]

    @property
    def known(self) -> list[Dot]:
        return [dot for dot in self.dots if not math.isnan(dot.median)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A crossing of two designs' curves: ``first`` is lower before the crossing, and higher after it.

    Attributes:
        before, after: The neighbouring points of the curve between which the crossing lies.
    """

    first: Arm
    second: Arm
    before: Dot
    after: Dot


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A question with its curves and sentences."""

    question: Question
    curves: list[Curve]
    sentences: list[str]


def _storm_over_brokers(point: Point) -> bool:
    return point.kind == "storm" and point.topics == BASE_TOPICS


def _storm_over_topics(point: Point) -> bool:
    return point.kind == "storm" and point.brokers == BASE_BROKERS


def _distance(point: Point) -> bool:
    return point.kind == "distance" and not point.loss


def _over_size(name: str, title: str, key: str, unit: str) -> list[Question]:
    return [
        Question(
            name=f"{name}-over-{x_name.split()[0]}",
            title=f"{title}, by {x_name.split()[0]}",
            part="size",
            key=key,
            unit=unit,
            x=x,
            x_name=x_name,
            chosen=chosen,
        )
        for x, x_name, chosen in (
            (attrgetter("brokers"), "brokers with 1,000 topics each", _storm_over_brokers),
            (attrgetter("topics"), "topics of each of 10 brokers", _storm_over_topics),
        )
    ]


def _over_distance(name: str, title: str, key: str, unit: str, *, within_s: float | None = None) -> Question:
    return Question(
        name=f"{name}-over-distance",
        title=title,
        part="distance",
        key=key,
        unit=unit,
        x=attrgetter("round_trip_ms"),
        x_name="ms of a round trip between servers",
        chosen=_distance,
        linear=True,
        within_s=within_s,
    )


def _over_number(name: str, title: str, key: str, unit: str) -> Question:
    return Question(
        name=f"{name}-over-servers",
        title=title,
        part="number",
        key=key,
        unit=unit,
        x=attrgetter("servers"),
        x_name="servers",
        chosen=lambda point: point.kind == "number",
        linear=True,
    )


def _over_clients(name: str, title: str, key: str, unit: str) -> Question:
    return Question(
        name=f"{name}-over-clients",
        title=title,
        part="size",
        key=key,
        unit=unit,
        x=attrgetter("clients"),
        x_name="clients",
        chosen=lambda point: point.kind == "herd",
    )


QUESTIONS: Final[tuple[Question, ...]] = (
    *_over_size(
        "storm",
        "All servers restart, brokers come back at once: every route is right after",
        "restart_right_s",
        "s",
    ),
    *_over_size(
        "storm-wait",
        "All servers restart: the longest wait for the route of one more broker, which has ten topics",
        "restart_wait_ms_longest",
        "ms",
    ),
    *_over_size(
        "change",
        "One broker changes all its topics, seconds after the servers' start: all is acknowledged after",
        "change_took_s",
        "s",
    ),
    *_over_size("memory", "Largest memory of one server after the registration", "register_memory_mb", "MB"),
    _over_clients(
        "watch", "A topic changes, all clients watch: the last one knows after", "watch_ms_last", "ms"
    ),
    _over_clients(
        "watch-cpu",
        "Processor time of all servers for one change that all watch",
        "watch_cpu_ms_a_change",
        "ms",
    ),
    _over_distance(
        "change-leader",
        "A lone change at the leader (in independent mode at one server) is acknowledged after",
        "change_leader_ms",
        "ms",
    ),
    _over_distance(
        "change-follower",
        "A lone change at a follower (in independent mode at another server) is acknowledged after",
        "change_follower_ms",
        "ms",
    ),
    _over_distance(
        "everywhere", "Every server shows a change after", "everywhere_ms", "ms", within_s=SHOWN_S
    ),
    _over_distance(
        "old", "Answers of one server are older than those of another by", "old_ms", "ms", within_s=SHOWN_S
    ),
    _over_distance(
        "failover",
        "The leader (in independent mode one server) is killed: the next change is accepted after",
        "failover_s",
        "s",
        within_s=FAILOVER_S,
    ),
    _over_distance(
        "restart",
        "All servers restart, brokers come back at once: every route is right after",
        "restart_right_s",
        "s",
    ),
    _over_number(
        "change",
        "A lone change is acknowledged after; it goes to the leader, where there is one",
        "change_leader_ms",
        "ms",
    ),
    _over_number(
        "rolling-change",
        "One server restarts after the other: the longest time without a change",
        "rolling_change_gap_s",
        "s",
    ),
)


def curves_of(question: Question, rows: Sequence[Row]) -> list[Curve]:
    """Return a curve for each design that has rows for the question."""
    found: dict[Arm, dict[float, list[Row]]] = {}
    for row in rows:
        if row.point.part == question.part and question.chosen(row.point) and row.left_out is None:
            found.setdefault(row.design, {}).setdefault(question.x(row.point), []).append(row)
    curves = []
    for design in sorted(found, key=list(NAMES).index):
        dots = []
        for x, of_x in sorted(found[design].items()):
            values = [row.figures[question.key] for row in of_x if question.key in row.figures]
            failures = sum(row.failed is not None for row in of_x)
            missing = 0
            if question.within_s is not None:
                missing = sum(row.failed is None and question.key not in row.figures for row in of_x)
            median = statistics.median([*values, *[math.inf] * missing]) if values else math.nan
            dots.append(
                Dot(
                    x=x,
                    median=median if math.isfinite(median) else math.nan,
                    low=min(values, default=math.nan),
                    high=max(values, default=math.nan),
                    rounds=len(of_x),
                    failures=failures + missing,
                    missing=missing,
                    label=of_x[0].point.name,
                )
            )
        curve = Curve(design=design, dots=dots)
        if curve.known or any(dot.failures for dot in dots):
            curves.append(curve)
    return curves


def growth(curve: Curve) -> list[float | None]:
    """Return the exponent of growth between each pair of neighbouring points of a curve.

    This is the exponent e in "value ~ size ** e". It is None if a size or a value is 0.
    """
    found: list[float | None] = []
    for one, other in itertools.pairwise(curve.known):
        if one.x > 0 and one.median > 0 and other.median > 0:
            found.append(math.log(other.median / one.median) / math.log(other.x / one.x))
        else:
            found.append(None)
    return found


def steady(curve: Curve) -> int:
    """Return 1 if a curve grows from each point to the next, -1 if it always falls, and 0 otherwise."""
    steps = [later.median - earlier.median for earlier, later in itertools.pairwise(curve.known)]
    return 1 if all(step > 0 for step in steps) else -1 if all(step < 0 for step in steps) else 0


def bend(curve: Curve) -> Dot | None:
    """Return the point at which a curve bends most; None if the curve has no bend.

    Differences between single rounds must not look like a bend. So a curve has a bend only if it always grows
    or always falls. The ranges of the rounds at the point and at its two neighbours must not overlap, either.
    """
    if not steady(curve):
        return None
    known, grown = curve.known, growth(curve)
    bends = [
        (abs(later - earlier), place)
        for place, (earlier, later) in enumerate(itertools.pairwise(grown))
        if earlier is not None
        and later is not None
        and _side(known[place], known[place + 1]) != 0
        and _side(known[place + 1], known[place + 2]) != 0
    ]
    size, place = max(bends, default=(0.0, 0))
    return known[place + 1] if size >= BEND else None


def crossings(curves: Sequence[Curve]) -> list[Crossing]:
    """Return the crossings of the designs' curves.

    On both sides of a crossing, the ranges of the two designs' rounds do not overlap.
    """
    found = []
    for one, other in itertools.combinations(curves, 2):
        for (dot, side), (later, later_side) in itertools.pairwise(_apart(one, other)):
            if side != later_side:
                first, second = (one, other) if side < 0 else (other, one)
                found.append(Crossing(first=first.design, second=second.design, before=dot, after=later))
    return found


def _apart(one: Curve, other: Curve) -> list[tuple[Dot, int]]:
    """Return the points at which all rounds of one curve lie above, or below, all rounds of the other curve.

    Each point comes with the result of :func:`_side`. Points at which a design failed are left out, because
    the ranges lack the rounds that failed.
    """
    theirs = {dot.x: dot for dot in other.known if not dot.failures}
    return [
        (dot, side)
        for dot in one.known
        if not dot.failures and dot.x in theirs and (side := _side(dot, theirs[dot.x])) != 0
    ]


def _side(one: Dot, other: Dot) -> int:
    """Return -1 if all rounds of ``one`` lie below all rounds of ``other``, 1 if above, otherwise 0."""
    return -1 if one.high < other.low else 1 if one.low > other.high else 0


def turns_at_crossings(rows: Sequence[Row], designs: Sequence[Arm]) -> list[Turn]:
    """Return the additional rounds to measure where curves of two designs cross.

    These rounds are measured with both designs, at the two points between which the crossing lies.
    """
    points: dict[tuple[str, Arm], Point] = {}
    for question in QUESTIONS:
        for crossing in crossings(curves_of(question, rows)):
            labels = {crossing.before.label, crossing.after.label}
            for row in rows:
                if row.point.name in labels and row.design in (crossing.first, crossing.second):
                    points[row.point.name, row.design] = row.point
    done = max((row.round for row in rows), default=0)
    if done < ROUNDS:
        return []  # the user asked for fewer rounds than the standard number
    return [
        Turn(point=point, design=design, round=number)
        for number in range(ROUNDS + 1, ROUNDS_AT_CROSSINGS + 1)
        for (_, design), point in points.items()
        if design in designs
    ]


# -- sentences -----------------------------------------------------------------------------------------------


def written(value: float, unit: str) -> str:
    """Return a value with its unit, rounded for reading."""
    if unit == "ms" and value >= 1000:
        value, unit = value / 1000, "s"
    elif unit == "s" and 0 < value < 1:
        value, unit = value * 1000, "ms"
    elif unit == "MB" and value >= 10_000:
        value, unit = value / 1000, "GB"
    digits = 0 if value >= 100 or value == round(value) else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def size_written(x: float, question: Question) -> str:
    word = question.x_name.split()[0]
    if word == "ms":
        return f"a round trip of {x:g} ms"
    return f"{x:,g} {word.removesuffix('s') if x == 1 else word}"


def sentences_of(question: Question, curves: Sequence[Curve]) -> list[str]:
    """Return the sentences on each design, and one sentence on each pair of designs whose curves cross.

    If the question is about distance, pairs whose curves do not cross can get a sentence, too: see
    :func:`_never_crossing`.
    """
    found = [sentence for curve in curves for sentence in _of_curve(question, curve)]
    crossed = crossings(curves)
    pairs = Counter(frozenset((crossing.first, crossing.second)) for crossing in crossed)
    for crossing in crossed:
        times = pairs.pop(frozenset((crossing.first, crossing.second)), 0)
        if times == 1:
            found.append(
                f"{_upper(NAMES[crossing.first])} is below {NAMES[crossing.second]} up to "
                f"{size_written(crossing.before.x, question)}, and above it from "
                f"{size_written(crossing.after.x, question)} on."
            )
        elif times:
            first, second = NAMES[crossing.first], NAMES[crossing.second]
            found.append(f"The curves of {first} and {second} cross {times} times.")
    return found + (_never_crossing(question, curves) if question.part == "distance" else [])


def _never_crossing(question: Question, curves: Sequence[Curve]) -> list[str]:
    """Return sentences on pairs of designs whose curves do not cross.

    A sentence names the design with the lower values, or says that the designs do not differ clearly. A pair
    that differs clearly at only one distance gets no sentence. Pairs with independent mode get no sentence,
    either: the servers of this mode exchange nothing, so the distance has no effect on them.
    """
    found = []
    far = [curve for curve in curves if curve.design != "independent"]
    for one, other in itertools.combinations(far, 2):
        sides = [side for _, side in _apart(one, other)]
        if len(sides) > 1 and len(set(sides)) == 1:
            lower, higher = (one, other) if sides[0] < 0 else (other, one)
            every = len({dot.x for curve in (one, other) for dot in curve.dots})
            where = "at every distance" if len(sides) == every else f"at {len(sides)} distances"
            found.append(f"{_upper(NAMES[lower.design])} is below {NAMES[higher.design]} {where}.")
        elif not sides:
            found.append(f"{_upper(NAMES[one.design])} and {NAMES[other.design]} do not differ clearly.")
    return found


def _of_curve(question: Question, curve: Curve) -> list[str]:
    name = _upper(NAMES[curve.design])
    found = []
    known = curve.known
    if known:
        first, last = known[0], known[-1]
        begins = f"{name}: {written(first.median, question.unit)} at {size_written(first.x, question)}"
        if last is first:
            found.append(f"{begins}.")
        else:
            ends = f"{written(last.median, question.unit)} at {size_written(last.x, question)}"
            found.append(f"{begins}, {ends}; {_shape(question, curve)}.")
    for dot in curve.dots:
        failed, where = dot.failures - dot.missing, size_written(dot.x, question)
        if failed:
            times = "once" if failed == 1 else f"{failed} times"
            found.append(f"{name} failed {times} in {rounds_written(dot.rounds)} at {where}.")
        if dot.missing:
            assert question.within_s is not None, "only such a question counts missing figures"
            rounds = f"{dot.missing} of {rounds_written(dot.rounds)}"
            found.append(f"{name}: not within {question.within_s:g} s in {rounds} at {where}.")
    return found


def rounds_written(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def _shape(question: Question, curve: Curve) -> str:
    bent = bend(curve)
    grown = [each for each in growth(curve) if each is not None]
    values = [dot.median for dot in curve.known]
    if max(values) - min(values) <= FLAT * max(values):
        return "it hardly changes"
    direction = steady(curve)
    if not direction:
        low, high = written(min(values), question.unit), written(max(values), question.unit)
        return f"its values lie between {low} and {high}, without a direction"
    if bent is not None:
        place = curve.known.index(bent)
        exponents = growth(curve)
        earlier, later = exponents[place - 1], exponents[place]
        assert earlier is not None
        assert later is not None
        faster = "faster" if direction * later > direction * earlier else "slower"
        verb = "grows" if direction > 0 else "falls"
        return f"it {verb} {faster} from {size_written(bent.x, question)} on"
    if len(grown) < len(curve.known) - 1 or question.linear:
        return _straight(question, curve)
    first, last = curve.known[0], curve.known[-1]
    whole = math.log(last.median / first.median) / math.log(last.x / first.x)
    return f"ten times the size is {10**whole:.2g} times the value, without a bend"


def _straight(question: Question, curve: Curve) -> str:
    """Return a text such as "+2 ms for each broker more", computed from a curve's first and last point."""
    first, last = curve.known[0], curve.known[-1]
    step = (last.median - first.median) / (last.x - first.x)
    sign = "+" if step > 0 else "-"
    return f"{sign}{written(abs(step), question.unit)} for each {_one(question)} more"


def _one(question: Question) -> str:
    """Return the name of one unit of the size: broker, topic, client, server or ms."""
    word = question.x_name.split()[0]
    return word if word == "ms" else word.removesuffix("s")


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def answers_of(rows: Sequence[Row]) -> list[Answer]:
    """Return every question that the rows answer, with its curves and sentences."""
    found = []
    for question in QUESTIONS:
        curves = curves_of(question, rows)
        if curves:
            found.append(Answer(question=question, curves=curves, sentences=sentences_of(question, curves)))
    return found
