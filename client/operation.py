"""Operations: generators that do the client's work and leave all I/O to a driver.

An operation yields *effects* (send a request, wait, start another operation). A driver performs the effect
and resumes the operation with the effect's result or exception. There are two drivers, the client classes of
:mod:`.aio` and :mod:`.blocking`. A driver only performs effects, so both drivers use the same code for
producers, consumers and administration.

While a driver runs the code between two effects, no other operation of the same client runs. Operations
therefore share state without locks. At every ``yield``, another operation may change the shared state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import msgspec

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError

T = TypeVar("T")


class Invoke(msgspec.Struct, frozen=True):
    """Send a request and wait for the answer with any code. Result: RemotingCommand.

    The effect fails with ConnectionLost, RequestTimeout, TooManyRequests, LocalProtocolError or
    RemoteProtocolError.

    Attributes:
        unless: Function that is called immediately before the request is sent. No other operation runs
            between this call and the sending. If the function returns True, nothing is sent, and this effect
            fails with Withdrawn. So a delayed thread does not send a request that newer requests of other
            threads have made obsolete.
    """

    addr: str
    request: RemotingCommand
    timeout_s: float
    unless: Callable[[], bool] | None = None


class Oneway(msgspec.Struct, frozen=True):
    """Send a request that gets no answer. Result: None.

    The effect fails with the same exceptions as :class:`Invoke`, except for errors about a missing or wrong
    answer.
    """

    addr: str
    request: RemotingCommand
    unless: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True)
class Fetch:
    """Send a request over HTTP. Result: FetchReply with any status.

    The effect fails with :class:`Unreached` if nothing was sent, or with another OSError if no reply came.

    Attributes:
        timeout_s: Seconds for the whole request, from the connection to the last byte of the reply.
        reply_max: Largest accepted reply in bytes.
    """

    url: str
    timeout_s: float
    method: str = "GET"
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    reply_max: int = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FetchReply:
    """Status and body of an HTTP reply."""

    status: int
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class Unreached(ConnectionError):
    """No connection could be opened, so nothing was sent."""


class ListenerEnded(Exception):
    """The user's code raised an exception that is no subclass of Exception.

    Examples are SystemExit and CancelledError. The driver raises this class instead. Otherwise, the original
    exception would end the consumer's operation that called the user's code, and nothing would be logged.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"listener ended by {error!r}")


class Sleep(msgspec.Struct, frozen=True):
    """Let ``seconds`` pass. Result: None."""

    seconds: float


class Instant(msgspec.Struct, frozen=True):
    """The time on the monotonic clock and on the wall clock, read at the same moment.

    Attributes:
        now_s: Seconds of the monotonic clock, for deadlines. They have no relation to the time of day.
        wall_ms: Unix time in milliseconds, for values on the wire.
    """

    now_s: float
    wall_ms: int


class Clock(msgspec.Struct, frozen=True):
    """Read the clocks. Result: Instant."""


class Signal:
    """A counter of notifications, for which operations wait. No notification is lost.

    Each notification increases ``version``. A waiter passes the last version that it handled to
    :class:`Wait`. If the signal already has a later version, the wait ends at once.
    """

    __slots__ = ("_wakers", "version")

    def __init__(self) -> None:
        self.version = 0
        self._wakers: list[Callable[[], None]] = []

    def notify(self) -> None:
        """Wake all waiters."""
        self.version += 1
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def on_next(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` at the next :meth:`notify`. For drivers only."""
        self._wakers.append(wake)

    def forget(self, wake: Callable[[], None]) -> None:
        """Remove a function that was passed to :meth:`on_next` and not called yet. For drivers only."""
        if wake in self._wakers:
            self._wakers.remove(wake)


class Wait(msgspec.Struct, frozen=True):
    """Wait until ``signal`` has a later version than ``seen``. Result: True, or False after ``timeout_s``."""

    signal: Signal
    seen: int
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start another operation that runs concurrently, and do not wait for it. Result: None.

    The driver runs the operation and ends it when the client closes. If the operation raises an exception,
    the driver logs it, and other operations continue.
    """

    operation: Operation[None]
    name: str


class Deliver(msgspec.Struct, frozen=True):
    """Call the user's code with ``argument``. Result: the return value of the user's code.

    If that value is awaitable, the asyncio driver awaits it. If the user's code raises, the effect fails with
    the same exception, or with :class:`ListenerEnded`. Other operations continue while the user's code runs.
    """

    call: Callable[[Any], Any]
    argument: Any


Effect: TypeAlias = Invoke | Oneway | Fetch | Sleep | Clock | Wait | Spawn | Deliver
Operation: TypeAlias = Generator[Effect, Any, T]


def read_clock() -> Operation[Instant]:
    """Read the clocks. Like ``yield Clock()``, but type checkers know the type of the result."""
    instant: Instant = yield Clock()
    return instant


def invoke(addr: str, request: RemotingCommand, timeout_s: float) -> Operation[RemotingCommand]:
    """Send a request and wait for the answer. Like ``yield Invoke(...)``, but with a typed result."""
    response: RemotingCommand = yield Invoke(addr, request, timeout_s)
    return response


def wait(signal: Signal, seen: int, timeout_s: float | None) -> Operation[bool]:
    """Wait for a later version of a signal. Like ``yield Wait(...)``, but with a typed result."""
    notified: bool = yield Wait(signal, seen, timeout_s)
    return notified


class Once:
    """An operation that runs until one caller has completed it.

    A caller may be cancelled or interrupted while it runs the operation. The next caller then runs the
    operation again from the beginning. The operation must allow this.
    """

    __slots__ = ("_completed", "_ended", "_running")

    def __init__(self) -> None:
        self._completed = self._running = False
        self._ended = Signal()

    def run(self, operation: Callable[[], Operation[None]]) -> Operation[Signal | None]:
        """Run the operation, unless it was completed or another caller runs it now.

        This method does not wait for the caller that runs the operation now. That caller may itself be
        waiting for a function of the user, and that function may have called this method. Then the two
        callers would wait for each other.

        Returns:
            None if the operation is completed. If another caller runs it now, the signal of the end of that
            run. After this signal, call this method again, because that caller may have been cancelled.
        """
        if self._completed:
            return None
        if self._running:
            return self._ended
        self._running = True
        try:
            yield from operation()
            self._completed = True
        finally:
            self._running = False
            self._ended.notify()
        return None


def together(operations: Iterable[Operation[None]], name: str, *, at_once: int) -> Operation[None]:
    """Run operations concurrently, at most ``at_once`` at the same time, until all have ended.

    The operations must not raise exceptions, because nobody would receive them: they are only logged.
    """
    waiting = deque(operations)
    ended = Signal()
    running = 0

    def work() -> Operation[None]:
        nonlocal running
        try:
            while waiting:
                yield from waiting.popleft()
        finally:
            running -= 1
            ended.notify()

    for _ in range(min(at_once, len(waiting)) - 1):
        running += 1
        try:
            yield Spawn(work(), name)
        except RemotingError:  # no thread can be started now, so the threads that run do all the work
            running -= 1
            break
    running += 1
    yield from work()
    while running:
        yield from wait(ended, ended.version, None)
