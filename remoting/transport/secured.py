"""TLS between a socket and a protocol. The inner protocol gets plain bytes, under the same limits as without
TLS.

A port with TLS makes a :class:`Secured` for each accepted connection. It is a protocol towards the socket and
a transport towards the inner protocol. Encrypted bytes go to the socket at once, so its buffer, whose size
the inner protocol asks for, counts all bytes that the peer has not read. Handshakes take turns
(:mod:`routekeeper.remoting.transport.turns`), so that many of them delay other work little.
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

#: Bytes received at once, and held by one connection while it waits for its turn.
RECEIVED_MAX: Final = 16 * 1024
#: Bytes of one handshake; most of them are the peer's certificates.
HANDSHAKE_BYTES_MAX: Final = 64 * 1024
#: The first byte of each TLS connection.
_HANDSHAKE_RECORD: Final = 0x16


@dataclass(frozen=True, slots=True, kw_only=True)
class PortContext:
    """TLS of a port, as last read from its files.

    Attributes:
        context: None if the port is plain.
        demanded: A connection without TLS is closed (mode enforcing).
        ends_at: When the certificate ends, Unix s.
    """

    context: ssl.SSLContext | None = None
    demanded: bool = False
    ends_at: float = float("inf")


class TlsPort:
    """State that the TLS connections of one port share.

    Args:
        current: The context that was read from the files.
        say: Called with a failed connection and the reason.
        turns: The turns that handshakes join; None for turns of their own.

    Attributes:
        current: The context for new connections; may be replaced at any time.
        failed: Number of failed handshakes, including those that took too long.
        done: Number of finished handshakes.
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
        self.buffer = memoryview(bytearray(RECEIVED_MAX))  # shared: only one connection is read at a time
        self.failed = self.done = 0


class Inner(asyncio.Protocol):
    """A protocol that serves one connection, plain or with TLS.

    Attributes:
        cost_s: Seconds for which the connection has held the loop.
    """

    __slots__ = ("cost_s",)
    cost_s: float

    def take_over(self, transport: asyncio.Transport) -> None:
        """Use the given transport of a plain connection from now on."""
        raise NotImplementedError


class Secured(asyncio.Transport, asyncio.BufferedProtocol):
    """One accepted connection with TLS, which is the transport of the inner protocol from the beginning.

    The inner protocol must not write before it has received bytes.

    Attributes:
        cost_s: Seconds for which the handshake has held the loop.
        charged: The host for which the handshake is counted.
    """

    def __init__(self, port: TlsPort, inner: asyncio.Protocol) -> None:
        super().__init__()
        self._port = port
        self._inner = inner
        self._context = port.current.context
        self._transport: asyncio.Transport  # set by connection_made
        self._pipe: Pipe | None = None
        self._open = False  # the handshake is over
        self._received = b""  # bytes that wait for their turn
        self._shaken = 0  # bytes of the handshake so far
        self._queued = False
        self._inner_paused = False
        self._backed_up = False  # the peer leaves many bytes unread
        self._unread_control = False  # unread bytes answer the peer's key changes, so read no more
        self._late: asyncio.TimerHandle | None = None
        self._lost = False
        self._ended = False  # we have closed the connection
        self.cost_s = 0.0
        self.peer = self.host = self.charged = "?"

    # Towards the socket -------------------------------------------------------------------------

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
        """Return the number of waiting bytes; at least :data:`SMALL_BYTES` before a handshake has begun.

        So requests go before new handshakes. Later parts of a handshake cost less and end it, so they need
        not wait for all connections that have cost nothing yet.
        """
        waiting = len(self._received)
        return max(SMALL_BYTES, waiting) if self._pipe is None else waiting

    def go_on(self) -> None:
        """Handle received bytes, now that it is this connection's turn."""
        self._queued = False
        if not self._lost and not self._transport.is_closing():
            self._read_on()
            self._work_in_turn()

    def _work_in_turn(self) -> None:
        """Continue the handshake, or decrypt received bytes and pass them on, when it is this connection's
        turn.

        Decrypting takes turns as well: records of one byte each cost a hundred times as much as full ones.
        """
        if self._queued:
            return
        turns = self._port.turns
        if not turns.begin():
            self._queued = True
            self._transport.pause_reading()
            if self._pipe is not None and not self._open:  # the peer has sent bytes, so it is not silent
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
        """Return received bytes decrypted; right after the handshake, those that came together with its
        end.
        """
        assert self._pipe is not None
        data, self._received = self._received, b""
        try:
            plain = self._pipe.open(data)
        except TlsError as error:
            self._fail(str(error))
            return None
        if rest := self._pipe.pending():  # such as an answer to a change of keys
            self._transport.write(rest)
            if self._backed_up:
                # The inner protocol counts its own answers only, and such answers need no request.
                self._unread_control = True
                self._transport.pause_reading()
        return plain

    def _shake(self) -> bool:
        """Continue the handshake; return whether it is over."""
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
        self._port.handshakes.leave(self)  # a peer that has just sent bytes goes to the end of the queue
        silent = self._port.handshakes.enter(self)
        if silent is not None:
            silent.give_way()
        return False

    def give_way(self) -> None:
        """Break off this handshake: there are too many, and its peer has been silent for longest."""
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
        """Close after sending the alert with the reason."""
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

    # Towards the inner protocol -----------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
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
    """A connection to a port that accepts TLS and, unless TLS is demanded, plain bytes; its first byte
    decides.

    A plain connection is handed to the inner protocol with its socket, and then costs no more than without
    TLS.
    """

    _inner: Inner

    def __init__(self, port: TlsPort, inner: Inner) -> None:
        super().__init__(port, inner)
        self._demanded = port.current.demanded
        self._decided = False

    @property
    def cost_s(self) -> float:
        """Return the inner protocol's value, because that joins the turns at the beginning."""
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
        transport.pause_reading()  # uvloop changes the way of reading only after a pause
        transport.set_protocol(inner)
        transport.resume_reading()
        inner.data_received(bytes(self._port.buffer[:nbytes]))
