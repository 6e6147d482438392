"""A TLS 1.2 client that can send records of any kind, which Python's ssl module cannot do."""

from __future__ import annotations

import _ssl
import ctypes
import hashlib
import hmac
import ssl
import struct
from pathlib import Path
from typing import Any, Final

from routekeeper.remoting.transport.tls import Pipe
from tests.tls import client_context

ALERT: Final = 21
HANDSHAKE: Final = 22
APPLICATION_DATA: Final = 23
#: A ClientHello without content. It is enough to ask for a renegotiation.
CLIENT_HELLO: Final = b"\x01\x00\x00\x00"

_CIPHERS: Final = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256"
_VERSION: Final = b"\x03\x03"
_HEADER: Final = struct.Struct(">BHH")
_TAG_SIZE: Final = 16
_GET_TAG: Final = 0x10  # OpenSSL's constant EVP_CTRL_AEAD_GET_TAG


class Shake:
    """The client's side of a handshake, without IO.

    Args:
        keylog: File into which the ssl module writes the connection's secrets.
    """

    def __init__(self, keylog: Path) -> None:
        context = client_context()
        context.check_hostname = False
        context.maximum_version = context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_CIPHERS)
        context.keylog_filename = str(keylog)
        self._keylog = keylog
        self._pipe = Pipe(context)
        self._received = b""

    def go_on(self, data: bytes) -> tuple[bool, bytes]:
        """Process received bytes; return True if the handshake is finished, and the bytes to send."""
        self._received += data
        return self._pipe.shake(data), self._pipe.pending()

    def records(self) -> Records:
        """Return an object that encrypts the TLS records that the client sends after the handshake."""
        # The first record is the ServerHello. It has a header (5 bytes), type and length (together 4 bytes),
        # the version (2 bytes), and the server's random bytes (32 bytes).
        assert self._received[0] == HANDSHAKE
        assert self._received[5] == 2
        server_random = self._received[11:43]
        label, client_random, master = self._keylog.read_text().splitlines()[-1].split()
        assert label == "CLIENT_RANDOM"
        keys = _expand(bytes.fromhex(master), b"key expansion" + server_random + bytes.fromhex(client_random))
        return Records(key=keys[:16], salt=keys[32:36])


class Records:
    """The encryption of a client's records with AES-128-GCM, after the handshake."""

    def __init__(self, *, key: bytes, salt: bytes) -> None:
        self._key, self._salt = key, salt
        self._number = 1
        self._library = _library()
        self._context = self._library.EVP_CIPHER_CTX_new()
        cipher = self._library.EVP_aes_128_gcm()
        assert self._library.EVP_EncryptInit_ex(self._context, cipher, None, key, None) == 1

    def __del__(self) -> None:
        self._library.EVP_CIPHER_CTX_free(self._context)

    def seal(self, kind: int, plain: bytes) -> bytes:
        """Return the next record, encrypted. ``kind`` is its content type."""
        number = self._number.to_bytes(8)
        self._number += 1
        library, context = self._library, self._context
        sealed, tag = ctypes.create_string_buffer(len(plain)), ctypes.create_string_buffer(_TAG_SIZE)
        size = ctypes.c_int()
        known = number + bytes([kind]) + _VERSION + struct.pack(">H", len(plain))
        assert library.EVP_EncryptInit_ex(context, None, None, None, self._salt + number) == 1
        assert library.EVP_EncryptUpdate(context, None, ctypes.byref(size), known, len(known)) == 1
        assert library.EVP_EncryptUpdate(context, sealed, ctypes.byref(size), plain, len(plain)) == 1
        assert library.EVP_EncryptFinal_ex(context, tag, ctypes.byref(size)) == 1
        assert library.EVP_CIPHER_CTX_ctrl(context, _GET_TAG, _TAG_SIZE, tag) == 1
        content = number + sealed.raw + tag.raw
        return bytes([kind]) + _VERSION + struct.pack(">H", len(content)) + content


def kinds(data: bytearray) -> list[int]:
    """Remove the complete records at the beginning of ``data``; return their kinds."""
    found, at = [], 0
    while len(data) - at >= _HEADER.size:
        kind, _, size = _HEADER.unpack_from(data, at)
        if len(data) - at - _HEADER.size < size:
            break
        found.append(kind)
        at += _HEADER.size + size
    del data[:at]
    return found


def _expand(secret: bytes, seed: bytes) -> bytes:
    """Return the first 64 bytes of TLS 1.2's pseudorandom function."""

    def mac(data: bytes) -> bytes:
        return hmac.digest(secret, data, hashlib.sha256)

    first = mac(seed)
    return mac(first + seed) + mac(mac(first) + seed)


def _library() -> Any:
    """Return the OpenSSL library that Python's ssl module uses."""
    library: Any = ctypes.CDLL(getattr(_ssl, "__file__", None))
    library.EVP_CIPHER_CTX_new.restype = library.EVP_aes_128_gcm.restype = ctypes.c_void_p
    library.EVP_CIPHER_CTX_free.argtypes = [ctypes.c_void_p]
    library.EVP_EncryptInit_ex.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
    ]
    library.EVP_EncryptUpdate.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int,
    ]
    library.EVP_EncryptFinal_ex.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    library.EVP_CIPHER_CTX_ctrl.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    return library
