"""Answers over HTTP: JSON, and errors as problem details (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
from aiohttp import web

JSON: Final = "application/json"
HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'self'",
}


class Problem(Exception):
    """An error as RFC 9457 describes it.

    Args:
        retry_after_s: For ``Retry-After``: when to ask again.
        challenge: For ``WWW-Authenticate``, which a 401 needs.
        more: Further members of the document.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        retry_after_s: int | None = None,
        challenge: str | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **more}
        self._headers = dict(HEADERS)
        if retry_after_s is not None:
            self._headers["Retry-After"] = str(retry_after_s)
        if challenge is not None:
            self._headers["WWW-Authenticate"] = challenge

    def response(self, instance: str) -> web.Response:
        return web.Response(
            status=self.status,
            body=orjson.dumps({**self.body, "instance": instance}),
            content_type="application/problem+json",
            headers=self._headers,
        )


def json_answer(value: Mapping[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type=JSON, headers=HEADERS)


def check_query(request: web.Request, known: set[str]) -> None:
    """Refuse parameters that nothing would read.

    Raises:
        Problem: 400, naming the first.
    """
    for name in request.query:
        if name not in known:
            allowed = ", ".join(sorted(known)) or "none"
            raise Problem(400, "Bad Request", f"unknown parameter {name[:40]}, allowed: {allowed}")
