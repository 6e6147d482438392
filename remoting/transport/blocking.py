"""Client of RocketMQ's protocol on blocking sockets, for scripts, tools and programs that use gevent.

Without a handler for peers' requests, this client starts no thread. Of all callers that wait on one
connection, one caller reads the answers for all callers. With a handler, each connection has a thread that
reads.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import ConnectionLost, RemotingError, RequestTimeout
from routekeeper.remoting.logs import shortened
from routekeeper.remoting.session import Broken, ClientSession, PeerRequest, Response
from routekeeper.remoting.transport import Hooks, RPCHook, check_holds, split_address
from routekeeper.remoting.transport.lookups import look_up

if TYPE_CHECKING:
    from routekeeper.remoting.transport.tls import Pipe, Tls  # imported at run time only with TLS

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 3.0
_CHUNK: Final = 256 * 1024
#: Longest single wait of a connection's reader thread, in seconds.
_READ_TIMEOUT_S: Final = 3600.0

#: Handles a peer's request in the connection's reader thread; the arguments are the address and the request.
PeerHandler = Callable[[str, RemotingCommand], "RemotingCommand | None"]


class BlockingClient:
    """Client for any number of addresses, with one connection to each, opened when it is needed.

    Threads may use it at the same time, and also greenlets after gevent has patched the standard library.

    Args:
        connect_timeout_s: Longest time for opening a connection; the request's own timeout applies as well.
        idle_s: Seconds without traffic after which a connection counts as unused. The client closes unused
            connections, and those that the peer has closed, when it opens a connection.
        tls: Selects the connections that use TLS, and their contexts; None if no connection uses TLS.
    """

    def __init__(
        self,
        *,
        connect_timeout_s: float = 3.0,
        idle_s: float = 120.0,
        hooks: tuple[RPCHook, ...] = (),
        tls: Tls | None = None,
    ) -> None:
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s
        self._hooks = Hooks(hooks, time.monotonic)
        self._lock = threading.Lock()
        self._connections: dict[str, _Connection] = {}
        self._dialing: dict[str, threading.Lock] = {}
        self._handlers: dict[int, PeerHandler] = {}
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def on_request(self, code: int, handler: PeerHandler) -> None:
        """Handle a peer's requests of ``code``, on all connections that are opened from now on."""
        self._handlers[code] = handler

    def invoke(
        self,
        addr: str,
        request: RemotingCommand,
        *,
        timeout_s: float = TIMEOUT_S,
        unless: Callable[[], bool] | None = None,
    ) -> RemotingCommand:
        """Send a request and return its answer, even if the answer's code is an error.

        Args:
            unless: Called right before the request is sent; it must return at once. If it returns True, the
                request is not sent.

        Raises:
            Withdrawn: If ``unless`` returned True.
            ConnectionLost: If no connection could be opened, or if other requests were being sent until the
                deadline (``sent`` is False in both cases), or if the connection was lost.
            RequestTimeout: If no answer came in time.
            TooManyRequests: If too many requests already wait on the connection.
            LocalProtocolError: If the request cannot be encoded.
        """
        deadline = time.monotonic() + timeout_s
        connection = self._connection(addr, deadline)
        request = self._hooks.before_request(addr, request)
        try:
            answer = connection.invoke(request, deadline, unless)
        except RequestTimeout:
            self._drop(connection, "a request timed out")  # as Java does
            raise
        except BaseException:
            # An exception such as KeyboardInterrupt may have interrupted the sending of a frame. The
            # connection is then lost.
            if connection.lost:
                self._drop(connection, "the connection was lost")
            raise
        self._hooks.after_response(addr, request, answer)
        return answer

    def invoke_oneway(
        self,
        addr: str,
        request: RemotingCommand,
        *,
        timeout_s: float = TIMEOUT_S,
        unless: Callable[[], bool] | None = None,
    ) -> None:
        """Send a oneway request; the caller cannot know whether the request arrives.

        Args:
            unless: As in :meth:`invoke`.

        Raises:
            Withdrawn: If ``unless`` returned True.
            ConnectionLost: As in :meth:`invoke`.
            LocalProtocolError: If the request is not marked oneway or cannot be encoded.
        """
        deadline = time.monotonic() + timeout_s
        connection = self._connection(addr, deadline)
        request = self._hooks.before_request(addr, request)
        try:
            connection.oneway(request, deadline, unless)
        except BaseException:
            if connection.lost:
                self._drop(connection, "the connection was lost")
            raise

    def disconnect(self, addr: str) -> None:
        """Close the connection to an address, if any; its waiting requests fail with ConnectionLost."""
        with self._lock:
            connection = self._connections.get(addr)
        if connection is not None:
            self._drop(connection, "it was closed here")

    def close(self, *, timeout_s: float = TIMEOUT_S) -> None:
        """Close all connections; waiting requests fail with ConnectionLost.

        Args:
            timeout_s: Longest wait in seconds, in total, for all threads that handle peers' requests.
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._closed = True
            connections = list(self._connections.values())
        for connection in connections:
            self._drop(connection, "the client was closed")
        for connection in connections:
            connection.join(max(0.0, deadline - time.monotonic()))

    def _drop(self, connection: _Connection, reason: str) -> None:
        with self._lock:
            if self._connections.get(connection.addr) is connection:
                del self._connections[connection.addr]
        connection.shut(reason)

    def _connection(self, addr: str, deadline: float) -> _Connection:
        with self._lock:
            connection = self._connections.get(addr)
            dialing = self._dialing.setdefault(addr, threading.Lock())
        if connection is not None:
            if connection.usable():
                return connection
            self._drop(connection, "the peer closed it")
        self._close_unused()
        held: list[bool] = []
        try:
            if not _acquired(dialing, deadline, held):
                raise ConnectionLost(f"no connection to {addr} within the deadline", sent=False)
            with self._lock:
                connection = self._connections.get(addr)  # another thread may have opened one
                if self._closed:
                    raise ConnectionLost("the client is closed", sent=False)
            if connection is not None:
                return connection
            connection = self._dial(addr, deadline)
            with self._lock:
                if not self._closed:
                    # Store no lost connection, because its reader thread may already have called _drop.
                    if not connection.lost:
                        self._connections[addr] = connection
                    return connection
            connection.shut("the client was closed")
            raise ConnectionLost("the client is closed", sent=False)
        finally:
            if any(held):
                dialing.release()

    def _close_unused(self) -> None:
        """Close the connections that are unused, and those that the peer has closed."""
        with self._lock:
            connections = list(self._connections.values())
        for connection in connections:
            if connection.end_if_unused(self._idle_s):
                self._drop(connection, "it was unused")

    def _dial(self, addr: str, deadline: float) -> _Connection:
        timeout_s = min(self._connect_timeout_s, deadline - time.monotonic())
        if timeout_s <= 0:
            raise ConnectionLost(f"no connection to {addr} within the deadline", sent=False)
        (host, port), until = split_address(addr), time.monotonic() + timeout_s
        sock = None
        try:
            sock = _reach(host, port, until)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pipe = None
            if self._tls is not None and self._tls.covers(addr):
                pipe = _secured(sock, self._tls, host, until)
            return _Connection(addr, sock, ClientSession(), self._handlers, pipe, self._drop)
        # ValueError: host is no valid name. RuntimeError: the system cannot start another thread.
        except (OSError, ValueError, RuntimeError, RemotingError) as error:
            if sock is not None:
                sock.close()
            message = f"no connection to {shortened(addr)}: {shortened(str(error))}"
            raise ConnectionLost(message, sent=False) from None


def _acquired(lock: threading.Lock, deadline: float, held: list[bool]) -> bool:
    """Wait for a lock until a deadline; return True if this thread now holds it.

    The result is also appended to ``held``, which the caller must use to decide whether to release the lock.
    An exception such as KeyboardInterrupt could otherwise leave the lock locked for ever.
    """
    # Acquire and append in one call. Python raises KeyboardInterrupt right after a call in C has returned. So
    # the result could be lost before it is assigned to a variable.
    held.extend(map(lock.acquire, (True,), (max(0.0, deadline - time.monotonic()),)))
    return held[0]


def _reach(host: str, port: int, deadline: float) -> socket.socket:
    """Connect to the first address of a host that accepts the connection.

    Raises:
        OSError: If the host has no address, or if none of its addresses accepted the connection.
        ValueError: If ``host`` is no valid name.
    """
    try:
        addresses = look_up(host).result(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        raise OSError(f"no address of {host} within the deadline") from None
    failure = OSError(f"{host} has no address")
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout=max(0.001, deadline - time.monotonic()))
        except OSError as error:
            failure = error
    raise failure


def _secured(sock: socket.socket, tls: Tls, host: str, deadline: float) -> Pipe:
    """Make a TLS handshake on a new connection.

    Raises:
        TlsError: If the handshake failed or took too long.
        OSError: If the connection failed.
    """
    from routekeeper.remoting.transport.tls import Pipe, TlsError

    pipe = Pipe(tls.context(), host)
    done = pipe.shake(b"")
    while True:
        left = deadline - time.monotonic()
        try:
            # Check the time of the whole handshake here. If a peer sends byte by byte, no single read reaches
            # its time limit.
            if left <= 0:
                raise TimeoutError
            sock.settimeout(left)
            sock.sendall(pipe.pending())
            if done:
                return pipe
            heard = sock.recv(_CHUNK)
        except TimeoutError:
            raise TlsError("the TLS handshake took too long") from None
        except ConnectionError:
            heard = b""
        if not heard:
            raise TlsError("it closed the connection during the TLS handshake")
        done = pipe.shake(heard)


class _Connection:
    """One connection that several threads share; one of these threads reads all answers."""

    def __init__(
        self,
        addr: str,
        sock: socket.socket,
        session: ClientSession,
        handlers: dict[int, PeerHandler],
        pipe: Pipe | None,
        drop: Callable[[_Connection, str], None],
    ) -> None:
        self.addr = addr
        self._pipe = pipe
        self._session = session
        self._handlers = handlers
        # Two handles of one socket, so that the reader and the writers can set different timeouts.
        self._reader = sock
        self._writer = sock.dup()
        self._writing = threading.Lock()
        self._changed = threading.Condition()  # guards the session and all attributes below
        self._answers: dict[int, RemotingCommand] = {}
        self._reading = False
        self._lost: str | None = None
        self._moved_at = time.monotonic()  # time of the last traffic
        self._thread: threading.Thread | None = None
        if handlers:
            self._thread = threading.Thread(
                target=self._read_always, args=(drop,), name=f"remoting {addr}", daemon=True
            )
            try:
                self._thread.start()
            except RuntimeError as error:  # the system cannot start another thread
                self._thread = None
                self.shut(str(error))
                raise

    @property
    def lost(self) -> bool:
        return self._lost is not None

    def usable(self) -> bool:
        """Return True if the connection is open; detect that the peer has closed an unused connection."""
        with self._changed:
            # The caller will send a request, so another thread must not close the connection as unused.
            self._moved_at = time.monotonic()
            return self._is_open()

    def end_if_unused(self, idle_s: float) -> bool:
        """End the connection if the peer has closed it, or if it was unused for ``idle_s`` seconds.

        Return True if the connection has ended; the caller must then shut it.
        """
        with self._changed:
            in_use = self._session.outstanding or self._writing.locked()
            if not self._is_open():
                self._lose("the peer closed it")
            elif not in_use and time.monotonic() >= self._moved_at + idle_s:
                self._lose("it was unused")
            return self.lost

    def _is_open(self) -> bool:
        """Return False if the connection was lost or closed. The caller must hold the lock."""
        if self._lost is not None or self._reading or self._thread is not None:
            return self._lost is None
        try:
            self._reader.settimeout(0)
            if self._pipe is None:
                return bool(self._reader.recv(1, socket.MSG_PEEK))
            # The received bytes may contain no data, but only a message of TLS itself or the end of TLS.
            while self._lost is None:
                self._take([self._reader.recv(_CHUNK)])
            return False
        except BlockingIOError:
            return True
        except OSError:
            return False

    def invoke(
        self, request: RemotingCommand, deadline: float, unless: Callable[[], bool] | None
    ) -> RemotingCommand:
        with self._changed:
            self._check_open(sent=False)
            now = time.monotonic()
            opaque, frame = self._session.start(request, now=now, timeout_s=deadline - now)
        try:
            self._send(frame, deadline, unless)
            return self._wait(opaque, deadline)
        finally:
            with self._changed:
                self._session.forget(opaque)
                self._answers.pop(opaque, None)

    def oneway(self, request: RemotingCommand, deadline: float, unless: Callable[[], bool] | None) -> None:
        with self._changed:
            self._check_open(sent=False)
            frame = self._session.oneway(request)
        self._send(frame, deadline, unless)

    def shut(self, reason: str) -> None:
        """Close the connection; all waiting callers get ConnectionLost."""
        with self._changed:
            self._lose(reason)
            if not self._reading and self._thread is None:
                self._reader.close()
        with self._writing:
            self._writer.close()

    def _lose(self, reason: str) -> None:
        """End all use of the connection. The caller must hold the lock, and close the sockets later."""
        if self._lost is None:
            self._lost = reason
            self._session.lost()
        self._changed.notify_all()
        try:
            self._reader.shutdown(socket.SHUT_RDWR)  # interrupts a thread that waits in recv
        except OSError:
            pass  # the peer has already closed the connection

    def join(self, timeout_s: float) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=timeout_s)

    def _check_open(self, *, sent: bool) -> None:
        if self._lost is not None:
            raise ConnectionLost(f"connection to {self.addr} was lost: {self._lost}", sent=sent)

    def _send(self, frame: bytes, deadline: float, unless: Callable[[], bool] | None = None) -> None:
        held: list[bool] = []
        try:
            # Another thread may be sending a large frame to a peer that reads slowly.
            if not _acquired(self._writing, deadline, held) or time.monotonic() >= deadline:
                raise ConnectionLost(f"nothing was sent to {self.addr} within the deadline", sent=False)
            self._check_open(sent=False)  # the previous writer may have sent only a part of its frame
            check_holds(self.addr, unless)
            self._write(frame, deadline)
        finally:
            if any(held):
                self._writing.release()

    def _write(self, frame: bytes, deadline: float) -> None:
        """Write a frame to the socket. The caller must hold the lock of the writers."""
        complete = False
        try:
            self._writer.settimeout(max(0.001, deadline - time.monotonic()))
            self._writer.sendall(frame if self._pipe is None else self._pipe.seal(frame))
            complete = True
        except TimeoutError:
            raise ConnectionLost(f"{self.addr} does not read, the frame is cut off", sent=True) from None
        except OSError as error:
            raise ConnectionLost(f"connection to {self.addr} was lost: {error}", sent=True) from None
        finally:
            # Close the connection after any exception, even KeyboardInterrupt or the timeout of a greenlet.
            # If only a part of the frame was sent, the peer cannot read further frames.
            if not complete:
                with self._changed:
                    self._lose("a frame was cut off")

    def _wait(self, opaque: int, deadline: float) -> RemotingCommand:
        with self._changed:
            while True:
                answer = self._answers.get(opaque)
                if answer is not None:
                    return answer
                self._check_open(sent=True)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise RequestTimeout(f"{self.addr} gave no answer within the deadline")
                if self._reading or self._thread is not None:
                    self._changed.wait(left)
                    continue
                self._reading = True
                self._changed.release()
                received: list[bytes] = []
                try:
                    self._receive(left, received)
                finally:
                    self._changed.acquire()
                    self._reading = False
                    # Pass on the received bytes even if this thread was interrupted, because they may be
                    # answers for other threads. This call also wakes the other threads, because one of them
                    # must now read.
                    self._take(received)

    def _receive(self, timeout_s: float, received: list[bytes]) -> None:
        """Append received bytes to a list; append empty bytes if the connection is closed."""
        try:
            self._reader.settimeout(timeout_s)
            # Receive and append in one call. Python raises KeyboardInterrupt right after a call in C has
            # returned. So received bytes could be lost before they are assigned to a variable.
            received.extend(map(self._reader.recv, (_CHUNK,)))
        except TimeoutError:
            pass  # no bytes came in time
        except OSError:
            received.append(b"")

    def _take(self, received: list[bytes]) -> list[RemotingCommand]:
        """Pass answers to waiting callers; return the peer's requests. The caller must hold the lock.

        Args:
            received: Bytes as :meth:`_receive` appended them.
        """
        requests = []
        data = b"".join(received) if all(received) else None
        if self._pipe is not None and data:
            try:
                data = self._pipe.open(data)
            except RemotingError as failure:
                self._lose(str(failure))
                data = None
        if data is None:
            self._lose("the peer closed it")
        else:
            for event in self._session.receive(data):
                match event:
                    case Response(opaque, command):
                        self._moved_at = time.monotonic()
                        self._answers[opaque] = command
                    case PeerRequest(command):
                        self._moved_at = time.monotonic()
                        requests.append(command)
                    case Broken(error):
                        log.warning("bad frame peer=%s reason=%s", self.addr, error)
                        self._lose(str(error))
        if self._lost is not None:
            self._reader.close()  # only after _lose, which interrupts a thread that writes
        self._changed.notify_all()
        return requests

    def _read_always(self, drop: Callable[[_Connection, str], None]) -> None:
        while True:
            # Always read with a timeout. The reader's and the writer's handle share one O_NONBLOCK flag, and
            # a writer's timeout sets it. A read without timeout could then fail with EAGAIN, which looks like
            # a closed connection.
            received: list[bytes] = []
            self._receive(_READ_TIMEOUT_S, received)
            with self._changed:
                requests = self._take(received)
                lost = self._lost
            if lost is not None:
                drop(self, lost)  # perhaps no request ever uses the connection again
                return
            for request in requests:
                self._serve(request)

    def _serve(self, request: RemotingCommand) -> None:
        handler = self._handlers.get(request.code)
        answer: RemotingCommand | None
        try:
            if handler is None:
                answer = request.reply(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    remark=f" request type {request.code} not supported",
                )
            else:
                answer = handler(self.addr, request)
            frame = b"" if answer is None else answer.encode()
        except Exception as error:  # a failed request must not end the thread that reads this connection
            if not isinstance(error, RemotingError):
                log.exception("handler of a peer's request failed code=%s", request.code)
            frame = request.failed(error).encode()
        if frame and not request.is_oneway:
            try:
                self._send(frame, time.monotonic() + TIMEOUT_S)
            except ConnectionLost:
                pass  # the peer gets no answer; if the connection was lost, the next read notices it
