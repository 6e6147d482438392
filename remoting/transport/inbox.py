"""Received bytes of one peer: bytes in as they come, its requests out in their order; without IO.

The server's counterpart of :mod:`routekeeper.remoting.session`. A driver gives the bytes that arrived, asks
for one request after the other, and may stop between any two of them, as when the peer does not read its
answers, or when it is the turn of others.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from routekeeper.remoting.command import RemotingCommand, read_command
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.foreign import foreign

#: Bytes of one connection that wait to be looked at, above which no more are read from it. A larger frame is
#: read only when it is its turn.
KEPT_MAX: Final = 64 * 1024
_LENGTH: Final = struct.Struct(">I")
_LENGTH_SIZE: Final = 4
_HEADER_AT: Final = 8  # in a frame, behind two words


class FastPath(Protocol):
    """Answers what it knows of one connection's bytes.

    Attributes:
        starts: What the headers of all frames begin with that it may know; it is not asked about others.
    """

    @property
    def starts(self) -> tuple[bytes, ...]: ...

    def whole(self, data: bytes) -> bytes | int | None:
        """Return the answers to all of ``data``, or None if it is not made of known frames only.

        A number instead, not 0, if its first frame has to wait for that.
        """

    def leading(self, data: bytes, position: int, answers: list[bytes]) -> tuple[int, bool]:
        """Append the answers to leading frames from ``position`` on; return the position after them.

        It stops at a frame that it does not know, and once the answers, or the work they made, are enough for
        one write; the second value says that this was why.
        """

    def waits_now(self) -> int:
        """Return the number that a frame waits for which arrives now and has to wait; 0: none has to."""

    def waits(self, data: bytes, position: int) -> int:
        """Return the number of what the frame at ``position`` waits for; 0: it is to be dispatched.

        What waits is looked at again, with all that follows it, at :meth:`Inbox.unpark`.
        """


class Stop(enum.Enum):
    """Why :meth:`Inbox.next` returned no request although bytes are left.

    Attributes:
        FULL: The answers at hand are enough for one write; ask again once they are sent.
        WAITS: What comes next waits for a number; ask again after :meth:`Inbox.unpark`.
    """

    FULL = "full"
    WAITS = "waits"


class Inbox:
    """Bytes of one peer that were not answered yet, and what is to be done with them next.

    Bytes are, in the order in which they came: the start of an unfinished frame, or whole frames that are
    being looked at; what *waits* for a number (a barrier, say) because of its first frame; and what came
    behind that, which waits for numbers of its own, none of them smaller.

    Args:
        frame_size_max: Bytes of one frame, length word included.
        fast_path: Is asked first about frames that begin as it says.
        park: Called with each number that something here begins to wait for.
    """

    __slots__ = (
        "_behind",
        "_data",
        "_fast_path",
        "_frame_size_max",
        "_is_asked",
        "_missing",
        "_park",
        "_parked",
        "_parked_for",
        "_position",
        "_starts",
        "_unfinished",
        "_waiting",
        "answered",
    )

    def __init__(
        self,
        *,
        frame_size_max: int,
        fast_path: FastPath | None = None,
        park: Callable[[int], None] | None = None,
    ) -> None:
        self._frame_size_max = frame_size_max
        self._fast_path = fast_path
        self._starts = () if fast_path is None else fast_path.starts
        # True if the fast path is asked about received bytes as a whole: not after something else came. Who
        # registers queries no routes.
        self._is_asked = fast_path is not None
        self._park = park
        self._unfinished = bytearray()
        self._missing = 0  # bytes until it is worth looking at the unfinished frame again
        self._data = b""  # looked at from the position on; empty once all of it was
        self._position = 0
        #: The fast path has answered something, by :meth:`next`.
        self.answered = False
        self._parked_for = 0
        self._parked = b""
        self._behind: deque[tuple[int, bytes]] = deque()
        self._waiting = 0  # bytes parked, and behind them

    @property
    def straight(self) -> bool:
        """Return whether the next bytes may go to :meth:`FastPath.whole` at once."""
        return self._is_asked and not self._parked_for and not self._unfinished and not self._data

    @property
    def more(self) -> bool:
        """Return whether there is something that :meth:`next` has not looked at."""
        return bool(self._data)

    @property
    def size(self) -> int:
        """Bytes held here."""
        return len(self._unfinished) + len(self._data) - self._position + self._waiting

    @property
    def full(self) -> bool:
        """Return whether no more should be read from this peer before something here was answered."""
        return len(self._data) - self._position + self._waiting > KEPT_MAX

    @property
    def large(self) -> int:
        """Bytes that the unfinished frame will have, if it is large; else 0."""
        return self._missing if self._unfinished and self._missing > KEPT_MAX else 0

    def receive(self, data: bytes) -> bool:
        """Take bytes that arrived; return whether :meth:`next` has something new to look at."""
        if self._parked_for:
            self._receive_behind(data)
            return False
        return self._take(data)

    def single(self, data: bytes) -> RemotingCommand | None:
        """Return the request if ``data`` is one whole frame of what the fast path is not asked about.

        The way of nearly every registration. After None the same data are to be received.

        Raises:
            RemoteProtocolError: If the frame is malformed.
        """
        if self._is_asked or self._parked_for or self._unfinished or self._data or len(data) <= _HEADER_AT:
            return None
        (size,) = _LENGTH.unpack_from(data)
        if size + _LENGTH_SIZE == len(data) <= self._frame_size_max and not data.startswith(
            self._starts, _HEADER_AT
        ):
            return read_command(data, 0, size)
        return None

    def next(self, answers: list[bytes]) -> RemotingCommand | Stop | None:
        """Return the next request, or why there is none at the moment; None: all there is was looked at.

        Args:
            answers: The fast path's answers to the frames before it are appended here.

        Raises:
            RemoteProtocolError: If the next frame is above the limit or malformed. Nothing here may be
                asked any more; the connection has to be closed.
        """
        data, position = self._data, self._position
        if not data:
            return None
        end = len(data)
        if self._fast_path is None or not data.startswith(self._starts, position + _HEADER_AT):
            self._is_asked = False
        else:
            self._is_asked = True
            before = position
            position, enough = self._fast_path.leading(data, position, answers)
            self._position = position
            self.answered = self.answered or position > before
            if position == end:
                self._all_seen()
                return None
            if enough:
                return Stop.FULL
            number = self._fast_path.waits(data, position)
            if number:
                self._all_seen()
                self.wait(number, data[position:])
                return Stop.WAITS
        if end - position < _LENGTH_SIZE:
            self._keep(_HEADER_AT)
            return None
        (size,) = _LENGTH.unpack_from(data, position)
        if size + _LENGTH_SIZE > self._frame_size_max:
            raise RemoteProtocolError(
                foreign(data[position : position + _LENGTH_SIZE])
                or f"frame of {size + _LENGTH_SIZE} bytes is above the limit of {self._frame_size_max}"
            )
        stop: int = position + _LENGTH_SIZE + size
        if end < stop:
            self._keep(size + _LENGTH_SIZE)
            return None
        request = read_command(data, position, size)
        self._position = stop
        if stop == end:
            self._all_seen()
        return request

    def wait(self, number: int, data: bytes) -> None:
        """Keep bytes that wait for ``number``, and what follows them, until :meth:`unpark`."""
        if self._parked_for:  # it waits anew, for something later, and all that came behind it as well
            data += self._parked + b"".join(behind for _, behind in self._behind)
            self._behind.clear()
        self._parked_for = number
        self._parked = data
        self._waiting = len(data)
        assert self._park is not None
        self._park(number)

    def unpark(self, number: int) -> bytes | None:
        """Return what waited for ``number`` or an earlier one; None if nothing does (any more).

        The driver gives it to :meth:`resume`, or shows it to the fast path first, and asks again.
        """
        if not 0 < self._parked_for <= number:
            return None
        data = self._parked
        self._waiting -= len(data)
        if self._behind:
            self._parked_for, self._parked = self._behind.popleft()
        else:
            self._parked_for, self._parked = 0, b""
        return data

    def resume(self, data: bytes) -> bool:
        """Take bytes that waited; return whether :meth:`next` has something new to look at."""
        return self._take(data)

    def clear(self) -> None:
        """Drop everything: nobody reads the answers any more."""
        self._unfinished.clear()
        self._data, self._position = b"", 0
        self._parked_for, self._parked = 0, b""
        self._behind.clear()
        self._waiting = 0

    def _take(self, data: bytes) -> bool:
        if self._data:
            self._data = self._data[self._position :] + data
            self._position = 0
            return False
        if self._unfinished:
            self._unfinished += data
            if len(self._unfinished) < self._missing:
                return False
            data = bytes(self._unfinished)
            self._unfinished.clear()
        self._data, self._position = data, 0
        return True

    def _receive_behind(self, data: bytes) -> None:
        """Keep what arrives behind something that waits, in order.

        It waits for what a request that arrives now would wait for, no matter what it is: it may be one.
        """
        assert self._fast_path is not None
        assert self._park is not None
        number = self._fast_path.waits_now()
        last = self._behind[-1][0] if self._behind else self._parked_for
        self._waiting += len(data)
        if number > last:
            self._behind.append((number, data))
            self._park(number)
        elif self._behind:
            self._behind.append((last, self._behind.pop()[1] + data))
        else:
            self._parked += data

    def _keep(self, missing: int) -> None:
        self._unfinished += self._data[self._position :]
        self._missing = missing
        self._all_seen()

    def _all_seen(self) -> None:
        self._data, self._position = b"", 0
