"""The playground refuses HTTP requests of pages from other origins, and requests to foreign host names.

A foreign host name may resolve to this machine (DNS rebinding).
"""

from __future__ import annotations

import pytest

from routekeeper.bench.play.http import is_own_host, refusal_of


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1:8080", True),
        ("localhost:8080", True),
        ("localhost", True),
        ("[::1]:8080", True),
        ("192.168.1.7:8080", True),
        ("evil.example:8080", False),
        ("127.0.0.1.evil.example:8080", False),
        ("localhost.evil.example", False),
        ("", False),
        (None, False),
    ],
)
def test_only_addresses_and_localhost_are_this_host(host: str | None, own: bool) -> None:
    assert is_own_host(host) is own


@pytest.mark.parametrize(
    ("origin", "kind", "site", "refused"),
    [
        (None, "application/json", None, None),
        ("http://127.0.0.1:8080", "application/json", "same-origin", None),
        ("http://127.0.0.1:8080", "application/json; charset=utf-8", None, None),
        ("http://evil.example", "application/json", None, "Origin http://evil.example"),
        ("http://127.0.0.1:9999", "application/json", None, "Origin http://127.0.0.1:9999"),
        ("https://127.0.0.1:8080", "application/json", None, "Origin https://127.0.0.1:8080"),
        ("null", "application/json", None, "Origin null"),
        (None, "text/plain", None, "Content-Type"),
        (None, None, None, "Content-Type"),
        (None, "application/json", "cross-site", "Sec-Fetch-Site is cross-site"),
        (None, "application/json", "same-site", "Sec-Fetch-Site is same-site"),
    ],
)
def test_a_post_of_another_origin_is_refused(
    origin: str | None, kind: str | None, site: str | None, refused: str | None
) -> None:
    said = refusal_of("127.0.0.1:8080", origin, kind, site)
    assert said is None if refused is None else refused in (said or "")
