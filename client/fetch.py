"""An HTTP client for the nameservers' HTTP interface and for a page that lists nameservers."""

from __future__ import annotations

import functools
import http.client
import io
import socket
import ssl
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final

from routekeeper.remoting.transport.lookups import connect
from routekeeper.remoting.transport.tls import load, reason

from .operation import Fetch, FetchReply, Unreached

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class _UntilDeadline(io.RawIOBase):
    """A reader of a socket that fails at a deadline, even if the server still sends byte after byte."""

    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline_s = deadline_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Readable:
    """A wrapper of a socket with ``makefile``, the only method that http.client calls for a response."""

    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        self._sock = sock
        self._deadline_s = deadline_s

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_UntilDeadline(self._sock, self._deadline_s))


class _Connection(http.client.HTTPConnection):
    """A connection whose timeout covers the whole request. It raises Unreached if it cannot connect."""

    def __init__(self, host: str, *, timeout: float, **more: Any) -> None:
        super().__init__(host, timeout=timeout, **more)
        self._deadline_s = time.monotonic() + timeout
        self.response_class = functools.partial(_response, self._deadline_s)  # type: ignore[assignment]
        # Replace http.client's function that connects, because that function waits for the name resolver
        # without a time limit.
        self._create_connection = self._connected

    def connect(self) -> None:
        try:
            super().connect()
        except ssl.SSLError as error:
            raise Unreached(reason(error)) from None
        except OSError as error:
            raise Unreached(error.strerror or str(error)) from None
        self.sock.settimeout(max(0.001, self._deadline_s - time.monotonic()))

    def _connected(self, address: tuple[str, int], *_: Any) -> socket.socket:
        return connect(*address, deadline_s=self._deadline_s)


class _SecureConnection(_Connection, http.client.HTTPSConnection):
    """A :class:`_Connection` over TLS."""


def _response(deadline_s: float, sock: socket.socket, **more: Any) -> http.client.HTTPResponse:
    return http.client.HTTPResponse(_Readable(sock, deadline_s), **more)  # type: ignore[arg-type]


class _Handler(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, request)  # type: ignore[arg-type]


class _SecureHandler(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._trust = context

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        # The default context of Python 3.13 and later refuses authorities without a key usage extension. All
        # other connections of the client accept them.
        trust = self._trust or load(ca_file="", cert_file="", key_file="", check="host")
        return self.do_open(_SecureConnection, request, context=trust)  # type: ignore[arg-type]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that returns a redirection as the reply, so that the new address receives no token.

    The client sends a token only to addresses that the user named. There is one exception, for a change of a
    raft group. If a nameserver at one of these addresses names the leader's HTTP address, the token may also
    go to the leader (:mod:`.raft_group`).
    """

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _opener(context: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    others = (_Handler(), _SecureHandler(context), _NoRedirects())
    # Use no proxy from the environment, because a proxy would see the tokens.
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), *others)


_OPENER: Final = _opener(None)


def http_fetch(fetch: Fetch, context: ssl.SSLContext | None = None) -> FetchReply:
    """Send an HTTP request, and return the reply with any status. Follow no redirection.

    Args:
        context: TLS context for ``https``. With None, trust the certificate authorities of the operating
            system.

    Raises:
        OSError: If no complete reply came in time, or the reply is larger than the limit. The error is
            Unreached if nothing was sent.
        ValueError: If the URL is invalid or not HTTP.
    """
    url = fetch.url
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is no HTTP address")
    request = urllib.request.Request(url, fetch.body, dict(fetch.headers), method=fetch.method)
    opener = _OPENER if context is None else _opener(context)
    try:
        with opener.open(request, timeout=fetch.timeout_s) as reply:
            status, data = reply.status, _body(reply, fetch)
    except urllib.error.HTTPError as error:
        status, data = error.code, _refusal(error, fetch)
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise _too_slow(fetch) from None
        raise error.reason if isinstance(error.reason, OSError) else error from None
    except TimeoutError:
        raise _too_slow(fetch) from None
    except ssl.SSLError as error:  # in TLS 1.3, a server can refuse our certificate after the handshake
        raise OSError(reason(error)) from None
    except http.client.InvalidURL as error:
        raise ValueError(f"{url!r} is no HTTP address: {error}") from None
    except http.client.RemoteDisconnected:
        raise OSError(_silent_end(url)) from None
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP reply: {type(error).__name__} {str(error)[:200]}") from None
    if len(data) > fetch.reply_max:
        raise OSError(f"reply of {url} is above {fetch.reply_max} bytes")
    return FetchReply(status, data)


def _body(reply: Any, fetch: Fetch) -> bytes:
    """Return the body of a reply, but at most one byte more than the limit.

    Args:
        reply: An HTTPResponse, or the HTTPError that urllib makes of it.

    Raises:
        OSError: If the server closed the connection before it had sent the whole body.
    """
    data: bytes = reply.read(fetch.reply_max + 1)
    # Check the length here, because http.client checks it only for a read without a limit. Without this
    # check, the first part of a snapshot would look like a whole snapshot.
    if reply.length and len(data) <= fetch.reply_max:
        raise OSError(f"reply of {fetch.url} was cut off, {reply.length} of its bytes are missing")
    return data


def _refusal(error: urllib.error.HTTPError, fetch: Fetch) -> bytes:
    try:
        with error:
            return _body(error, fetch)
    except TimeoutError:
        raise _too_slow(fetch) from None
    except http.client.HTTPException as broken:
        raise OSError(f"no HTTP reply: {type(broken).__name__} {str(broken)[:200]}") from None


def _silent_end(url: str) -> str:
    words = "it closed the connection without an answer"
    if url.startswith("https://"):
        return words
    # A port with TLS ends a connection in this way if the client speaks plain HTTP.
    return f"{words}; if it serves HTTPS, begin its address with https://"


def _too_slow(fetch: Fetch) -> TimeoutError:
    return TimeoutError(f"no whole reply within {fetch.timeout_s:g} s")
