"""Distribution of one cluster's events to run folders, one for each scenario that the cluster has run.

All processes write to one folder while the cluster runs. Afterwards each event goes to the run whose time
contains the event's instant. An event before the first run, or between two runs, goes to the next run. A view
is an event with the route that a client or server shows. After the last run, only views and deliveries are
kept, because they show changes and messages of the last run.

Each run begins with a copy of every view and of every broker's state, so that it can be read without the
other runs.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from routekeeper.bench.events import (
    FILE_PREFIX,
    Delivery,
    Event,
    Truth,
    View,
    event_file,
    event_files,
    instant_of,
)
from routekeeper.bench.recorder import Recorder


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a cluster's time that belongs to one run folder: ``[begin_ns, end_ns)``."""

    scenario: str
    folder: Path
    begin_ns: int
    end_ns: int


def split(spool: Path, slots: list[Slot]) -> None:
    """Distribute every event file of ``spool`` to the existing folders of ``slots``.

    ``slots`` are in the order of their times.
    """
    for kind in FILE_PREFIX:
        for path in event_files(spool, kind):
            process = path.stem.partition("-")[2]
            lines = path.read_bytes().splitlines()
            events: Iterable[Event] = (msgspec.json.decode(line, type=kind) for line in lines)
            if kind in (View, Truth):  # events of other types keep the order of the file
                events = sorted(events, key=instant_of)
            recorders: dict[int, Recorder] = {}
            for place, event in placed(events, slots):
                if place not in recorders:
                    recorders[place] = Recorder(event_file(slots[place].folder, kind, process))
                recorders[place].record(event)
            for recorder in recorders.values():
                recorder.close()


def placed(events: Iterable[Event], slots: list[Slot]) -> Iterator[tuple[int, Event]]:
    """Yield the events of one file in order, each with the index of its slot.

    If a view or a broker's state lasts into a new slot, its event is yielded again for this slot.
    """
    ends = [slot.end_ns for slot in slots]
    standing: dict[object, View | Truth] = {}
    stated = 0
    for event in events:
        place = bisect.bisect_right(ends, instant_of(event))
        while stated < min(place, len(slots) - 1):
            stated += 1
            for state in standing.values():
                yield stated, _again(state, slots[stated].begin_ns)
        # The state of a view or of a broker is valid until the next event with the same key.
        match event:
            case View(state="end"):
                standing.pop((event.observer, event.index, event.topic), None)
            case View():
                standing[event.observer, event.index, event.topic] = event
            case Truth(subject="broker"):
                standing[event.broker] = event
        if place < len(slots):
            yield place, event
        # keep views and deliveries after the last run, because they show changes and messages of this run
        elif isinstance(event, (View, Delivery)):
            yield len(slots) - 1, event
    for rest in range(stated + 1, len(slots)):
        for state in standing.values():
            yield rest, _again(state, slots[rest].begin_ns)


def _again(event: View | Truth, t_ns: int) -> View | Truth:
    """Return an event that describes the same state at another instant."""
    if isinstance(event, View):
        return msgspec.structs.replace(event, unseen_ns=None, seen_ns=t_ns)
    return msgspec.structs.replace(event, t_ns=t_ns)
