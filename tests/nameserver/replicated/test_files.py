"""What each nameserver has for itself: settings, the KV file, its secret and its log lines."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from nameserver.modes.interface import Freshness
from nameserver.raft import RaftStartError
from nameserver.replicated import kv_file
from nameserver.settings.files import load_kv_file, load_settings_file, save_kv_file
from nameserver.types import Request
from remoting.codes import RequestCode, ResponseCode
from tests.nameserver.replicated.group import ask, group_of, put_kv, register, run, until


def test_settings_stay_with_their_nameserver(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            body = b"orderMessageEnable=true"
            request = Request(code=RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
            assert (await ask(group.running[0], request)).code == ResponseCode.SUCCESS
            stored = load_settings_file(tmp_path / "0" / "namesrv.properties")
            assert stored == {"orderMessageEnable": "true"}
            assert [m.settings.current.order_message_enable for m in group.running] == [True, False, False]

    run(body)


def test_kv_file_is_imported_once_and_then_only_exported(tmp_path: Path) -> None:
    async def body() -> None:
        paths = [tmp_path / str(number) / "kvConfig.json" for number in range(3)]
        save_kv_file(paths[0], {"old": {"a": "1"}})
        async with group_of(tmp_path) as group:
            await until(
                lambda: all(m.view(Freshness.STALE).kv_value("old", "a") for m in group.running), "imported"
            )
            await ask(group.running[1], put_kv("k", "v"))
            kept = {"old": {"a": "1"}, "n": {"k": "v"}}
            await until(
                lambda: all(path.exists() and load_kv_file(path) == kept for path in paths), "exported"
            )
            for number in range(3):
                await group.stop(number)
            save_kv_file(paths[2], {"other": {"x": "y"}})
            for number in range(3):
                await group.start(number)
            await group.ready()
            await until(lambda: load_kv_file(paths[2]) == kept, "exported over a file found later")
            assert group.running[0].view(Freshness.STALE).kv("other") is None

    run(body)


def test_kv_file_that_could_not_be_written_is_written_later_without_another_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_file, "EXPORT_RETRY_S", 0.05)

    async def body() -> None:
        path = tmp_path / "0" / "kvConfig.json"
        async with group_of(tmp_path, size=1) as group:
            path.with_name("kvConfig.json.tmp").mkdir()  # refuses the write, as a full disk does
            await ask(group.running[0], put_kv("k", "v"))
            await until(lambda: "not exported" in caplog.text, "refused")
            assert not path.exists()
            await asyncio.sleep(0.2)
            assert caplog.text.count("not exported") == 1, "each new try is no news"
            path.with_name("kvConfig.json.tmp").rmdir()
            await until(lambda: load_kv_file(path) == {"n": {"k": "v"}}, "written once it can be")

    with caplog.at_level(logging.INFO):
        run(body)
    assert "exported again" in caplog.text


def test_unreadable_secret_is_one_line(tmp_path: Path) -> None:
    async def body() -> None:
        with pytest.raises(RaftStartError, match="No such file") as error:
            async with group_of(tmp_path, size=1, raftSecretFile=str(tmp_path / "none")):
                pass
        assert "\n" not in str(error.value)

    run(body)


def test_nothing_is_logged_above_info_in_a_quiet_life(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with group_of(tmp_path, raftDurability="memory") as group:  # a slow disk is named
            await group.everywhere(register())

    with caplog.at_level(logging.INFO):
        run(body)
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []
