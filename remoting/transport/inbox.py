"""Received bytes of one peer, split into its requests in order; without IO.

The server's counterpart of :mod:`routekeeper.remoting.session`. A driver passes received bytes in and asks
for one request after the other. It may stop between any two of them, for instance while the peer does not
read its answers, or while it is the turn of other connections.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from routekeeper.remoting.command import RemotingCommand, read_command, read_pieces
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.foreign import foreign

#: Unhandled bytes of one connection above which no more are read from it. A larger frame is read only when it
#: has a place.
KEPT_MAX: Final = 64 * 1024
#: Bytes of a piece from which on the next bytes begin a piece of their own: an object for each byte of a peer
#: that sends byte by byte would take fifty times the memory.
_PIECE_MIN: Final = 16 * 1024
_LENGTH: Final = struct.Struct(">I")
_LENGTH_SIZE: Final = 4
_HEADER_AT: Final = 8  # in a frame, behind two words


class FastPath(Protocol):
    """Answers frames that it knows, on one connection.

    Attributes:
        starts: The beginning of the headers of all frames that it may know; it is not asked about others.
    """

    @property
    def starts(self) -> tuple[bytes, ...]: ...

    def whole(self, data: bytes) -> bytes | int | None:
        """Return the answers to all of ``data``, or None if some frame is unknown.

        It returns a number other than 0 if the first frame must wait for that number.
        """

    def leading(self, data: bytes, position: int, answers: list[bytes]) -> tuple[int, bool]:
        """Append the answers to known frames from ``position`` on; return the position after them.

        It stops at an unknown frame, and when the answers, or the work for them, are enough for one write.
        The second value says whether the latter was the reason.
        """

    def waits_now(self) -> int:
        """Return the number that a frame which arrives now must wait for; 0 if it need not wait."""

    def waits(self, data: bytes, position: int) -> int:
        """Return the number that the frame at ``position`` must wait for; 0 if it must be dispatched.

        A waiting frame, and everything after it, is looked at again by :meth:`Inbox.unpark`.

        """


class Stop(enum.Enum):
    """The reason why :meth:`Inbox.next` returned no request although bytes are left.

    Attributes:
        FULL: The present answers are enough for one write; ask again once they are sent.
        WAITS: The next frame waits for a number; ask again after :meth:`Inbox.unpark`.
    """

    FULL = "full"
    WAITS = "waits"


class Inbox:
    """The unanswered bytes of one peer, and their state.

    In the order of arrival the bytes are: the start of an unfinished frame, or whole frames that are being
    looked at; then bytes that *wait* for a number (of a barrier, say) because of their first frame; then
    later bytes, which wait for numbers of their own, none of them smaller.

    Args:
        frame_size_max: Bytes of one frame, length word included.
        fast_path: Asked first about frames that begin as it says.
        park: Called with each number that bytes begin to wait for.

    Attributes:
        waits_for: The number that the first waiting bytes wait for; 0: none wait.
    """

    __slots__ = (
        "_behind",
        "_data",
        "_fast_path",
        "_frame_size_max",
        "_held",
        "_is_asked",
        "_missing",
        "_park",
        "_parked",
        "_pieces",
        "_position",
        "_starts",
        "_waiting",
        "_whole",
        "answered",
        "waits_for",
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
        # True if received bytes may go to the fast path as a whole: only while no other frame has come. A
        # peer that registers queries no routes.
        self._is_asked = fast_path is not None
        self._park = park
        # An unfinished frame in pieces, as they came: a large body is copied only once, when it is complete.
        self._pieces: list[bytes | bytearray] = []
        self._held = 0  # bytes of the pieces
        self._missing = 0  # size that the pieces must have before another look at the frame pays
        self._whole = False  # the pieces are exactly one large frame
        self._data = b""  # handled up to the position; empty once all bytes are
        self._position = 0
        #: The fast path has answered a frame in :meth:`next`.
        self.answered = False
        self.waits_for = 0
        self._parked = b""
        self._behind: deque[tuple[int, bytes]] = deque()
        self._waiting = 0  # bytes that are parked, and bytes after them

    @property
    def straight(self) -> bool:
        """Return whether the next bytes may go to :meth:`FastPath.whole` at once."""
        return self._is_asked and not self.waits_for and not self._pieces and not self._data

    @property
    def more(self) -> bool:
        """Return whether there are bytes for :meth:`next` to look at."""
        return bool(self._data) or self._whole

    @property
    def size(self) -> int:
        """Return the number of bytes held here."""
        return self._held + len(self._data) - self._position + self._waiting

    @property
    def full(self) -> bool:
        """Return whether reading from this peer should pause until some frame is answered."""
        return self._whole or len(self._data) - self._position + self._waiting > KEPT_MAX

    @property
    def large(self) -> int:
        """Return the full size of the unfinished frame if it is large, else 0."""
        return self._missing if self._pieces and not self._whole and self._missing > KEPT_MAX else 0

    def receive(self, data: bytes) -> bool:
        """Take received bytes; return whether there are new bytes for :meth:`next` to look at."""
        if self.waits_for:
            self._receive_behind(data)
            return False
        return self._take(data)

    def single(self, data: bytes) -> RemotingCommand | None:
        """Return the request if ``data`` is exactly one frame that the fast path is not asked about, else
        None.

        Nearly every registration arrives this way. After None, pass the same bytes to :meth:`receive`.

        Raises:
            RemoteProtocolError: If the frame is malformed.
        """
        if self._is_asked or self.waits_for or self._pieces or self._data or len(data) <= _HEADER_AT:
            return None
        (size,) = _LENGTH.unpack_from(data)
        if size + _LENGTH_SIZE == len(data) <= self._frame_size_max and not data.startswith(
            self._starts, _HEADER_AT
        ):
            return read_command(data, 0, size)
        return None

    def next(self, answers: list[bytes]) -> RemotingCommand | Stop | None:
        """Return the next request, or the reason why there is none now; None if all bytes were looked at.

        Args:
            answers: The fast path's answers to the frames before it are appended here.

        Raises:
            RemoteProtocolError: The next frame is above the limit or malformed. Close the connection, and
                do not use this object again.
        """
        if self._whole:
            if self._fast_path is None or not self._pieces[0].startswith(self._starts, _HEADER_AT):
                self._is_asked = False
                pieces = self._take_pieces()
                return read_pieces(pieces)
            self._data = b"".join(self._take_pieces())
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
        """Keep bytes that wait for ``number``, and later ones, until :meth:`unpark`."""
        if self.waits_for:  # these bytes wait again, for a later number, together with all bytes after them
            data += self._parked + b"".join(behind for _, behind in self._behind)
            self._behind.clear()
        self.waits_for = number
        self._parked = data
        self._waiting = len(data)
        assert self._park is not None
        self._park(number)

    def unpark(self, number: int) -> bytes | None:
        """Return bytes that waited for ``number`` or an earlier one; None if none do.

        The driver passes them to :meth:`resume`, or first to the fast path, and calls this again.

        """
        if not 0 < self.waits_for <= number:
            return None
        data = self._parked
        self._waiting -= len(data)
        if self._behind:
            self.waits_for, self._parked = self._behind.popleft()
        else:
            self.waits_for, self._parked = 0, b""
        return data

    def resume(self, data: bytes) -> bool:
        """Take bytes that have waited; return whether there are new bytes for :meth:`next` to look at."""
        return self._take(data)

    def clear(self) -> None:
        """Drop everything, because nobody reads the answers any more."""
        self._take_pieces()
        self._data, self._position = b"", 0
        self.waits_for, self._parked = 0, b""
        self._behind.clear()
        self._waiting = 0

    def _take(self, data: bytes) -> bool:
        if self._data:
            self._data = self._data[self._position :] + data
            self._position = 0
            return False
        if self._pieces:
            if self._whole:
                self._data = b"".join([*self._take_pieces(), data])
                return False
            self._add(data)
            if self._held < self._missing:
                return False
            if self._held == self._missing > KEPT_MAX:
                self._whole = True
                return True
            data = b"".join(self._take_pieces())
        self._data, self._position = data, 0
        return True

    def _add(self, data: bytes) -> None:
        """Add bytes to those of the unfinished frame."""
        pieces = self._pieces
        self._held += len(data)
        if not pieces or len(pieces[-1]) >= _PIECE_MIN:
            pieces.append(data)
            return
        if isinstance(pieces[-1], bytes):
            pieces[-1] = bytearray(pieces[-1])
        pieces[-1] += data

    def _take_pieces(self) -> list[bytes | bytearray]:
        """Return the pieces, and forget them."""
        pieces, self._pieces = self._pieces, []
        self._held, self._whole = 0, False
        return pieces

    def _receive_behind(self, data: bytes) -> None:
        """Keep bytes that arrive after waiting ones, in order.

        They wait for the number that a request arriving now would wait for, because they may be one.
        """
        assert self._fast_path is not None
        assert self._park is not None
        number = self._fast_path.waits_now()
        last = self._behind[-1][0] if self._behind else self.waits_for
        self._waiting += len(data)
        if number > last:
            self._behind.append((number, data))
            self._park(number)
        elif self._behind:
            self._behind.append((last, self._behind.pop()[1] + data))
        else:
            self._parked += data

    def _keep(self, missing: int) -> None:
        self._add(self._data[self._position :])
        self._missing = missing
        self._all_seen()

    def _all_seen(self) -> None:
        self._data, self._position = b"", 0
