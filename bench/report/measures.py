"""Every measure of the comparison, with its definition and its value in each run.

This module does no I/O and reads no clock.

A value belongs to a series, a scenario, a case (the fault, or None), a measure, a design and a round. If a
server of a design ended by itself in a run, all values of this run are infinite.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final, Literal

from routekeeper.bench.plan import CASES, COSTS, DEVICE, NEW_TOPIC, SWEEPS
from routekeeper.bench.report.blocks import percentile
from routekeeper.bench.report.gold import Back, Fault, Gold, LeftOut, Recovery
from routekeeper.bench.report.silver import Source
from routekeeper.bench.resolution import OBSERVE_EVERY_S, STEPS, WAITED_NS

MAIN_SERIES: Final = "equal"
"""Name of the series in which recoveries are compared."""
JUDGED: Final = (MAIN_SERIES, "rest")
"""Names of the series that headline measures may use. In ``rest``, brokers are at rest and timers are
undivided."""

Unit = Literal["s", "ms", "count", "MiB", "CPU s", "s/min", "MiB/min", "/min", "KiB/s", "%"]
Block = tuple[str, int]
"""Key of a round: (result folder, number). The folder is in the key, so that several comparisons can be
joined."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One measured quantity, of which a smaller value is better."""

    key: str
    unit: Unit
    material: float
    """Smallest difference that would change a decision. A headline measure may name another difference."""
    title: str
    meaning: str


