"""Checks of HTTP requests that change something: the token, the deadline, and the size of the body."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from typing import Final

from aiohttp import web

from .problems import Problem, check_query

log = logging.getLogger(__name__)

#: Default time limit of a change, in seconds. It is long because a new member must first catch up with the
#: log.
TIMEOUT_S: Final = 30.0
#: Largest time limit that a request may name, in seconds. It must be below the time after which the server
#: closes silent HTTP connections. Otherwise a connection could be closed before the answer.
TIMEOUT_MAX_S: Final = 100.0
_TIMEOUT: Final = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)s?")


class Token:
    """Check of the token that every change must send.

    Args:
        word: The token, from ``--http-token-file``; None refuses every change.
    """

    def __init__(self, word: str | None) -> None:
        self._proof = None if word is None else _proof(word)
        self._refusal_logged_at = -1.0

    def require(self, request: web.Request, changes: str) -> None:
        """Refuse a request that does not send this nameserver's token.

        Args:
            changes: Name of the changes in the error text.

        Raises:
            Problem: With status 401, or with 403 if this nameserver has no token.
        """
        if self._proof is None:
            raise Problem(403, f"{changes} are off: this nameserver has no --http-token-file")
        given = request.headers.get("Authorization")
        scheme, _, token = (given or "").partition(" ")
        if given is None:
            raise _challenge("this needs the header Authorization: Bearer TOKEN")
        # Compare digests of equal length, so that the comparison's time reveals nothing about the token.
        known = hmac.compare_digest(_proof(token.strip()), self._proof)
        if scheme.lower() != "bearer" or not known:
            self._log_refusal(request)
            detail = "the token is not the one in this nameserver's --http-token-file"
            raise _challenge(detail, ', error="invalid_token"')

    def _log_refusal(self, request: web.Request) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._refusal_logged_at >= 1.0:  # A flood of wrong tokens must not flood the log.
            self._refusal_logged_at = now
            log.warning(
                "admin request refused reason=wrong token peer=%s path=%s", request.remote, request.path
            )


def _challenge(detail: str, more: str = "") -> Problem:
    return Problem(401, detail, headers={"WWW-Authenticate": f'Bearer realm="mqnamesrv"{more}'})


def _proof(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def deadline_of(request: web.Request) -> float:
    """Return the loop time by which the request must end."""
    check_query(request, {"timeout"})
    text = request.query.get("timeout", f"{TIMEOUT_S}s")
    match = _TIMEOUT.fullmatch(text)
    if match is None or not 0 < float(match[1]) <= TIMEOUT_MAX_S:
        raise Problem(400, f"timeout={text[:40]} is not above 0s and up to {TIMEOUT_MAX_S:.0f}s, such as 30s")
    return asyncio.get_running_loop().time() + float(match[1])


async def read_body(request: web.Request, *, limit: int) -> bytes:
    """Return a request's body. Stop reading once the body exceeds the limit."""
    body = bytearray()
    if (request.content_length or 0) <= limit:
        try:
            async for part in request.content.iter_any():
                body += part
                if len(body) > limit:
                    break
            else:
                return bytes(body)
        # The client has closed the connection, so this error appears only in the log of requests.
        except ConnectionError as error:
            raise Problem(400, "the connection ended before the body did") from error
    raise Problem(413, f"a body of at most {limit} bytes is taken here")
