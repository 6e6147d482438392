"""Tests of the host names that a server accepts in a request.

The pages of other sites must not read from a port on loopback.
"""

from __future__ import annotations

import pytest

from routekeeper.remoting.http.hosts import AllowedHosts


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:9880",
        "127.0.0.1:9880",
        "127.8.9.1",
        "[::1]:9880",
        "[::1]",
        "a.localhost:1",
        "localhost.",
    ],
)
def test_every_way_to_write_loopback_is_allowed_on_loopback(host: str) -> None:
    assert AllowedHosts(loopback=True, named=()).allow(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9880",
        "10.0.0.1:9880",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::2]",
    ],
)
def test_other_names_are_not(host: str) -> None:
    assert not AllowedHosts(loopback=True, named=()).allow(host)


def test_what_sends_no_name_is_no_browser() -> None:
    assert AllowedHosts(loopback=True, named=()).allow(None)
    assert AllowedHosts(loopback=False, named=("ns.example",)).allow(None)


def test_operator_names_further_hosts() -> None:
    hosts = AllowedHosts(loopback=True, named=("NS.example", " other "))
    assert hosts.allow("ns.example:9880")
    assert hosts.allow("other")
    assert not hosts.allow("else")


def test_elsewhere_names_count_only_where_they_are_set() -> None:
    assert AllowedHosts(loopback=False, named=("",)).allow("anything")
    assert not AllowedHosts(loopback=False, named=("ns.example",)).allow("localhost")
    assert AllowedHosts(loopback=False, named=("ns.example",)).allow("ns.example:80")


@pytest.mark.parametrize("named", ["[fd00::2]", "FD00:0:0::0:2"])
@pytest.mark.parametrize("host", ["[fd00::2]:9880", "[fd00:0::2]", "[FD00::2]:9880"])
def test_an_address_that_is_named_counts_however_it_is_spelt(named: str, host: str) -> None:
    assert AllowedHosts(loopback=False, named=(named,)).allow(host)
    assert not AllowedHosts(loopback=False, named=(named,)).allow("[fd00::3]")
