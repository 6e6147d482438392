"""Planted servers that give answers older than their earlier answers ("answers that go backwards").

:func:`by_hand` counts such answers from the raw events, without any code of the report. It gets the true
order from the harness's log of changes, broker deaths and process starts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.bench.report.planted import PlantedRun


def a_run(root: Path, scenario: str, *, healed: float | None = None) -> PlantedRun:
    """Return a run with three servers that started before measuring began.

    The topic ``t`` gets version 1 after 1 s, version 2 after 2 s, and so on. The fault begins after 5 s;
    ``healed`` is the instant in s at which it ends.
    """
    run = PlantedRun(root, scenario=scenario)
    run.op("lookup", 1.0, 0.001)
    for index in range(3):
        run.used("nameserver", index, -2.0, 0.0, pid=10 + index, event="start")
    run.fault(5.0, 16.0, case="1-2", healed=healed, targets=["nameserver-2"])
    return run


def seen(run: PlantedRun, index: int, *versions: tuple[float, int]) -> None:
    """Let server ``index`` show versions of topic ``t``, one after the other.

    Each pair in ``versions`` has an instant in s, and the version that the server shows from then on. The
    observer reads each old version for the last time 20 ms before the next version. It stops reading at
    19 s.
    """
    for place, (at, version) in enumerate(versions):
        run.view(at, index=index, unseen=at - 0.02 if place else None, version=version)
    run.view(19.0, "end", index=index)


def healed_partition(root: Path) -> None:
    """Write the events of a run in which two servers show the old version 3 after a partition.

    Server 0 shows version 3 for 0.4 s, and server 1 for 0.1 s. Before the partition, server 0 had shown
    version 5, and server 1 had shown version 4. So both servers go backwards.
    """
    with a_run(root, "backwards", healed=10.0) as run:
        for version in range(1, 6):
            run.change("t", version, float(version), version + 0.01)
        seen(run, 0, (1.1, 1), (2.1, 2), (3.1, 3), (4.1, 4), (5.1, 5), (10.1, 3), (10.5, 5))
        seen(run, 1, (1.1, 1), (4.1, 4), (10.2, 3), (10.3, 4), (10.4, 5))
        seen(run, 2, (1.1, 1), (2.1, 2), (11.0, 5))


def two_falls_and_one_climb(root: Path) -> None:
    """Write the events of a run in which a server shows versions 5, 3, 4 and 2, nothing, and then 5.

    Two answers go backwards: 3 after 5, and 2 after 4. Answers are older than version 5 from 6 s until the
    last answer before the silence, at 8.48 s.
    """
    with a_run(root, "twice") as run:
        for version in range(1, 6):
            run.change("t", version, float(version), version + 0.01)
        seen(run, 0, (1.1, 1), (5.1, 5), (6.0, 3), (7.0, 4), (8.0, 2))
        run.view(8.5, "silent", index=0, unseen=8.48)
        run.view(9.0, index=0, unseen=8.98, version=5)


def restarted_empty(root: Path) -> None:
    """Write the events of a run in which a server is killed at 6 s, and a new process starts at 6.5 s.

    The new process knows no topic at first, then version 4, then version 5. A new process may know less than
    the killed process, so no answer counts as backwards.
    """
    with a_run(root, "restarted") as run:
        for version in range(1, 6):
            run.change("t", version, float(version), version + 0.01)
        run.view(1.1, index=0, version=1)
        run.view(5.1, index=0, unseen=5.08, version=5)
        run.view(6.0, "silent", index=0, unseen=5.98)
        run.used("nameserver", 0, 6.0, 1.0, pid=10, event="exit", wanted=True, code=-9)
        run.used("nameserver", 0, 6.5, 0.0, pid=20, event="start")
        run.view(7.0, "absent", index=0, unseen=6.98)
        run.view(7.5, index=0, unseen=7.48, version=4)
        run.view(8.0, index=0, unseen=7.98, version=5)
        run.view(19.0, "end", index=0)


def broker_set_back(root: Path) -> None:
    """Write the events of a run in which a broker repeats version 2 at 6 s and version 3 at 8 s.

    The servers only repeat the broker's versions, so no answer counts as backwards.
    """
    with a_run(root, "set-back") as run:
        for version, at in ((1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (2, 6.0), (3, 8.0)):
            run.change("t", version, at, at + 0.01)
        seen(run, 0, (1.1, 1), (4.1, 4), (6.1, 2), (8.1, 3))
        seen(run, 1, (2.1, 2), (3.1, 3), (8.2, 3))


def broker_came_back_to_life(root: Path) -> None:
    """Write the events of a run in which a broker is dead from 5 to 12 s.

    Servers drop the broker and list it again.

    Only server 0's answers go backwards. Server 0 drops the broker at 6 s and lists the dead broker again
    from 8 to 8.5 s.

    - Server 1 lists the broker again when the broker's new process has started.
    - Server 2 lacks the broker for a time before the broker dies.
    - Server 3 starts at 5.2 s and lists the broker once, from bytes that the broker sent before it died.
      Server 3 had never dropped the broker.
    """
    with a_run(root, "revenant") as run:
        run.used("broker", 1, -1.0, 0.0, pid=31, event="start")
        run.broker(1, "down", 5.0)
        run.used("broker", 1, 11.0, 0.0, pid=32, event="start")
        run.broker(1, "up", 12.0)
        for index, gone in enumerate((((6.0, 8.0), (8.5, 12.1)), ((6.0, 11.5),), ((4.0, 4.5), (6.0, 12.1)))):
            run.view(0.0, index=index)
            for begin, end in gone:
                run.view(begin, index=index, unseen=begin - 0.02, brokers=[0, 2])
                run.view(end, index=index, unseen=end - 0.02)
            run.view(19.0, "end", index=index)
        run.used("nameserver", 3, 5.2, 0.0, pid=13, event="start")
        run.view(5.5, index=3, brokers=[0, 2])
        run.view(6.0, index=3, unseen=5.98)
        run.view(6.1, index=3, unseen=6.08, brokers=[0, 2])
        run.view(19.0, "end", index=3)


def next_scenario(root: Path) -> None:
    """Write two scenarios of one cluster. In the second scenario, an answer goes backwards.

    Server 0 shows version 5 in the first scenario, and version 6 between the two scenarios. In the second
    scenario, the server shows version 4 before the fault. This answer goes backwards.
    """
    with PlantedRun(root, scenario="went-before", session="goes-on", seconds=9) as run:
        run.used("nameserver", 0, -2.0, 0.0, pid=10, event="start")
        for version in range(1, 6):
            run.change("t", version, float(version), version + 0.01)
        run.view(1.1, index=0, version=1)
        run.view(5.1, index=0, unseen=5.08, version=5)
        run.op("lookup", 1.0, 0.001)
    with PlantedRun(root, scenario="goes-on", session="goes-on", begin_s=10, seconds=9) as run:
        run.fault(14.0, 18.0, case="1-2", since=12.0, targets=["nameserver-0"])
        run.change("t", 6, 9.4, 9.41)
        run.view(9.5, index=0, unseen=9.48, version=6)
        # The files of a scenario begin with the last route list that was recorded in the scenario before.
        # This list has version 5, because the server showed version 6 only between the two scenarios.
        run.view(10.0, index=0, version=5)
        run.view(11.0, index=0, unseen=10.98, version=4)
        run.view(11.3, index=0, unseen=11.28, version=6)
        run.view(18.9, "end", index=0)
        run.op("lookup", 12.0, 0.001)


def unknown_processes(root: Path) -> None:
    """Write the events of a run whose servers the harness did not start.

    In this run, no event shows whether a server's process was replaced.
    """
    with PlantedRun(root, scenario="foreign") as run:
        for version in range(1, 6):
            run.change("t", version, float(version), version + 0.01)
        seen(run, 0, (1.1, 1), (5.1, 5), (6.0, 3))
        run.op("lookup", 1.0, 0.001)


PLANTS: Final[tuple[Callable[[Path], None], ...]] = (
    *(healed_partition, two_falls_and_one_climb, restarted_empty, broker_set_back),
    *(broker_came_back_to_life, next_scenario, unknown_processes),
)

Counted = tuple[int, float]
"""Number of answers that went backwards, and the longest time in s for which a server gave older answers."""

COUNTED: Final[dict[str, Counted]] = {
    "backwards": (2, 0.38),
    "twice": (2, 2.48),
    "restarted": (0, 0.0),
    "set-back": (0, 0.0),
    "revenant": (1, 0.48),
    "goes-on": (1, 0.28),
}


def by_hand(folders: list[Path]) -> Counted:
    """Count the answers of one cluster that went backwards, from raw events only.

    The function sorts the events, and then checks one answer after the other.

    Returns:
        The number of answers that went backwards, and the longest time in s for which a server gave older
        answers.
    """

    def rows(kind: str) -> list[Any]:
        paths = [path for folder in folders for path in sorted(folder.glob(f"{kind}-*.jsonl"))]
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    begun, starts, truth = defaultdict(list), defaultdict(list), rows("truth")
    for fact in truth:
        if fact["what"] == "changing":
            begun[fact["topic"], fact["version"]].append(fact["t_ns"])
    for one in rows("processes"):
        if one.get("event") == "start":
            starts[one["role"], one["index"]].append(one["t_ns"])
    # (broker, from_ns, to_ns): the broker was certainly dead from from_ns to to_ns
    deaths = []
    for fact in truth:
        if fact["what"] == "down":
            later = [at for at in starts["broker", fact["broker"]] if at > fact["t_ns"]]
            deaths.append((fact["broker"], fact["t_ns"], min(later)))
    shown = defaultdict(list)
    known = set()
    for view in sorted(rows("views"), key=lambda view: view["seen_ns"]):
        is_stated_again = "unseen_ns" not in view and view["state"] != "end"
        if is_stated_again and (view["index"], view["topic"]) in known:
            continue  # skip: at the start of a scenario, the files repeat the last known route list
        known.add((view["index"], view["topic"]))
        process = sum(at <= view["seen_ns"] for at in starts["nameserver", view["index"]])
        shown[view["index"], view["topic"], process].append(view)
    times, longest_ns = 0, 0
    for answers in shown.values():
        high = last = 0
        old_since: int | None = None
        for place, view in enumerate(answers):
            follower = answers[place + 1] if place + 1 < len(answers) else view
            until_ns = follower.get("unseen_ns") or follower["seen_ns"]
            at = [t for t in begun[view["topic"], view.get("version")] if t <= view["seen_ns"]]
            if at:
                times += max(at) < last
                old_since = (old_since or view["seen_ns"]) if max(at) < high else None
                high, last = max(high, min(at)), min(at)
            if at and old_since is not None:
                longest_ns = max(longest_ns, until_ns - old_since)
        for broker, from_ns, to_ns in deaths:
            listed = dropped = lacking = False
            for place, view in enumerate(answers):
                follower = answers[place + 1] if place + 1 < len(answers) else view
                until_ns = follower.get("unseen_ns") or follower["seen_ns"]
                has = broker in (view.get("brokers") or [])
                if has and lacking and dropped and view["seen_ns"] < to_ns:
                    times += 1
                    longest_ns = max(longest_ns, min(until_ns, to_ns) - view["seen_ns"])
                lacking = not has
                dropped = dropped or (not has and listed and until_ns >= from_ns)
                listed = listed or has
    return times, longest_ns / 1e9