MEASURES: Final = {
    each.key: each
    for each in (
        Measure(
            *("left_by_nameservers_s", "s", 0.5, "Dead broker still listed by a nameserver"),
            "From the fault until the last nameserver no longer lists the broker for any observed topic.",
        ),
        Measure(
            *("left_by_clients_s", "s", 0.5, "Dead broker still in a client's routes"),
            "From the fault until the last observed client has dropped the broker from its own routes.",
        ),
        Measure(
            *("back_by_nameservers_s", "s", 0.5, "Returned broker listed by all nameservers"),
            "From the instant the broker serves again until the last nameserver lists it for all its "
            "observed topics.",
        ),
        Measure(
            *("back_by_clients_s", "s", 0.5, "Returned broker in all clients' routes"),
            "From the instant the broker serves again until the last observed client has it in its routes.",
        ),
        Measure(
            *("right_again_s", "s", 0.25, "Route look-ups right again"),
            "From the fault until the first right answer after which all answers are right, for clients that "
            "try the next server by themselves. A request that waits longer than 250 ms delays the recovery "
            "as a wrong answer does.",
        ),
        Measure(
            *("slowest_lookup_s", "s", 0.25, "Slowest answered look-up"),
            "The longest time from the instant a look-up was due until its right answer came.",
        ),
        Measure(
            *("newcomer_right_s", "s", 0.25, "New clients get right routes again"),
            "From the fault until the first right answer after which all answers are right, for new clients. "
            "A new client asks one server once, whether or not the fault hit that server. Each server has "
            "its own time; the longest one counts.",
        ),
        Measure(
            *("newcomer_others_right_s", "s", 0.25, "New clients get right routes again: other servers"),
            "The same, only for new clients that ask a server which the fault did not hit.",
        ),
        Measure(
            *("unreachable_lookups", "count", 5, "Look-ups that list an unreachable broker"),
            "Answers that list a broker which this client cannot reach: it is dead, or a fault has cut it "
            "off from the client. Answers that overlap the event do not count.",
        ),
        Measure(
            *("missing_lookups", "count", 5, "Look-ups that omit a reachable broker"),
            "Answers that leave out a broker which this client could reach. It is right to leave out a "
            "broker that the client cannot reach. A request that was due in a cut and answered after its end "
            "counts, too: the broker is reachable again then.",
        ),
        Measure(
            *("unreachable_newcomers", "count", 5, "New clients that get an unreachable broker"),
            "Answers to new clients that list a broker which the client cannot reach.",
        ),
        Measure(
            *("missing_newcomers", "count", 5, "New clients that miss a reachable broker"),
            "Answers to new clients that leave out a broker which the client could reach, also answers to "
            "requests that were due in a cut and answered after its end.",
        ),
        Measure(
            *("failed_lookups", "count", 5, "Look-ups without an answer"),
            "The client tried every server; each refused, failed, or did not answer within the time-out.",
        ),
        Measure(
            *("refused_lookups", "count", 5, "Look-ups refused"),
            "Look-ups without an answer whose last server said that it could not answer now.",
        ),
        Measure(
            *("stale_lookups", "count", 5, "Look-ups with an old route"),
            "Answers that list the right brokers, but an old version of the topic: a later version had been "
            "acknowledged before the client sent the look-up. They are neither right nor wrong. An answer "
            "that is more than 250 ms behind delays the recovery as a wrong one does.",
        ),
        Measure(
            *("stale_newcomers", "count", 5, "New clients with an old route"),
            "Answers to new clients with an old version of the topic, counted in the same way.",
        ),
        Measure(
            *("oldest_answer_s", "s", 0.5, "Oldest route in a look-up's answer"),
            "The longest time from the acknowledgement of a version until a look-up that still got the "
            "version before it.",
        ),
        Measure(
            *("announce_again_s", "s", 0.25, "Brokers can register again"),
            "From the fault until the first accepted registration after which all are accepted. A broker "
            "sends a registration to all servers at once; it is accepted when the first server accepts it. "
            "Heartbeats that change nothing do not count.",
        ),
        *(
            Measure(
                *(f"{measure}_{side}_s", "s", 0.25, f"{title}: {where}"),
                "The same in a partition, for the clients or brokers on one side of it. Those alone with the "
                "server that the fault hit may have to wait until the partition ends.",
            )
            for measure, title in (
                ("right_again", "Route look-ups right again"),
                ("announce_again", "Brokers can register again"),
            )
            for side, where in (
                ("side_a", "on the side of the server that the fault hit"),
                ("side_b", "on the other side"),
            )
        ),
        Measure(
            *("failed_sends", "count", 2, "Failed sends, with two retries"),
            "Messages that a producer with RocketMQ's two retries could not send, or whose outcome it does "
            "not know.",
        ),
        Measure(
            *("failed_sends_once", "count", 2, "Failed sends, without retries"),
            "The same for a producer that never tries again.",
        ),
        Measure(
            *("late_sends", "count", 2, "Sends that took longer than 1 s"),
            "Messages that a producer sent in the end, but more than one second after they were due.",
        ),
        Measure(
            *("given_up_s", "s", 0.5, "Living broker not listed"),
            "The time in all for which one nameserver did not list one living broker for one topic, also a "
            "broker that a fault cut off from this nameserver. The largest such time counts.",
        ),
        Measure(
            *("disagree_s", "s", 0.5, "Nameservers listed different brokers"),
            "The time for which at least two nameservers listed different brokers for at least one topic.",
        ),
        Measure(
            *("unanswering_s", "s", 0.5, "A nameserver gave no answer"),
            "The time in which at least one nameserver refused to answer, or was silent, for at least one "
            "observed topic. Such a server contradicts nobody. Only the time that is certain counts: while a "
            "reading waits for its answer, nothing is certain, so up to 0.8 s may be missing.",
        ),
        Measure(
            *("disagree_topics", "count", 1, "Topics with different brokers"),
            "Topics for which at least two nameservers listed different brokers.",
        ),
        Measure(
            *("agree_s", "s", 0.5, "Nameservers list the same brokers again"),
            "From the end of the fault until no two nameservers listed different brokers any more. "
            "Disagreements shorter than 20 ms do not count.",
        ),
        Measure(
            *("disagree_queues_s", "s", 0.5, "Nameservers gave different queue counts"),
            "The time for which at least two nameservers listed a topic with different numbers of queues. "
            "The harness changes these topics several times a second.",
        ),
        Measure(
            *("agree_queues_s", "s", 0.5, "Nameservers give the same queue counts again"),
            "From the end of the fault until no two nameservers gave different queue counts any more. "
            "Disagreements shorter than 20 ms do not count, and neither do those that begin after the end of "
            "the fault and last at most 250 ms: the harness changes these topics all the time.",
        ),
        Measure(
            *("backward_answers", "count", 1, "Answers that went backwards"),
            "How often a server gave an older answer than the same process had given before. An older answer "
            "has an earlier version of a topic, by the harness's log of changes, or a broker that the server "
            "had dropped and that was still gone. A restarted process begins anew. Must be 0.",
        ),
        Measure(
            *("backward_s", "s", 0.25, "Longest time of older answers"),
            "The longest time for which one server gave older answers about a topic than before, until it "
            "had caught up. Must be 0.",
        ),
        Measure(
            *("all_send_s", "s", 0.25, "All clients can send to the new topic"),
            "From the instant at which an administrator begins to make the topic, or the first producer "
            "begins to send to it, until the last of the observed producers has had a message accepted.",
        ),
        Measure(
            *("group_reads_s", "s", 0.5, "A consumer group reads from the new topic"),
            "From the same instant until the consumer group, which had subscribed before, gets a first "
            "message.",
        ),
        Measure(
            *("brokers_without", "count", 1, "Brokers without the new topic in the end"),
            "Real brokers that no nameserver lists for the topic when the window ends.",
        ),
        Measure(
            *("restart_cpu_s", "CPU s", 0.5, "CPU of all servers after the fault, starts included"),
            "User and system time of all nameservers or ZooKeeper servers from the fault until its window "
            "ends; a process that was started again counts from its first instruction.",
        ),
        Measure(
            *("lost_messages", "count", 1, "Messages lost"),
            "Messages that the producer saw acknowledged and the consumer group never got.",
        ),
        Measure(
            *("repeated_messages", "count", 5, "Messages read more than once"),
            "Messages that the consumer group got at least twice.",
        ),
        Measure(
            *("late_messages", "count", 2, "Messages read more than 1 s late"),
            "Messages that the consumer group first got more than one second after they were due.",
        ),
        Measure(
            *("lookup_ms_p50", "ms", 1, "Route look-up, typical"),
            "Median latency from the instant a look-up was due. A failed look-up counts as never answered.",
        ),
        Measure(
            *("lookup_ms_p99", "ms", 5, "Route look-up, slowest of 100"),
            "99th percentile, where at least ten observations of the run lie above it.",
        ),
        Measure(
            *("announce_ms_p50", "ms", 5, "Registration acknowledged, typical"),
            "Median from the instant the registration was due until the first server accepted it. A failed "
            "one counts as never accepted.",
        ),
        Measure(
            *("announce_ms_p99", "ms", 20, "Registration acknowledged, slowest of 100"),
            "99th percentile, where at least ten observations of the run lie above it.",
        ),
        Measure(
            *("visible_ms_p50", "ms", 10, "Change visible on all nameservers, typical"),
            "Median from the instant its broker began to send the change until the last nameserver shows it. "
            "“What to trust” says how exactly that is known.",
        ),
        Measure(
            *("visible_clients_ms_p50", "ms", 500, "Change known to all observed clients, typical"),
            "Median from the instant its broker began to send the change until the last client's routes "
            "show it.",
        ),
        Measure(
            *("stale_nameservers", "%", 5, "Nameservers that do not know a change after 100 ms"),
            "Share of all pairs of a nameserver and a change that no later change had replaced by then. The "
            "100 ms begin when the broker begins to send.",
        ),
        Measure(
            *("stale_clients", "%", 5, "Clients that do not know a change after 500 ms"),
            "The same for the routes of observed clients, after 500 ms.",
        ),
        Measure(
            *("stale_answers", "%", 1, "Look-ups with an old route"),
            "Share of the look-ups of topics that change, without those whose answers overlap a change.",
        ),
        Measure(
            *("cpu_s_per_min", "s/min", 0.6, "CPU of all servers"),
            "User and system time of all nameservers or ZooKeeper servers per minute, starts included, and "
            "with the work for the scenario's load, if it has one. Divided timers make the servers work more "
            "often.",
        ),
        Measure(
            *("rss_mib", "MiB", 64, "Memory of all servers"),
            "Sum of the largest resident size of each server.",
        ),
        Measure(*("processes", "count", 1, "Server processes"), "Nameservers or ZooKeeper servers."),
        Measure(
            *("written_mib_per_min", "MiB/min", 1, "Written to files"),
            "Bytes that all servers wrote to their files per minute. Raft mode counts them in its metrics; "
            "for ZooKeeper the harness adds up the entries of its logs and its snapshots.",
        ),
        Measure(
            *("syncs_per_min", "/min", 60, "Syncs of files"),
            "How often all servers synced a file to the disk per minute, by their own counters.",
        ),
        Measure(
            *("device_mib_per_min", "MiB/min", 1, "Written by the device"),
            "Sectors that the disk wrote per minute, for any program. A synced write costs the disk whole "
            "blocks and the file system's journal. Shown only for runs in which nothing else used the "
            "machine.",
        ),
        Measure(
            *("network_kib_per_s", "KiB/s", 10, "Network"),
            "Bytes in both directions over the links to nameservers or ZooKeeper servers and among them, "
            "without the headers of TCP and IP. Divided timers make requests, and so bytes, more frequent.",
        ),
    )
}

