"""Measurement of the share of lines that fuzzing runs: ``python -m tests.fuzz --coverage``.

The share concerns the code that any client can reach through the network ports. Tracing makes a run about 10
times slower, so coverage is measured in a separate run, with the initial inputs and some mutations. Only the
lines of functions count, because all other lines run at import. Lines that run only when the tested servers
start count, too.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from tests.fuzz.inputs import SEEDS_OF, mutate, pool_of
from tests.fuzz.targets import PREPARE, REFUSALS, TARGETS, family

_ROOT: Final = Path(__file__).resolve().parents[2]
#: Files and folders of the modules whose code any client can reach.
ROOMS: Final = (
    "remoting",
    "nameserver/handlers.py",
    "nameserver/registration.py",
    "nameserver/wire",
    "nameserver/http",
    "nameserver/raft/links",
    "nameserver/raft/consensus",
    "nameserver/replicated/peer_messages.py",
    "broker",
)
_CHANGED: Final = 10


def _files() -> Iterator[tuple[str, Path]]:
    for room in ROOMS:
        path = _ROOT / "routekeeper" / room
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield room, file


def _lines(code: CodeType) -> Iterator[int]:
    """Yield the line numbers of the code in all functions of a module."""
    for part in code.co_consts:
        if isinstance(part, CodeType):
            if part.co_flags & 0x2:  # functions have CO_NEWLOCALS, bodies of classes do not
                yield from (line for _, _, line in part.co_lines() if line and line != part.co_firstlineno)
            yield from _lines(part)


def measure(seed: int) -> dict[str, tuple[int, int]]:
    """Return the number of reached lines and of all lines, for each file or folder of :data:`ROOMS`."""
    rng = random.Random(seed)
    wanted = {str(file): set[int]() for _, file in _files()}

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            wanted[frame.f_code.co_filename].add(frame.f_lineno)
        return local

    def begin(frame: FrameType, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename in wanted else None

    sys.settrace(begin)
    try:
        for name, call in TARGETS.items():
            kind = family(name)
            changed = [mutate(rng, pool_of(kind), kind) for _ in range(_CHANGED)]
            for data in (*SEEDS_OF[kind], *changed):
                PREPARE.get(name.partition("-")[0], int)()
                try:
                    call(data)
                except REFUSALS:
                    pass
    finally:
        sys.settrace(None)
    found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for room, file in _files():
        there = set(_lines(compile(file.read_text(), str(file), "exec")))
        reached, total = found[room]
        found[room] = reached + len(wanted[str(file)] & there), total + len(there)
    return dict(found)


def lines(found: dict[str, tuple[int, int]]) -> Iterator[str]:
    for room, (reached, total) in found.items():
        yield f"{room:40} {reached:6} of {total:6} lines, {100 * reached / total:.0f} %"
