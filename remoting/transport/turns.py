"""Division of the event loop's time between connections, so that busy connections do not delay others."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Protocol

from routekeeper.remoting.addresses import network_of

#: Length of a turn (time slice) in seconds. In a turn, requests may occupy the loop for this time plus the
#: time of the last request.
TURN_S: Final = 0.003
#: Work in seconds in one iteration of the loop. After this much work, the next turn begins only in a later
#: iteration, and a callback detects that iteration. After less work, the next turn may begin at once. A
#: callback after each single request would be too expensive.
_UNCHECKED_S: Final = 0.000_5
#: Connections with fewer waiting bytes than this are served before connections with more waiting bytes.
SMALL_BYTES: Final = 4096
#: Assumed cost in seconds of a request that a task handles, until some requests were measured.
_TASK_S: Final = 0.000_2
#: Assumed cost in seconds of each byte in the body of a request that a task handles, for the first
#: ``_TASK_BYTES_MAX`` bytes. This is the cost of the most expensive bodies. If a body is cheaper, the turn
#: ends too early, which is harmless.
_TASK_BYTE_S: Final = 0.000_000_3
_TASK_BYTES_MAX: Final = 65_536
#: Weight of a new measurement in the estimated cost of a request that a task handles. The weight applies only
#: to a measurement below the estimate; a higher measurement replaces the estimate.
_FORGETTING: Final = 0.1
#: Largest number of connections that are admitted between two turns, one in each iteration of the loop.
_LET_IN_MAX: Final = 64
#: Largest number of hosts for which the cost of closed connections is stored.
_HOSTS_MAX: Final = 1024


class Worker(Protocol):
    """A connection that has requests to handle.

    Attributes:
        cost_s: Seconds for which the connection has occupied the loop; :class:`Turns` updates this value.
        host: Host of the connection's peer.
        size: Number of bytes that are not handled yet.
    """

    cost_s: float

    @property
    def host(self) -> str: ...

    @property
    def size(self) -> int: ...

    def go_on(self) -> None:
        """Handle the remaining requests until the turn (time slice) is over."""


class _Line:
    """Queue of waiting workers, ordered by their cost so far; the cheapest is first.

    Attributes:
        least_s: Cost of the worker that was served last, in seconds. A new worker counts as at least this
            expensive.
        waiting: Heap; the last value of each entry is the worker.
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
    """Scheduler that divides the time of one event loop between connections with requests; without I/O.

    A turn is a period of :data:`TURN_S` in which requests are handled. When the turn is over, all further
    requests wait until the loop has completed an iteration, in which the loop also does its other work. A
    callback that was scheduled during the turn shows that the iteration is complete. A clock could not show
    this, because an iteration that reads many sockets is long, too.

    The next turn serves connections in this order:

    - Connections with few waiting bytes (:data:`SMALL_BYTES`) are first. If connections with more bytes also
      wait, the connections with few bytes get half of the turn. Each turn serves at least one connection with
      more bytes.
    - In each of these two groups, the connection with the least cost is first. So a client with few requests
      waits for one turn, even if many clients send many requests. If the costs are equal, the connection with
      fewer bytes is first.
    - The answers of one connection keep their order: all its waiting bytes wait together.

    Work counts against a connection only while other connections wait. A new connection begins with the cost
    of its host's closed connections. Otherwise a client could be first every time by opening a new
    connection. An IPv6 network of 64 bits counts as one host.

    A turn begins only if no new connection came during the last iteration of the loop. The reason is that a
    listener admits one connection in each iteration. If a turn began after each admission, a new client would
    wait for the turns of all connections that were admitted before it.

    Requests that are passed to tasks run later, all in one iteration. Therefore a turn starts only as many of
    these requests as fit into the turn. Each request's cost is estimated twice: from recent requests, and
    from its size. The greater estimate counts.

    Args:
        clock: Returns the present time in seconds.
        call_soon: Calls its argument in the next iteration of the event loop.
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
        self._worked_s = 0.0  # work since the last iteration of the loop began
        self._serving = False  # True while waiting connections are being served
        self._task_began = 0.0
        self._task_s = _TASK_S
        self._small = _Line()
        self._large = _Line()
        self._called = False
        self._came = False
        self._let_in = 0  # connections admitted since the last turn
        # Cost of closed connections by host. A cost up to the queues' least cost is not stored, because each
        # new connection counts as at least this expensive.
        self._gone: dict[str, float] = {}

    @property
    def began(self) -> float:
        """Return the time of the last call of :meth:`begin`, in seconds."""
        return self._began

    @property
    def waiting(self) -> int:
        """Return the number of connections that wait for their turn (time slice)."""
        return len(self._small) + len(self._large)

    @property
    def _least_s(self) -> float:
        return min(self._small.least_s, self._large.least_s)

    def came(self, worker: Worker) -> None:
        """Admit a new connection."""
        self._came = True
        worker.cost_s = self._gone.get(network_of(worker.host), 0.0)

    def left(self, worker: Worker) -> None:
        """Store the cost of a closed connection: new connections of its host begin with this cost."""
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
        """Return True if requests may be handled now. In this case, call :meth:`end` after the requests."""
        now = self._clock()
        if now >= self._until and not self._serving:
            if self._called:
                return False
            self._until = now + self._turn_s
        self._began = now
        return True

    def renew(self) -> None:
        """Begin a new turn (time slice) for bytes that waited for another event, such as a read barrier.

        These bytes can be answered only now, so they must not wait for a turn in addition.
        """
        self._until = self._clock() + self._turn_s

    def begin_anyway(self) -> None:
        """Begin to handle requests that cannot wait again, even if the turn (time slice) is over.

        :meth:`over` may return True after the first request.
        """
        self._began = self._clock()

    def over(self) -> bool:
        """Return True if the turn (time slice) is over; the connection must then stop after this request."""
        return self._clock() >= self._until

    def end(self, worker: Worker) -> None:
        """Count the work of a connection since :meth:`begin`."""
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
        """Put a connection that does not wait yet into the queue for a later turn (time slice)."""
        size = worker.size
        (self._small if size < SMALL_BYTES else self._large).push(worker, size)
        self._come_round()

    def task(self, body_bytes: int) -> None:
        """Count a request that is passed to a task, which runs in the next iteration of the loop."""
        took_s = max(self._task_s, min(body_bytes, _TASK_BYTES_MAX) * _TASK_BYTE_S)
        self._until -= took_s
        self._worked_s += took_s

    def task_begins(self) -> None:
        """Record the time right before the task of a request runs for the first time."""
        self._task_began = self._clock()

    def task_ends(self, worker: Worker) -> None:
        """Count the duration of the first run of a request's task; call this right after the run."""
        took_s = self._clock() - self._task_began
        worker.cost_s += took_s
        # If the connection was closed before its task ran, its cost is already stored. Replace it by the
        # higher cost.
        if network_of(worker.host) in self._gone:
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
