"""Headers of HTTP answers, and errors as problem details (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

from .answers import ProblemDetails

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
#: Headers of every answer. The header Server names the program without its version, so that a scan for known
#: vulnerabilities learns nothing.
HEADERS: Final = {
    "Server": "mqnamesrv",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
#: Headers of an error whose cause may end within a second. They tell the client to ask again.
ASK_AGAIN: Final = {"Retry-After": "1"}
#: Titles from RFC 9110. Some Python releases have older titles for these statuses.
_TITLES: Final = {413: "Content Too Large"}


class Problem(Exception):
    """An error answer with problem details (RFC 9457).

    Args:
        headers: Additional headers of this answer.
        more: Additional fields of :class:`ProblemDetails`.
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
        """Return the HTTP answer for the request with path ``instance``."""
        details = msgspec.structs.replace(
            self.details, detail=encodable(self.details.detail), instance=encodable(instance)
        )
        return web.Response(
            status=self.status, body=msgspec.json.encode(details), content_type=PROBLEM, headers=self._headers
        )


def encodable(text: str) -> str:
    """Return a text that UTF-8 can encode: escape the lone surrogates that aiohttp uses for invalid bytes."""
    return text.encode("utf-8", "backslashreplace").decode()


def check_query(request: web.Request, known: set[str]) -> None:
    """Refuse parameters that the handler does not read.

    Raises:
        Problem: With status 400, for the first parameter that is not in ``known``.
    """
    for name in request.query:
        if name not in known:
            allowed = ", ".join(sorted(known)) or "none"
            raise Problem(400, f"unknown parameter {name[:40]}, allowed: {allowed}")
