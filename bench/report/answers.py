"""Conclusions from the values: table rows, results of headline measures, and answers to claims.

This module does no I/O. These rules hold:

- Every difference is the first design's value minus the second design's value.
- There are at most eight headline measures. Each sentence of the page's first screen states the result of a
  headline measure. One rule gives all these results (:attr:`Primary.found`).
- All other figures are shown without a conclusion.
- If a headline measure has fewer than ten rounds, its result is no verdict. Its sentence then says in how
  many rounds the designs differed.
"""

import math
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from statistics import median
from typing import Any, Final, Literal, NamedTuple

from routekeeper.bench.plan import SWEEPS
from routekeeper.bench.report.blocks import (
    VERDICT_BLOCKS_MIN,
    Estimate,
    Line,
    Split,
    Verdict,
    differences,
    estimate,
    judge,
    split,
)
from routekeeper.bench.report.measures import (
    HARMS,
    JUDGED,
    MEASURES,
    TIMES,
    Block,
    Measure,
    Place,
    Unit,
    Values,
)
from routekeeper.bench.resolution import RESOLUTION_S, STEPS
from routekeeper.bench.runfolder import AGAIN, REAL
from routekeeper.bench.runfolder import Line as NamedLine

ARMS: Final = ("independent", "raft", "zookeeper")
PAIRS: Final = (("raft", "independent"), ("zookeeper", "independent"), ("raft", "zookeeper"))
CONTROLS: Final[tuple[tuple[str, str], ...]] = (("apache", "independent"), *AGAIN.items())
REAL_PAIRS: Final[tuple[tuple[str, str], ...]] = tuple(REAL.items())
"""Pairs of designs ("arms"). The first has RocketMQ's own brokers and client, the second has our own."""
SHOWN: Final = ("independent", "independent-real", "raft", "raft-real", "zookeeper")
"""Arms that have columns of their own, in the order of the columns."""

LEANING_BLOCKS_MIN: Final = 6
"""Least number of rounds for a statement that two designs differ. All rounds must agree.

If the designs do not differ, six rounds agree by chance in 1 of 32 cases.
"""

Leaning = Literal["lower", "higher", "none"]

Control = Literal["zero", "equal", "differs", "open"]
"""The finding of a comparison of two designs that should behave alike.

- ``zero``: all values of both designs are 0, so nothing was compared.
- ``equal``: there are at least ten rounds, and in each of them the difference is at most ``Pair.material``.
- ``differs``: the same design has the lower value in every round (see :attr:`Pair.leaning`).
- ``open``: all other cases.
"""

Setting = tuple[str, str, str]
"""Key of all runs of one design in one scenario and series: (series, scenario, arm)."""

