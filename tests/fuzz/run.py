"""One fuzz run: mutations of costly or new inputs, judged by exceptions and by cost for each byte."""

from __future__ import annotations

import logging
import random
import re
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from routekeeper.remoting.message import BODY_SIZE_MAX
from tests.fuzz.inputs import SEEDS_OF, mutate, pool_of
from tests.fuzz.targets import MESSAGE_MAX, PREPARE, REFUSALS, TARGETS, family

#: Allowed CPU time of any input, and of each of its bytes; enough for a slow and busy machine.
CPU_BASE_S: Final = 0.02
CPU_PER_BYTE_S: Final = 3e-6
#: Allowed bytes in memory: for any input, and for each of its bytes. A compressed byte may become 128, and
#: half of a topic with 300 bytes.
HEAP_BASE: Final = 256 * 1024
HEAP_PER_BYTE: Final = 600
#: A message's body of any size may decompress to its limit, because only a client that asked for messages
#: reads it.
HEAP_OF: Final = {"message-zlib": 3 * BODY_SIZE_MAX}
#: Allowed bytes of log for one input.
LOG_MAX: Final = 4096
_POOL_MAX: Final = 400
#: Tried more often than the others: much code stands behind each.
_BEHIND_PORTS: Final = ("wire", "wire-secured", "wire-handshake", "http", "raft-stranger", "raft-member")
#: An expected log line with traceback: a member is trusted, but its snapshot is not stored.
_BELIEVED: Final = "snapshot not installed"
_DIGITS: Final = re.compile(r"[0-9]+|'.*'")


class Harm(AssertionError):
    """An input that raised another exception than a refusal, or cost too much."""


@dataclass(kw_only=True)
class Cost:
    cpu_s: float
    heap: int
    outcome: str


@dataclass(kw_only=True)
class Figures:
    """Return a summary of a run for people."""

    inputs: int = 0
    outcomes: set[tuple[str, str]] = field(default_factory=set)
    worst_cpu: tuple[float, str, int] = (0.0, "", 0)  # s per byte beyond the base, target, bytes
    longest: tuple[float, str, int] = (0.0, "", 0)
    worst_heap: tuple[float, str, int] = (0.0, "", 0)

    def lines(self) -> list[str]:
        return [
            f"inputs {self.inputs}, targets {len(TARGETS)}, different outcomes {len(self.outcomes)}",
            f"longest {self.longest[0] * 1e3:.2f} ms of CPU: {self.longest[1]}, {self.longest[2]} bytes",
            f"worst CPU {self.worst_cpu[0] * 1e9:.0f} ns a byte (inputs above 1 KiB): "
            f"{self.worst_cpu[1]}, {self.worst_cpu[2]} bytes",
            f"worst allocation {self.worst_heap[0]:.0f} bytes a byte (inputs above 1 KiB): "
            f"{self.worst_heap[1]}, {self.worst_heap[2]} bytes",
        ]


