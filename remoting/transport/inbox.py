"""Received bytes of one peer of a server, which are split into requests, without I/O.

The server uses this module, and clients use :mod:`routekeeper.remoting.session`. A server's connection puts
received bytes into an :class:`Inbox`, and takes out one request after another. The connection may stop
between any two requests. For example, it stops while the peer does not read its answers, or while the event
loop serves other connections.
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

#: Unhandled bytes of one connection above which reading from it pauses. A larger frame is read only with the
#: server's permission, see :class:`routekeeper.remoting.transport.intake.Intake`.
KEPT_MAX: Final = 64 * 1024
#: Size in bytes at which a piece of a frame is full, so that the next bytes begin a new piece. If a peer
#: sends byte by byte, one object for each byte would take fifty times the memory.
_PIECE_MIN: Final = 16 * 1024
_LENGTH: Final = struct.Struct(">I")
_LENGTH_SIZE: Final = 4
_HEADER_AT: Final = 8  # position of the header in a frame, after two words of 4 bytes


class FastPath(Protocol):
    """Shortcut that answers known frames of one connection without parsing them and without a handler.

    Some frames must wait for a read barrier, that is, until the server's state is certainly new enough for
    the answer. Read barriers are numbered in the order in which they complete.

    Attributes:
        starts: First bytes of the headers of all frames that the fast path may recognize. The fast path does
            not get other frames.
    """

    @property
    def starts(self) -> tuple[bytes, ...]: ...

    def whole(self, data: bytes) -> bytes | int | None:
        """Return the answers to all frames in ``data``; None if any frame is unknown.

        If the first frame must wait for a read barrier, return the number of that barrier, which is not 0.
        """

    def leading(self, data: bytes, position: int, answers: list[bytes]) -> tuple[int, bool]:
        """Append the answers to recognized frames from ``position`` on.

        Stop at an unknown frame. Also stop when there are enough answers, or enough work, for one write.

        Returns:
            The position after the recognized frames, and True if there was enough for one write.
        """

    def waits_now(self) -> int:
        """Return the number of the read barrier for a frame that arrives now; 0 if it need not wait."""

    def waits(self, data: bytes, position: int) -> int:
        """Return the number of the read barrier for the frame at ``position``; 0 if a handler must serve it.

        After :meth:`Inbox.unpark`, this frame and all bytes after it are examined again.
        """


class Stop(enum.Enum):
    """Reason for which :meth:`Inbox.next` returned no request although bytes are left.

    Attributes:
        FULL: The present answers are enough for one write; call again after they are sent.
        WAITS: The next frame waits for a read barrier; call again after :meth:`Inbox.unpark`.
    """

    FULL = "full"
    WAITS = "waits"


class Inbox:
    """Received bytes of one peer that are not answered yet.

    In the order of their arrival, these bytes are:

    - the beginning of an unfinished frame, or whole frames that are being handled;
    - *parked* bytes, which wait for a read barrier because of their first frame;
    - later bytes, which wait for the same or a later read barrier.

    Args:
        frame_size_max: Largest size of a frame in bytes, including its length word.
        fast_path: Gets all frames whose header begins with one of its ``starts``, before any handler.
        park: Called with the number of each read barrier for which bytes begin to wait.

    Attributes:
        waits_for: Number of the read barrier that the first parked bytes wait for; 0 if no bytes are parked.
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
        # True while received bytes are passed to the fast path as a whole. The value becomes False at a frame
        # that the fast path cannot serve. The sender of such a frame is probably a broker. A broker sends
        # registrations and no queries for routes, so an attempt with the fast path would only cost time. The
        # value becomes True again at a frame that the fast path may serve.
        self._is_asked = fast_path is not None
        self._park = park
        # Pieces of an unfinished frame, as they arrived. Because the pieces are joined only at the end, a
        # large body is copied only once.
        self._pieces: list[bytes | bytearray] = []
        self._held = 0  # bytes in all pieces
        self._missing = 0  # bytes that the pieces must have before the frame is examined again
        self._whole = False  # True if the pieces are exactly one large frame
        # Received whole frames; the bytes before the position are handled. Empty after all bytes are handled.
        self._data = b""
        self._position = 0
        #: True after the fast path has answered a frame in :meth:`next`.
        self.answered = False
        self.waits_for = 0
        self._parked = b""
        self._behind: deque[tuple[int, bytes]] = deque()
        self._waiting = 0  # number of bytes that wait for a read barrier, or behind such bytes

    @property
    def straight(self) -> bool:
        """Return True if the next received bytes may go to :meth:`FastPath.whole` directly."""
        return self._is_asked and not self.waits_for and not self._pieces and not self._data

    @property
    def more(self) -> bool:
        """Return True if there are bytes for :meth:`next` to examine."""
        return bool(self._data) or self._whole

    @property
    def size(self) -> int:
        """Return the number of bytes in this inbox."""
        return self._held + len(self._data) - self._position + self._waiting

    @property
    def full(self) -> bool:
        """Return True if reading from this peer must pause until some frame is answered."""
        return self._whole or len(self._data) - self._position + self._waiting > KEPT_MAX

    @property
    def large(self) -> int:
        """Return the complete size in bytes of the unfinished frame if the frame is large, else 0."""
        return self._missing if self._pieces and not self._whole and self._missing > KEPT_MAX else 0

    def receive(self, data: bytes) -> bool:
        """Add received bytes; return True if there are new bytes for :meth:`next` to examine."""
        if self.waits_for:
            self._receive_behind(data)
            return False
        return self._take(data)

    def single(self, data: bytes) -> RemotingCommand | None:
        """Return the request in ``data`` if this is exactly one frame that the fast path does not serve.

        Otherwise return None; then pass the same bytes to :meth:`receive`. Nearly every registration arrives
        as a single frame, for which this method is the shortest path.

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
        """Return the next request, or the reason why it must wait; None if no bytes are left to examine.

        Args:
            answers: The fast path appends its answers to earlier frames to this list.

        Raises:
            RemoteProtocolError: If the next frame is malformed or above the limit. Close the connection, and
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
        """Store bytes until :meth:`unpark` is called for read barrier ``number`` or for a later barrier."""
        if self.waits_for:  # these bytes and all bytes after them now wait for a later barrier
            data += self._parked + b"".join(behind for _, behind in self._behind)
            self._behind.clear()
        self.waits_for = number
        self._parked = data
        self._waiting = len(data)
        assert self._park is not None
        self._park(number)

    def unpark(self, number: int) -> bytes | None:
        """Return bytes that waited for read barrier ``number`` or an earlier barrier; None if there are none.

        The connection passes the bytes to the fast path or to :meth:`resume`, and then calls this method
        again.
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
        """Add bytes that waited for a read barrier; return True if :meth:`next` has new bytes to examine."""
        return self._take(data)

    def clear(self) -> None:
        """Drop all bytes, because the peer will not read the answers any more."""
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
        """Add bytes to the pieces of the unfinished frame."""
        pieces = self._pieces
        self._held += len(data)
        if not pieces or len(pieces[-1]) >= _PIECE_MIN:
            pieces.append(data)
            return
        if isinstance(pieces[-1], bytes):
            pieces[-1] = bytearray(pieces[-1])
        pieces[-1] += data

    def _take_pieces(self) -> list[bytes | bytearray]:
        """Return the pieces and remove them from this inbox."""
        pieces, self._pieces = self._pieces, []
        self._held, self._whole = 0, False
        return pieces

    def _receive_behind(self, data: bytes) -> None:
        """Store bytes that arrive while earlier bytes wait for a read barrier.

        The new bytes may contain a request. Therefore they wait for the read barrier of a request that
        arrives now.
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
