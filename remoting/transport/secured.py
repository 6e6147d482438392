"""TLS between a socket and the protocol that serves a connection.

The *inner protocol* (:class:`Inner`) gets decrypted bytes; the same limits apply to it as without TLS.

A port with TLS makes a :class:`Secured` for each accepted connection. This object is a protocol for the
socket and a transport for the inner protocol. It sends encrypted bytes to the socket at once. So all bytes
that the peer has not read are in the buffer of the socket's transport. The inner protocol can check the size
of this buffer. Handshakes run in short time slices (:mod:`routekeeper.remoting.transport.turns`), so that
many handshakes at once delay other work only a little.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from routekeeper.remoting.addresses import charged_host, host_port, plain_host
from routekeeper.remoting.foreign import foreign
from routekeeper.remoting.transport.handshakes import (
    HANDSHAKE_S,
    HANDSHAKES_MAX,
    HOST_HANDSHAKES_MAX,
    Handshakes,
)
from routekeeper.remoting.transport.tls import Pipe, TlsError
from routekeeper.remoting.transport.turns import SMALL_BYTES, TURN_S, Turns

#: Largest number of bytes that are received at once. A connection that waits for its turn (time slice) on the
#: event loop also holds at most this number of bytes.
RECEIVED_MAX: Final = 16 * 1024
#: Largest number of bytes that a peer may send in a handshake; most of them are its certificates.
HANDSHAKE_BYTES_MAX: Final = 64 * 1024
#: The first byte of every TLS connection.
_HANDSHAKE_RECORD: Final = 0x16


@dataclass(frozen=True, slots=True, kw_only=True)
class PortContext:
    """TLS settings of a port, as last read from its files.

    Attributes:
        context: Context for accepted connections; None if the port has no TLS.
        demanded: True if a connection without TLS is closed (mode ``enforcing``).
        ends_at: Time in Unix seconds at which the certificate expires. If all authorities expire earlier, the
            time at which the last authority expires.
    """

    context: ssl.SSLContext | None = None
    demanded: bool = False
    ends_at: float = float("inf")


class TlsPort:
    """State that all TLS connections of one port share.

    Args:
        current: Context that was read from the files.
        say: Called with a failed connection and the reason of the failure.
        turns: Scheduler that also runs this port's handshakes; None if the port gets a separate scheduler.

    Attributes:
        current: Context for new connections; it may be replaced at any time.
        failed: Number of handshakes that failed or took too long.
        done: Number of handshakes that succeeded.
    """

    def __init__(
        self,
        current: PortContext,
        *,
        say: Callable[[Secured, str], None],
        turns: Turns | None = None,
        handshake_s: float = HANDSHAKE_S,
        handshakes_max: int = HANDSHAKES_MAX,
        host_handshakes_max: int = HOST_HANDSHAKES_MAX,
    ) -> None:
        self.current = current
        self.say = say
        self.loop = asyncio.get_running_loop()
        self.turns = turns or Turns(
            clock=time.perf_counter, call_soon=self.loop.call_soon, idle=None, turn_s=TURN_S
        )
        self.owns_turns = turns is None
        self.handshake_s = handshake_s
        self.handshakes: Handshakes[Secured] = Handshakes(
            host=lambda one: one.charged, count_max=handshakes_max, host_max=host_handshakes_max
        )
        # One buffer for all connections, because only one connection is read at a time.
        self.buffer = memoryview(bytearray(RECEIVED_MAX))
        self.failed = self.done = 0


class Inner(asyncio.Protocol):
    """Protocol that serves one connection, with or without TLS.

    Attributes:
        cost_s: Seconds for which the connection has occupied the event loop.
    """

    __slots__ = ("cost_s",)
    cost_s: float

    def take_over(self, transport: asyncio.Transport) -> None:
        """Use ``transport`` from now on, because the connection does not use TLS."""
        raise NotImplementedError


class Secured(asyncio.Transport, asyncio.BufferedProtocol):
    """One accepted connection with TLS; it is the inner protocol's transport from the beginning.

    The inner protocol must not write before it has received bytes.

    Attributes:
        cost_s: Seconds for which the handshake has occupied the event loop.
        charged: The host for which the handshake is counted.
    """

    def __init__(self, port: TlsPort, inner: asyncio.Protocol) -> None:
        super().__init__()
        self._port = port
        self._inner = inner
        self._context = port.current.context
        self._transport: asyncio.Transport  # set by connection_made
        self._pipe: Pipe | None = None
        self._open = False  # True after the handshake
        self._received = b""  # bytes that wait for this connection's turn (time slice)
        self._shaken = 0  # bytes of the handshake that were received so far
        self._queued = False
        self._inner_paused = False
        # True while the peer has left so many bytes unread that the inner protocol must pause its writing.
        self._backed_up = False
        self._unread_control = False  # True while the peer has not read answers to its key changes
        self._late: asyncio.TimerHandle | None = None
        self._lost = False
        self._ended = False  # True after this process has closed the connection
        self.cost_s = 0.0
        self.peer = self.host = self.charged = "?"

    # Methods that the socket's transport calls ----------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit from asyncio's
        self.peer = host_port(transport.get_extra_info("peername"))
        self.host = plain_host(self.peer.rpartition(":")[0])
        self.charged = charged_host(self.host)
        if self._port.owns_turns:
            self._port.turns.came(self)
        self._begin_time()
        self._inner.connection_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._port.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received += bytes(self._port.buffer[:nbytes])
        self._work_in_turn()

    def eof_received(self) -> bool:
        if not self._open:
            return False
        return bool(self._inner.eof_received())

    def pause_writing(self) -> None:
        self._backed_up = True
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._backed_up = False
        self._inner.resume_writing()
        if self._unread_control:
            self._unread_control = False
            if not self._transport.is_closing():
                self._read_on()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        if self._pipe is not None and not self._open and not self._ended:
            self._tell("it closed the connection during the TLS handshake")
        self._end_handshake()
        self._received = b""
        if self._port.owns_turns:
            self._port.turns.left(self)
        self._inner.connection_lost(error)

    # The handshake ------------------------------------------------------------------------------

    def _begin_time(self) -> None:
        if self._late is None:
            self._late = self._port.loop.call_later(self._port.handshake_s, self._is_late)

    @property
    def size(self) -> int:
        """Return the number of waiting bytes; before the handshake begins, at least :data:`SMALL_BYTES`.

        This minimum makes new handshakes wait until short requests of other connections are served. Once a
        handshake has begun, its real bytes count. The later parts of a handshake cost less and complete the
        handshake, so they need not wait for other new connections.
        """
        waiting = len(self._received)
        return max(SMALL_BYTES, waiting) if self._pipe is None else waiting

    def go_on(self) -> None:
        """Handle received bytes, because this connection's turn (time slice) has begun."""
        self._queued = False
        if not self._lost and not self._transport.is_closing():
            self._read_on()
            self._work_in_turn()

    def _work_in_turn(self) -> None:
        """Continue the handshake or decrypt received bytes, in this connection's turn (time slice).

        Decrypted bytes are passed to the inner protocol. Decryption also waits for this connection's turn,
        because a hostile peer can make it expensive. Decryption of records of one byte costs a hundred times
        as much as that of full records.
        """
        if self._queued:
            return
        turns = self._port.turns
        if not turns.begin():
            self._queued = True
            self._transport.pause_reading()
            # The peer has just sent bytes, so its handshake is now the last to be broken off.
            if self._pipe is not None and not self._open:
                self._port.handshakes.leave(self)
                self._port.handshakes.enter(self)
            turns.wait(self)
            return
        plain: bytes | None = None
        try:
            if self._open or self._shake():
                plain = self._open_received()
        finally:
            turns.end(self)
        if plain:
            self._inner.data_received(plain)
        if self._pipe is not None and self._pipe.closed:
            self._transport.close()

    def _open_received(self) -> bytes | None:
        """Return the received bytes decrypted; None after an error, or if the peer has closed TLS.

        Right after the handshake, these are the bytes that arrived together with its last message.
        """
        assert self._pipe is not None
        data, self._received = self._received, b""
        try:
            plain = self._pipe.open(data)
        except TlsError as error:
            self._fail(str(error))
            return None
        if rest := self._pipe.pending():  # bytes of TLS itself, such as the answer to a key change
            self._transport.write(rest)
            if self._backed_up:
                # A peer can cause such answers without sending any request, and no other limit counts them.
                self._unread_control = True
                self._transport.pause_reading()
        return plain

    def _shake(self) -> bool:
        """Continue the handshake; return True if it is complete."""
        data, self._received = self._received, b""
        self._shaken += len(data)
        if self._pipe is None:
            assert self._context is not None
            self._pipe = Pipe(self._context, accepts=True, who="the peer", whose="the peer's")
        try:
            done = self._pipe.shake(data)
        except TlsError as error:
            self._fail(str(error))
            return False
        if answer := self._pipe.pending():
            self._transport.write(answer)
        if done:
            self._open = True
            self._port.done += 1
            self._end_handshake()
            return True
        if self._shaken > HANDSHAKE_BYTES_MAX:
            self._fail(f"a TLS handshake of more than {HANDSHAKE_BYTES_MAX} bytes")
            return False
        # The peer has just sent bytes, so its handshake is now the last to be broken off.
        self._port.handshakes.leave(self)
        silent = self._port.handshakes.enter(self)
        if silent is not None:
            silent.give_way()
        return False

    def give_way(self) -> None:
        """Break off this handshake, because too many handshakes wait and it has waited longest."""
        self._break("too many TLS handshakes wait for their peers: this one has waited longest")

    def _is_late(self) -> None:
        self._late = None
        self._break(f"no TLS handshake within {self._port.handshake_s:g} s")

    def _end_handshake(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self._port.handshakes.leave(self)

    def _fail(self, reason: str) -> None:
        """Close the connection after sending the TLS alert that contains the reason."""
        if self._pipe is not None and (alert := self._pipe.pending()):
            self._transport.write(alert)
        self._tell(reason)
        self.close()

    def _break(self, reason: str) -> None:
        self._tell(reason)
        self.abort()

    def _tell(self, reason: str) -> None:
        if not self._open:
            self._port.failed += 1
            self._end_handshake()
        self._port.say(self, reason)

    # Methods that the inner protocol calls --------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send bytes; drop them if the connection is closing.

        After a broken record, OpenSSL encrypts nothing more and raises an error.
        """
        if self._transport.is_closing():
            return
        if not self._open:
            raise RuntimeError("nothing is written before the TLS handshake is over")
        assert self._pipe is not None
        self._transport.write(self._pipe.seal(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self._ended = True
        self._transport.close()

    def abort(self) -> None:
        self._ended = True
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._inner_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._inner_paused = False
        self._read_on()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def _read_on(self) -> None:
        if not self._inner_paused and not self._queued and not self._unread_control:
            self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._transport.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._context
        return self._transport.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._inner = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._inner


class Entrance(Secured):
    """A connection to a port that accepts TLS and, unless TLS is demanded, also plain bytes.

    The first byte that arrives shows whether the peer speaks TLS. A plain connection is passed to the inner
    protocol together with its socket. After that, the connection costs no more than on a port without TLS.
    """

    _inner: Inner

    def __init__(self, port: TlsPort, inner: Inner) -> None:
        super().__init__(port, inner)
        self._demanded = port.current.demanded
        self._decided = False

    @property
    def cost_s(self) -> float:
        """Return the cost of the inner protocol: handshake and requests are counted together."""
        return self._inner.cost_s

    @cost_s.setter
    def cost_s(self, cost_s: float) -> None:
        self._inner.cost_s = cost_s

    def _begin_time(self) -> None:
        if self._demanded or self._decided:
            super()._begin_time()

    def buffer_updated(self, nbytes: int) -> None:
        if not self._decided:
            start = bytes(self._port.buffer[:4])
            if start[0] != _HANDSHAKE_RECORD:
                self._serve_plain(start, nbytes)
                return
            self._decided = True
            self._begin_time()
        super().buffer_updated(nbytes)

    def _serve_plain(self, start: bytes, nbytes: int) -> None:
        if self._demanded:
            self._break(foreign(start[:nbytes]) or "it does not speak TLS, and this port demands it")
            return
        transport, inner = self._transport, self._inner
        inner.take_over(transport)
        transport.pause_reading()  # uvloop uses the new protocol's read method only after a pause
        transport.set_protocol(inner)
        transport.resume_reading()
        inner.data_received(bytes(self._port.buffer[:nbytes]))
