"""Conclusions from the values: rows of the tables, primary lines, the four claims, and what to choose (pure).

Every difference is the first arm's value minus the second's. All words about a claim or a choice come from
the primary lines, at most eight, by one rule (:attr:`Primary.found`); all other figures are description.
Nothing is called better without ten blocks; with fewer, the words are "in 6 of 6 blocks" or "mixed".
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

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
from routekeeper.bench.report.measures import MEASURES, TIMES, Block, Measure, Place, Unit, Values
from routekeeper.bench.resolution import RESOLUTION_S
from routekeeper.bench.runfolder import REAL
from routekeeper.bench.runfolder import Line as NamedLine

ARMS: Final = ("independent", "raft", "zookeeper")
PAIRS: Final = (("raft", "independent"), ("zookeeper", "independent"), ("raft", "zookeeper"))
CONTROLS: Final = (("apache", "independent"), ("independent-again", "independent"))
REAL_PAIRS: Final[tuple[tuple[str, str], ...]] = tuple(REAL.items())
"""RocketMQ's own brokers and Java client, and ours in their place."""
SHOWN: Final = ("independent", "independent-real", "raft", "raft-real", "zookeeper")
"""Arms that have columns of their own, in order."""

LEANING_BLOCKS_MIN: Final = 6
"""Blocks that must all agree before a difference is told; six do by chance once in 32."""

Leaning = Literal["lower", "higher", "none"]

Setting = tuple[str, str, str]
"""Series, scenario and arm."""

COSTS: Final[frozenset[Unit]] = frozenset({"MiB", "CPU s", "s/min", "MiB/min", "KiB/s"})
"""What is used of the machine can be told of one that is full; how soon something happens cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One arm's values of one measure over its blocks.

    ``floor``: what a value of 0 may be in truth, because less is not noticed.
    """

    middle: float
    low: float
    high: float
    blocks: int
    floor: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One pair of arms: the difference first minus second, block by block."""

    arms: tuple[str, str]
    found: list[float]
    estimate: Estimate | None
    material: float
    verdict: Verdict

    @property
    def leaning(self) -> Leaning:
        """Return whether the first arm's value is lower or higher in every block, and by enough to matter."""
        if self.estimate is None or self.estimate.blocks < LEANING_BLOCKS_MIN:
            return "none"
        if abs(self.estimate.value) < self.material:
            return "none"
        if self.estimate.below == self.estimate.blocks:
            return "lower"
        return "higher" if self.estimate.above == self.estimate.blocks else "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measure of one case, in every arm."""

    place: Place
    measure: Measure
    arms: Mapping[str, Summary]
    pairs: list[Pair]
    unjudged: tuple[str, ...] = ()
    """Arms that filled the machine: their values are shown and compared with nothing."""
    set_by_plan: tuple[str, ...] = ()
    """Arms whose times say how long the plan made something last; they are compared with nothing, either."""

    @property
    def differs(self) -> bool:
        """Return whether any pair of arms differs in every block, by as much as matters."""
        return any(pair.leaning != "none" for pair in self.pairs)

    @property
    def can_tell(self) -> bool:
        """Return whether it has so many blocks that a difference, or none, can be told."""
        return max((each.blocks for each in self.arms.values()), default=0) >= LEANING_BLOCKS_MIN

    def pair(self, first: str, second: str) -> Pair | None:
        """Return one pair of arms."""
        return next((each for each in self.pairs if each.arms == (first, second)), None)


