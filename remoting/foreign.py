"""Recognition of clients that speak a foreign protocol, such as HTTP, by their first bytes.

This module does no I/O.
"""

from __future__ import annotations

from typing import Final

_HTTP: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")


def foreign(start: bytes) -> str:
    """Return a hint if a connection's first bytes belong to a foreign protocol; else an empty text.

    A frame begins with its length. If the first bytes of a foreign protocol are read as this length, the
    length is far above every limit. Therefore such bytes cannot begin a valid frame.
    """
    if start[:2] == b"\x16\x03":
        return "this client speaks TLS; see --tls-mode"
    if start[:4] in _HTTP:
        return "this client speaks HTTP; its port is that of --http"
    return ""
