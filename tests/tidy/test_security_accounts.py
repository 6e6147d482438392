"""Tests that the tables about accounts in docs/security.md agree with the programs."""

from __future__ import annotations

import re
from pathlib import Path

from routekeeper.remoting.acl.rules import BROKER_RULES, NAMESRV_KINDS, namesrv_asks

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()


def test_each_request_of_a_nameserver_needs_what_the_document_says() -> None:
    rows = re.findall(r"(?m)^\| ([0-9]+) \| [A-Z0-9_]+ \| ([^|]+) \| ([^|]+) \|$", DOCUMENT)
    needs = {
        int(code): tuple(namesrv_asks(code, mode, is_stranger=True).value for mode in ("admin", "all"))
        for code in NAMESRV_KINDS
    }
    own = namesrv_asks(104, "admin", is_stranger=False).value
    assert own == "nothing"
    stated = {int(code): (admin.partition(", but")[0], every) for code, admin, every in rows}
    assert stated == needs
    assert [int(code) for code, admin, _ in rows if "but over the connection of its own" in admin] == [104]


def test_each_request_of_a_broker_needs_what_the_document_says() -> None:
    rows = re.findall(r"(?m)^\| ([0-9]+) \| [A-Z0-9_]+ \| ([^|]+) \|$", DOCUMENT)
    assert {int(code): says for code, says in rows} == {
        int(code): rule.says for code, rule in BROKER_RULES.items()
    }