Found = Literal[
    "better", "worse", "equivalent", "open", "unjudged", "set by the plan", "too coarse", "not measured"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Primary:
    """One primary line as it came out."""

    named: NamedLine
    series: str
    pair: Pair
    unjudged: tuple[str, ...] = ()
    set_by_plan: tuple[str, ...] = ()

    @property
    def blocks(self) -> int:
        """The number of blocks that it rests on."""
        return 0 if self.pair.estimate is None else self.pair.estimate.blocks

    @property
    def is_verdict(self) -> bool:
        """Return whether it has enough blocks for a verdict."""
        return self.blocks >= VERDICT_BLOCKS_MIN

    @property
    def resolution_s(self) -> float:
        """The smallest difference that its measure can show."""
        return RESOLUTION_S.get(self.named.measure, 0.0)

    @property
    def found(self) -> Found:
        """Return the verdict on the line's first arm: the one rule behind all words of claims and choices.

        With fewer than ten blocks ``better`` and ``worse`` mean: so it was in every block, and the middle of
        it matters. That is told as such and is no verdict; see :attr:`is_verdict`.
        """
        told = self.pair.estimate
        if self.unjudged:
            return "unjudged"
        if self.set_by_plan:
            return "set by the plan"
        if self.resolution_s > self.named.margin:
            return "too coarse"
        if told is None:
            return "not measured"
        match self.pair.verdict:
            case "better" | "worse" | "equivalent" as said:
                return said
            case _ if self.is_verdict or self.pair.leaning == "none":
                return "open"
            case _:
                lower = self.pair.leaning == "lower"
                return "better" if lower == (self.named.better == "lower") else "worse"

    @property
    def winner(self) -> str | None:
        """The arm that did better; None if neither did."""
        return {"better": self.pair.arms[0], "worse": self.pair.arms[1]}.get(self.found)

    def is_about(self, scenario: str, case: str | None, measure: str) -> bool:
        """Return whether it compares this figure."""
        return (self.named.scenario, self.named.case, self.named.measure) == (scenario, case, measure)


TIMER_SERIES: Final = ("equal", "equal-tenth", "equal-undivided")
"""Series that differ in nothing but what their timers are divided by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One recovery of one arm, taken apart into what the timers scale and what they do not.

    ``split``: made without what was measured at divisor 1, where that is possible; None if there was no end
    to it in the middle block of one of its divisors. ``measured``: the middle of the blocks at divisor 1.
    """

    place: Place
    arm: str
    split: Split | None
    divisors: tuple[float, ...]
    """Those from which ``split`` was made."""
    measured: float | None = None

    @property
    def is_prediction(self) -> bool:
        """Return whether two divisors other than 1 say what it is at divisor 1."""
        return len(self.divisors) > 1 and 1 not in self.divisors

    @property
    def off(self) -> float | None:
        """By how much more was measured at divisor 1 than was predicted for it; None if either is missing."""
        if self.measured is None or self.split is None or not self.is_prediction:
            return None
        return self.measured - self.split.low


def rows(
    values: Values,
    floors: Mapping[Place, Mapping[str, float]] | None = None,
    crowded: Collection[Setting] = (),
    planned: Collection[tuple[Place, str]] = (),
) -> list[Row]:
    """Return a row per place, in the places' order.

    Args:
        floors: Of places and arms, what a value of 0 may be in truth.
        crowded: Where an arm filled the machine.
        planned: Where an arm's times are lengths of the plan.
    """
    return [
        _row(place, arms, (floors or {}).get(place, {}), crowded, planned) for place, arms in values.items()
    ]


def unjudged(place: Place, arms: Collection[str], crowded: Collection[Setting]) -> tuple[str, ...]:
    """Return the arms of whose values nothing can be concluded, because they filled the machine."""
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
            arm: summary(list(blocks.values()), floors.get(arm, 0.0))
            for arm, blocks in arms.items()
            if blocks
        },
        pairs=[
            _pair(place, pair, arms, measure.material)
            for pair in (*PAIRS, *CONTROLS, *REAL_PAIRS)
            if fit.issuperset(pair)
        ],
        unjudged=left,
        set_by_plan=set_by_plan,
    )


def _pair(
    place: Place, arms: tuple[str, str], values: Mapping[str, Mapping[Block, float]], material: float
) -> Pair:
    found = differences(values.get(arms[0], {}), values.get(arms[1], {}))
    told = estimate(found)
    described = Line(measure=place.measure, arms=arms, series=place.series)
    return Pair(arms=arms, found=found, estimate=told, material=material, verdict=judge(told, described))


