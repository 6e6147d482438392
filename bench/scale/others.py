"""The processor time that other programs of the machine use during a measurement."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from typing import Final

import psutil

from routekeeper.bench.group import cpu_s
from routekeeper.bench.processes import sample_machine

#: End of the name of each figure about other programs. The name begins with the phase of the measurement, for
#: example ``kills``.
OTHERS: Final = "_other_programs_cores"
#: Shortest phase in seconds that gets a figure. The kernel counts the machine's processor time in ticks of
#: 10 ms, which is too coarse for a shorter phase.
SHORTEST_S: Final = 0.5


@contextlib.contextmanager
def counting_others(found: dict[str, float], phase: str) -> Iterator[None]:
    """Measure how many cores other programs use during an action; add the figure to ``found`` at its end.

    Other programs are all programs except this program and its descendants, such as servers, brokers and
    proxies. An action that fails, or that is shorter than :data:`SHORTEST_S`, gets no figure.
    """
    before, own = sample_machine(), harness_s()
    yield
    after, own = sample_machine(), harness_s() - own
    seconds = (after.t_ns - before.t_ns) / 1e9
    if seconds >= SHORTEST_S:
        found[f"{phase}{OTHERS}"] = max(0.0, (after.cpu_ns - before.cpu_ns) / 1e9 - own) / seconds


def harness_s() -> float:
    """Return the processor time in s of this process and its descendants, including ended descendants.

    So the difference between two results includes servers that were killed or restarted in the meantime.
    """
    used = sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError):  # the child has ended just now
            used += cpu_s(child.pid)
    return used
