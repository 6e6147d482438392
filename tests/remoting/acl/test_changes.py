"""Tests of requests that change access files, for cases that no test of a running broker covers."""

from __future__ import annotations

import pytest

from routekeeper.remoting.acl.accounts import WHITE_MAX, Accounts, merge_files, parse_acl_file
from routekeeper.remoting.acl.changes import ChangeFailed, put_white
from tests.cost import least_cpu_s, on_this_machine

NOBODY = merge_files({})
FILE = "plain_acl.yml"


def white(listed: str, accounts: Accounts = NOBODY) -> list[str]:
    """Return the white list of the file after a request with this list."""
    _, content = put_white(accounts, {"globalWhiteAddrs": listed}, default_file=FILE, now_ms=1)
    return [entry.text for entry in parse_acl_file(content, FILE).white]


@pytest.mark.parametrize(
    ("listed", "entries"),
    [
        ("", []),
        (" , ,", []),
        ("10.0.0.1,10.0.0.2", ["10.0.0.1", "10.0.0.2"]),
        ("10.0.0.{1,2},10.0.1.*", ["10.0.0.{1,2}", "10.0.1.*"]),
        ("*, fd00::{1,2} ", ["*", "fd00::{1,2}"]),
    ],
)
def test_list_ends_its_entries_at_commas_outside_of_braces(listed: str, entries: list[str]) -> None:
    assert white(listed) == entries


@pytest.mark.parametrize("listed", ["10.0.0.{1,2", "10.0.0.1},10.0.0.2", "{,{,{", "10.0.0.{1,{2,3}}"])
def test_list_with_unequal_braces_is_refused(listed: str) -> None:
    with pytest.raises(ChangeFailed, match="names no addresses"):
        white(listed)


def test_list_with_too_many_entries_is_refused() -> None:
    assert len(white("10.0.0.1," * WHITE_MAX)) == WHITE_MAX
    with pytest.raises(ChangeFailed, match=f"{WHITE_MAX + 1} entries, allowed are {WHITE_MAX}"):
        white("10.0.0.1," * (WHITE_MAX + 1))


@pytest.mark.parametrize(
    "listed", ["," * 30_000, "{" * 30_000, "{," * 15_000], ids=["commas", "braces", "both"]
)
def test_long_list_blocks_the_broker_only_briefly(listed: str) -> None:
    def read() -> None:
        try:
            white(listed)
        except ChangeFailed:
            pass

    allowed = on_this_machine(0.1)
    assert least_cpu_s(lambda: read, below=allowed) < allowed
