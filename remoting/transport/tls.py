"""TLS of connections: contexts of clients, and one end of a connection as a :class:`Pipe` without I/O.

Only programs that use TLS import this module, because importing Python's ssl module takes 30 ms.
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

#: Check of a server's certificate. ``host``: a known authority must have signed the certificate for the host
#: of the server's address. ``authority``: a known authority must have signed the certificate. ``nothing``: no
#: check.
Check = Literal["host", "authority", "nothing"]

#: Largest number of bytes of one read: the size of one TLS record. Each read allocates a buffer of this size.
_READ: Final = 16 * 1024
#: Largest number of bytes that are passed to OpenSSL at once. OpenSSL's buffers never shrink: until the
#: connection is closed, they keep their largest size.
_PIECE: Final = 16 * 1024
#: OpenSSL's names of the errors that occur if the first bytes of the peer are no TLS record.
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")


class TlsError(RemotingError):
    """A TLS connection failed, or a file cannot be used; the text is one line with the reason."""


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings of a client's connections.

    Attributes:
        context: Returns the TLS context for the next connection.
        covers: Returns True if connections to an address use TLS.
    """

    context: Callable[[], ssl.SSLContext]
    covers: Callable[[str], bool]

    def reason(self, error: Exception) -> str:
        """Return in a few words the reason why no connection was made."""
        return str(error) if isinstance(error, ConnectionRefusedError) else reason(error)


def load(
    *, ca_file: str, cert_file: str, key_file: str, check: Check, key_password: str = ""
) -> ssl.SSLContext:
    """Return a TLS context for connections to servers, with authorities and this program's own certificate.

    Args:
        ca_file: PEM file with the authorities; empty for the system's authorities.
        cert_file: PEM file with this program's own certificate; empty if there is none.
        key_file: PEM file with the key of ``cert_file``; empty if ``cert_file`` also contains the key.
        key_password: Password of an encrypted key; ignored if the key is not encrypted.

    Raises:
        TlsError: If a file cannot be used; the text names the file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_NO_RENEGOTIATION  # with renegotiation, a write might have to wait for a read
    context.check_hostname = check == "host"
    context.verify_mode = ssl.CERT_NONE if check == "nothing" else ssl.CERT_REQUIRED
    try:
        if ca_file:
            # Read the file here first, because OpenSSL would block if the file is a FIFO.
            read_regular(ca_file, size_max=CERTIFICATES_SIZE_MAX)
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
            # OpenSSL gives no reason if the password is wrong.
            unknown = error.reason is None and key_password
            words = "wrong password of the key, or no PEM" if unknown else reason(error)
            raise TlsError(f"cert_file {cert_file!r} with key_file {key_file!r}: {words}") from None
        except (OSError, ValueError) as error:
            raise TlsError(f"cert_file {cert_file!r} with key_file {key_file!r}: {reason(error)}") from None
    return context


def reason(error: Exception, who: str = "it", whose: str = "its") -> str:
    """Return in a few words why TLS failed, and at which end of the connection.

    Args:
        who, whose: Words for the other end, such as "the peer" and "the peer's".
    """
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
    """One end of a TLS connection: decrypts received bytes, and encrypts bytes that will be sent.

    One thread may read while another thread writes. After a :class:`TlsError`, send the bytes of
    :meth:`pending` to the other end; they contain the reason.

    Args:
        host: Host that the certificate of the server must name; None on the server's side.
        accepts: True if this end accepted the connection.
        who, whose: Words for the other end in error texts.

    Attributes:
        closed: True after the other end has ended its sending.
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
        """Continue the handshake with received bytes; return True if it is complete.

        At the beginning of the handshake, ``data`` is empty on the client's side. After each call, send the
        bytes of :meth:`pending` to the other end.

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
        """Return the bytes that must now be sent to the other end."""
        return self._outgoing.read()

    def certificate(self) -> Mapping[str, Any]:
        """Return the peer's certificate; empty if the peer sent none, or if certificates are not checked."""
        return self._tls.getpeercert() or {}

    def open(self, data: bytes) -> bytes | None:
        """Decrypt received bytes; return the decrypted bytes, or None after the other end has closed TLS.

        Raises:
            TlsError: If the bytes are invalid, or if the other end refuses this end.
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
                # Stop here, because the next read would find no bytes and raise an error.
                if not incoming.pending and not tls.pending():
                    return
            self.closed = True
        except ssl.SSLWantReadError:
            pass

    def seal(self, data: bytes | bytearray | memoryview) -> bytes:
        """Encrypt and return bytes; the results must be sent in the order of the calls."""
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
