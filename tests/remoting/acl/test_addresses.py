"""Tests of white lists and of networks.

An entry of a white list matches the same hosts as in RocketMQ 4.9.
"""

from __future__ import annotations

import pytest

from routekeeper.remoting.acl.addresses import AddressError, parse_addresses, parse_networks


@pytest.mark.parametrize(
    ("entry", "inside", "outside"),
    [
        ("*", ("1.2.3.4", "[::1]"), ()),
        ("*.*.*.*", ("1.2.3.4", "[::1]"), ()),
        ("*:*:*:*:*:*:*:*", ("1.2.3.4", "::1"), ()),
        ("192.168.1.*", ("192.168.1.0", "192.168.1.255"), ("192.168.2.1", "192.168.10.1", "[::1]")),
        ("192.168.*.*", ("192.168.0.1", "192.168.255.9"), ("192.169.0.1",)),
        ("192.168.*", (), ()),
        ("127.0.1-3.*", ("127.0.1.9", "127.0.3.1"), ("127.0.0.1", "127.0.4.1")),
        ("127.0.0.1-20", ("127.0.0.1", "127.0.0.20"), ("127.0.0.21", "127.0.0.0")),
        ("10.0.*.5", ("10.0.7.5",), ("10.0.7.6",)),
        ("10.10.103.{1,2}", ("10.10.103.1", "10.10.103.2"), ("10.10.103.12", "10.10.103.3")),
        ("127.0.0.1,127.0.0.2", ("127.0.0.1", "127.0.0.2"), ("127.0.0.3",)),
        ("127.0.0.1", ("127.0.0.1", "[::ffff:127.0.0.1]"), ("127.0.0.11",)),
        ("::1", ("[::1]", "0:0:0:0:0:0:0:1"), ("127.0.0.1", "::2")),
        ("1050::0005:0600:300c:{1,2}", ("1050::5:600:300c:2",), ("1050::5:600:300c:3",)),
        ("2::ac5:78:1-200:*", ("2::ac5:78:1ff:9",), ("2::ac5:78:201:9", "2::ac5:79:1:9")),
        ("fe80::*", ("fe80::99%eth0",), ("fe80::1:99",)),
    ],
)
def test_entry_matches(entry: str, inside: tuple[str, ...], outside: tuple[str, ...]) -> None:
    if not inside and not outside:
        with pytest.raises(AddressError, match=r"names no addresses: allowed are"):
            parse_addresses(entry)
        return
    addresses = parse_addresses(entry)
    assert all(map(addresses.match, inside))
    assert not any(map(addresses.match, outside))


@pytest.mark.parametrize(
    "entry",
    [
        *("", "localhost", "256.0.0.1", "1.2.3", "1.2.3.4.5", "1.2.3.5-1", "1.2.3.-5", "{1,2}", "1.2.3{1,2}"),
        *("1.2.3.{a}", "10.0.0.*,10.0.1.1", "1.2.3.4/8", "1::2::3", "g::1", "1:2:3:4:5:6:7", "*.1.2"),
        "1.2.3.{" + "1," * 2000 + "1}",
    ],
)
def test_anything_else_is_refused(entry: str) -> None:
    with pytest.raises(AddressError) as refused:
        parse_addresses(entry)
    assert len(str(refused.value)) < 400


def test_host_that_is_no_address_matches_nothing_but_everybody() -> None:
    assert not parse_addresses("1.2.3.*").match("?")
    assert parse_addresses("*").match("?")


def test_networks_match_what_is_in_them() -> None:
    networks = parse_networks("10.0.0.0/8, 192.168.7.9,fd00::/8")
    assert all(
        map(networks.match, ("10.9.9.9", "192.168.7.9", "[fd00::5]", "::ffff:10.0.0.1", "[fd00::5%1]"))
    )
    assert not any(map(networks.match, ("11.0.0.1", "192.168.7.8", "[::1]", "?")))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("10.0.0.1/8", "'10.0.0.1/8' has bits set behind its prefix; allowed is a form as 10.0.0.0/8"),
        ("office", "'office' is no network"),
        (" , ", "names no network"),
    ],
)
def test_text_that_is_no_network_is_refused(text: str, fault: str) -> None:
    with pytest.raises(AddressError, match=fault):
        parse_networks(text)