def summary(found: Sequence[float], floor: float = 0.0) -> Summary:
    """Return median and range."""
    ordered = sorted(found)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    middle = low if low == high else (low + high) / 2
    return Summary(middle=middle, low=ordered[0], high=ordered[-1], blocks=len(ordered), floor=floor)


def primaries(
    named: Sequence[NamedLine],
    series: str,
    values: Values,
    crowded: Collection[Setting] = (),
    planned: Collection[tuple[Place, str]] = (),
) -> list[Primary]:
    """Return the primary lines of one series as they came out, with the verdict their margin gives."""
    found = []
    for line in named:
        place = Place(series, line.scenario, line.case, line.measure)
        arms = values.get(place, {})
        differing = differences(arms.get(line.arms[0], {}), arms.get(line.arms[1], {}))
        told = estimate(differing)
        judged = Line(
            measure=line.measure,
            arms=line.arms,
            series=series,
            margin=line.margin,
            lower_is_better=line.better == "lower",
        )
        pair = Pair(
            arms=line.arms,
            found=differing,
            estimate=told,
            material=line.margin,
            verdict=judge(told, judged),
        )
        found.append(
            Primary(
                named=line,
                series=series,
                pair=pair,
                unjudged=unjudged(place, line.arms, crowded),
                set_by_plan=tuple(arm for arm in line.arms if (place, arm) in planned),
            )
        )
    return found


def taken_apart(values: Values, divisors: Mapping[str, float]) -> list[Taken]:
    """Take each recovery apart by the series that differ in nothing but the timers' divisor.

    Two divisors other than 1 predict what it is at divisor 1, which is then compared with what was measured
    there. Without a second one the divisor 1 itself has to serve, and nothing is left to check it by.

    Args:
        divisors: Series to divisor, of :data:`TIMER_SERIES` as far as they were run.

    How long a partition lasts is decided by who cut the network, so its times say nothing of timers.
    """
    found = []
    for place, arms in values.items():
        if place.series != "equal" or place.measure not in TIMES or place.scenario == "partition":
            continue
        for arm in arms:
            measured = {}
            for series, divisor in divisors.items():
                same = Place(series, place.scenario, place.case, place.measure)
                blocks = list(values.get(same, {}).get(arm, {}).values())
                if blocks:
                    measured[divisor] = summary(blocks).middle
            divided = {divisor: value for divisor, value in measured.items() if divisor != 1}
            used = divided if len(divided) > 1 else measured
            if measured and max(measured.values()) > 0:
                found.append(
                    Taken(
                        place=place,
                        arm=arm,
                        split=split(used),
                        divisors=tuple(sorted(used)),
                        measured=measured.get(1.0),
                    )
                )
    return found