COSTS: Final[frozenset[Unit]] = frozenset({"MiB", "CPU s", "s/min", "MiB/min", "/min", "KiB/s"})
"""Units of figures on resources. These figures are valid even if a design used all CPU cores, in contrast to
its times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One design's values of one measure over its rounds: median, range and number of values.

    - ``floor``: the longest time that may be recorded as 0, because no request noticed it.
    - ``step``: the resolution of the values.
    - ``endless``: the number of infinite values.
    - ``high``: the highest finite value, or infinity if all values are infinite.
    """

    middle: float
    low: float
    high: float
    blocks: int
    floor: float = 0.0
    step: float = 0.0
    endless: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Comparison of two designs by the first design's value minus the second design's value in each round."""

    arms: tuple[str, str]
    found: list[float]
    estimate: Estimate | None
    material: float
    verdict: Verdict
    step: float = 0.0
    """Resolution of the values, in the measure's unit."""

    @property
    def leaning(self) -> Leaning:
        """Return "lower" or "higher" if the first design has the lower, or the higher, value in every round.

        Otherwise return "none". Also return "none" in these cases:

        - There are fewer than :data:`LEANING_BLOCKS_MIN` rounds.
        - The median difference is smaller than ``material``, the smallest difference that matters for the
          measure.
        """
        if self.estimate is None or self.estimate.blocks < LEANING_BLOCKS_MIN:
            return "none"
        if abs(self.estimate.value) < self.material:
            return "none"
        if self.estimate.below == self.estimate.blocks:
            return "lower"
        return "higher" if self.estimate.above == self.estimate.blocks else "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measure of one case, with the values of every design."""

    place: Place
    measure: Measure
    arms: Mapping[str, Summary]
    pairs: list[Pair]
    unjudged: tuple[str, ...] = ()
    """Designs that used nearly all CPU cores. Their values are shown, but not compared."""
    set_by_plan: tuple[str, ...] = ()
    """Designs whose times only repeat a length that the plan sets. Their times are not compared, either."""

    @property
    def is_endless(self) -> bool:
        """Return True if any design has an infinite value in any round.

        A row with an infinite value is always visible. The page folds away other rows whose designs do not
        differ.
        """
        return any(each.endless for each in self.arms.values())

    @property
    def differs(self) -> bool:
        """Return True if at least one pair of designs differs clearly (see :attr:`Pair.leaning`)."""
        return any(pair.leaning != "none" for pair in self.pairs)

    @property
    def can_tell(self) -> bool:
        """Return True if there are enough rounds to say whether the designs differ."""
        return max((each.blocks for each in self.arms.values()), default=0) >= LEANING_BLOCKS_MIN

    def pair(self, first: str, second: str) -> Pair | None:
        """Return the comparison of two designs, or None if the row does not compare them."""
        return next((each for each in self.pairs if each.arms == (first, second)), None)

    def control(self, pair: Pair) -> Control:
        """Compare two designs that should behave alike, and return the finding (see :data:`Control`)."""
        both = [self.arms[arm] for arm in pair.arms if arm in self.arms]
        if pair.found and not any(each.low or each.high or each.endless for each in both):
            return "zero"
        if pair.leaning != "none":
            return "differs"
        within = all(abs(each) <= pair.material for each in pair.found)
        return "equal" if within and len(pair.found) >= VERDICT_BLOCKS_MIN else "open"


