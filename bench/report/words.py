"""Numbers and findings in words (pure). Nothing here invents a number."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from routekeeper.bench.report.answers import (
    ARMS,
    LEANING_BLOCKS_MIN,
    SHOWN,
    Answer,
    Choice,
    Pair,
    Primary,
    Row,
    Summary,
)
from routekeeper.bench.report.measures import Unit

MINUS: Final = "\N{MINUS SIGN}"
NEVER: Final = "never"

ARM_NAMES: Final = {
    "independent": "independent",
    "raft": "raft",
    "zookeeper": "ZooKeeper",
    "apache": "Apache's own",
    "independent-again": "independent, again",
    "independent-real": "independent, RocketMQ's own",
    "raft-real": "raft, RocketMQ's own",
}
SCENARIO_TITLES: Final = {
    "broker-dies": "A broker dies",
    "nameserver-restarts": "Nameservers restart",
    "leader-fails": "The server in charge fails",
    "partition": "The network is partitioned",
    "new-topic": "A new topic",
    "messages": "Messages end to end",
    "staleness": "How old answers are",
    "quiet": "Quiet times",
    "idle-300": "Three hundred idle brokers",
}
SCENARIO_QUESTIONS: Final = {
    "broker-dies": (
        "How long do nameservers list a broker that is gone, how long do clients send to it, and is anybody "
        "given up who lives?"
    ),
    "nameserver-restarts": (
        "What do clients get from a nameserver that has just come back, and what if all of them restart?"
    ),
    "leader-fails": (
        "How long do look-ups and registrations wait when the server in charge is gone, paused or cut off? "
        "Independent nameservers have none in charge; one that is drawn is struck."
    ),
    "partition": "Who still answers on which side, do the answers contradict each other, and for how long?",
    "new-topic": "How soon can a new topic be used, and on how many brokers does it end up?",
    "quiet": "What does the design cost when nothing happens?",
    "idle-300": "What does the design cost when nothing happens, with three hundred brokers?",
    "messages": (
        "What becomes of messages while servers and brokers fail: are they not sent, or read late, twice, or "
        "never?"
    ),
    "staleness": (
        "How long after a broker begins to announce a change do nameservers show it, and when do clients "
        "know it?"
    ),
}
CASE_TITLES: Final = {
    "stop": "stopped by its operator",
    "kill": "killed",
    "freeze": "hangs (paused, then continued)",
    "cable": "its cable is cut",
    "oneway": "cut off in one direction",
    "one-empty": "one restarts empty",
    "all": "all restart",
    "rolling": "one after the other restarts",
    "disk-lost": "one loses its disk",
    "1-2": "one nameserver against two",
    "1-1-1": "each nameserver alone",
    "broker-kill": "a broker is killed",
    "broker-cable": "a broker's cable is cut",
    "leader-kill": "the server in charge is killed",
    "leader-cable": "the server in charge is cut off",
    "broker-nameserver": "one broker cut off from one nameserver",
    "update-topic": "an administrator makes it on every broker",
    "first-send": "producers send to it before anybody has made it",
}
CASE_NOTES: Final = {
    ("broker-dies", "kill"): (
        "A killed process's connections are closed by its system. A nameserver takes that for the broker's "
        "end; "
        "ZooKeeper waits until its session has timed out."
    ),
    ("broker-dies", "cable"): "No connection is closed: lease or session has to run out.",
    ("broker-dies", "freeze"): "No connection is closed: lease or session has to run out.",
    ("nameserver-restarts", "one-empty"): (
        "What is restarted is no leader. An independent nameserver comes back empty and learns of each "
        "broker with "
        "its next registration; a member of the others gets all from those that went on."
    ),
    ("leader-fails", "kill"): (
        "The killed server is started again in the window. New clients that ask it meanwhile get no answer "
        "in any design; those of the other servers have a row of their own."
    ),
    ("new-topic", "update-topic"): (
        "Every producer tries each 100 ms until a first message is accepted. What polling adds for the "
        "group is in "
        "its figure."
    ),
    ("new-topic", "first-send"): (
        "Each producer sends through the default topic TBW102 until its client knows better, and stops "
        "after the "
        "first message that is accepted: the sooner the others learn of the topic, the fewer brokers get it."
    ),
    ("partition", "1-2"): (
        "One server, one broker and half of the clients are on one side; two servers, the other brokers and "
        "the other clients on the other."
    ),
}
"""What a reader has to know of a case to understand its figures."""
OP_TITLES: Final = {
    "lookup": "Route look-ups",
    "newcomer": "New clients",
    "registration": "Registrations",
    "announce": "Registrations, counted at each server",
    "heartbeat": "Heartbeats that change nothing",
    "send": "Sends",
    "send_once": "Sends without retries",
    "first_send": "First sends to a new topic",
}
SERIES_MEANINGS: Final = {
    "equal": "timers alike in every arm",
    "equal-tenth": "timers alike, divided by less",
    "equal-undivided": "timers alike, not divided",
    "defaults": "each system's own timers",
    "equal-polling": "timers alike, ZooKeeper's clients poll",
    "equal-journal": "timers alike, raft mode acknowledges what it has written before that is synced",
}
_SUFFIX: Final[dict[Unit, str]] = {
    "s": " s",
    "ms": " ms",
    "count": "",
    "MiB": " MiB",
    "CPU s": " s",
    "s/min": " s/min",
    "MiB/min": " MiB/min",
    "KiB/s": " KiB/s",
    "%": " %",
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
    text = f"{rounded:,.{places}f}"
    if rounded == int(rounded):
        text = text.partition(".")[0]
    return f"{MINUS if value < 0 else ''}{text}"


def quantity(value: float, unit: Unit) -> str:
    """Return a value with its unit, in the magnitude that reads best: ``340 µs``, ``2.1 ms``, ``3.02 s``."""
    if math.isinf(value):
        return NEVER if value > 0 else number(value)
    if unit == "s" and 0 < abs(value) < 1:
        return quantity(value * 1000, "ms")
    if unit == "ms" and abs(value) >= 1000:
        return quantity(value / 1000, "s")
    if unit == "ms" and 0 < abs(value) < 0.9995:
        return f"{number(value * 1000)} µs"
    if unit == "count" and abs(value) < 1000:
        return f"{MINUS if value < 0 else ''}{round(abs(value), 2):g}"  # 1.5 messages, not 1.50
    return f"{number(value)}{_SUFFIX[unit]}"


def signed(value: float, unit: Unit) -> str:
    """Return a difference with its sign."""
    if math.isinf(value):
        return "without end" if value > 0 else f"{MINUS} without end"
    return f"{'+' if value > 0 else ''}{quantity(value, unit)}"


def off_by(more: float, predicted: float) -> str:
    """Say how far a measurement lies from what was predicted for it, in seconds and as a share."""
    if math.isinf(more):
        return "it never ended"
    if not round(more, 3):
        return "as predicted"
    share_of = f" ({abs(more) / predicted:.0%})" if predicted > 0 else ""
    return f"{quantity(abs(more), 's')} {'more' if more > 0 else 'less'} than predicted{share_of}"


def between(low: float, high: float, unit: Unit) -> str:
    """Return a range, ``607 to 835 ms``; empty if both ends read the same."""
    first, last = quantity(low, unit), quantity(high, unit)
    if first == last:
        return ""
    number_of, _, suffix = first.partition(" ")
    return f"{number_of if suffix and last.endswith(f' {suffix}') else first} to {last}"


def middle_of(summary: Summary, unit: Unit) -> str:
    """Return the blocks' median; what is too short to be noticed is not called nought."""
    return _noticed(summary.middle, summary, unit)