HARMS: Final = (
    *("disagree_s", "disagree_queues_s", "unanswering_s", "given_up_s"),
    *("oldest_answer_s", "backward_s"),
)
"""Measures of the time in which something was wrong. All other times last until something is right."""
TIMES: Final = tuple(
    key
    for key, each in MEASURES.items()
    if each.unit == "s" and key not in ("oldest_answer_s", "backward_s", "unanswering_s")
)
"""Measures of recoveries in s. The three excluded times are no recoveries, because they depend on the fault's
length."""
SHARE_MIN: Final = 20
"""Least number of observations from which the page shows a share."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """The series, scenario, case and measure to which a value belongs."""

    series: str
    scenario: str
    case: str | None
    measure: str


Values = dict[Place, dict[str, dict[Block, float]]]
"""Nested maps: from place to design, from design to round, from round to value."""


def values(gold: Gold) -> Values:
    """Return every value of every used run."""
    by_run = {source.run: source for source in gold.sources if source.left_out is None}
    found: Values = defaultdict(lambda: defaultdict(dict))
    cases = {(row.run, row.fault): row for row in gold.faults}

    for run, case, measure, value in (
        *_of_requests(gold.recoveries, cases),
        *_of_routes(gold, cases),
        *_of_backward_answers(gold, cases),
        *_of_messages(gold, cases),
        *_of_new_topics(gold, cases, by_run),
        *_of_quiet_times(gold, by_run),
        *_of_restarts(gold, cases),
        *_of_staleness(gold, by_run),
    ):
        if (source := by_run.get(run)) is not None:
            place = Place(source.series, source.scenario, case, measure)
            found[place][source.arm][source.batch, source.block] = value
    _count_lost(found, by_run)
    return {place: dict(arms) for place, arms in sorted(found.items(), key=lambda item: _order(item[0]))}


def floors(gold: Gold) -> dict[Place, dict[str, float]]:
    """Return the longest recovery in s that is recorded as 0, for every :class:`Place` and design.

    A recovery is recorded as 0 in two cases:

    - No request was due during the disturbance.
    - No request waited long enough to count as disturbed.
    """
    by_run = {source.run: source for source in gold.sources if source.left_out is None}
    cases = {(row.run, row.fault): row for row in gold.faults}
    found: dict[Place, dict[str, float]] = defaultdict(dict)
    for row in gold.recoveries:
        fault, source = cases.get((row.run, row.fault)), by_run.get(row.run)
        if fault is None or source is None or not is_struck(fault):
            continue
        key = _recovery_of(row, fault)
        if key is None:
            continue
        arms = found[Place(source.series, source.scenario, fault.case, key)]
        arms[source.arm] = max(arms.get(source.arm, 0.0), max(row.gap_ns, WAITED_NS) / 1e9)
    return dict(found)


NEAR: Final = 0.05
"""Share of a length that the plan sets. If a time differs from the length by at most this share in every
round, the time is no result."""


def set_by_plan(gold: Gold, found: Values) -> set[tuple[Place, str]]:
    """Return the :class:`Place` and design of all times that only show a length that the plan sets.

    A time only shows a planned length if it differs from one of these lengths by at most 5 %, in all rounds:

    - the length of the fault, if the fault ends
    - the length of the scenario
    - the time between two readings, for times that were read from the servers
    """
    by_run = {source.run: source for source in gold.sources if source.left_out is None}
    lengths: dict[tuple[str, str, str | None, str], dict[Block, tuple[float, ...]]] = defaultdict(dict)
    faults = [
        (row.run, row.case, (row.healed_ns - row.begin_ns) / 1e9) for row in gold.faults if row.healed_ns
    ]
    for run, case, down_s in (*faults, *((run, None, math.nan) for run in by_run)):
        source = by_run.get(run)
        if source is None or source.manifest is None:
            continue
        scenario_s = (source.manifest.measure_end_ns - source.manifest.measure_begin_ns) / 1e9
        of_case = lengths[source.series, source.scenario, case, source.arm]
        of_case[source.batch, source.block] = (down_s, scenario_s, OBSERVE_EVERY_S)
    planned = set()
    for place, arms in found.items():
        if (unit := MEASURES[place.measure].unit) not in ("s", "ms"):
            continue
        for arm, blocks in arms.items():
            known = lengths.get((place.series, place.scenario, place.case, arm), {})
            if not blocks or not blocks.keys() <= known.keys():
                continue
            rounds = [
                (value / (1000 if unit == "ms" else 1), known[block]) for block, value in blocks.items()
            ]
            # Each round has three lengths: of the fault, of the scenario, and between two readings. Compare
            # the third length only with times that were read from the servers.
            kinds = range(3 if place.measure in STEPS else 2)
            if any(all(_is_near(value, each[kind]) for value, each in rounds) for kind in kinds):
                planned.add((place, arm))
    return planned | grown_with_the_cut(found, lengths)


GROWTH: Final = (0.8, 1.2)
"""Range of the seconds by which a time grows when the fault lasts one second longer.

