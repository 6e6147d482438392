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
#: Headers of every answer. Server names the program without its version, so that a scan for known flaws
#: learns nothing from it.
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
#: Headers of a refusal whose cause may end within a second.
ASK_AGAIN: Final = {"Retry-After": "1"}
#: Phrases of RFC 9110, where a Python release still has older ones.
_TITLES: Final = {413: "Content Too Large"}


class Problem(Exception):
    """An error as RFC 9457 describes it.

    Args:
        headers: Headers in addition to those of every answer.
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
        """Return the answer."""
        details = msgspec.structs.replace(
            self.details, detail=encodable(self.details.detail), instance=encodable(instance)
        )
        return web.Response(
            status=self.status, body=msgspec.json.encode(details), content_type=PROBLEM, headers=self._headers
        )


def encodable(text: str) -> str:
    """Return a text with its bytes escaped that are no UTF-8: aiohttp keeps them as lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def check_query(request: web.Request, known: set[str]) -> None:
    """Refuse parameters that the handler does not read.

    Raises:
        Problem: 400, naming the first.
    """
    for name in request.query:
        if name not in known:
            allowed = ", ".join(sorted(known)) or "none"
            raise Problem(400, f"unknown parameter {name[:40]}, allowed: {allowed}")
