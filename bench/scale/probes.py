"""Probes: brokers that change a topic at one server, and readers that wait until servers show the change."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from routekeeper.bench.scale.points import SHOWN_S
from routekeeper.bench.storm.blocking import Blocking
from routekeeper.bench.wires.client import Kind
from routekeeper.bench.wires.jute import JuteWire
from routekeeper.bench.wires.remoting_wire import RemotingWire
from routekeeper.bench.wires.wire import Wire, WireError

#: Number of topics of a probe. A broker in the raft benchmark has the same number.
TOPICS: Final = 10
#: Lowest broker number of a probe. Brokers of a storm have lower numbers.
FIRST_KEY: Final = 5_000
_VALUE: Final = bytes(200)
ANSWER_S: Final = 10.0
#: Longest wait in seconds for an answer to a try, while servers are down. :data:`AGAIN_S` is the pause
#: between two tries.
TRY_S: Final = 0.25
AGAIN_S: Final = 0.005
#: Shortest pause in seconds after a lost or refused connection, before a probe connects to the same server
#: again. The longest pause is twice as long. A server that answers keeps its connection and is asked again
#: after :data:`AGAIN_S`. Without the pause, many new connections would slow down the measured election.
RECONNECT_S: Final = 0.1
_READ_AGAIN_S: Final = 0.0003


class ReconnectPause:
    """The pause before a client connects to a server again. Its length is drawn anew each time."""

    def __init__(self) -> None:
        self._ends = 0.0

    def begin(self) -> None:
        self._ends = time.monotonic() + random.uniform(RECONNECT_S, 2 * RECONNECT_S)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._ends


class Probe:
    """A client that acts as one broker at a nameserver, or writes one node at a ZooKeeper server.

    Args:
        key: Number of the broker or node. Probes with the same number act as the same broker.
    """

    def __init__(self, kind: Kind, addr: str, key: int, *, timeout_s: float = ANSWER_S) -> None:
        self.key = key
        self._addr = addr
        self._timeout_s = timeout_s
        self._wire: Callable[[], Wire] = lambda: (
            JuteWire(key=key, value=_VALUE)
            if kind == "jute"
            else RemotingWire(key=key, topics=TOPICS, timestamp_ms=_started_ms)
        )
        self._at: Blocking[Wire] | None = None
        self._pause = ReconnectPause()

    def _connected(self) -> Blocking[Wire]:
        if self._at is None:
            if not self._pause.is_over:
                raise ConnectionError("the pause before the next connection is not over")
            try:
                self._at = Blocking(self._addr, self._wire(), timeout_s=self._timeout_s)
            except (OSError, WireError):
                self._pause.begin()
                raise
        return self._at

    def wait_at_most(self, timeout_s: float) -> None:
        """Set the longest time for which later requests wait for an answer."""
        self._timeout_s = timeout_s
        if self._at is not None:
            self._at.timeout_s = timeout_s

    def prepare(self) -> None:
        """Register with all topics in their first state.

        Raises:
            OSError, WireError: If the registration failed.
        """
        self._ask(self._connected().wire.prepare())

    def change(self, number: int) -> float:
        """Change one topic; return the seconds until the change is acknowledged.

        Raises:
            OSError, WireError: If the change failed.
        """
        at = self._connected()
        # The number of a write selects a topic. Multiples of TOPICS select the same topic.
        request = at.wire.write(number * TOPICS)
        began = time.perf_counter()
        self._ask(request)
        return time.perf_counter() - began

    def shows(self, number: int) -> bool:
        """Return True if the server shows this change now.

        Raises:
            OSError, WireError: If the server does not answer.
        """
        at = self._connected()
        marker = at.wire.marker(number * TOPICS)
        return marker in self._ask(at.wire.read(number * TOPICS, self.key))

    def _ask(self, request: bytes) -> bytes:
        try:
            answer = self._connected().ask(request)
        except (OSError, WireError) as error:
            self.close()
            if not isinstance(error, TimeoutError):  # a try without an answer has already lasted long
                self._pause.begin()
            raise
        if answer.error:
            raise WireError(answer.error)
        return answer.body

    def close(self) -> None:
        if self._at is not None:
            self._at.close()
            self._at = None


_started_ms: Final = time.time_ns() // 1_000_000


def at_once(calls: Sequence[Callable[[], None]]) -> None:
    """Run each call in a thread of its own, and wait for all calls."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@dataclass(slots=True)
