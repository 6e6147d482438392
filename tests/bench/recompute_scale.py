"""Compute figures of a series of ``mqbench scale`` again from its raw events.

This file is plain Python and imports no code of the benchmark, so it cannot repeat a mistake of that code.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

Event = dict[str, Any]
Figures = dict[tuple[str, str, int, str], float]
"""Maps point (as a folder's name), design, round and figure to the figure's value."""

PHASES = {"register": "register", "restart": "restart", "restart-spread": "spread", "change": "change"}
"""Maps a phase in the notes to the first word of its figures."""
TOLERANCE = 0.01
"""Allowed relative difference. The events have ns; rows have floating-point numbers made from ns."""


BEFORE_S = {"change_took_s": 0.002, "restart_right_s": 0.3}
"""Longest time in seconds from the instant at which a figure begins to the first event that shows it.

A change begins when the harness decides it, and the first event is a sent request. A restart begins before
the servers are killed, and the first event is a started server.
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
        for name, value in (*storms(folder), *changes(folder)):
            found[point, design, int(number), name] = value
    return found


def storms(folder: Path) -> Iterable[tuple[str, float]]:
    """Yield figures of the phases.

    These are the longest wait of a route query in ms, and the seconds until every route was right after a
    restart, and until the last change was acknowledged.
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
        if len(spans[phase]) != 2:  # the phase is absent, or there was more than one
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
    """Return the instant of the last server's first right answer after which it gave no wrong one.

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
    """Return the longest time from a query to the next right answer of the same server.

    The time in which the asking process itself may have overlooked an answer does not count.
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
    for server, begin in since.items():  # these had no right answer until the end
        last = max(op["done_ns"] for op in asked if op["target"] == server)
        longest = max(longest, last - begin - own[server])
    return longest


def changes(folder: Path) -> Iterable[tuple[str, float]]:
    """Yield the medians of lone changes, and the duration of a failover."""
    notes = events(folder, "notes")
    # Without a leader, two servers are measured: one in place of the leader, then one of a follower.
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
        seen = [values for values in shown if len(values) == whole]
        yield "everywhere_ms", median(max(values) * 1e3 for values in seen)
        yield "old_ms", median((max(values) - min(values)) * 1e3 for values in seen)


def differences(found: Figures, rows: Path) -> tuple[int, list[str]]:
    """Compare figures with ``rows.jsonl``; return the number of compared figures, and all that differ.

    A row's figure that has no raw events, and a figure that has no row, are not compared.
    """
    compared, differ = 0, []
    for row in (json.loads(line) for line in rows.read_bytes().splitlines()):
        point = "".join(letter if letter.isalnum() else "-" for letter in row["point"]["name"]).strip("-")
        for name, value in row["figures"].items():
            key = point, row["design"], row["round"], name
            if key in found:
                compared += 1
                before = BEFORE_S.get(name, 0.0)
                if not value - before - TOLERANCE * value <= found[key] <= value + TOLERANCE * value:
                    differ.append(f"{key}: {value} in rows.jsonl, {found[key]} from the events")
    return compared, differ
