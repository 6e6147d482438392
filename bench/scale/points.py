"""The points to measure, the order of the measurements, and the time that they take.

A point is a combination of cluster sizes and distances. This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from routekeeper.bench.runfolder import Arm

Part = Literal["size", "distance", "number"]
Kind = Literal["storm", "herd", "distance", "slow-disk", "number", "away"]
LinkKind = Literal["none", "proxy", "kernel"]
PARTS: Final[tuple[Part, ...]] = ("size", "distance", "number")
ROUNDS: Final = 3
#: Number of rounds at the points between which the curves of two designs cross.
ROUNDS_AT_CROSSINGS: Final = 5
#: Longest time of a series in seconds. If no time remains for a point, it is not measured, and the page names
#: it.
SERIES_S: Final = 75 * 60.0
#: Number of failed rounds of a design at a point, after which the design is not measured at this point again.
FAILURES_MAX: Final = 2
BASE_BROKERS: Final = 10
BASE_TOPICS: Final = 1_000
BASE_CLIENTS: Final = 30
BASE_SERVERS: Final = 3
PERIOD_S: Final = 30.0
"""Seconds of RocketMQ's default registerNameServerPeriod and pollNameServerInterval."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a series: a combination of sizes and distances. Omitted fields have base values.

    Attributes:
        spread: True to measure one more restart, after which brokers return evenly over a heartbeat period.
        polling: True to measure also clients that ask every 30 s.
        loss: Share of packets that are lost between servers.
        slow_ms: Time in ms that is added to each sync of one server.
        away_s: Seconds for which all servers are down.
    """

    part: Part
    kind: Kind
    name: str
    brokers: int = BASE_BROKERS
    topics: int = BASE_TOPICS
    clients: int = BASE_CLIENTS
    servers: int = BASE_SERVERS
    spread: bool = False
    polling: bool = False
    round_trip_ms: float = 0.0
    loss: float = 0.0
    slow_ms: float = 0.0
    away_s: float = 0.0

    @property
    def pairs(self) -> int:
        return self.brokers * self.topics


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one measurement of a point with one design.

    Attributes:
        links: The means by which links between servers are delayed.
        figures: Figures by name; a figure that could not be measured is absent.
        failed: Text of the design's failure at this point; None if the design did not fail.
        left_out: Reason why the point was not measured; None if it was measured.
        load: Load average of the machine before the measurement.
        commit: Commit of the program that measured; None in rows of older programs, which measured with the
            commit of the series' begin.
    """

    point: Point
    design: Arm
    round: int
    links: LinkKind
    seconds: float
    load: float
    figures: dict[str, float] = {}
    failed: str | None = None
    left_out: str | None = None
    commit: str | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One planned measurement: a point (sizes and distances of the cluster), a design and a round."""

    point: Point
    design: Arm
    round: int


#: Sizes as pairs (brokers, topics of each broker). The base size comes first. Then follow sizes that differ
#: from the base size in one number, and then sizes that differ in both numbers.
GRID: Final = (
    *((10, 1_000), (3, 1_000), (30, 1_000), (100, 1_000), (10, 100), (10, 10_000)),
    *((3, 100), (3, 10_000), (100, 100), (100, 10_000)),
)
#: Sizes with one more measured restart, after which brokers return evenly over a heartbeat period.
SPREAD: Final = ((10, 1_000), (100, 10_000))
CLIENTS: Final = (30, 8, 250, 2_000)
ROUND_TRIPS_MS: Final = (0.0, 1.0, 5.0, 20.0)
LOSS: Final = 0.01
SLOW_MS: Final = 20.0
SERVERS: Final = (3, 1, 5, 7)
AWAY_S: Final = 120.0
#: Seconds for which changes are tried after a kill. If no change is accepted in this time, changes count as
#: impossible. With a majority, the time must be above 10 s: ZooKeeper's followers wait 10 s for a silent
#: leader.
TRIED_S: Final = 12.0
TRIED_WITHOUT_MAJORITY_S: Final = 8.0
#: Longest wait in seconds for a change after the leader was killed. It must be above 10 s: with the timers of
#: ZooKeeper's example configuration, a follower waits 10 s for a silent leader.
FAILOVER_S: Final = 40.0
#: Longest wait in seconds until every server shows a change.
SHOWN_S: Final = 20.0


def points_of(part: Part, *, links: LinkKind, small: bool = False) -> list[Point]:
    """Return the points of a part of the measurements, the most important points first.

    Args:
        small: True for a few tiny points, to try the program.
    """
    match part:
        case "size":
            grid = ((3, 20), (2, 20)) if small else GRID
            spread = () if small else SPREAD
            return [
                *(
                    Point(
                        part=part,
                        kind="storm",
                        name=f"{brokers} brokers with {topics:,} topics each",
                        brokers=brokers,
                        topics=topics,
                        spread=(brokers, topics) in spread,
                    )
                    for brokers, topics in grid
                ),
                *(
                    Point(
                        part=part,
                        kind="herd",
                        name=f"{clients:,} clients",
                        clients=clients,
                        polling=clients == CLIENTS[-1],
                        **_small_table(small),
                    )
                    for clients in ((6, 12) if small else CLIENTS)
                ),
            ]
        case "distance":
            table = _small_table(small)
            found = [
                Point(part=part, kind="distance", name=f"round trip {ms:g} ms", round_trip_ms=ms, **table)
                for ms in ((0.0, 5.0) if small else ROUND_TRIPS_MS)
            ]
            if links == "kernel":
                name = f"round trip 5 ms, {LOSS:.0%} of packets lost"
                found.append(
                    Point(part=part, kind="distance", name=name, round_trip_ms=5.0, loss=LOSS, **table)
                )
            name = f"one server's syncs take {SLOW_MS:g} ms more"
            return [*found, Point(part=part, kind="slow-disk", name=name, slow_ms=SLOW_MS, **table)]
        case "number":
            table = _small_table(small)
            away_s = 3.0 if small else AWAY_S
            return [
                *(
                    Point(part=part, kind="number", name=_named(count), servers=count, **table)
                    for count in ((3, 1) if small else SERVERS)
                ),
                Point(
                    part=part, kind="away", name=f"all servers away for {away_s:g} s", away_s=away_s, **table
                ),
            ]


def _named(servers: int) -> str:
    return "1 server" if servers == 1 else f"{servers} servers"


def _small_table(small: bool) -> dict[str, Any]:
    return {"brokers": 3, "topics": 20} if small else {}


def designs_for(point: Point, designs: Sequence[Arm]) -> list[Arm]:
    """Return the designs that are measured at a point."""
    without: dict[Kind, tuple[Arm, ...]] = {
        # RocketMQ's servers exchange nothing, so delays between them have no effect. The same is true of
        # independent mode. One of these two designs is enough.
        "distance": ("apache",),
        # The servers of these designs write nothing to disk, so a slow disk has no effect.
        "slow-disk": ("apache", "independent"),
        "number": ("apache",),
        "away": ("apache",),
    }
    if point.kind == "herd" and not point.polling:  # clients of RocketMQ's nameserver cannot watch
        return [design for design in designs if design != "apache"]
    return [design for design in designs if design not in without.get(point.kind, ())]


def tried_s(servers: int, down: int) -> float:
    """Return the seconds for which changes are tried while ``down`` of the servers are down."""
    return TRIED_S if 2 * (servers - down) > servers else TRIED_WITHOUT_MAJORITY_S


#: Seconds that the servers and their load programs need to start and stop, on two idle CPU cores.
_LIFE_S: Final[dict[Arm, float]] = {"independent": 5, "raft": 6, "apache": 8, "zookeeper": 8}
#: Seconds that all phases of a storm take if the brokers have a million topics together. In a storm, all
#: brokers register or return at the same time.
_STORM_S: Final[dict[Arm, float]] = {"independent": 32, "raft": 40, "apache": 32, "zookeeper": 100}


def seconds_of(point: Point, design: Arm) -> float:
    """Return the approximate duration of a measurement in seconds, on two idle CPU cores."""
    found = _LIFE_S.get(design, 10.0)
    match point.kind:
        case "storm":
            found += 8 + _STORM_S.get(design, 50) * point.pairs / 1e6
            found += (PERIOD_S + 6) if point.spread else 0
        case "herd":
            found += 6 + point.clients / 500 + ((PERIOD_S + 8) if point.polling else 0)
        case "distance":
            found += 14 + 0.5 * point.round_trip_ms
        case "slow-disk":
            found += 8
        case "number":
            found += 6 + 5 * point.servers
            # In independent mode, routes come back only with the brokers' next registrations. In the other
            # designs, no change succeeds while the majority is down, so all tries take their full time.
            found += PERIOD_S if design == "independent" else 14 * (point.servers // 2)
        case "away":
            found += point.away_s + 20 + PERIOD_S + (22 if design == "independent" else 0)
    return found


def turns_of(points: Sequence[Point], designs: Sequence[Arm], rounds: int) -> list[Turn]:
    """Return all measurements of a series, round by round. The order of the designs changes in each round."""
    return [
        turn
        for number in range(1, rounds + 1)
        for point in points
        for turn in _of_round(point, designs, number)
    ]


def _of_round(point: Point, designs: Sequence[Arm], number: int) -> Iterator[Turn]:
    known = designs_for(point, designs)
    shift = number % max(1, len(known))
    for design in [*known[shift:], *known[:shift]]:
        yield Turn(point=point, design=design, round=number)


def missing_turns(turns: Sequence[Turn], rows: Sequence[Row]) -> list[Turn]:
    """Return the measurements without a row; leave out each design at the sizes where it failed too often."""
    done = {(row.point.name, row.design, row.round) for row in rows}
    failures: dict[tuple[str, Arm], int] = {}
    for row in rows:
        failures[row.point.name, row.design] = failures.get((row.point.name, row.design), 0) + bool(
            row.failed
        )
    return [
        turn
        for turn in turns
        if (turn.point.name, turn.design, turn.round) not in done
        and failures.get((turn.point.name, turn.design), 0) < FAILURES_MAX
    ]


def measured_s(turn: Turn, rows: Sequence[Row]) -> float:
    """Return the expected duration of a measurement in seconds.

    This is the duration of the last measurement of the same point and design. If there is no such
    measurement, it is the approximate duration on two idle CPU cores; see :func:`seconds_of`.
    """
    took = [
        row.seconds
        for row in rows
        if row.point.name == turn.point.name and row.design == turn.design and row.left_out is None
    ]
    return took[-1] if took else seconds_of(turn.point, turn.design)