class Shown:
    """Times of one change, in seconds since it was sent.

    Attributes:
        acked: Time of each acknowledgement.
        seen: Maps a server to the time at which the server showed the change. Servers that did not show the
            change in time are absent.
    """

    acked: list[float] = field(default_factory=list)
    seen: dict[int, float] = field(default_factory=dict)


def spread_of(writers: Sequence[Probe], readers: Sequence[Probe], number: int) -> Shown:
    """Let all these writers change a topic at the same time; ask every server until it shows the change."""
    found = Shown()
    began = time.perf_counter()

    def write(probe: Probe) -> None:
        with contextlib.suppress(OSError, WireError):  # then a server may never show the change
            probe.change(number)
            found.acked.append(time.perf_counter() - began)

    def read(index: int, probe: Probe) -> None:
        while time.perf_counter() - began < SHOWN_S:
            with contextlib.suppress(OSError, WireError):
                if probe.shows(number):
                    found.seen[index] = time.perf_counter() - began
                    return
            time.sleep(_READ_AGAIN_S)

    calls = [partial(write, probe) for probe in writers]
    calls += [partial(read, index, probe) for index, probe in enumerate(readers)]
    at_once(calls)
    return found


def first_change_s(probes: Sequence[Probe], number: int, *, within_s: float) -> float | None:
    """Try changes at all these servers at the same time; return the seconds until the first change succeeds.

    Args:
        number: The tries use the change numbers after this number.
        within_s: Longest time in seconds. If no change succeeds in this time, the result is None.
    """
    began = time.perf_counter()
    done: list[float] = []
    over = threading.Event()

    def attempt(probe: Probe) -> None:
        own = number
        while not over.is_set() and time.perf_counter() - began < within_s:
            try:
                own += 1
                probe.change(own)
                done.append(time.perf_counter() - began)
                over.set()
            except (OSError, WireError):
                over.wait(AGAIN_S)

    at_once([lambda probe=probe: attempt(probe) for probe in probes])  # type: ignore[misc]
    return min(done, default=None)


class Trying:
    """A thread that repeats an action during a fault.

    Attributes:
        done: Instants of the successes, in seconds of ``time.perf_counter``.
    """

    def __init__(self, action: Callable[[int], object]) -> None:
        self.done: list[float] = []
        self._action = action
        self._over = threading.Event()
        self._began = self._ended = time.perf_counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        turn = 0
        while not self._over.is_set():
            turn += 1
            try:
                self._action(turn)
                self.done.append(time.perf_counter())
            except (OSError, WireError):
                pass
            self._over.wait(AGAIN_S)

    def succeeded_after(self, instant: float) -> bool:
        """Return True if there was a success after an instant, in seconds of ``time.perf_counter``."""
        return bool(self.done) and self.done[-1] > instant

    def stop(self) -> float:
        """End the thread; return the longest time without a success, in seconds."""
        self._over.set()
        self._thread.join()
        self._ended = time.perf_counter()
        return longest_gap(self.done, self._began, self._ended)

    def row(self, what: str) -> dict[str, Any]:
        """Return the raw row of a stopped thread: the instants of its successes, in us after its start."""
        return {
            "kind": "trying",
            "what": what,
            "began_ns": round(self._began * 1e9),
            "done_us": [round((at - self._began) * 1e6) for at in self.done],
            "ended_us": round((self._ended - self._began) * 1e6),
        }


def longest_gap(instants: Sequence[float], began: float, ended: float) -> float:
    """Return the longest time between two successive instants. ``began`` and ``ended`` are instants, too."""
    marks = [began, *sorted(instants), ended]
    return max(later - earlier for earlier, later in itertools.pairwise(marks))
