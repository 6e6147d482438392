"""Tests of RocketMQ's file of KV values in raft mode.

A member imports the file once. Afterwards, it only writes the replicated values to the file.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from routekeeper.nameserver.commands import Command, ImportKv
from routekeeper.nameserver.modes import kept_file
from routekeeper.nameserver.modes.interface import Freshness
from routekeeper.nameserver.replicated.proposer import Proposer
from routekeeper.nameserver.routes.kv import KV_BYTES_MAX
from routekeeper.nameserver.settings.files import FileError, load_kv_file, save_kv_file
from routekeeper.nameserver.verdicts import Verdict
from routekeeper.remoting.codes import ResponseCode
from tests.nameserver.replicated.group import ask, group_of, put_kv, run
from tests.waiting import until


def exported(path: Path) -> dict[str, dict[str, str | None]] | None:
    """Return the content of a member's KV file.

    Return None while the member replaces the file and its checksum.
    """
    try:
        return load_kv_file(path)
    except FileError:
        return None


@pytest.mark.slow
async def test_kv_file_is_imported_once_and_then_only_exported(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) / "kvConfig.json" for number in range(3)]
    save_kv_file(paths[0], {"old": {"a": "1"}})
    async with group_of(tmp_path) as group:
        await until(
            lambda: all(m.view(Freshness.STALE).kv_value("old", "a") for m in group.running), "imported"
        )
        await ask(group.running[1], put_kv("k", "v"))
        kept = {"old": {"a": "1"}, "n": {"k": "v"}}
        await until(lambda: all(path.exists() and exported(path) == kept for path in paths), "exported")
        for number in range(3):
            await group.stop(number)
        save_kv_file(paths[2], {"other": {"x": "y"}})
        for number in range(3):
            await group.start(number)
        await group.ready()
        await until(lambda: exported(paths[2]) == kept, "exported over a file found later")
        assert group.running[0].view(Freshness.STALE).kv("other") is None


def test_kv_file_that_could_not_be_written_is_written_later_without_another_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_file, "RETRY_S", 0.05)

    async def body() -> None:
        path = tmp_path / "0" / "kvConfig.json"
        async with group_of(tmp_path, size=1) as group:
            path.with_name("kvConfig.json.tmp").mkdir()  # a folder with this name makes the write fail
            await ask(group.running[0], put_kv("k", "v"))
            await until(lambda: "not exported" in caplog.text, "refused")
            assert not path.exists()
            await asyncio.sleep(0.2)
            assert caplog.text.count("not exported") == 1, "each new try is no news"
            path.with_name("kvConfig.json.tmp").rmdir()
            await until(lambda: exported(path) == {"n": {"k": "v"}}, "written once it can be")

    with caplog.at_level(logging.INFO):
        run(body)
    assert "exported again" in caplog.text


@pytest.mark.parametrize("content", ["too large", "broken"])
def test_a_kv_file_that_cannot_be_imported_is_said_and_never_overwritten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    path = tmp_path / "0" / "kvConfig.json"
    if content == "broken":
        path.parent.mkdir()
        path.write_bytes(b"{")
    else:
        save_kv_file(path, {"n": {str(number): "v" * 1_000_000 for number in range(4)}})
    before = path.read_bytes()

    async def body() -> None:
        async with group_of(tmp_path, size=1) as group:
            answer = await ask(group.running[0], put_kv("k", "v"))
            assert answer.code == ResponseCode.SUCCESS
        assert path.read_bytes() == before

    with caplog.at_level(logging.INFO):
        run(body)
    assert "KV configuration not imported" in caplog.text
    assert content == "broken" or f"at most {KV_BYTES_MAX}" in caplog.text


async def test_a_kv_file_whose_import_dies_is_said_and_never_overwritten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0" / "kvConfig.json"
    save_kv_file(path, {"old": {"a": "1"}})
    propose = Proposer.propose

    async def refuse_imports(proposer: Proposer, command: Command, *, deadline: float) -> Verdict:
        if isinstance(command, ImportKv):
            raise RuntimeError("planted")
        return await propose(proposer, command, deadline=deadline)

    monkeypatch.setattr(Proposer, "propose", refuse_imports)
    async with group_of(tmp_path, size=1) as group:
        await until(lambda: "KV configuration not imported" in caplog.text, "said")
        assert (await ask(group.running[0], put_kv("k", "v"))).code == ResponseCode.SUCCESS
    assert load_kv_file(path) == {"old": {"a": "1"}}
    assert "RuntimeError: planted" in caplog.text


async def test_all_that_the_group_acknowledged_of_kv_is_there_after_a_restart(tmp_path: Path) -> None:
    acknowledged = {}
    async with group_of(tmp_path, size=1) as group:
        for number in range(7):
            value = '"\x01' * 450_000  # JSON escapes these characters, so the file is longer than the values
            answer = await ask(group.running[0], put_kv(str(number), value))
            if answer.code == ResponseCode.SUCCESS:
                acknowledged[str(number)] = value
            else:
                assert f"at most {KV_BYTES_MAX} are allowed" in (answer.remark or "")
        assert 2 <= len(acknowledged) < 7
        await group.stop(0)
        await group.start(0)
        await group.ready()
        assert group.running[0].view(Freshness.STALE).kv("n") == acknowledged
