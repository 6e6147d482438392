"""Numbers and findings in words (pure). Nothing here invents a number."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from bench.report.answers import (
    ARMS,
    LEANING_BLOCKS_MIN,
    Answer,
    Choice,
    Judged,
    Pair,
    Primary,
    Row,
    Summary,
)
from bench.report.measures import Unit

MINUS: Final = "\N{MINUS SIGN}"
NEVER: Final = "never"

ARM_NAMES: Final = {
    "independent": "independent",
    "raft": "raft",
    "zookeeper": "ZooKeeper",
    "apache": "Apache's own",
    "independent-again": "independent, again",
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
SERIES_TITLES: Final = {
    "equal": "equal detection times",
    "equal-undivided": "equal detection times, timers not divided",
    "defaults": "each system's own timers",
    "equal-watches": "equal detection times, ZooKeeper's clients watch",
}
_SUFFIX: Final[dict[Unit, str]] = {
    "s": " s",
    "ms": " ms",
    "count": "",
    "MiB": " MiB",
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


def _blocks(pair: Pair) -> str:
    assert pair.estimate is not None
    return f"{max(pair.estimate.below, pair.estimate.above)} of {pair.estimate.blocks} blocks"


def verdict(primary: Primary) -> str:
    """Say what a primary line says, in a few words."""
    pair = primary.pair
    first, second = (name(arm) for arm in pair.arms)
    found = pair.estimate
    if found is None:
        return "not measured"
    if primary.unjudged:
        return f"no verdict: runs of {listed([*map(name, primary.unjudged)])} filled the machine"
    match pair.verdict:
        case "better":
            return f"{first} is better than {second}"
        case "worse":
            return f"{second} is better than {first}"
        case "equivalent":
            return "equivalent: the difference is too small to matter"
        case "inconclusive":
            return "inconclusive"
        case "all blocks":
            return f"{first} {'lower' if found.below else 'higher'} in {_blocks(pair)}; no verdict"
        case _ if not found.below and not found.above and found.value == 0:
            return f"no difference in any of {found.blocks} blocks"
        case _:
            lower = f"{first} lower in {found.below}, higher in {found.above} of {found.blocks} blocks"
            return f"mixed: {lower}"


def verdict_sentence(answer: Answer) -> str:
    """Say on what the word beside a claim rests."""
    for_it = [each for each in answer.found if each.for_it]
    against = [each for each in answer.found if each.against_it]
    if not answer.found:
        return "None of its figures was measured in this report."
    if not any(each.row.can_tell for each in answer.found):
        return f"Too few blocks to tell: {LEANING_BLOCKS_MIN} are needed."
    parts = [
        f"{len(each)} of {len(answer.found)} figures {'speaks' if len(each) == 1 else 'speak'} {way}: {who}"
        for each, way, who in (
            (for_it, "for it", _who_did_better(for_it, for_it=True)),
            (against, "against it", _who_did_better(against, for_it=False)),
        )
        if each
    ]
    full = sorted({arm for each in answer.found for arm in each.row.unjudged})
    judged = _judged_in_all(answer) if full else []
    among = f" between {listed([name(arm) for arm in judged])}" if len(judged) > 1 else ""
    rest = len(answer.found) - len({id(each) for each in (*for_it, *against)})
    if not parts:
        parts.append(f"No figure differs{among} in every block by as much as would matter")
    elif rest:
        parts.append(f"{rest} show{'s' if rest == 1 else ''} no difference that matters{among}")
    for arm in full:
        times = sum(arm in each.row.unjudged for each in answer.found)
        parts.append(f"{name(arm)} is not judged in {times}, because its runs filled the machine")
    return "; ".join(parts) + "."


def _judged_in_all(answer: Answer) -> list[str]:
    """Return the arms that are judged by every figure of a claim."""
    rows = [each.row for each in answer.found]
    return [arm for arm in ARMS if all(arm in row.arms and arm not in row.unjudged for row in rows)]


def _who_did_better(found: Sequence[Judged], *, for_it: bool) -> str:
    """Say it of figures that speak for a claim, or against it; lower is better in all of them."""
    better: set[str] = set()
    worse: set[str] = set()
    for each in found:
        arms = each.for_it if for_it else each.against_it
        if each.evidence.lower_speaks_for == for_it:
            worse.update(arms)
        else:
            better.update(arms)
    said = []
    if worse:
        said.append(f"independent did better than {listed([*map(name, sorted(worse))])}")
    if better:
        said.append(f"{listed([*map(name, sorted(better))])} did better than independent")
    alike = [arm for arm in ARMS if all(_alike(each, arm) for each in found)]
    told = " and ".join(said)
    return f"{told}, no different from {listed([*map(name, alike)])}" if alike else told


def _alike(judged: Judged, arm: str) -> bool:
    """Whether an arm was compared with ``independent`` and did not differ."""
    compared = judged.row.pair(arm, "independent") is not None and arm in judged.evidence.against
    return compared and arm not in (*judged.for_it, *judged.against_it)


def holds(answer: Answer) -> str:
    """Say in a word or two whether a claim holds. That clients learn late is a price, not a promise."""
    late = answer.claim.of_asking
    match answer.holds:
        case "holds":
            return "True: later than elsewhere." if late else "Holds."
        case "does not hold":
            return "Not later than elsewhere." if late else "Does not hold."
        case "holds in part":
            return "True in part." if late else "Holds in part."
        case "not shown":
            return "Not shown either way."
        case "not measured":
            return "Not measured here."


def choice(chosen: Choice) -> str:
    """Say which arms serve a need."""
    if not chosen.row.can_tell:
        return "too few blocks to tell"
    row = chosen.row
    measured = [arm for arm in ARMS if arm in row.arms and arm not in row.unjudged]
    if len(measured) < 2:
        return "not told: the runs filled the machine"
    left = "".join(f"; {name(arm)} is not judged" for arm in row.unjudged)
    told = " or ".join(name(arm) for arm in chosen.arms)
    if len(chosen.arms) < len(measured):
        return f"{told}{left}"
    return f"{told if left else 'any'}: no difference that matters in every block{left}"


def because(chosen: Choice) -> str:
    """Say by which figures."""
    row = chosen.row
    values = ", ".join(
        f"{name(arm)} {middle_of(row.arms[arm], row.measure.unit)}"
        for arm in ("independent", "raft", "zookeeper")
        if arm in row.arms
    )
    return f"{row.measure.title}: {values}"


def no_difference(rows: Sequence[Row]) -> str:
    """Name the rows without a difference in one or two sentences; empty without any."""
    none, alike = [], []
    for row in rows:
        summaries = [row.arms[arm] for arm in ("independent", "raft", "zookeeper") if arm in row.arms]
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