def _noticed(value: float, summary: Summary, unit: Unit) -> str:
    return quantity(value, unit) if value or not summary.floor else f"below {quantity(summary.floor, unit)}"


def range_of(summary: Summary, unit: Unit) -> str:
    """Return the blocks' range as it stands below their median."""
    if summary.floor and not summary.low and summary.high:
        return f"{_noticed(summary.low, summary, unit)} to {quantity(summary.high, unit)}"
    return between(summary.low, summary.high, unit)


OUTCOMES: Final = {
    "right": "right",
    "stale": "old",
    "wrong": "wrong",
    "returning": "without who has just returned",
    "refused": "refused",
    "failed": "without an answer",
}
"""How a read may end, in the order in which it is told."""


def shares(counted: Mapping[str, int]) -> str:
    """Say which share of reads ended how: ``62 % right, 38 % old``; what did not occur is not told.

    Args:
        counted: Number of each of :data:`OUTCOMES`, and ``n`` of all.
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
    """Return a share in per cent; neither all nor nothing unless it is."""
    per_cent = 100 * part / whole
    if 0 < per_cent < 1:
        return "below 1 %"
    if 99 < per_cent < 100:
        return "above 99 %"
    return f"{per_cent:.0f} %"


def series_label(*series: str) -> str:
    """Return how every figure's series is labelled: ``Series “equal”: timers alike in every arm``."""
    told = listed([f"“{each}”" for each in series])
    meaning = SERIES_MEANINGS.get(series[0], "") if len(series) == 1 else ""
    return f"Series {told}{': ' if meaning else ''}{meaning}"


