"""One connection's requests and answers, without IO: opaque matching, deadlines, limits.

A driver passes received bytes and clock readings, and sends the returned bytes. The same session
serves the asyncio and the blocking driver. Instants are seconds on the driver's own monotonic clock.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from routekeeper.remoting.codes import FLAG_RESPONSE
from routekeeper.remoting.command import RemotingCommand, read_answer
from routekeeper.remoting.errors import LocalProtocolError, RemoteProtocolError, TooManyRequests
from routekeeper.remoting.frame import FRAME_SIZE_MAX, FrameDecoder

#: Bound of the requests that wait for answers on one connection. Java allows 64 asynchronous ones per
#: process.
OUTSTANDING_MAX: Final = 1024


class Response(NamedTuple):
    """The answer to a request of ours."""

    opaque: int
    command: RemotingCommand


class PeerRequest(NamedTuple):
    """A request of the peer over our connection, such as a broker's notice to its client."""

    command: RemotingCommand


class Broken(NamedTuple):
    """The peer broke the protocol: the connection must be closed, and further bytes are dropped."""

    error: RemoteProtocolError


Event = Response | PeerRequest | Broken


class ClientSession:
    """State of one connection: which requests wait, and until when.

    Invariants:
        - an opaque waits at most once;
        - each started request ends in exactly one of :meth:`receive`, :meth:`expire`, :meth:`forget`,
          :meth:`lost`.
    """

    __slots__ = (
        "_deadlines",
        "_decoder",
        "_next_opaque",
        "_outstanding_max",
        "_waiting",
        "more",
        "unexpected",
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
        self._deadlines: list[tuple[float, int]] = []
        #: Number of answers for which no request waited; they are dropped.
        self.unexpected = 0
        #: True if the last :meth:`receive` did not look at all received bytes.
        self.more = False

    @property
    def outstanding(self) -> int:
        """Number of requests that wait for answers."""
        return len(self._waiting)

    def start(self, request: RemotingCommand, *, now: float, timeout_s: float) -> tuple[int, bytes]:
        """Begin a request; return its opaque and the frame to send.

        Raises:
            TooManyRequests: If the limit on outstanding requests is reached.
            LocalProtocolError: If the request cannot be encoded, or is oneway.
        """
        if request.is_oneway or request.is_response:
            raise LocalProtocolError(f"command of flag={request.flag} has no answer to wait for")
        if len(self._waiting) >= self._outstanding_max:
            raise TooManyRequests(
                f"{len(self._waiting)} requests wait for answers, the most that are allowed"
            )
        opaque = self._take_opaque()
        frame = request.encode(opaque)
        deadline = now + timeout_s
        self._waiting[opaque] = deadline
        heapq.heappush(self._deadlines, (deadline, opaque))
        # most entries are deadlines of answered requests
        if len(self._deadlines) > 2 * len(self._waiting) + 64:
            self._deadlines = [(until, waiting) for waiting, until in self._waiting.items()]
            heapq.heapify(self._deadlines)
        return opaque, frame

    def oneway(self, request: RemotingCommand) -> bytes:
        """Return the frame of a request that gets no answer.

        Raises:
            LocalProtocolError: If the request cannot be encoded, or is not marked oneway.
        """
        if not request.is_oneway:
            raise LocalProtocolError(f"request of code {request.code} is not marked oneway")
        return request.encode(self._take_opaque())

    def receive(self, data: bytes, *, unasked_max: int | None = None) -> list[Event]:
        """Process received bytes; return the events that they complete.

        After :class:`Broken`, always the last event, the driver closes the connection and calls
        :meth:`lost`.

        Args:
            unasked_max: Stop after so many frames that no request of ours waits for. If :attr:`more` is
                true afterwards, the next call goes on with the rest, also without new bytes. None: no bound.
        """
        events: list[Event] = []
        unasked = 0
        self.more = False
        frames = self._decoder.places(data)
        try:
            for whole, start, size in frames:
                command = read_answer(whole, start, size)
                if command.flag & FLAG_RESPONSE and self._waiting.pop(command.opaque, None) is not None:
                    events.append(Response(command.opaque, command))
                    continue
                if command.flag & FLAG_RESPONSE:
                    self.unexpected += 1
                else:
                    events.append(PeerRequest(command))
                unasked += 1
                if unasked == unasked_max:
                    self.more = True
                    frames.close()  # now, because it keeps the rest for the next call
        except RemoteProtocolError as error:
            events.append(Broken(error))
        return events

    def next_deadline(self) -> float | None:
        """Return the next deadline for :meth:`expire`; None if no request waits."""
        deadlines = self._deadlines
        while deadlines and self._waiting.get(deadlines[0][1]) != deadlines[0][0]:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def expire(self, now: float) -> list[int]:
        """Give up requests whose deadline has passed; return their opaques. Late answers are dropped."""
        expired = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            opaque = heapq.heappop(self._deadlines)[1]
            del self._waiting[opaque]
            expired.append(opaque)
        return expired

    def forget(self, opaque: int) -> None:
        """Give up one request, if it still waits, because its caller is gone."""
        self._waiting.pop(opaque, None)

    def lost(self) -> list[int]:
        """End all requests because the connection is gone; return their opaques."""
        pending = list(self._waiting)
        self._waiting.clear()
        self._deadlines.clear()
        return pending

    def _take_opaque(self) -> int:
        opaque = self._next_opaque
        # This happens only when the counter has wrapped around while old requests still wait.
        while opaque in self._waiting:
            opaque = _after(opaque)
        self._next_opaque = _after(opaque)
        return opaque


def _after(opaque: int) -> int:
    return opaque + 1 if opaque < 2**31 - 1 else -(2**31)
