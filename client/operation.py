"""Operations: what the client does, as generators without IO.

An operation yields *effects* (ask a peer, wait, start another operation) and is resumed with their results,
or with the exception an effect failed with. ``aio`` and ``blocking`` are the two drivers that perform
effects; they hold no logic of their own, so there is one producer, one consumer and one admin, not a
synchronous twin of each.

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
        unless: Asked when nothing that another operation does can come before the request any more; if it
            returns True, nothing is sent, and this fails with Withdrawn. A thread may hang between the
            step that asked for a request and the sending, while later ones are sent.
    """

    addr: str
    request: RemotingCommand
    timeout_s: float
    unless: Callable[[], bool] | None = None


class Oneway(msgspec.Struct, frozen=True):
    """Send a request that nobody answers. Result: None. Fails as Invoke, but never by the peer's silence."""

    addr: str
    request: RemotingCommand
    unless: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask for something over HTTP. Result: FetchReply, no matter its status.

    Fails with :class:`Unreached` when nothing was sent, with another OSError when no reply came.

    Attributes:
        timeout_s: For all of it, from the connection to the last byte of the reply.
        reply_max: Bytes of a reply that are accepted.
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
    """No connection was made, so nothing was asked."""


class ListenerEnded(Exception):
    """The user's code ended by what is no Exception, such as SystemExit or a CancelledError of its own.

    Let through, it would silently end the caller of the user's code: a consumer's worker.
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
        wall_ms: Unix epoch milliseconds, for what goes on the wire.
    """

    now_s: float
    wall_ms: int


class Clock(msgspec.Struct, frozen=True):
    """Read the clocks. Result: Instant."""


class Signal:
    """A counted event that operations wait for; a notification is never lost.

    A waiter remembers the version it has acted on; :class:`Wait` returns at once if a younger one exists.
    """

    __slots__ = ("_wakers", "version")

    def __init__(self) -> None:
        self.version = 0
        self._wakers: list[Callable[[], None]] = []

    def notify(self) -> None:
        """Let everybody who waits go on."""
        self.version += 1
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def on_next(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called by the next :meth:`notify`; for drivers."""
        self._wakers.append(wake)

    def forget(self, wake: Callable[[], None]) -> None:
        """Withdraw what :meth:`on_next` was given, if it was not called yet; for drivers."""
        if wake in self._wakers:
            self._wakers.remove(wake)


class Wait(msgspec.Struct, frozen=True):
    """Wait until ``signal`` is younger than version ``seen``. Result: True, or False after ``timeout_s``."""

    signal: Signal
    seen: int
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start another operation beside this one. Result: None, at once.

    The driver owns it: closing the client ends it. An exception that leaves it is logged and ends only it.
    """

    operation: Operation[None]
    name: str


class Deliver(msgspec.Struct, frozen=True):
    """Call the user's code with ``argument``. Result: what it returns (awaited, if it is awaitable and the
    driver is the asyncio one); fails with anything that it raises. Other operations go on meanwhile.

    What it raises is always an Exception: see :class:`ListenerEnded`.
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
    """Run operations beside each other, so many at a time; end when all have.

    They must not raise: an exception that leaves one of them is logged by the driver and ends only it.
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
        except RemotingError:  # no thread any more: those there are, and this one, do it all
            running -= 1
            break
    running += 1
    yield from work()
    while running:
        yield from wait(ended, ended.version, None)