Found = Literal[
    "better", "worse", "equivalent", "open", "unjudged", "set by the plan", "too coarse", "not measured"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """A harm that grows with the fault's length in one design, while the other design has no such harm.

    A harm is a time in which answers are wrong.
    """

    arm: str
    spared: bool
    """True if a fault that lasts half of ZooKeeper's session time-out does no harm. Then the harm of ``arm``
    begins only when a broker's lease ends."""
    other: str
    longest: float
    """The other design's longest value in s at any length of the fault. It is not above the measure's
    resolution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Primary:
    """The result of one headline measure."""

    named: NamedLine
    pair: Pair
    unjudged: tuple[str, ...] = ()
    set_by_plan: tuple[str, ...] = ()
    grown: Grown | None = None
    beside: str = ""
    """Facts that the page shows beside the result. The module :mod:`.beside` writes these facts."""
    hidden: Mapping[str, float] = field(default_factory=dict)
    """Maps a design to the longest time in s that the measurement may have missed and recorded as 0.

    Designs without a 0 are left out.
    """
    at_worst: tuple[Pair, ...] = ()
    """Comparisons of the same two designs, one for each design in ``hidden``.

    In each comparison, the zeros of that design are replaced by the longest time that may be recorded as 0.
    """

    @property
    def blocks(self) -> int:
        """The number of rounds ("blocks" in the code) from which the result was computed."""
        return 0 if self.pair.estimate is None else self.pair.estimate.blocks

    @property
    def is_verdict(self) -> bool:
        """Return True if the measure has enough rounds for a verdict."""
        return self.blocks >= VERDICT_BLOCKS_MIN

    @property
    def resolution_s(self) -> float:
        """The smallest difference that the measure can show, in seconds."""
        return RESOLUTION_S.get(self.named.measure, 0.0)

    @property
    def found(self) -> Found:
        """Return the result for the measure's first design.

        All sentences of the page about claims are made from these results.

        With fewer than ten rounds, ``better`` needs two things: the first design had the better value in
        every round, and the median difference is at least the margin. ``worse`` means the opposite. The page
        shows such a result, but does not call it a verdict (see :attr:`is_verdict`).
        """
        if self.unjudged:
            return "unjudged"
        if self.set_by_plan:
            return "set by the plan"
        if self.resolution_s > self.named.margin:
            return "too coarse"
        if self.pair.estimate is None:
            return "not measured"
        return "open" if self.is_hidden else self._result(self.pair)

    @property
    def is_hidden(self) -> bool:
        """Return True if the result is unsure, because short times may have been recorded as 0.

        To find out, replace each 0 of one design by the longest time that may be recorded as 0. The result is
        unsure if it changes.
        """
        found = self._result(self.pair)
        if found == "open":
            return False
        # A time that was recorded as 0 can change the result "equivalent" only if it may be longer than the
        # margin.
        hidden = (most > self.named.margin or found != "equivalent" for most in self.hidden.values())
        worst = zip(hidden, self.at_worst, strict=True)
        return any(self._result(each) != found for may_matter, each in worst if may_matter)

    def _result(self, pair: Pair) -> Found:
        match pair.verdict:
            case "better" | "worse" | "equivalent" as said:
                return said
            case _ if self.is_verdict or pair.leaning == "none":
                return "open"
            case _:
                lower = pair.leaning == "lower"
                return "better" if lower == (self.named.better == "lower") else "worse"

    @property
    def winner(self) -> str | None:
        """The better design, or None if neither design is better."""
        return {"better": self.pair.arms[0], "worse": self.pair.arms[1]}.get(self.found)

    @property
    def place(self) -> Place:
        """The series, scenario, case and measure of the compared values."""
        named = self.named
        return Place(named.series, named.scenario, named.case, named.measure)


TIMER_SERIES: Final = ("equal", "equal-tenth", "equal-undivided")
"""Series that differ only in their divisor, which is the number by which their timers are divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One recovery time of one design, split into a part that scales with the timers and a fixed part.

    The divisor is the number by which timers are divided. With divisor 1, RocketMQ's own timers are used.

    - ``split``: the two parts, or None if a median that the computation needs is infinite. The parts are
      computed from measurements at divisors other than 1. If there are fewer than two such divisors, the
      measurement at divisor 1 is used, too.
    - ``measured``: the median of the rounds at divisor 1.
    """

    place: Place
    arm: str
    split: Split | None
    divisors: tuple[float, ...]
    """Divisors of the timers whose measurements gave ``split``."""
    measured: float | None = None

    @property
    def is_prediction(self) -> bool:
        """Return True if two divisors other than 1 predict the value at divisor 1."""
        return len(self.divisors) > 1 and 1 not in self.divisors

    @property
    def off(self) -> float | None:
        """The measured value minus the predicted value at divisor 1, or None if one of the two is missing."""
        if self.measured is None or self.split is None or not self.is_prediction:
            return None
        return self.measured - self.split.low


def rows(
    values: Values,
    floors: Mapping[Place, Mapping[str, float]] | None = None,
    crowded: Collection[Setting] = (),
    planned: Collection[tuple[Place, str]] = (),
) -> list[Row]:
    """Return one table row for each place (series, scenario, case, measure), in the order of ``values``.

    Args:
        floors: Maps a place and a design to the longest time that may be recorded as 0.
        crowded: Series, scenario and design of runs in which the design used nearly all CPU cores.
        planned: Places and designs whose times follow from a length in the plan, such as the length of a
            pause.
    """
    return [
        _row(place, arms, (floors or {}).get(place, {}), crowded, planned) for place, arms in values.items()
    ]


def unjudged(place: Place, arms: Collection[str], crowded: Collection[Setting]) -> tuple[str, ...]:
    """Return the designs that are not compared, because they used nearly all CPU cores."""
    if place.measure in MEASURES and MEASURES[place.measure].unit in COSTS:
        return ()
    return tuple(arm for arm in arms if (place.series, place.scenario, arm) in crowded)


def _row(
    place: Place,
    arms: Mapping[str, Mapping[Block, float]],
    floors: Mapping[str, float],
    crowded: Collection[Setting],
    planned: Collection[tuple[Place, str]],
) -> Row:
    measure = MEASURES[place.measure]
    left = unjudged(place, arms, crowded)
    set_by_plan = tuple(arm for arm in arms if (place, arm) in planned)
    fit = arms.keys() - {*left, *set_by_plan}
    return Row(
        place=place,
        measure=measure,
        arms={
            arm: summary(list(blocks.values()), floors.get(arm, 0.0), STEPS.get(place.measure, 0.0))
            for arm, blocks in arms.items()
            if blocks
        },
        pairs=[
            _pair(arms, Line(measure=place.measure, arms=pair, series=place.series), measure.material)
            for pair in (*PAIRS, *CONTROLS, *REAL_PAIRS)
            if fit.issuperset(pair)
        ],
        unjudged=left,
        set_by_plan=set_by_plan,
    )


def _pair(values: Mapping[str, Mapping[Block, float]], line: Line, material: float) -> Pair:
    found = differences(values.get(line.arms[0], {}), values.get(line.arms[1], {}))
    told = estimate(found)
    step = STEPS.get(line.measure, 0.0)
    return Pair(
        arms=line.arms, found=found, estimate=told, material=material, verdict=judge(told, line), step=step
    )


def summary(found: Sequence[float], floor: float = 0.0, step: float = 0.0) -> Summary:
    """Return the median, the range and the number of the values."""
    ordered = sorted(found)
    ended = [value for value in ordered if not endless(value)] or ordered
    return Summary(
        middle=median(ordered),
        low=ordered[0],
        high=ended[-1],
        blocks=len(ordered),
        floor=floor,
        step=step,
        endless=sum(map(endless, ordered)),
    )


def primaries(
    named: Sequence[NamedLine],
    values: Values,
    crowded: Collection[Setting] = (),
    planned: Collection[tuple[Place, str]] = (),
    floors: Mapping[Place, Mapping[str, float]] | None = None,
) -> list[Primary]:
    """Return the results of the headline measures, judged by their margins.

    Args:
        floors, crowded, planned: As for :func:`rows`.
    """
    found = []
    for line in named:
        place = Place(line.series, line.scenario, line.case, line.measure)
        arms = values.get(place, {})
        judged = Line(
            measure=line.measure,
            arms=line.arms,
            series=line.series,
            margin=line.margin,
            lower_is_better=line.better == "lower",
        )
        grown = _grown(place, line, values, planned)
        by_plan = () if grown else tuple(arm for arm in line.arms if (place, arm) in planned)
        hidden = _hidden(arms, line, (floors or {}).get(place, {}))
        raised = [
            {**arms, arm: {block: value or most for block, value in arms[arm].items()}}
            for arm, most in hidden.items()
        ]
        found.append(
            Primary(
                named=line,
                pair=_pair(arms, judged, line.margin),
                hidden=hidden,
                at_worst=tuple(_pair(each, judged, line.margin) for each in raised),
                unjudged=unjudged(place, line.arms, crowded),
                set_by_plan=by_plan,
                grown=grown,
            )
        )
    return found


def _grown(
    place: Place, line: NamedLine, values: Values, planned: Collection[tuple[Place, str]]
) -> Grown | None:
    """Return the design whose harm grows with the fault, if the other design has no harm, else None.

    The plan sets the length of the fault, and the harm lasts as long as the fault. So the length of the harm
    says nothing about a design. Only the existence of the harm shows a difference between the designs.
    """
    marked = [arm for arm in line.arms if (place, arm) in planned]
    sweep = [
        each
        for each in values
        if each.case in SWEEPS and (each.scenario, each.measure) == (line.scenario, line.measure)
    ]
    if line.measure not in HARMS or len(marked) != 1 or {each.case for each in sweep} != SWEEPS.keys():
        return None
    arm = marked[0]
    other = line.arms[1 - line.arms.index(arm)]
    least = RESOLUTION_S.get(line.measure, 0.0)
    rounds = [values[each].get(other, {}).values() for each in (place, *sweep)]
    if not all(rounds) or any((each, arm) not in planned for each in sweep):
        return None
    longest = max(map(max, rounds))
    if longest > least:
        return None
    short = [values[each][arm].values() for each in sweep if SWEEPS[each.case or ""][1] == "half"]
    return Grown(arm=arm, spared=max(map(max, short)) <= least, other=other, longest=longest)


def _hidden(
    arms: Mapping[str, Mapping[Block, float]], line: NamedLine, floors: Mapping[str, float]
) -> dict[str, float]:
    """Return the designs that have a 0, each with the longest time in s that may be recorded as 0."""
    least = RESOLUTION_S.get(line.measure, 0.0)
    found = {arm: max(least, floors.get(arm, 0.0)) for arm in line.arms if 0.0 in arms.get(arm, {}).values()}
    return {arm: most for arm, most in found.items() if most}


def taken_apart(
    values: Values, divisors: Mapping[str, float], downs: Mapping[Place, float] | None = None
) -> list[Taken]:
    """Split each recovery time into a part that scales with the timers, and a fixed part.

    The split uses series that differ only in the divisor of their timers.

    - Two divisors other than 1 predict the value at divisor 1. The caller can compare the prediction with the
      measured value.
    - If there are fewer such divisors, the split uses the value at divisor 1 as well, and there is no
      prediction.
    - If the rounds' ranges at the two predicting divisors overlap, the whole time counts as fixed.
    - Times of partitions are not split, because the plan decides how long a partition lasts.

    Args:
        divisors: Maps each series of :data:`TIMER_SERIES` that was run to its divisor.
        downs: Maps a place of the series ``equal`` to the seconds for which servers were kept down. No timer
            scales this time.
    """
    found = []
    for place, arms in values.items():
        if place.series != "equal" or place.measure not in TIMES or place.scenario == "partition":
            continue
        for arm in arms:
            measured, rounds = {}, {}
            for series, divisor in divisors.items():
                same = Place(series, place.scenario, place.case, place.measure)
                blocks = list(values.get(same, {}).get(arm, {}).values())
                if blocks:
                    measured[divisor], rounds[divisor] = summary(blocks).middle, blocks
            divided = {divisor: value for divisor, value in measured.items() if divisor != 1}
            used = divided if len(divided) > 1 else measured
            if len(divided) > 1:
                few, many = rounds[min(divided)], rounds[max(divided)]
                if max(min(few), min(many)) <= min(max(few), max(many)):
                    # The rounds' ranges overlap, so the difference of the medians may be chance, and the
                    # split below would multiply this difference. With one value for both divisors, the split
                    # finds no part that depends on the timers.
                    used = dict.fromkeys(divided, summary([*few, *many]).middle)
            if measured and max(measured.values()) > 0:
                apart = split(used, kept=(downs or {}).get(place, 0.0))
                whole = measured.get(1.0)
                found.append(
                    Taken(place=place, arm=arm, split=apart, divisors=tuple(sorted(used)), measured=whole)
                )
    return found


class Evidence(NamedTuple):
    """One figure that the page shows with a claim."""

    scenario: str
    case: str | None
    measure: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim that RocketMQ's documents make, with the figures that can support or refute it."""

    letter: str
    said: str
    evidence: tuple[Evidence, ...]
    source: str = ""
    """The part of the documents that makes the claim, or empty for a question of our own."""
    caveat: str = ""
    """Facts that a reader needs to understand the claim's figures."""
    by_design: bool = False
    """True if the claim describes how something is built, which no measurement can show or refute."""


def _claim(told: Mapping[str, Any]) -> Claim:
    evidence = tuple(
        Evidence(scenario, case or None, measure, said)
        for place, said in told.get("evidence", ())
        for scenario, case, measure in [place.split("/")]
    )
    return Claim(**{**told, "evidence": evidence})


TEXTS: Final[dict[str, Any]] = tomllib.loads(
    files("routekeeper.bench.report").joinpath("texts.toml").read_text(encoding="utf-8")
)
"""Names and sentences that the page shows, read from ``texts.toml``."""
CLAIMS: Final = tuple(map(_claim, TEXTS["claims"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A claim, its figures, and the headline measures that compare designs by these figures."""

    claim: Claim
    found: list[tuple[Evidence, Row]]
    lines: list[Primary]


def answer(claim: Claim, table: Mapping[Place, Row], lines: Sequence[Primary]) -> Answer:
    """Return a claim with its measured figures and its headline measures."""
    found, about = [], []
    for each in claim.evidence:
        places = [Place(series, each.scenario, each.case, each.measure) for series in JUDGED]
        row = next((table[place] for place in places if place in table), None)
        if row is not None:
            found.append((each, row))
            about += [line for line in lines if line.place == row.place]
    return Answer(claim=claim, found=found, lines=about)


def endless(value: float) -> bool:
    """Return True if a value is infinite, because the design never recovered or a server ended by itself."""
    return math.isinf(value)