A time that grows within this range only shows the fault's length.
"""


def grown_with_the_cut(
    found: Values, lengths: Mapping[tuple[str, str, str | None, str], Mapping[Block, tuple[float, ...]]]
) -> set[tuple[Place, str]]:
    """Return the :class:`Place` and design of all times that grow as fast as the fault's length.

    A sweep is a group of cases that differ only in the fault's length. In one sweep the leader is isolated,
    in another sweep a follower is isolated.

    If a design's time grows with the fault's length in a sweep, the result has all cases of this sweep. If
    the time grows in both sweeps, the result also has the case ``1-2``: one server is cut off from the other
    two.
    """
    points: dict[tuple[str, str, str, str, str], list[tuple[Place, float, float]]] = defaultdict(list)
    for place, arms in found.items():
        if place.case not in SWEEPS or MEASURES[place.measure].unit != "s":
            continue
        for arm, blocks in arms.items():
            known = lengths.get((place.series, place.scenario, place.case, arm), {})
            if blocks and blocks.keys() <= known.keys():
                length = median(known[block][0] for block in blocks)
                key = (place.series, place.scenario, SWEEPS[place.case][0], place.measure, arm)
                points[key].append((place, length, median(blocks.values())))
    planned, whose = set(), defaultdict(set)
    for (_, scenario, who, measure, arm), swept in points.items():
        if _grows_so([(length, value) for _, length, value in swept]):
            planned |= {(place, arm) for place, _, _ in swept}
            whose[scenario, measure, arm].add(who)
    everybody = {who for who, _ in SWEEPS.values()}
    for place, arms in found.items():
        for arm in arms:
            if place.case == "1-2" and whose.get((place.scenario, place.measure, arm)) == everybody:
                planned.add((place, arm))
    return planned


def _grows_so(points: Sequence[tuple[float, float]]) -> bool:
    """Return True if, from each length to the next, the values grow by about as much as the lengths."""
    ordered = sorted(points)
    steps = [
        (more - less) / (long - short) for (short, less), (long, more) in pairwise(ordered) if long > short
    ]
    return len(steps) > 1 and all(GROWTH[0] <= step <= GROWTH[1] for step in steps)


def downs(gold: Gold) -> dict[Place, float]:
    """Return for each :class:`Place` the seconds for which the plan kept servers down.

    The result has the places whose time begins with the fault, because such a time includes these seconds.
    """
    by_run = {source.run: source for source in gold.sources if source.left_out is None}
    found: dict[Place, list[float]] = defaultdict(list)
    for row in gold.faults:
        source = by_run.get(row.run)
        if source is None or row.healed_ns is None or not strikes_servers(row):
            continue
        for measure in (*_RECOVERY.values(), "slowest_lookup_s"):
            place = Place(source.series, source.scenario, row.case, measure)
            found[place].append((row.healed_ns - row.begin_ns) / 1e9)
    return {place: median(seconds) for place, seconds in found.items()}


def _is_near(value: float, length: float) -> bool:
    return abs(value - length) <= NEAR * length


_RECOVERY: Final = {
    ("lookup", "all"): "right_again_s",
    ("newcomer", "all"): "newcomer_right_s",
    ("newcomer", "others"): "newcomer_others_right_s",
    ("registration", "all"): "announce_again_s",
}
"""Maps an operation and a scope (the servers that count) to the measure of the operation's recovery."""

