"""Subcommands for ACL 1.0 at a broker that checks accounts: with an admin's keys, and with other keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.mqadmin import mqadmin

from .conftest import Process

ACCOUNTS = """
accounts:
- accessKey: admins-of-all
  secretKey: secret-of-admins
  admin: true
"""
TOOLS = "accessKey: {}\nsecretKey: {}\n"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Process]:
    """Run a broker that checks accounts. Write files with the keys of its admin and of another account."""
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    (tmp_path / "admin.yml").write_text(TOOLS.format("admins-of-all", "secret-of-admins"))
    (tmp_path / "made.yml").write_text(TOOLS.format("made-by-admin", "secret-of-made"))
    for name in ("plain_acl", "admin", "made"):
        (tmp_path / f"{name}.yml").chmod(0o600)
    process = Process(
        *("routekeeper.broker", "--listen", "127.0.0.1:0", "-n", "", "--name", "broker-a"),
        *("--store", str(tmp_path / "store"), "--acl-file", str(file), "--set", "aclEnable=true"),
        log=tmp_path / "log",
    )
    yield process
    process.stop()


@pytest.mark.slow
def test_an_admin_makes_shows_and_deletes_accounts(broker: Process, tmp_path: Path) -> None:
    def run(name: str, *argv: str, keys: str | None = "admin") -> tuple[int, str, str]:
        signed = () if keys is None else ("--acl-file", str(tmp_path / f"{keys}.yml"))
        return mqadmin(name, "-b", broker.addr, *argv, *signed)

    made = ("-a", "made-by-admin", "-s", "secret-of-made", "-t", "Orders=SUB")
    code, out, err = run("updateAclConfig", *made)
    assert (code, err) == (0, "")
    assert out == f"create or update plain access config to {broker.addr} success.\n"
    code, out, err = run("getAclConfig")
    assert (code, err) == (0, "")
    assert "  accessKey         : made-by-admin\n" in out
    assert "  topicPerms        : [Orders=SUB]\n" in out
    for keys in ("made", None):  # ``made`` has the keys of an account that is no admin; None has no keys
        code, out, err = run("updateAclConfig", *made, keys=keys)
        assert (code, out, err.count("\n")) == (1, "", 1)
        begin = f"mqadmin updateAclConfig: account not changed at 1 of 1: {broker.addr}: CODE: 1 DESC: "
        assert err.startswith(begin), err
    assert run("updateGlobalWhiteAddr", "-g", "192.0.2.1")[0] == 0
    assert "globalWhiteRemoteAddresses: [192.0.2.1]\n" in run("getAclConfig")[1]
    code, out, _ = run("clusterAclConfigVersion")
    assert code == 0
    assert str(tmp_path / "plain_acl.yml") in out
    code, out, err = run("deleteAclConfig", "-a", "made-by-admin")
    assert (code, out.splitlines()[-1]) == (0, "account's accesskey is:made-by-admin")
    assert "made-by-admin" not in run("getAclConfig")[1]
    code, out, err = run("deleteAclConfig", "-a", "made-by-admin")
    assert (code, out, err.count("\n")) == (1, "", 1)
