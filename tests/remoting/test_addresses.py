"""Tests of addresses written as text."""

from __future__ import annotations

import pytest

from routekeeper.remoting.addresses import charged_host, is_loopback, network_of


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


@pytest.mark.parametrize("host", ["localhost", "127.1.2.3", "::1", "[::1]", "a.localhost"])
def test_loopback_is_told_from_its_text(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["LocalHost", "localhost.", "A.LOCALHOST"])
def test_loopback_is_told_however_its_name_is_spelled(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "localhost.example", "notlocalhost", ""])
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
        ("::1", "::1"),
        ("2001:db8:0:7::1", "2001:db8:0:7::/64"),
        ("[2001:db8:0:7:ffff::2]", "2001:db8:0:7::/64"),
        ("2001:db8:0:8::1", "2001:db8:0:8::/64"),
        ("?", "?"),
    ],
)
def test_connections_of_one_network_take_turns_as_one_host(host: str, network: str) -> None:
    assert network_of(host) == network