_RECOVERY_OF_SIDES: Final = {
    ("lookup", "side-a"): "right_again_side_a_s",
    ("lookup", "side-b"): "right_again_side_b_s",
    ("registration", "side-a"): "announce_again_side_a_s",
    ("registration", "side-b"): "announce_again_side_b_s",
}
"""Maps operation and side to the measure of the recovery, for faults that separate clients from each other.

One of the two sides may recover only when the fault ends. So the recovery of both sides together would only
show the fault's length.
"""


def _recovery_of(row: Recovery, fault: Fault) -> str | None:
    """Return the measure of the recovery in this row, or None if no measure uses this recovery."""
    key = row.op, row.scope
    if not parts_clients(fault):
        return _RECOVERY.get(key)
    return _RECOVERY_OF_SIDES.get(key) or (_RECOVERY.get(key) if row.op == "newcomer" else None)


def _order(place: Place) -> tuple[str, str, str, int]:
    return place.series, place.scenario, place.case or "", list(MEASURES).index(place.measure)


def _count_lost(found: Values, by_run: dict[str, Source]) -> None:
    """Set all values of a run to infinity if a server of its design ended by itself."""
    for source in by_run.values():
        if source.manifest is None or source.manifest.lost is None:
            continue
        for place, arms in found.items():
            if (place.series, place.scenario) == (source.series, source.scenario):
                arms[source.arm][source.batch, source.block] = math.inf


