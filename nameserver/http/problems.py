"""Answers over HTTP: JSON, and errors as problem details (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

from .answers import ProblemDetails

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
#: Of every answer. It says what answers, and not in which version: a scan for known flaws has to try
#: them.
HEADERS: Final = {
    "Server": "mqnamesrv",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
#: Of what may be had a second later.
ASK_AGAIN: Final = {"Retry-After": "1"}
#: As RFC 9110 has it, where a Python's own words are older.
_TITLES: Final = {413: "Content Too Large"}


class Problem(Exception):
    """An error as RFC 9457 describes it.

    Args:
        headers: Beside those of every answer.
        more: Further members of :class:`ProblemDetails`.
    """

    def __init__(
        self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        title = _TITLES.get(status, "") or HTTPStatus(status).phrase
        self.details = ProblemDetails(title=title, status=status, detail=detail, **more)
        self._headers = {**HEADERS, **(headers or {})}

    def response(self, instance: str) -> web.Response:
        """Return the answer; bytes of a request that are no UTF-8, kept as surrogates by aiohttp, escaped."""
        details = msgspec.structs.replace(
            self.details, detail=_encodable(self.details.detail), instance=_encodable(instance)
        )
        return web.Response(
            status=self.status, body=msgspec.json.encode(details), content_type=PROBLEM, headers=self._headers
        )


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def check_query(request: web.Request, known: set[str]) -> None:
    """Refuse parameters that nothing would read.

    Raises:
        Problem: 400, naming the first.
    """
    for name in request.query:
        if name not in known:
            allowed = ", ".join(sorted(known)) or "none"
            raise Problem(400, f"unknown parameter {name[:40]}, allowed: {allowed}")
