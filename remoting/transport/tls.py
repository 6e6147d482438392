"""TLS for connections to servers: the checks of a server's certificate, and one connection as a pipe without
IO.

Only clients that use TLS load this module, because loading the ssl module takes 30 ms.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.files import CERTIFICATES_SIZE_MAX, read_regular

#: The check of a server's certificate: a known authority made it for the host of its address, a known
#: authority made it, or no check.
Check = Literal["host", "authority", "nothing"]

#: Bytes that are read at once: the size of one record. A larger buffer would be allocated for each small one.
_READ: Final = 16 * 1024
#: Bytes that are passed to the library at once. Its buffers keep the largest size that they ever had, for as
#: long as the connection lives.
_PIECE: Final = 16 * 1024
#: OpenSSL's reasons for first bytes that are no TLS record.
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")


class TlsError(RemotingError):
    """A connection cannot continue, or a file cannot be used; the text is one line with the reason."""


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings of a client's connections.

    Attributes:
        context: Returns the context of the next connection.
        covers: Returns whether connections to an address use TLS.
    """

    context: Callable[[], ssl.SSLContext]
    covers: Callable[[str], bool]

    def reason(self, error: Exception) -> str:
        """Return in a few words why no connection was made."""
        return str(error) if isinstance(error, ConnectionRefusedError) else reason(error)


def load(
    *, ca_file: str, cert_file: str, key_file: str, check: Check, key_password: str = ""
) -> ssl.SSLContext:
    """Read the authorities for servers' certificates, and our own certificate, if any.

    Args:
        ca_file: PEM file; empty for the system's authorities.
        key_file: The key of ``cert_file``; empty if that file holds it.
        key_password: The password of an encrypted key; ignored for a plain one.

    Raises:
        TlsError: A file cannot be used; the text names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_NO_RENEGOTIATION  # a write could otherwise have to wait for a read
    context.check_hostname = check == "host"
    context.verify_mode = ssl.CERT_NONE if check == "nothing" else ssl.CERT_REQUIRED
    try:
        if ca_file:
            read_regular(ca_file, size_max=CERTIFICATES_SIZE_MAX)  # the library would wait for a FIFO
            context.load_verify_locations(cafile=ca_file)
        elif check != "nothing":
            context.load_default_certs()
    except (OSError, ValueError) as error:
        raise TlsError(f"ca_file {ca_file!r}: {reason(error)}") from None
    if cert_file:
        try:
            for file in filter(None, (cert_file, key_file)):
                read_regular(file, size_max=CERTIFICATES_SIZE_MAX)
            context.load_cert_chain(
                cert_file, key_file or None, password=(lambda: key_password) if key_password else no_password
            )
        except ssl.SSLError as error:
            # OpenSSL gives no reason for a wrong password.
            unknown = error.reason is None and key_password
            words = "wrong password of the key, or no PEM" if unknown else reason(error)
            raise TlsError(f"cert_file {cert_file!r} with key_file {key_file!r}: {words}") from None
        except (OSError, ValueError) as error:
            raise TlsError(f"cert_file {cert_file!r} with key_file {key_file!r}: {reason(error)}") from None
    return context


def reason(error: Exception, who: str = "it", whose: str = "its") -> str:
    """Return in a few words why TLS failed, and at which end."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{whose} certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        if error.reason in _NO_TLS:
            return "it does not speak TLS"
        words = (error.reason or str(error)).replace("_", " ").lower()
        what = " our certificate" if "certificate" in words or "unknown ca" in words else ""
        return f"{who} refuses{what}: {words}" if " alert " in words else words
    if isinstance(error, ConnectionError):
        return "it closed the connection during the TLS handshake"
    return str(getattr(error, "strerror", None) or error)


def no_password() -> str:
    raise ValueError("the key has a password, and none is given")


class Pipe:
    """One end of a TLS connection: encrypted bytes in, plain bytes out, and the reverse.

    One thread may read while another one writes. After :class:`TlsError`, send the bytes of :meth:`pending`
    to the other end: they tell it the reason.

    Args:
        host: The host that a dialled server's certificate must name.
        accepts: This end accepted the connection.
        who, whose: The name of the other end in errors.

    Attributes:
        closed: The other end sends no more.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        host: str | None = None,
        *,
        accepts: bool = False,
        who: str = "it",
        whose: str = "its",
    ) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=accepts, server_hostname=host
        )
        self._reason = partial(reason, who=who, whose=whose)
        self._lock = threading.Lock()
        self.closed = False

    def shake(self, data: bytes) -> bool:
        """Continue the handshake with bytes of the other end, empty at its beginning. Return whether it is
        over.

        Then send the bytes of :meth:`pending`.

        Raises:
            TlsError: If the handshake failed.
        """
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise TlsError(self._reason(error)) from None
        return True

    def pending(self) -> bytes:
        """Return the bytes that must be sent to the other end."""
        return self._outgoing.read()

    def certificate(self) -> Mapping[str, Any]:
        """Return the other end's certificate, empty if the context demands none."""
        return self._tls.getpeercert() or {}

    def open(self, data: bytes) -> bytes | None:
        """Decrypt received bytes; return the complete plain ones, None once the other end closes.

        Raises:
            TlsError: The bytes are invalid, or the other end refuses us.
        """
        with self._lock:
            parts: list[bytes] = []
            try:
                if len(data) <= _PIECE:
                    self._open_piece(data, parts)
                else:
                    for at in range(0, len(data), _PIECE):
                        self._open_piece(data[at : at + _PIECE], parts)
            except ssl.SSLZeroReturnError:
                self.closed = True
            except ssl.SSLError as error:
                raise TlsError(self._reason(error)) from None
            if parts:
                return b"".join(parts)
            return None if self.closed else b""

    def _open_piece(self, data: bytes, parts: list[bytes]) -> None:
        incoming, tls = self._incoming, self._tls
        incoming.write(data)
        try:
            while part := tls.read(_READ):
                parts.append(part)
                if not incoming.pending and not tls.pending():  # another read would raise
                    return
            self.closed = True
        except ssl.SSLWantReadError:
            pass

    def seal(self, data: bytes | bytearray | memoryview) -> bytes:
        """Encrypt bytes; return them for the wire, in the order of the calls."""
        with self._lock:
            if len(data) <= _PIECE:
                self._tls.write(data)
                return self._outgoing.read()
            parts = []
            whole = memoryview(data)
            for at in range(0, len(data), _PIECE):
                self._tls.write(whole[at : at + _PIECE])
                parts.append(self._outgoing.read())
            return b"".join(parts)