def _seconds(value_ns: int | None) -> float:
    return math.inf if value_ns is None else value_ns / 1e9


_Found = Iterator[tuple[str, str | None, str, float]]


def is_struck(fault: Fault) -> bool:
    """Return True if the fault hits a process. A new topic is recorded as a fault, but hits no process."""
    return fault.kind not in CASES[NEW_TOPIC].values()


def parts_clients(fault: Fault) -> bool:
    """Return True if the fault separates clients from each other."""
    return fault.kind == "partition" and fault.case != "broker-nameserver"


def strikes_servers(fault: Fault) -> bool:
    """Return True if any of the fault's targets is a nameserver or ZooKeeper server."""
    return any(target.startswith("nameserver-") for target in fault.targets)


def _of_requests(rows: Sequence[Recovery], faults: dict[tuple[str, int], Fault]) -> _Found:
    for row in rows:
        if (row.run, row.fault) not in faults or not is_struck(faults[row.run, row.fault]):
            continue
        case = faults[row.run, row.fault].case
        recovery = _recovery_of(row, faults[row.run, row.fault])
        if row.scope == "others" and not strikes_servers(faults[row.run, row.fault]):
            continue  # no server was hit, so "others" are all servers, as in the row of scope "all"
        if recovery is not None:
            yield row.run, case, recovery, _seconds(row.recovered_ns)
        if row.scope != "all":
            continue
        match row.op:
            case "lookup":
                yield row.run, case, "slowest_lookup_s", _seconds(row.slowest_ns)
                yield row.run, case, "unreachable_lookups", row.unreachable
                yield row.run, case, "missing_lookups", row.missing
                yield row.run, case, "failed_lookups", row.failed + row.refused
                yield row.run, case, "refused_lookups", row.refused
                yield row.run, case, "stale_lookups", row.stale
                yield row.run, case, "oldest_answer_s", row.behind_ns / 1e9
            case "newcomer":
                yield row.run, case, "unreachable_newcomers", row.unreachable
                yield row.run, case, "missing_newcomers", row.missing
                yield row.run, case, "stale_newcomers", row.stale
            case "send":
                yield row.run, case, "failed_sends", row.n - row.right
                yield row.run, case, "late_sends", row.late
            case "send_once":
                yield row.run, case, "failed_sends_once", row.n - row.right


def _of_routes(gold: Gold, faults: dict[tuple[str, int], Fault]) -> _Found:
    seen: list[tuple[str, LeftOut | Back, int | None]] = [
        *(("left", each, each.left_out_ns) for each in gold.left_out),
        *(("back", each, each.back_ns) for each in gold.back),
    ]
    took: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for what, row, value_ns in seen:
        fault = faults[row.run, row.fault]
        if fault.kind != "partition":  # left out: in a partition, the broker is alive
            took[row.run, fault.case, f"{what}_by_{row.observer}s_s"].append(_seconds(value_ns))
    for (run, case, measure), values_s in took.items():
        yield run, case, measure, max(values_s)
    watched = {row.run for row in gold.observed if row.observer == "nameserver"}
    differed = {(row.run, row.fault, row.about): row for row in gold.disagreements}
    silent = {(row.run, row.fault): row.unanswering_ns for row in gold.unanswering}
    mistaken = {(row.run, row.fault): row for row in gold.given_up if row.observer == "nameserver"}
    for (run, number), fault in faults.items():
        if run not in watched or not is_struck(fault):
            continue
        for about, of_what in (("brokers", ""), ("queues", "_queues")):
            found = differed.get((run, number, about))
            yield run, fault.case, f"disagree{of_what}_s", found.disagree_ns / 1e9 if found else 0.0
            if about == "brokers":
                yield run, fault.case, "disagree_topics", found.topics if found else 0
            if fault.healed_ns is not None:
                yield run, fault.case, f"agree{of_what}_s", _seconds(found.agree_ns) if found else 0.0
        yield run, fault.case, "unanswering_s", silent.get((run, number), 0) / 1e9
        dropped = mistaken.get((run, number))
        yield run, fault.case, "given_up_s", dropped.given_up_ns / 1e9 if dropped else 0.0


