"""Requests and answers of one connection, without I/O: matching by opaque, deadlines and limits.

The code that does the I/O is called the *driver*: :mod:`routekeeper.remoting.transport.aio` or
:mod:`routekeeper.remoting.transport.blocking`. It passes received bytes and the present time to a
:class:`ClientSession`, and sends the bytes that this object returns. All times are seconds of the driver's
own monotonic clock.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from routekeeper.remoting.codes import FLAG_RESPONSE, RequestCode
from routekeeper.remoting.command import RemotingCommand, read_answer
from routekeeper.remoting.errors import LocalProtocolError, RemoteProtocolError, TooManyRequests
from routekeeper.remoting.frame import FRAME_SIZE_MAX, FrameDecoder

#: Largest number of requests, except for pulls, that wait for answers on one connection. RocketMQ's Java
#: client allows 65,535 asynchronous requests in each process. Source: NettySystemConfig,
#: CLIENT_ASYNC_SEMAPHORE_VALUE.
OUTSTANDING_MAX: Final = 1024
#: Largest number of pulls that wait for answers on one connection. A broker delays the answer to a pull by
#: many seconds. Pulls have a separate limit, so that the pulls of many queues do not prevent sends and
#: heartbeats. The sum of both limits is 4096, the number of unanswered requests that our servers allow.
PULLS_MAX: Final = 3072
_PULL: Final = int(RequestCode.PULL_MESSAGE)


class Response(NamedTuple):
    """Answer of the peer to a request of this process."""

    opaque: int
    command: RemotingCommand


class PeerRequest(NamedTuple):
    """Request of the peer on a connection that this process opened, such as a broker's notice to a client."""

    command: RemotingCommand


class Broken(NamedTuple):
    """Event: the peer broke the protocol, so the driver must close the connection.

    The driver must not call :meth:`ClientSession.receive` again.
    """

    error: RemoteProtocolError


Event = Response | PeerRequest | Broken


class ClientSession:
    """State of one connection: the requests that wait for an answer, and their deadlines.

    Invariants:
        - At most one request with the same opaque waits.
        - Each started request ends exactly once: in :meth:`receive`, :meth:`expire`, :meth:`forget` or
          :meth:`lost`.
    """

    __slots__ = (
        "_deadlines",
        "_decoder",
        "_next_opaque",
        "_outstanding_max",
        "_pulls",
        "_waiting",
        "more",
    )

    def __init__(
        self,
        *,
        outstanding_max: int = OUTSTANDING_MAX,
        frame_size_max: int = FRAME_SIZE_MAX,
        first_opaque: int = 0,
    ) -> None:
        self._decoder = FrameDecoder(frame_size_max=frame_size_max)
        self._outstanding_max = outstanding_max
        self._next_opaque = first_opaque
        self._waiting: dict[int, float] = {}
        self._pulls: set[int] = set()  # the opaques of waiting pulls
        self._deadlines: list[tuple[float, int]] = []
        #: True if the last :meth:`receive` has not processed all received bytes.
        self.more = False

    @property
    def outstanding(self) -> int:
        """Number of requests that wait for answers."""
        return len(self._waiting)

    def start(self, request: RemotingCommand, *, now: float, timeout_s: float) -> tuple[int, bytes]:
        """Begin a request; return its opaque and the frame that the driver must send.

        Raises:
            TooManyRequests: If the limit of waiting requests is reached.
            LocalProtocolError: If the request cannot be encoded, or if it is oneway.
        """
        if request.is_oneway or request.is_response:
            raise LocalProtocolError(f"command of flag={request.flag} has no answer to wait for")
        is_pull = request.code == _PULL
        pulls = len(self._pulls)
        if is_pull and pulls >= PULLS_MAX:
            raise TooManyRequests(f"{pulls} pulls wait for answers, the most that are allowed")
        if not is_pull and len(self._waiting) - pulls >= self._outstanding_max:
            raise TooManyRequests(
                f"{len(self._waiting) - pulls} requests wait for answers, the most that are allowed"
            )
        opaque = self._take_opaque()
        frame = request.encode(opaque)
        deadline = now + timeout_s
        self._waiting[opaque] = deadline
        if is_pull:
            self._pulls.add(opaque)
        heapq.heappush(self._deadlines, (deadline, opaque))
        # Remove the deadlines of answered requests when they are most of the entries.
        if len(self._deadlines) > 2 * len(self._waiting) + 64:
            self._deadlines = [(until, waiting) for waiting, until in self._waiting.items()]
            heapq.heapify(self._deadlines)
        return opaque, frame

    def oneway(self, request: RemotingCommand) -> bytes:
        """Return the frame of a oneway request, which gets no answer.

        Raises:
            LocalProtocolError: If the request cannot be encoded, or is not marked oneway.
        """
        if not request.is_oneway:
            raise LocalProtocolError(f"request of code {request.code} is not marked oneway")
        return request.encode(self._take_opaque())

    def receive(self, data: bytes, *, unasked_max: int | None = None) -> list[Event]:
        """Process received bytes, and return the events that they complete.

        If the peer broke the protocol, the last event is :class:`Broken`. The driver then closes the
        connection and calls :meth:`lost`.

        Args:
            unasked_max: Stop after this number of frames for which no request waits; None for no limit. If
                :attr:`more` is then true, the next call processes the remaining bytes, even if ``data`` is
                empty.
        """
        events: list[Event] = []
        unasked = 0
        self.more = False
        frames = self._decoder.places(data)
        try:
            for whole, start, size in frames:
                command = read_answer(whole, start, size)
                if command.flag & FLAG_RESPONSE and self._ended(command.opaque):
                    events.append(Response(command.opaque, command))
                    continue
                if not command.flag & FLAG_RESPONSE:
                    events.append(PeerRequest(command))
                unasked += 1
                if unasked == unasked_max:
                    self.more = True
                    # Close the generator now, so that it stores the remaining bytes for the next call.
                    frames.close()
        except RemoteProtocolError as error:
            events.append(Broken(error))
        return events

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of a waiting request, for :meth:`expire`; None if no request waits."""
        deadlines = self._deadlines
        while deadlines and self._waiting.get(deadlines[0][1]) != deadlines[0][0]:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def expire(self, now: float) -> list[int]:
        """End requests whose deadline has passed; return their opaques.

        Answers that arrive later are dropped.
        """
        expired = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            opaque = heapq.heappop(self._deadlines)[1]
            self._ended(opaque)
            expired.append(opaque)
        return expired

    def forget(self, opaque: int) -> None:
        """End one request, if it still waits, because its caller no longer needs the answer."""
        self._ended(opaque)

    def lost(self) -> list[int]:
        """End all requests because the connection is closed; return their opaques."""
        pending = list(self._waiting)
        self._waiting.clear()
        self._pulls.clear()
        self._deadlines.clear()
        return pending

    def _ended(self, opaque: int) -> bool:
        """Remove a waiting request; return False if no such request waits."""
        self._pulls.discard(opaque)
        return self._waiting.pop(opaque, None) is not None

    def _take_opaque(self) -> int:
        opaque = self._next_opaque
        # Skip the opaques of waiting requests. The counter meets such an opaque only if it has wrapped around
        # while the request waited.
        while opaque in self._waiting:
            opaque = _after(opaque)
        self._next_opaque = _after(opaque)
        return opaque


def _after(opaque: int) -> int:
    return opaque + 1 if opaque < 2**31 - 1 else -(2**31)
