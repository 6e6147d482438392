"""Tests of settings with wrong addresses: each error message must name the mistake."""

from __future__ import annotations

import pytest

from routekeeper.nameserver.settings.command_line import parse_command_line
from routekeeper.nameserver.settings.declared import ConfigError
from routekeeper.nameserver.settings.ranking import load_settings

NO_SCHEME = "has a scheme"
COMMAS = "separate with commas"
UNSPECIFIED = "names no machine"


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load_settings(flags=parse_command_line(arguments, version="").flags)
    return str(refused.value)


def alone(address: str) -> tuple[str, ...]:
    return "--mode", "raft", "--raft", address, "--peers", address, "--raft-secret-file", "s"


@pytest.mark.parametrize(
    "address", ["0.0.0.0:9878", "[::]:9878", "[0:0::0]:9878", "0:9878", "[::ffff:0.0.0.0]:9878"]
)
def test_an_address_that_names_no_machine_is_no_identity(address: str) -> None:
    """A member must not have an address like 0.0.0.0, which names no single machine.

    Other members could not connect to such an address, so they could never join the group.
    """
    said = refusal(*alone(address))
    assert address in said
    assert UNSPECIFIED in said


@pytest.mark.parametrize("sign", [";", " ", "; ", ", ;"])
def test_peers_that_are_not_separated_by_commas_are_told_so(sign: str) -> None:
    peers = sign.join(("a:1", "b:1", "c:1"))
    said = refusal("--mode", "raft", "--raft", "a:1", "--peers", peers, "--raft-secret-file", "s")
    assert COMMAS in said
    assert "--peers" in said


@pytest.mark.parametrize("flag", ["--raft", "--peers", "--raft-listen", "--listen", "--http"])
@pytest.mark.parametrize("scheme", ["http://", "tcp://", "HTTPS://"])
def test_an_address_with_a_scheme_is_told_to_leave_it_out(flag: str, scheme: str) -> None:
    address = f"{scheme}a:1"
    said = refusal("--mode", "raft", "--raft", "a:1", "--peers", "a:1", flag, address)
    assert NO_SCHEME in said
    assert flag in said
    assert address in said


@pytest.mark.parametrize("flag", ["--raft", "--raft-listen", "--listen", "--http"])
def test_two_addresses_where_one_belongs_are_told_so(flag: str) -> None:
    said = refusal("--mode", "raft", "--raft", "a:1", "--peers", "a:1", flag, "a:1;b:2")
    assert "is more than one address" in said
    assert flag in said
