"""Wrong addresses of nameservers, as people write them for the broker, the client and mqadmin."""

from __future__ import annotations

import subprocess
import sys

import pytest

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.errors import SettingError
from routekeeper.client.config import parse_nameservers
from routekeeper.client.errors import InvalidArgument

WRONG = pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://a:9876", "has a scheme"),
        ("a:9876;http://b:9876", "has a scheme"),
        ("a:9876 b:9876", "separate with semicolons"),
    ],
)


def one_line_of(*command: str) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, timeout=60, check=False
    )
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    return ended.returncode, lines[0]


@WRONG
def test_the_client_says_what_is_wrong(address: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse_nameservers(address)


@pytest.mark.slow
def test_mqadmin_says_what_is_wrong() -> None:
    code, line = one_line_of("routekeeper.client.mqadmin", "clusterList", "-n", "http://a:9876")
    assert code == 1
    assert "has a scheme" in line


@WRONG
def test_the_broker_says_what_is_wrong(address: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        BrokerConfig(namesrv_addr=address).validate()


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--listen", "--http"])
def test_the_broker_refuses_a_scheme_in_its_own_addresses(flag: str) -> None:
    code, line = one_line_of("routekeeper.broker", flag, "http://a:1")
    assert code == 2
    assert flag.lstrip("-")[:4] in line
    assert "has a scheme" in line


@pytest.mark.slow
def test_the_broker_does_not_advertise_an_address_that_names_no_machine() -> None:
    code, line = one_line_of("routekeeper.broker", "--listen", "127.0.0.1:0", "--advertise", "0.0.0.0:10911")
    assert code == 2
    assert "--advertise" in line
    assert "names no machine" in line