def _of_backward_answers(gold: Gold, faults: dict[tuple[str, int], Fault]) -> _Found:
    """Yield ``backward_answers`` and ``backward_s`` for each case of a fault, including values of 0.

    An answer goes backwards if it is older than an earlier answer of the same process. For answers before the
    first fault of a scenario, the yielded case is None. If a scenario has faults, the values with case None
    are yielded only if such an answer went backwards.
    """
    compared = {row.run for row in gold.backward}
    found: dict[tuple[str, str | None], list[tuple[int, int]]] = {
        (run, fault.case): [] for (run, _), fault in faults.items() if run in compared
    }
    struck = {run for run, _ in found}
    for row in gold.backward:
        case = None if row.fault is None else faults[row.run, row.fault].case
        times = row.fell + row.relisted
        if case is not None or times or row.run not in struck:
            found.setdefault((row.run, case), []).append((times, row.longest_ns))
    for (run, case), each in found.items():
        yield run, case, "backward_answers", sum(times for times, _ in each)
        yield run, case, "backward_s", max((longest_ns for _, longest_ns in each), default=0) / 1e9


def _of_new_topics(gold: Gold, faults: dict[tuple[str, int], Fault], by_run: dict[str, Source]) -> _Found:
    for row in gold.new_topics:
        source = by_run.get(row.run)
        if source is None or source.manifest is None or (row.run, row.fault) not in faults:
            continue
        case = faults[row.run, row.fault].case
        yield row.run, case, "all_send_s", _seconds(row.sent_ns)
        yield row.run, case, "group_reads_s", _seconds(row.read_ns)
        yield row.run, case, "brokers_without", source.manifest.brokers - row.brokers


def _of_messages(gold: Gold, faults: dict[tuple[str, int], Fault]) -> _Found:
    counted: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in gold.messages:
        if row.fault is not None and (row.run, row.fault) in faults:
            total = counted[row.run, faults[row.run, row.fault].case]
            total[0] += row.lost
            total[1] += row.repeated
            total[2] += row.late
    for (run, case), (lost, repeated, late) in counted.items():
        yield run, case, "lost_messages", lost
        yield run, case, "repeated_messages", repeated
        yield run, case, "late_messages", late


def _of_quiet_times(gold: Gold, by_run: dict[str, Source]) -> _Found:
    """Yield latencies of times without a fault, and the resources used in scenarios without faults.

    - Latencies measured before faults are merged with those of the scenario ``quiet`` in the same round and
      design. They are yielded for the run of ``quiet``.
    - Latencies of the scenarios ``idle-300`` and ``staleness`` are yielded for their own runs.
    - Resources are yielded for the run that used them.
    """
    quiet_run = {_life(source): run for run, source in by_run.items() if source.scenario == "quiet"}

    def place(run: str, phase: str) -> str | None:
        source = by_run.get(run)
        if source is None or phase == "fault":
            return None
        if source.scenario in ("idle-300", "staleness"):
            return run
        return quiet_run.get(_life(source)) if phase == "reference" or source.scenario == "quiet" else None

    spread: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for row in gold.latency:
        home = place(row.run, row.phase)
        if home is not None:
            value = math.inf if row.value_ns is None else row.value_ns / 1e6
            spread[home, row.op].append((value, row.n))
    for (run, op), rows in spread.items():
        name = {"lookup": "lookup", "registration": "announce"}.get(op)
        for suffix, quantile in (("p50", 0.5), ("p99", 0.99)):
            found = percentile(rows, quantile)
            if name is not None and found is not None:
                yield run, None, f"{name}_ms_{suffix}", found
    shown: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for seen in gold.visible:
        home = place(seen.run, seen.phase)
        if seen.observer == "nameserver" and home == seen.run and by_run[seen.run].scenario == "quiet":
            # The harness does not read the servers in this scenario. So a change would seem to become visible
            # only after the scenario's end.
            continue
        if home is not None and seen.measure == "visible":
            value = math.inf if seen.value_ns is None else seen.value_ns / 1e6
            shown[home, seen.observer].append((value, seen.n))
    for (run, observer), rows in shown.items():
        found = percentile(rows, 0.5)
        if found is not None:
            yield run, None, "visible_ms_p50" if observer == "nameserver" else "visible_clients_ms_p50", found
    answered: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for told in gold.staleness:
        home = place(told.run, told.phase)
        if home is not None and told.op == "lookup":
            answered[home][0] += told.n
            answered[home][1] += told.current
    for run, (n, current) in answered.items():
        if n >= SHARE_MIN:
            yield run, None, "stale_answers", 100 * (1 - current / n)
    quiet = {run for run, source in by_run.items() if source.scenario in COSTS}
    yield from _of_costs(gold, quiet)


