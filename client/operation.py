"""Operations: the client's work as generators without IO.

An operation yields *effects* (send a request, wait, start another operation). It is resumed with an effect's
result or exception. The two drivers, ``aio`` and ``blocking``, perform effects and hold no logic of their
own. So there is one producer, one consumer and one admin, not a synchronous twin of each.

A driver runs the code between two effects without interruption by another operation of the same client:
operations share state without locks as long as they do not rely on it across a ``yield``.
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
    """Send a request and wait for the answer, of any code. Result: RemotingCommand.

    Fails with ConnectionLost, RequestTimeout, TooManyRequests, LocalProtocolError or RemoteProtocolError.

    Attributes:
        unless: Called at the last moment, when no other operation can act before the request any more. If it
            returns True, nothing is sent, and this effect fails with Withdrawn. It is needed because a thread
            may be delayed between the effect and the sending, while later requests are sent.
    """

    addr: str
    request: RemotingCommand
    timeout_s: float
    unless: Callable[[], bool] | None = None


class Oneway(msgspec.Struct, frozen=True):
    """Send a request that gets no answer. Result: None.

    Fails as Invoke, but never because an answer is missing.
    """

    addr: str
    request: RemotingCommand
    unless: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True)
class Fetch:
    """Send a request over HTTP. Result: FetchReply, of any status.

    Fails with :class:`Unreached` when nothing was sent, with another OSError when no reply came.

    Attributes:
        timeout_s: Time for everything, from the connection to the last byte of the reply.
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
    """HTTP status and body."""

    status: int
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class Unreached(ConnectionError):
    """No connection was made, so nothing was sent."""


class ListenerEnded(Exception):
    """The user's code raised something that is no Exception, such as SystemExit or its own CancelledError.

    Raised unchanged, it would silently end the caller of the user's code: a consumer's worker.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"listener ended by {error!r}")


class Sleep(msgspec.Struct, frozen=True):
    """Let ``seconds`` pass. Result: None."""

    seconds: float


class Instant(msgspec.Struct, frozen=True):
    """One reading of both clocks.

    Attributes:
        now_s: Monotonic seconds, for deadlines; no relation to the time of day.
        wall_ms: Unix time in milliseconds, for values on the wire.
    """

    now_s: float
    wall_ms: int


class Clock(msgspec.Struct, frozen=True):
    """Read the clocks. Result: Instant."""


class Signal:
    """A counted event for which operations wait; no notification is lost.

    A waiter remembers the last version that it handled. :class:`Wait` returns at once if there is a later
    one.
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
        """Have ``wake`` called by the next :meth:`notify`; for drivers."""
        self._wakers.append(wake)

    def forget(self, wake: Callable[[], None]) -> None:
        """Withdraw a function of :meth:`on_next`, if it was not called yet; for drivers."""
        if wake in self._wakers:
            self._wakers.remove(wake)


class Wait(msgspec.Struct, frozen=True):
    """Wait until ``signal`` has a later version than ``seen``. Result: True, or False after ``timeout_s``."""

    signal: Signal
    seen: int
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start another operation beside this one. Result: None, at once.

    The driver owns the operation and ends it when the client closes. An exception in it is logged, and ends
    only this operation.
    """

    operation: Operation[None]
    name: str


class Deliver(msgspec.Struct, frozen=True):
    """Call the user's code with ``argument``. Result: its return value.

    The asyncio driver awaits an awaitable value. The effect fails with the exception of the user's code,
    which is always an Exception: see :class:`ListenerEnded`. Other operations go on meanwhile.
    """

    call: Callable[[Any], Any]
    argument: Any


Effect: TypeAlias = Invoke | Oneway | Fetch | Sleep | Clock | Wait | Spawn | Deliver
Operation: TypeAlias = Generator[Effect, Any, T]


def read_clock() -> Operation[Instant]:
    """Yield :class:`Clock`, typed."""
    instant: Instant = yield Clock()
    return instant


def invoke(addr: str, request: RemotingCommand, timeout_s: float) -> Operation[RemotingCommand]:
    """Yield :class:`Invoke`, typed."""
    response: RemotingCommand = yield Invoke(addr, request, timeout_s)
    return response


def wait(signal: Signal, seen: int, timeout_s: float | None) -> Operation[bool]:
    """Yield :class:`Wait`, typed."""
    notified: bool = yield Wait(signal, seen, timeout_s)
    return notified


def together(operations: Iterable[Operation[None]], name: str, *, at_once: int) -> Operation[None]:
    """Run operations concurrently, up to a bound; end when all have ended.

    They must not raise: the driver logs an exception of one of them, which ends only this one.
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
        except RemotingError:  # no further thread can start: the existing ones, and this one, run everything
            running -= 1
            break
    running += 1
    yield from work()
    while running:
        yield from wait(ended, ended.version, None)
