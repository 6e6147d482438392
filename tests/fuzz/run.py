"""One run of the fuzzer, which mutates the inputs that were costly or had new outcomes.

A new input must not cause an exception other than a refusal, and must not cost too much per byte.
"""

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
from tests.cost import on_this_machine
from tests.fuzz.inputs import SEEDS_OF, mutate, pool_of
from tests.fuzz.targets import MESSAGE_MAX, PREPARE, REFUSALS, TARGETS, family

#: Limit of the CPU time for an input, in s: a fixed part, and a part for each byte. The limits are high
#: enough for a slow and busy machine.
CPU_BASE_S: Final = 0.02
CPU_PER_BYTE_S: Final = 3e-6
#: Limit of the memory for an input, in bytes: a fixed part, and a part for each byte. One compressed byte may
#: become 128 bytes of text. Two compressed bytes may also become one topic, which takes 300 bytes.
HEAP_BASE: Final = 256 * 1024
HEAP_PER_BYTE: Final = 600
#: Fixed part of the memory limit for some targets, instead of HEAP_BASE. A small compressed message body may
#: decompress to the largest allowed body. This is harmless, because only clients that asked for messages
#: decompress bodies.
HEAP_OF: Final = {"message-zlib": 3 * BODY_SIZE_MAX}
#: Maximum number of characters in the log lines that one input causes.
LOG_MAX: Final = 4096
_POOL_MAX: Final = 400
#: Targets that the run chooses more often than others, because each of them runs much code.
_BEHIND_PORTS: Final = ("wire", "wire-secured", "wire-handshake", "http", "raft-stranger", "raft-member")
#: A log line that begins with these words may have a traceback, and is not a fault: a snapshot of a trusted
#: member could not be installed.
_BELIEVED: Final = "snapshot not installed"
_DIGITS: Final = re.compile(r"[0-9]+|'.*'")


class Harm(AssertionError):
    """Raised if an input costs too much or causes an exception other than an expected refusal."""


@dataclass(kw_only=True)
class Cost:
    cpu_s: float
    heap: int
    outcome: str


@dataclass(kw_only=True)
class Figures:
    """Counts and maximum values of a run, with a summary as text."""

    inputs: int = 0
    outcomes: set[tuple[str, str]] = field(default_factory=set)
    worst_cpu: tuple[float, str, int] = (0.0, "", 0)  # CPU seconds per byte, target, size in bytes
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
    """A log handler that counts the characters of log lines and records a logged traceback as a fault."""

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
    """Run one target once with an input; return its CPU time, its memory and its outcome.

    The cost includes the memory only if tracemalloc is on, which makes the run several times slower.

    Raises:
        Harm: If the target raised an exception that is not a refusal, or raised a refusal whose text is too
            long.
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
    """Run one target with one input, several times if necessary; return the lowest cost.

    Args:
        name: Name of the target.
        heap: If True, also measure the memory.

    Raises:
        Harm: If the target failed, or if CPU time, memory or log lines exceeded their limits.
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
        for _ in range(3):  # measure again, because another process may have slowed down the first run
            if cost.cpu_s <= allowed_s:
                break
            allowed_s = max(allowed_s, on_this_machine(CPU_BASE_S + CPU_PER_BYTE_S * len(data)))
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
    """Test inputs for ``seconds`` seconds or until ``inputs`` inputs are tested; return the figures.

    The run keeps the most costly inputs and tests their mutations. A second run with the same seed may
    measure other costs. Then it keeps other inputs, and from then on it tests other inputs than the first
    run.

    Raises:
        Harm: For the first harmful input; the text contains the input, its target and the seed.
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