def name(arm: str) -> str:
    """Return an arm's name."""
    return ARM_NAMES.get(arm, arm)


def listed(words: Sequence[str]) -> str:
    """Return ``a``, ``a and b``, ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def leaning(pair: Pair, unit: Unit) -> str:
    """Say how a pair differs: ``raft 1.2 s more than independent, in 6 of 6 blocks``; else empty."""
    if pair.leaning == "none" or pair.estimate is None:
        return ""
    value = pair.estimate.value
    if math.isinf(value):
        loser, other = pair.arms if value > 0 else pair.arms[::-1]
        endless = sum(each == value for each in pair.found)
        never = f"never in {endless}" if endless < len(pair.found) else "never in any"
        return f"{name(loser)} more than {name(other)} in {_blocks(pair)}, {never} of them"
    size = quantity(abs(value), unit)
    more = "more" if pair.leaning == "higher" else "less"
    return f"{name(pair.arms[0])} {size} {more} than {name(pair.arms[1])}, in {_blocks(pair)}"


def difference(pair: Pair, unit: Unit) -> str:
    """Tell by how much a pair differs without judging it: ``raft: +1.2 s (-0.4 s to +3 s)``.

    Its second arm names it: what the first one is, is told above the column.
    """
    told = pair.estimate
    if told is None:
        return ""
    arm = name(pair.arms[1])
    if math.isnan(told.value):
        return f"{arm}: never in either"
    ends = (
        (min(pair.found), max(pair.found)) if not any(map(math.isnan, pair.found)) else (told.low, told.high)
    )
    low, high = (signed(end, unit) for end in ends)
    spread = f" ({low} to {high})" if low != high else ""
    return f"{arm}: {signed(told.value, unit)}{spread}"


def _blocks(pair: Pair) -> str:
    assert pair.estimate is not None
    return f"{max(pair.estimate.below, pair.estimate.above)} of {pair.estimate.blocks} blocks"


def verdict(primary: Primary) -> str:
    """Say what a primary line says, in a few words."""
    first, second = (name(arm) for arm in primary.pair.arms)
    told = primary.pair.estimate
    match primary.found:
        case "not measured":
            return "not measured"
        case "unjudged":
            return f"no verdict: runs of {listed([*map(name, primary.unjudged)])} filled the machine"
        case "set by the plan":
            return f"no verdict: {_planned(primary)}"
        case "too coarse":
            return f"no verdict: {_coarse(primary)}"
        case "better" | "worse" if primary.is_verdict:
            better, worse = (first, second) if primary.found == "better" else (second, first)
            return f"{better} is better than {worse}"
        case "better" | "worse":
            assert told is not None
            way = "lower" if told.below else "higher"
            return f"{first} {way} than {second} in {_blocks(primary.pair)}; no verdict"
        case "equivalent":
            return "equivalent: the difference is too small to matter"
        case _ if primary.is_verdict:
            return "inconclusive"
        case _:
            return _undecided(primary)


def _planned(primary: Primary) -> str:
    return f"the times of {listed([*map(name, primary.set_by_plan)])} are a length that the plan set"


def _coarse(primary: Primary) -> str:
    return (
        f"differences below {primary.resolution_s:g} s do not show, and from {primary.named.margin:g} s on "
        "they were said to matter"
    )


def _undecided(primary: Primary) -> str:
    """Say it of a line of fewer than ten blocks that do not all say the same, or say too little."""
    first, second = (name(arm) for arm in primary.pair.arms)
    told = primary.pair.estimate
    assert told is not None
    if told.blocks < LEANING_BLOCKS_MIN:
        return f"too few blocks to tell: {told.blocks} of {LEANING_BLOCKS_MIN}"
    if not told.below and not told.above and told.value == 0:
        return f"no difference in any of {told.blocks} blocks"
    if told.blocks in (told.below, told.above):
        way = "lower" if told.below else "higher"
        return f"{first} {way} than {second} in {_blocks(primary.pair)}, by less than matters; no verdict"
    alike = told.blocks - told.below - told.above
    counts = (("lower", told.below), ("higher", told.above), ("alike", alike))
    each = [f"{way} in {number}" for way, number in counts if number]
    each[0] = each[0].replace(" in ", f" than {second} in ")
    return f"mixed: {first} {', '.join(each)} of {told.blocks} blocks; no verdict"


def holds(answer: Answer) -> str:
    """Say in a word or two whether a claim holds. That clients learn late is a price, not a promise."""
    late = answer.claim.of_asking
    if answer.holds == "not measured":
        return "Not measured here."
    if answer.holds == "described" and answer.claim.by_design:
        return "It holds by design."
    if answer.holds == "described":
        return "Described only: no primary line compares it."
    if not answer.is_verdict:
        return _in_all_blocks(answer)
    match answer.holds:
        case "holds":
            return "True: later than elsewhere." if late else "Holds."
        case "does not hold":
            return "Not later than elsewhere." if late else "Does not hold."
        case "holds in part":
            return "True in part." if late else "Holds in part."
        case "equivalent":
            return "No difference that matters."
        case "not shown":
            return "Not shown either way."


def by_design(answer: Answer, servers: int) -> str:
    """Say of a claim about what is built how it is built, and what ZooKeeper's servers cost beyond others.

    Args:
        servers: Servers of each arm.
    """
    row = next((each.row for each in answer.found if each.evidence.measure == "rss_mib"), None)
    if not answer.claim.by_design or row is None:
        return ""
    ours = listed([name(arm) for arm in ARMS if arm in row.arms and arm != "zookeeper"])
    told = f"{ours} {'run' if ' and ' in ours else 'runs'} nothing beside RocketMQ's nameservers"
    if "zookeeper" not in row.arms:
        return told
    told += f"; ZooKeeper puts {servers} servers of another system in their place"
    pair = row.pair("zookeeper", "independent")
    if pair is None or pair.estimate is None:
        return told
    more = pair.estimate.value
    size = quantity(abs(more), row.measure.unit)
    return f"{told}, with {size} {'more' if more >= 0 else 'less'} memory than {name(pair.arms[1])}"


def _in_all_blocks(answer: Answer) -> str:
    """Say what the blocks say where they are too few for a verdict."""
    late = answer.claim.of_asking
    saying = [line for line in answer.lines if line.winner is not None]
    numbers = {line.blocks for line in saying}
    blocks = f"{min(numbers)} of {min(numbers)} blocks" if len(numbers) == 1 else "all blocks"
    match answer.holds:
        case "holds":
            return f"{'Later than elsewhere' if late else 'So it was'} in {blocks}; no verdict."
        case "does not hold":
            return f"{'Not later than elsewhere' if late else 'Not so'} in {blocks}; no verdict."
        case "holds in part":
            return f"So in part, in {blocks}; no verdict."
        case _ if max((line.blocks for line in answer.lines), default=0) < LEANING_BLOCKS_MIN:
            return f"Too few blocks to tell: {LEANING_BLOCKS_MIN} are needed."
        case _:
            return "Mixed; no verdict."


def choice(chosen: Choice) -> str:
    """Say which arms serve a need, by its primary lines: of each line the two arms that it compares."""
    return "; ".join(_rather(line) for line in chosen.lines) or f"described only: {described(chosen)}"


def _rather(line: Primary) -> str:
    first, second = (name(arm) for arm in line.pair.arms)
    match line.found:
        case "better" | "worse":
            better, worse = (first, second) if line.found == "better" else (second, first)
            told = "" if line.is_verdict else f" in {_blocks(line.pair)}: no verdict"
            return f"{better} rather than {worse}{told}"
        case "equivalent":
            return f"{first} or {second}: the difference is too small to matter"
        case "unjudged":
            return f"not told: runs of {listed([*map(name, line.unjudged)])} filled the machine"
        case "set by the plan":
            return f"not told: {_planned(line)}"
        case "too coarse":
            return f"not told: {_coarse(line)}"
        case "not measured":
            return f"not measured between {first} and {second}"
        case _ if line.is_verdict:
            return f"not decided between {first} and {second}"
        case _ if line.blocks < LEANING_BLOCKS_MIN:
            return "too few blocks to tell"
        case _:
            return f"mixed between {first} and {second}: no verdict"


def because(chosen: Choice) -> str:
    """Say by which figures."""
    row = chosen.row
    values = ", ".join(
        f"{name(arm)} {middle_of(row.arms[arm], row.measure.unit)}" for arm in ARMS if arm in row.arms
    )
    return f"{row.measure.title}: {values}"


def described(chosen: Choice) -> str:
    """Say how the arms differ in a figure that no primary line compares: description, not a verdict."""
    row = chosen.row
    told = [
        text
        for pair in row.pairs
        if set(pair.arms) <= set(ARMS) and (text := leaning(pair, row.measure.unit))
    ]
    if not row.can_tell:
        return "too few blocks to tell"
    return "; ".join(told) or "no difference that matters in every block"


def no_difference(rows: Sequence[Row]) -> str:
    """Name the rows without a difference in one or two sentences; empty without any."""
    none, alike = [], []
    for row in rows:
        summaries = [row.arms[arm] for arm in SHOWN if arm in row.arms]
        if not summaries:
            continue
        low, high = min(each.low for each in summaries), max(each.high for each in summaries)
        title = f"{row.measure.title[0].lower()}{row.measure.title[1:]}"
        floor = max(each.floor for each in summaries)
        if low == high == 0 and floor:
            alike.append(f"{title} (below {quantity(floor, row.measure.unit)})")
        elif low == high == 0:
            none.append(title)
        else:
            whole = Summary(middle=low, low=low, high=high, blocks=summaries[0].blocks, floor=floor)
            spread = range_of(whole, row.measure.unit) or quantity(low, row.measure.unit)
            alike.append(f"{title} ({spread})")
    text = f"No difference that matters in every block: {'; '.join(alike)}." if alike else ""
    if none:
        text += f"{' ' if text else ''}Nought in every run of every arm: {'; '.join(none)}."
    return text
