"""Each rule on names, addresses or properties is defined in one file, which client and broker both use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from routekeeper.broker.tables.topics import name_fault
from routekeeper.client.config import CLIENT_GROUP_LENGTH_MAX, check_addr, check_group, check_topic
from routekeeper.client.errors import InvalidArgument
from routekeeper.remoting.bounds import is_address
from routekeeper.remoting.names import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX

ROOT = Path(__file__).resolve().parents[2]
#: For each rule: a text from the code of the rule, and the only file that may contain the text.
PLACES = {
    "%|a-zA-Z0-9_-": {"remoting/names.py"},
    '\\x01"': {"remoting/message.py"},
    '\\x02"': {"remoting/message.py"},
}


def taken(check: Callable[[str], str], text: str) -> bool:
    try:
        return check(text) == text
    except InvalidArgument:
        return False


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "%RETRY%g",
        "a|b-c_9",
        "",
        " ",
        "a b",
        "ä",
        "a/b",
        "a\n",
        "x" * 127,
        "x" * 128,
        "x" * 255,
        "x" * 256,
    ],
)
def test_client_and_broker_take_the_same_names(name: str) -> None:
    limit = GROUP_LENGTH_MAX if name.startswith("%RETRY%") else TOPIC_LENGTH_MAX
    assert taken(check_topic, name) == (name_fault(name, length_max=limit) is None)
    assert taken(check_group, name) == (name_fault(name, length_max=CLIENT_GROUP_LENGTH_MAX) is None)


@pytest.mark.parametrize(
    ("addr", "good"),
    [
        *(("10.0.0.1:9876", True), ("[::1]:9876", True), ("some-host.example:1", True)),
        *(("::1:9876", False), ("host", False), ("host:0", False), ("host:65536", False), ("a b:1", False)),
        *(("host:b", False), (":1", False), ("http://host:1", False), ("host:1\n", False)),
    ],
)
def test_the_client_dials_what_may_stand_on_the_wire(addr: str, good: bool) -> None:
    assert taken(check_addr, addr) == good
    if good:
        assert is_address(addr)


@pytest.mark.parametrize("piece", PLACES)
def test_a_rule_stands_in_one_place(piece: str) -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in ("broker", "client", "remoting")
        for path in (ROOT / folder).rglob("*.py")
        if piece in path.read_text()
    }
    assert found == PLACES[piece]