STALE_AT_MS: Final = {"nameserver": 100, "client": 500}
"""Age of a change in ms, by kind of observer. A measure gives the share of observers that do not know the
change at this age."""


def _of_staleness(gold: Gold, by_run: dict[str, Source]) -> _Found:
    for row in gold.currency:
        source = by_run.get(row.run)
        if source is None or source.scenario != "staleness" or STALE_AT_MS[row.observer] != row.age_ms:
            continue
        if row.n >= SHARE_MIN:
            yield row.run, None, f"stale_{row.observer}s", 100 * (1 - row.current / row.n)


RESTARTS: Final = ("stop", "kill", "empty", "rolling")
"""Kinds of faults after which the harness starts the struck processes again."""


def _of_restarts(gold: Gold, faults: dict[tuple[str, int], Fault]) -> _Found:
    for row in gold.fault_costs:
        fault = faults.get((row.run, row.fault))
        if fault is None or row.role != "nameserver":
            continue
        if fault.kind in RESTARTS and strikes_servers(fault):
            yield row.run, fault.case, "restart_cpu_s", row.cpu_ns / 1e9


SECTOR_BYTES: Final = 512
"""Bytes of a sector in the kernel's counts. The device's own sectors may have another size."""
OTHERS_CORES: Final = 0.25
"""Largest number of cores that other programs may use. With more, they may have influenced a run's figures.
"""


def others_cores(gold: Gold) -> dict[str, float]:
    """Return the average number of CPU cores that other programs used in each run."""
    ours: dict[str, int] = defaultdict(int)
    for row in gold.costs:
        if row.role != "machine":
            ours[row.run] += row.cpu_ns
    return {
        row.run: max(row.cpu_ns - ours[row.run], 0) / row.covered_ns
        for row in gold.costs
        if row.role == "machine" and row.covered_ns
    }


def _alone(gold: Gold) -> set[str]:
    """Return the runs in which only the servers can have written much to the disk."""
    others = others_cores(gold)
    return {
        source.run
        for source in gold.sources
        if source.scenario in DEVICE and others.get(source.run, math.inf) <= OTHERS_CORES
    }


def _life(source: Source) -> tuple[str, str, int, str]:
    return source.batch, source.series, source.block, source.arm


def _of_costs(gold: Gold, quiet: set[str]) -> _Found:
    # Divide by the time between the first and the last sample, because the figures cover only this time.
    for row in gold.costs:
        if row.run in quiet and row.role == "nameserver" and row.covered_ns:
            minutes = row.covered_ns / 60e9
            yield row.run, None, "cpu_s_per_min", row.cpu_ns / 1e9 / minutes
            yield row.run, None, "rss_mib", row.rss_bytes / 2**20
            yield row.run, None, "processes", row.processes
    alone = _alone(gold)
    for disk in gold.disks:
        if disk.run not in quiet or not disk.covered_ns:
            continue
        minutes = disk.covered_ns / 60e9
        if disk.written_bytes is not None:
            yield disk.run, None, "written_mib_per_min", disk.written_bytes / 2**20 / minutes
        if disk.syncs is not None:
            yield disk.run, None, "syncs_per_min", disk.syncs / minutes
        if disk.sectors is not None and disk.run in alone:
            yield disk.run, None, "device_mib_per_min", disk.sectors * SECTOR_BYTES / 2**20 / minutes
    total: dict[str, float] = defaultdict(float)
    for link in gold.links:
        if link.run in quiet and link.covered_ns and link.acceptor.startswith("nameserver-"):
            total[link.run] += link.bytes / 1024 / (link.covered_ns / 1e9)
    for run, rate in total.items():
        yield run, None, "network_kib_per_s", rate
