"""Addresses as text."""

from __future__ import annotations

import pytest

from routekeeper.remoting.addresses import charged_host


@pytest.mark.parametrize(
    ("peer", "charged"),
    [
        ("127.0.0.1", ""),
        ("[::1]", ""),
        ("[::ffff:10.0.0.1]", "10.0.0.1"),
        ("::ffff:a00:1", "10.0.0.1"),
        ("::ffff:7f00:1", ""),
        ("10.0.0.1", "10.0.0.1"),
        ("[2001:db8::1]", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::9", "2001:db8::/64"),
        ("[fe80::1%eth0]", "fe80::/64"),
    ],
)
def test_host_that_is_charged(peer: str, charged: str) -> None:
    assert charged_host(peer) == charged
