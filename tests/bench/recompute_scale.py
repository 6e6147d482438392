"""Compute figures of a series of ``mqbench scale`` again from its raw events.

This file is plain Python and imports no code of the benchmark, so it cannot repeat a mistake of that code.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

Event = dict[str, Any]
Figures = dict[tuple[str, str, int, str], float]
"""Value of each figure, by point (as a folder's name), design, round and name of the figure."""

PHASES = {"register": "register", "restart": "restart", "restart-spread": "spread", "change": "change"}
"""First word of the names of a phase's figures, by phase in the notes."""
TOLERANCE = 0.01
"""Allowed relative difference between a figure of this file and the same figure in rows.jsonl."""

SEND_EVERY_NS = 50_000_000
"""Time between two messages of the producer that sends while no server runs."""

BEFORE_S = {"change_took_s": 0.002, "restart_right_s": 0.3}
"""Longest time in s between the start of a measured duration and its first event, by figure.

A change begins when the harness decides to make it, and its first event is a sent request. A restart begins
before the servers are killed, and its first event is a started server.
"""


def events(folder: Path, kind: str) -> list[Event]:
    return [
        json.loads(line)
        for path in sorted(folder.glob(f"{kind}*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]


def figures(series: Path) -> Figures:
    """Return the figures of all measurements of a series whose archives are unpacked in ``series``."""
    found: Figures = {}
    for folder in sorted(series.glob("events/point=*/round=*/arm=*")):
        point, number, design = (part.partition("=")[2] for part in folder.parts[-3:])
        measured = (storms, changes, herds, kills, restarts, absence)
        for name, value in (each for figures_in in measured for each in figures_in(folder)):
            found[point, design, int(number), name] = value
    return found


def storms(folder: Path) -> Iterable[tuple[str, float]]:
    """Yield the figures of each phase of a measurement.

    The figures are:

    - the longest wait of a route query in ms;
    - the time in s from a restart until every route was right;
    - the time in s from the first change until the last change was acknowledged.
    """
    spans: dict[str, list[int]] = defaultdict(list)
    checks: dict[str, list[Event]] = defaultdict(list)
    for note in events(folder, "notes"):
        if note.get("kind") == "term":
            spans[note["phase"]].append(note["t_ns"])
        elif note.get("kind") == "check":
            checks[note["phase"]].append(note)
    started = [event["t_ns"] for event in events(folder, "processes") if event.get("event") == "start"]
    ops = events(folder, "ops")
    for phase, name in PHASES.items():
        if len(spans[phase]) != 2:  # skip a phase that the notes lack or have twice
            continue
        begin, end = spans[phase]
        within = [op for op in ops if begin <= op["sent_ns"] <= end]
        if asked := [op for op in within if op["op"] == "lookup"]:
            yield f"{name}_wait_ms_longest", longest_wait_ns(asked) / 1e6
        if phase == "restart" and checks[phase]:
            yield "restart_right_s", (right_ns(checks[phase]) - min(t for t in started if t >= begin)) / 1e9
        if phase == "change" and (sent := [op for op in within if op["op"] == "announce"]):
            took_ns = max(op["done_ns"] for op in sent) - min(op["sent_ns"] for op in sent)
            yield "change_took_s", took_ns / 1e9


def right_ns(checks: list[Event]) -> int:
    """Return the instant in ns from which every server gave only right answers.

    An answer is right if it lists as many brokers as the most complete answer of the phase.
    """
    every = max(check["brokers"] or 0 for check in checks)
    firsts: list[int] = []
    for server in {check["server"] for check in checks}:
        own = [check for check in checks if check["server"] == server]
        wrong_ns = max((check["asked_ns"] for check in own if check["brokers"] != every), default=0)
        firsts.append(min(check["answered_ns"] for check in own if check["asked_ns"] > wrong_ns))
    return max(firsts)


def longest_wait_ns(asked: list[Event]) -> int:
    """Return the longest time in ns from a query to the next right answer of the same server.

    Times in which the querying process may itself have overlooked an answer are subtracted.
    """
    longest, since, own = 0, dict[int, int](), dict[int, int]()
    for op in sorted(asked, key=lambda op: int(op["sent_ns"])):
        server, words = op["target"], (op.get("remark") or "").split()
        begin = since.setdefault(server, op["sent_ns"])
        own[server] = own.get(server, 0) + sum(int(word[7:]) for word in words if word.startswith("own_ns="))
        wait = op["done_ns"] - begin - own[server]
        if op["outcome"] == "ok" and "wrong" not in words:
            longest = max(longest, wait)
            del since[server], own[server]
    for server, begin in since.items():  # servers whose last answers were not right
        last = max(op["done_ns"] for op in asked if op["target"] == server)
        longest = max(longest, last - begin - own[server])
    return longest


def changes(folder: Path) -> Iterable[tuple[str, float]]:
    """Yield the median times of changes that are made one at a time, and the duration of a failover."""
    notes = events(folder, "notes")
    # Designs without a leader have two notes with the role "server". The first note counts as a leader's, and
    # the second note as a follower's.
    places = iter(("leader", "follower"))
    for note in notes:
        if note.get("kind") == "changes":
            slow = f"slow_{note['slow']}_" if "slow" in note else ""
            role = note["role"] if note["role"] != "server" else next(places)
            yield f"{slow}change_{role}_ms", median(note["took_ms"])
        elif note.get("kind") == "failover" and note["took_s"] is not None:
            yield "failover_s", note["took_s"]
    shown = [note["seen_s"].values() for note in notes if note.get("kind") == "spread"]
    if shown:
        whole = max(map(len, shown))
        # A change that a server did not show in time took longer than all others.
        seen = [values if len(values) == whole else (0.0, inf) for values in shown]
        for name, of_all in (
            ("everywhere_ms", median(max(values) * 1e3 for values in seen)),
            ("old_ms", median((max(values) - min(values)) * 1e3 for values in seen)),
        ):
            if of_all < inf:
                yield name, of_all


def herds(folder: Path) -> Iterable[tuple[str, float]]:
    """Yield the figures of many clients that learn of a change, because they watch or because they poll.

    Watching clients see several changes, and polling clients see only one change. The figures are:

    - the times in ms until half of the clients, and until the last client, knew a change;
    - the processor time of all servers, in ms for each watched change, and in s for a minute of polling.

    For watching clients, the times are the medians of all changes.
    """
    notes = events(folder, "notes")
    used_s: dict[str, float] = defaultdict(float)
    for note in notes:
        if note.get("kind") == "cpu":
            used_s[note["job"]] += sum(note["after_s"]) - sum(note["before_s"])
    if watched := [note["seen_us"] for note in notes if note.get("kind") == "watch"]:
        yield "watch_ms_last", lower_median([max(seen) for seen in watched]) / 1e3
        yield "watch_ms_half", lower_median([lower_median(seen) for seen in watched]) / 1e3
        yield "watch_cpu_ms_a_change", used_s["watch"] * 1e3 / len(watched)
    for seen in (note["seen_us"] for note in notes if note.get("kind") == "poll"):
        yield "poll_ms_last", max(seen) / 1e3
        yield "poll_ms_half", lower_median(seen) / 1e3
        yield "poll_cpu_s_a_minute", used_s["poll"] * 60 / (max(seen) / 1e6)


def lower_median(values: list[float]) -> float:
    """Return the median. Of an even number of values, take the lower of the two values in the middle."""
    return sorted(values)[(len(values) - 1) // 2]


def kills(folder: Path) -> Iterable[tuple[str, float]]:
    """Yield the figures of servers that were killed one by one, and not started again.

    The figures are:

    - the time in s from each kill until a change was accepted;
    - the number of servers that may be down while changes are still accepted;
    - the number of servers that may be down while every other server still answers right.
    """
    notes = [note for note in events(folder, "notes") if note.get("kind") == "down"]
    for note in notes:
        if note["change_s"] is not None:
            yield f"down_{note['down']}_change_s", note["change_s"]
    if notes:
        refused = [note["down"] for note in notes if note["change_s"] is None]
        wrong = [note["down"] for note in notes if note["right"] < note["asked"]]
        yield "down_with_changes", float(min([*refused, len(notes) + 1]) - 1)
        yield "down_with_answers", float(min([*wrong, len(notes) + 1]) - 1)


def restarts(folder: Path) -> Iterable[tuple[str, float]]:
    """Yield the longest time without a change, and without a right answer, while servers restart in turn."""
    for note in events(folder, "notes"):
        if note.get("kind") == "trying":
            marks = [0, *sorted(note["done_us"]), note["ended_us"]]
            longest_us = max(later - earlier for earlier, later in pairwise(marks))
            yield f"rolling_{note['what']}_gap_s", longest_us / 1e6


def absence(folder: Path) -> Iterable[tuple[str, float]]:
    """Yield the numbers of sent and failed messages while no server ran, and afterwards.

    Messages of one phase are due every 50 ms, so any other interval begins a new phase. There are three
    phases: before, during and after the absence of the servers.
    """
    sends = [op for op in events(folder, "ops") if op["op"] == "send"]
    phases: list[list[Event]] = [[]]
    for before, op in zip([None, *sends], sends, strict=False):
        if before is not None and abs(op["due_ns"] - before["due_ns"] - SEND_EVERY_NS) > 1000:
            phases.append([])
        phases[-1].append(op)
    if not sends:
        return
    _, absent, afterwards = phases
    for name, phase in ("", absent), ("_after", afterwards):
        yield f"away_sent{name}", float(len(phase))
        yield f"away_failed{name}", float(sum(op["outcome"] != "ok" for op in phase))


def differences(found: Figures, rows: Path, *, busier: float = 1.0) -> tuple[int, list[str]]:
    """Compare figures with ``rows.jsonl``, and skip figures that are only in ``rows.jsonl`` or in ``found``.

    Args:
        busier: Factor for the allowed differences in ``BEFORE_S``. On a machine that also runs other tests,
            the factor is above 1, because such a machine delays the first event of a duration.

    Returns:
        The number of compared figures, and a line of text for each difference.
    """
    compared, differ = 0, []
    for row in (json.loads(line) for line in rows.read_bytes().splitlines()):
        point = "".join(letter if letter.isalnum() else "-" for letter in row["point"]["name"]).strip("-")
        for name, value in row["figures"].items():
            key = point, row["design"], row["round"], name
            if key in found:
                compared += 1
                before = BEFORE_S.get(name, 0.0) * busier
                if not value - before - TOLERANCE * value <= found[key] <= value + TOLERANCE * value:
                    differ.append(f"{key}: {value} in rows.jsonl, {found[key]} from the events")
    return compared, differ