class _Log(logging.Handler):
    """Counts log lines, because a logged exception is a fault, too."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        self.traceback = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.size += len(record.getMessage())
        said = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None and not said.startswith(_BELIEVED):
            self.traceback = f"{said}: {record.exc_info[1]!r}"


def measure(call: Callable[[bytes], object], data: bytes) -> Cost:
    """Run one target once, and return its cost; tracing memory makes it several times slower.

    Raises:
        Harm: If it raised another exception than a refusal, or a refusal of more than some lines.
    """
    started = time.thread_time()
    try:
        call(data)
        outcome = "read"
    except REFUSALS as error:
        outcome = str(error)
        if len(outcome) > MESSAGE_MAX:
            raise Harm(f"refusal of {len(outcome)} characters") from None
    except Exception as error:
        raise Harm(f"{type(error).__name__}: {error}") from error
    cpu_s = time.thread_time() - started
    heap = tracemalloc.get_traced_memory()[1] if tracemalloc.is_tracing() else 0
    return Cost(cpu_s=cpu_s, heap=heap, outcome=outcome)


def judge(name: str, data: bytes, *, heap: bool) -> Cost:
    """Run one input at one target.

    Raises:
        Harm: If it did harm.
    """
    call, prepare = TARGETS[name], PREPARE.get(name.partition("-")[0], _nothing)
    prepare()
    log, root = _Log(), logging.getLogger()
    level = root.level
    root.addHandler(log)
    root.setLevel(logging.INFO)
    try:
        cost = measure(call, data)
        allowed_s = CPU_BASE_S + CPU_PER_BYTE_S * len(data)
        for _ in range(3):  # another process may have been in the way
            if cost.cpu_s <= allowed_s:
                break
            prepare()
            cost.cpu_s = min(cost.cpu_s, measure(call, data).cpu_s)
        if log.traceback:
            raise Harm(f"logged: {log.traceback[:2000]}")
        if cost.cpu_s > allowed_s:
            raise Harm(f"{cost.cpu_s * 1e3:.1f} ms of CPU, allowed are {allowed_s * 1e3:.1f}")
        if log.size > LOG_MAX:
            raise Harm(f"{log.size} characters logged")
        if heap:
            prepare()
            tracemalloc.start()
            try:
                cost.heap = measure(call, data).heap
            finally:
                tracemalloc.stop()
            if cost.heap > HEAP_OF.get(name, HEAP_BASE) + HEAP_PER_BYTE * len(data):
                raise Harm(f"{cost.heap} bytes allocated for {len(data)}")
    finally:
        root.removeHandler(log)
        root.setLevel(level)
    return cost


def _nothing() -> None:
    pass


def run(seed: int, *, seconds: float = float("inf"), inputs: int | None = None) -> Figures:
    """Judge inputs until the time is over or the number is reached; the same seed tries the same inputs as
    long as costs compare alike.

    Raises:
        Harm: With the input, its target and the seed.
    """
    rng = random.Random(seed)
    names = list(TARGETS)
    behind = [name for name in _BEHIND_PORTS if name in TARGETS] or names
    pools = {kind: pool_of(kind) for kind in SEEDS_OF}
    first = [(name, data) for name in names for data in pools[family(name)]] if inputs is None else []
    rng.shuffle(first)
    figures = Figures()
    until = time.monotonic() + seconds
    while (inputs is None or figures.inputs < inputs) and time.monotonic() < until:
        if first and figures.inputs % 2:
            name, data = first.pop()
        else:
            name = rng.choice(names if rng.randrange(3) else behind)
            data = mutate(rng, pools[family(name)], family(name))
        figures.inputs += 1
        try:
            cost = judge(name, data, heap=figures.inputs % 8 == 0 or len(data) > 16_384)
        except Harm as harm:
            raise Harm(
                f"{harm}\n  seed {seed}, input {figures.inputs}, target {name}\n  {data.hex()}"
            ) from harm
        _note(figures, pools[family(name)], rng, name, data, cost)
    return figures


def _note(
    figures: Figures, pool: list[bytes], rng: random.Random, name: str, data: bytes, cost: Cost
) -> None:
    outcome = name, _DIGITS.sub("#", cost.outcome)[:80]
    keep = outcome not in figures.outcomes
    figures.outcomes.add(outcome)
    size = len(data)
    if cost.cpu_s > figures.longest[0]:
        figures.longest = cost.cpu_s, name, size
        keep = True
    if size >= 1024:
        if cost.cpu_s / size > figures.worst_cpu[0]:
            figures.worst_cpu = cost.cpu_s / size, name, size
            keep = True
        if cost.heap / size > figures.worst_heap[0]:
            figures.worst_heap = cost.heap / size, name, size
            keep = True
    if keep:
        if len(pool) < _POOL_MAX:
            pool.append(data)
        else:
            pool[rng.randrange(len(SEEDS_OF[family(name)]), len(pool))] = data
