"""Turns of connections: requests may hold the loop for a while, then others are served in their order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Protocol

#: Seconds that requests may hold the loop, but for the last of them, before anything else waits for it.
TURN_S: Final = 0.005
#: Seconds of work after which a turn, once it is over, is followed by another one only when the loop has come
#: round. For less a callback would cost too much: lone requests would each pay for one.
_UNCHECKED_S: Final = 0.000_5
#: Bytes that wait on a connection below which it is served before those with more.
SMALL_BYTES: Final = 4096
#: Assumed cost of a request whose handler waits, in seconds, until some were measured.
_TASK_S: Final = 0.000_2
#: Assumed cost of each byte of its body, up to a size: that of the dearest bodies, since a cheap one
#: among them only ends a turn early.
_TASK_BYTE_S: Final = 0.000_000_3
_TASK_BYTES_MAX: Final = 65_536
#: The rate at which the measured cost of such requests is forgotten when cheaper ones follow.
_FORGETTING: Final = 0.1
#: Connections at most that are let in before a turn, one each time the loop comes round.
_LET_IN_MAX: Final = 64
#: Hosts of which it is remembered what connections that are gone have cost.
_HOSTS_MAX: Final = 1024


class Worker(Protocol):
    """One who has requests to be looked at: a connection.

    Attributes:
        cost_s: Seconds for which it has held the loop; :class:`Turns` writes it.
        host: Where it comes from.
        size: Bytes that wait to be looked at.
    """

    cost_s: float

    @property
    def host(self) -> str: ...

    @property
    def size(self) -> int: ...

    def go_on(self) -> None:
        """Look at what is left, as far as the turn goes."""


class _Line:
    """Workers that wait, those first that have cost least.

    Attributes:
        least_s: Cost of the last one to go on; a worker that comes anew leads no further.
        waiting: They are its last members; a heap.
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
    """Shares one loop's time between those whose requests are dispatched; without IO.

    A turn is over :data:`TURN_S` after it began. Who is not done by then, or has its requests arrive later,
    waits until the loop has come round: until a callback ran that was scheduled when the turn had worked for
    a while. No clock can tell that: reading many sockets takes long, too.

    Then those go first on whose connections little waits (:data:`SMALL_BYTES`). While others wait they have
    half of the turn, and of the others at least one goes on in each turn. Among alike those go first that
    have cost least, so that one who asks little waits for one turn however many ask much; of those who have
    cost the same, as when all are new, who has sent least. Answers of one connection keep their order: it
    waits with all that it has sent. What is held while nobody waits is counted against nobody. Who comes
    again begins where its host's connections that are gone have left off, or each new one would go first.

    A turn begins only when nobody new came while the loop came round: a listener lets one in each time, and
    who asks little would otherwise wait for a turn of each of those who came before.

    Requests that are handed to tasks run later, all at once: as many of them are begun in one turn as it can
    hold of what they cost lately, or of what their sizes foretell where that is more.

    Args:
        clock: Seconds.
        call_soon: Calls what it is given when the loop has come round.
        idle: Called when nobody waits any more.
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
        self._serving = False  # those who wait, in a turn that has begun
        self._task_began = 0.0
        self._task_s = _TASK_S
        self._small = _Line()
        self._large = _Line()
        self._called = False
        self._came = False
        self._let_in = 0  # since the last turn
        self._gone: dict[str, float] = {}  # by host: what those that are gone had cost, if above that

    @property
    def began(self) -> float:
        """Instant of the last :meth:`begin`."""
        return self._began

    @property
    def waiting(self) -> int:
        """Workers that wait for their turn."""
        return len(self._small) + len(self._large)

    @property
    def _least_s(self) -> float:
        return min(self._small.least_s, self._large.least_s)

    def came(self, worker: Worker) -> None:
        """Take a new worker in."""
        self._came = True
        worker.cost_s = self._gone.get(worker.host, 0.0)

    def left(self, worker: Worker) -> None:
        """Remember what a worker that is gone has cost."""
        gone, host = self._gone, worker.host
        if worker.cost_s <= max(self._least_s, gone.get(host, 0.0)):
            return
        if len(gone) >= _HOSTS_MAX and host not in gone:
            for other in [other for other, cost_s in gone.items() if cost_s <= self._least_s]:
                del gone[other]
            if len(gone) >= _HOSTS_MAX:
                del gone[next(iter(gone))]
        gone[host] = worker.cost_s

    def begin(self) -> bool:
        """Say whether requests may be dispatched now; if so, :meth:`end` follows."""
        now = self._clock()
        if now >= self._until and not self._serving:
            if self._called:
                return False
            self._until = now + self._turn_s
        self._began = now
        return True

    def renew(self) -> None:
        """Begin a new turn: what waited for something else than its turn can be answered only now."""
        self._until = self._clock() + self._turn_s

    def begin_anyway(self) -> None:
        """Begin to dispatch what cannot wait again; :meth:`over` may well be true after its first request."""
        self._began = self._clock()

    def over(self) -> bool:
        """Say whether anyone who is being served must stop after the present request."""
        return self._clock() >= self._until

    def end(self, worker: Worker) -> None:
        """Account for what was dispatched since :meth:`begin`."""
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
        """Have a worker go on in a later turn; not if it waits already."""
        size = worker.size
        (self._small if size < SMALL_BYTES else self._large).push(worker, size)
        self._come_round()

    def task(self, body_bytes: int) -> None:
        """Take into account that a request is handed to a task, which runs when the loop has come round."""
        took_s = max(self._task_s, min(body_bytes, _TASK_BYTES_MAX) * _TASK_BYTE_S)
        self._until -= took_s
        self._worked_s += took_s

    def task_begins(self) -> None:
        """Called right before such a task runs for the first time."""
        self._task_began = self._clock()

    def task_ends(self, worker: Worker) -> None:
        """Called right after it has run for the first time."""
        took_s = self._clock() - self._task_began
        worker.cost_s += took_s
        if worker.host in self._gone:  # perhaps with this one
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
