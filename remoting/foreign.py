"""Protocols that clients speak to the wrong port, by their first bytes; pure."""

from __future__ import annotations

from typing import Final

_HTTP: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")


def foreign(start: bytes) -> str:
    """Return the other protocol with which a connection begins, and a hint; empty if there is none.

    Read as the length word of a frame, each of these beginnings is far above every limit.
    """
    if start[:2] == b"\x16\x03":
        return "this client speaks TLS; see --tls-mode"
    if start[:4] in _HTTP:
        return "this client speaks HTTP; its port is that of --http"
    return ""