Holds = Literal[
    "holds", "holds in part", "does not hold", "equivalent", "not shown", "described", "not measured"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One figure that is shown beside a claim; it decides where a primary line compares it.

    ``lower_speaks_for``: whether ``independent``, if it did better, speaks for the claim, or against it.
    """

    scenario: str
    case: str | None
    measure: str
    words: str
    lower_speaks_for: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Statements of the documents, each with the figures that could show it."""

    letter: str
    said: str
    evidence: tuple[Evidence, ...]
    caveat: str = ""
    """What must be known to read its figures."""
    note: str = ""
    """What no figure shows, or what the figures do not show."""
    of_asking: bool = False
    """Return whether its figures rest on how often clients ask."""
    by_design: bool = False
    """Return whether it says what is built, which nothing that is measured can show or refute."""


CLAIMS: Final = (
    Claim(
        letter="a",
        said="No election of a master is needed.",
        evidence=(
            Evidence(
                scenario="leader-fails",
                case="kill",
                measure="announce_again_s",
                words="The server in charge was killed: brokers could register again after",
            ),
            Evidence(
                scenario="leader-fails",
                case="kill",
                measure="right_again_s",
                words="The same kill: clients got right routes again after",
            ),
            Evidence(
                scenario="leader-fails",
                case="freeze",
                measure="right_again_s",
                words="It was paused instead: clients got right routes again after",
            ),
            Evidence(
                scenario="leader-fails",
                case="kill",
                measure="failed_sends",
                words="The same kill: messages that failed:",
            ),
        ),
    ),
    Claim(
        letter="b",
        said="A light metadata server is enough.",
        evidence=(
            Evidence(
                scenario="quiet",
                case=None,
                measure="cpu_s_per_min",
                words="All servers together used, of CPU per minute,",
            ),
            Evidence(
                scenario="nameserver-restarts",
                case="one-empty",
                measure="newcomer_right_s",
                words="One nameserver restarted: new clients got right routes again after",
            ),
            Evidence(
                scenario="partition",
                case="1-2",
                measure="disagree_s",
                words="One nameserver was cut off: nameservers contradicted each other for",
            ),
        ),
        caveat=(
            "Nameservers are ours here, in Python; ZooKeeper runs in a Java machine, and so does RocketMQ's "
            "own nameserver. What that makes of processor time, memory and restarts is told by the profile "
            "“controls”, which runs RocketMQ's own beside ours."
        ),
    ),
    Claim(
        letter="c",
        by_design=True,
        said="No other middleware has to be run and maintained.",
        evidence=(
            Evidence(
                scenario="quiet",
                case=None,
                measure="rss_mib",
                words="All servers together held, of memory,",
            ),
            Evidence(
                scenario="quiet",
                case=None,
                measure="written_mib_per_min",
                words="They wrote to disk, per minute,",
            ),
        ),
        note=(
            "What is run is how a design is built, which no figure can show or refute; the figures say what "
            "it costs. What an operator has to learn was not measured. Raft and ZooKeeper need a disk, "
            "independent needs none. Of memory see what is said under (b)."
        ),
    ),
    Claim(
        letter="d",
        of_asking=True,
        said="Clients ask every 30 s and may learn of a change late.",
        evidence=(
            Evidence(
                scenario="broker-dies",
                case="kill",
                measure="left_by_clients_s",
                words="A broker was killed: the last client dropped it after",
                lower_speaks_for=False,
            ),
            Evidence(
                scenario="broker-dies",
                case="freeze",
                measure="left_by_clients_s",
                words="A broker hung: the last client dropped it after",
                lower_speaks_for=False,
            ),
            Evidence(
                scenario="broker-dies",
                case="kill",
                measure="failed_sends",
                words="The kill: messages that failed despite two retries:",
                lower_speaks_for=False,
            ),
            Evidence(
                scenario="quiet",
                case=None,
                measure="visible_clients_ms_p50",
                words="Nothing failed: the last client knew of a change after, typically,",
                lower_speaks_for=False,
            ),
        ),
        note=(
            "In these runs ZooKeeper's clients watch, and RocketMQ's poll, as each was used. The series "
            "“ZooKeeper's clients poll” (profile full) has both poll."
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One figure beside a claim as it came out, and the primary lines that compare it with others."""

    evidence: Evidence
    row: Row
    lines: tuple[Primary, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A claim with what was found."""

    claim: Claim
    holds: Holds
    found: list[Judged]

    @property
    def lines(self) -> list[Primary]:
        """The primary lines on which it rests."""
        return [line for each in self.found for line in each.lines]

    @property
    def is_verdict(self) -> bool:
        """Return whether every line with a conclusion has enough blocks for a verdict."""
        saying = [line for line in self.lines if line.winner is not None] or self.lines
        return bool(saying) and all(line.is_verdict for line in saying)


def answer(claim: Claim, table: Mapping[Place, Row], series: str, lines: Sequence[Primary]) -> Answer:
    """Say whether a claim holds, by the primary lines that compare ``independent`` with another arm."""
    found = []
    for evidence in claim.evidence:
        row = table.get(Place(series, evidence.scenario, evidence.case, evidence.measure))
        if row is None or "independent" not in row.arms:
            continue
        mine = tuple(
            line
            for line in lines
            if line.is_about(evidence.scenario, evidence.case, evidence.measure)
            and "independent" in line.pair.arms
        )
        found.append(Judged(evidence=evidence, row=row, lines=mine))
    return Answer(claim=claim, holds=_holds(found), found=found)


def _holds(found: Sequence[Judged]) -> Holds:
    if not found:
        return "not measured"
    speaks: set[bool] = set()
    said: set[Found] = set()
    for each in found:
        for line in each.lines:
            said.add(line.found)
            if line.winner is not None:
                speaks.add((line.winner == "independent") == each.evidence.lower_speaks_for)
    if not said:
        return "described"
    if speaks == {True, False}:
        return "holds in part"
    if speaks:
        return "holds" if True in speaks else "does not hold"
    return "equivalent" if said == {"equivalent"} else "not shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A reader's need, and the figure that answers it."""

    words: str
    scenario: str
    case: str | None
    measure: str


NEEDS: Final = (
    Need(
        words="Clients must stop using a dead broker soon",
        scenario="broker-dies",
        case="kill",
        measure="left_by_clients_s",
    ),
    Need(
        words="Clients must stop using a hung broker soon",
        scenario="broker-dies",
        case="freeze",
        measure="left_by_clients_s",
    ),
    Need(
        words="Messages must not fail when a broker dies",
        scenario="broker-dies",
        case="kill",
        measure="failed_sends",
    ),
    Need(
        words="A restarted nameserver must not mislead new clients",
        scenario="nameserver-restarts",
        case="one-empty",
        measure="newcomer_right_s",
    ),
    Need(
        words="Routes must return soon after all nameservers were lost",
        scenario="nameserver-restarts",
        case="all",
        measure="right_again_s",
    ),
    Need(
        words="Brokers must be able to register at any moment",
        scenario="leader-fails",
        case="kill",
        measure="announce_again_s",
    ),
    Need(
        words="Routes must be right again soon after the server in charge was killed",
        scenario="leader-fails",
        case="kill",
        measure="right_again_s",
    ),
    Need(
        words="Look-ups must not stall when a server is paused",
        scenario="leader-fails",
        case="freeze",
        measure="slowest_lookup_s",
    ),
    Need(
        words="Nameservers must not contradict each other in a partition",
        scenario="partition",
        case="1-2",
        measure="disagree_s",
    ),
    Need(
        words="Routes must be found on both sides of a partition",
        scenario="partition",
        case="1-2",
        measure="failed_lookups",
    ),
    Need(
        words="Servers (ours are in Python) should use little CPU",
        scenario="quiet",
        case=None,
        measure="cpu_s_per_min",
    ),
    Need(words="Servers should use little memory", scenario="quiet", case=None, measure="rss_mib"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Return the conclusion of the primary lines about a need; without any it is described only."""

    need: Need
    row: Row
    lines: tuple[Primary, ...]


def choices(table: Mapping[Place, Row], series: str, lines: Sequence[Primary]) -> list[Choice]:
    """Return a choice per need that was measured in at least two arms; those with a primary line first."""
    found = []
    for need in NEEDS:
        row = table.get(Place(series, need.scenario, need.case, need.measure))
        if row is None or sum(arm in row.arms for arm in ARMS) < 2:
            continue
        mine = tuple(line for line in lines if line.is_about(need.scenario, need.case, need.measure))
        found.append(Choice(need=need, row=row, lines=mine))
    return sorted(found, key=lambda each: not each.lines)


def endless(value: float) -> bool:
    """Return whether an arm never got there, or lost its server."""
    return math.isinf(value)
