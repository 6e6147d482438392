"""Turns of connections: requests may hold the loop for a short time, then other connections are served."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Protocol

from routekeeper.remoting.addresses import network_of

#: Seconds for which requests may hold the loop, plus the last request, before other work is done.
TURN_S: Final = 0.005
#: Seconds of work after which the next turn begins only when the loop has come round. After less work a
#: callback would cost too much: each single request would pay for one.
_UNCHECKED_S: Final = 0.000_5
#: A connection with fewer waiting bytes is served before those with more.
SMALL_BYTES: Final = 4096
#: Assumed cost in seconds of a request whose handler waits, until some were measured.
_TASK_S: Final = 0.000_2
#: Assumed cost of each byte of its body, up to a size. It is that of the most expensive bodies, because a
#: cheaper one only ends a turn early.
_TASK_BYTE_S: Final = 0.000_000_3
_TASK_BYTES_MAX: Final = 65_536
#: Rate at which the measured cost of such requests decreases when cheaper ones follow.
_FORGETTING: Final = 0.1
#: Most connections that are admitted before a turn, one each time the loop comes round.
_LET_IN_MAX: Final = 64
#: Number of hosts for which the cost of closed connections is remembered.
_HOSTS_MAX: Final = 1024


class Worker(Protocol):
    """A connection that has requests to handle.

    Attributes:
        cost_s: Seconds for which it has held the loop; :class:`Turns` writes it.
        host: The host of its peer.
        size: Bytes that are not handled.
    """

    cost_s: float

    @property
    def host(self) -> str: ...

    @property
    def size(self) -> int: ...

    def go_on(self) -> None:
        """Handle the remaining requests, until the turn is over."""


class _Line:
    """Waiting workers, ordered by their cost so far, cheapest first.

    Attributes:
        least_s: Cost of the last one that was served. A new worker counts as no cheaper than this.
        waiting: A heap; the workers are the last values of its entries.
    """

    __slots__ = ("_count", "least_s", "waiting")

    def __init__(self) -> None:
        self.least_s = 0.0
        self.waiting: list[tuple[float, bool, int, int, Worker]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def push(self, worker: Worker, size: int) -> None:
        comes_anew = worker.cost_s < self.least_s
        worker.cost_s = max(worker.cost_s, self.least_s)
        self._count += 1
        heapq.heappush(self.waiting, (worker.cost_s, not comes_anew, size, self._count, worker))

    def pop(self) -> Worker:
        self.least_s, _, _, _, worker = heapq.heappop(self.waiting)
        return worker


class Turns:
    """Shares one loop's time between connections with requests; without IO.

    A turn lasts :data:`TURN_S`. A connection that is not done by then, or whose requests arrive later, waits
    until the loop has come round: until a callback has run that was scheduled after some work of the turn. A
    clock cannot tell that, because reading many sockets takes long, too.

    The next turn serves connections in this order:

    - Connections with few waiting bytes (:data:`SMALL_BYTES`) go first. While others wait they get half of
      the turn, and at least one of the others is served in each turn.
    - Among equals, those that have cost least go first. So a client that asks little waits for one turn, no
      matter how many clients ask much. If their cost is the same, the one with fewest bytes goes first.
    - Answers of one connection keep their order: all its waiting bytes wait together.

    Work while no connection waits is counted for nobody. A new connection begins with the cost of its host's
    closed connections, or each new one would go first. An IPv6 network of 64 bits is one host.

    A turn begins only when no new connection came while the loop came round. A listener admits one each time,
    and a client that asks little would otherwise wait for a turn of each connection before it.

    Requests that are handed to tasks run later, all at once. So one turn begins only as many of them as fit,
    by their recent cost, or by the cost that their sizes predict if that is greater.

    Args:
        clock: Returns seconds.
        call_soon: Calls its argument when the loop has come round.
        idle: Called when no connection waits any more.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        call_soon: Callable[[Callable[[], None]], object],
        idle: Callable[[], None] | None = None,
        turn_s: float = TURN_S,
    ) -> None:
        self._turn_s = turn_s
        self._clock = clock
        self._idle = idle
        self._call_soon = call_soon
        self._until = 0.0
        self._began = 0.0
        self._worked_s = 0.0  # since the loop came round
        self._serving = False  # a turn for waiting connections has begun
        self._task_began = 0.0
        self._task_s = _TASK_S
        self._small = _Line()
        self._large = _Line()
        self._called = False
        self._came = False
        self._let_in = 0  # since the last turn
        self._gone: dict[str, float] = {}  # by host: the cost of closed connections, if above the least

    @property
    def began(self) -> float:
        """Return the time of the last :meth:`begin`."""
        return self._began

    @property
    def waiting(self) -> int:
        """Return the number of workers that wait for their turn."""
        return len(self._small) + len(self._large)

    @property
    def _least_s(self) -> float:
        return min(self._small.least_s, self._large.least_s)

    def came(self, worker: Worker) -> None:
        """Admit a new worker."""
        self._came = True
        worker.cost_s = self._gone.get(network_of(worker.host), 0.0)

    def left(self, worker: Worker) -> None:
        """Remember the cost of a worker that is gone."""
        gone, host = self._gone, network_of(worker.host)
        if worker.cost_s <= max(self._least_s, gone.get(host, 0.0)):
            return
        if len(gone) >= _HOSTS_MAX and host not in gone:
            for other in [other for other, cost_s in gone.items() if cost_s <= self._least_s]:
                del gone[other]
            if len(gone) >= _HOSTS_MAX:
                del gone[next(iter(gone))]
        gone[host] = worker.cost_s

    def begin(self) -> bool:
        """Return whether requests may be dispatched now; if so, call :meth:`end` afterwards."""
        now = self._clock()
        if now >= self._until and not self._serving:
            if self._called:
                return False
            self._until = now + self._turn_s
        self._began = now
        return True

    def renew(self) -> None:
        """Begin a new turn, for bytes that waited for something else than their turn and can be answered only
        now.
        """
        self._until = self._clock() + self._turn_s

    def begin_anyway(self) -> None:
        """Begin to dispatch requests that cannot wait again; :meth:`over` may be true after the first of
        them.
        """
        self._began = self._clock()

    def over(self) -> bool:
        """Return whether the worker being served must stop after the present request."""
        return self._clock() >= self._until

    def end(self, worker: Worker) -> None:
        """Count the work since :meth:`begin`."""
        took_s = self._clock() - self._began
        cost_s, small, large = worker.cost_s, self._small, self._large
        if not small.waiting and not large.waiting:
            if cost_s > small.least_s:
                small.least_s = cost_s
            if cost_s > large.least_s:
                large.least_s = cost_s
        worker.cost_s = cost_s + took_s
        self._worked_s += took_s
        if self._worked_s >= _UNCHECKED_S and not self._called:
            self._come_round()

    def wait(self, worker: Worker) -> None:
        """Queue a worker for a later turn, unless it waits already."""
        size = worker.size
        (self._small if size < SMALL_BYTES else self._large).push(worker, size)
        self._come_round()

    def task(self, body_bytes: int) -> None:
        """Count a request that is handed to a task, which runs when the loop has come round."""
        took_s = max(self._task_s, min(body_bytes, _TASK_BYTES_MAX) * _TASK_BYTE_S)
        self._until -= took_s
        self._worked_s += took_s

    def task_begins(self) -> None:
        """Note the time right before such a task runs for the first time."""
        self._task_began = self._clock()

    def task_ends(self, worker: Worker) -> None:
        """Count the time of its first run, right after it."""
        took_s = self._clock() - self._task_began
        worker.cost_s += took_s
        if network_of(worker.host) in self._gone:  # this one's cost may be part of it
            self.left(worker)
        self._task_s = max(took_s, self._task_s + _FORGETTING * (took_s - self._task_s))

    def _come_round(self) -> None:
        if not self._called:
            self._called = True
            self._call_soon(self._next)

    def _next(self) -> None:
        self._called = False
        if self._came and self._let_in < _LET_IN_MAX:
            self._came = False
            self._let_in += 1
            self._come_round()
            return
        self._came = False
        self._let_in = 0
        self._worked_s = 0.0
        small, large = self._small, self._large
        if not small and not large:
            return
        self.renew()
        half = self._until - self._turn_s / 2
        self._serving = True
        try:
            while small and not self.over() and not (large and self._clock() >= half):
                small.pop().go_on()
            if large:
                large.pop().go_on()
            while large and not self.over():
                large.pop().go_on()
        finally:
            self._serving = False
        if small or large:
            self._come_round()
        elif self._idle is not None:
            self._idle()
