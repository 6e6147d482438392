"""Tests of raft mode: members that stop and start, and state that is not replicated."""

from __future__ import annotations

import asyncio
import logging
import secrets
from pathlib import Path

import pytest

from routekeeper.nameserver.modes.interface import Freshness
from routekeeper.nameserver.settings.files import load_settings_file
from routekeeper.nameserver.types import Request
from routekeeper.remoting.codes import RequestCode, ResponseCode
from tests.nameserver.replicated.group import ONE, ask, codes, group_of, put_kv, register, run
from tests.waiting import until


@pytest.mark.slow
async def test_whole_group_restarts_with_its_table_and_without_effects(tmp_path: Path) -> None:
    async with group_of(tmp_path, notifyMinBrokerIdChanged="true") as group:
        await group.everywhere(register())
        await ask(group.running[0], put_kv("k", "v"))
        await group.equal()
        revision = group.running[0].view(Freshness.STALE).revision
        for number in range(3):
            await group.stop(number)
        for number in range(3):
            await group.start(number)
        await group.ready()
        for member in group.running:
            assert member.view(Freshness.DEFAULT).topics() == ["T", "U"]
            assert member.view(Freshness.STALE).revision == revision
        assert all(not effects.closed and not effects.notices for effects in group.effects)
        assert all(member.explain("T").events == () for member in group.running), "of this process"
        assert codes(await group.everywhere(register(), ONE)) == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["memory", "fsync"])
async def test_group_with_a_secret_works_in_every_durability(tmp_path: Path, durability: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(secrets.token_hex(32).encode() + b"\n")
    async with group_of(tmp_path, raftDurability=durability, raftSecretFile=str(secret)) as group:
        assert codes(await group.everywhere(register())) == [0, 0, 0]
        away = group.followers()[0]
        await group.stop(away)
        assert (await ask(group.running[0], put_kv("k", "v"))).code == ResponseCode.SUCCESS
        member = await group.start(away)
        await until(lambda: member.view(Freshness.STALE).kv_value("n", "k") is not None, "caught up")
        assert member.status().durability == durability
        await group.equal()


async def test_state_image_restores_the_table_and_the_last_leaders_term(tmp_path: Path) -> None:
    async with group_of(tmp_path / "a", size=1) as first, group_of(tmp_path / "b", size=1) as second:
        source, target = first.running[0], second.running[0]
        await ask(source, register())
        await ask(source, put_kv("k", "v"))
        waiting = asyncio.ensure_future(
            target.changed("T", 0, deadline=asyncio.get_running_loop().time() + 5.0)
        )
        await asyncio.sleep(0)
        target.prepare(await asyncio.to_thread(source.snapshot()))()
        assert target.status().state_digest == source.status().state_digest
        assert await waiting == source.view(Freshness.STALE).topic_revision("T")
        assert target.snapshot()() == source.snapshot()()


def test_settings_stay_with_their_nameserver(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            body = b"orderMessageEnable=true"
            request = Request(code=RequestCode.UPDATE_NAMESRV_CONFIG, ext_fields={}, body=body)
            assert (await ask(group.running[0], request)).code == ResponseCode.SUCCESS
            stored = load_settings_file(tmp_path / "0" / "namesrv.properties")
            assert stored == {"orderMessageEnable": "true"}
            assert [m.settings.current.order_message_enable for m in group.running] == [True, False, False]

    run(body)


def test_nothing_is_logged_above_info_in_a_quiet_life(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        # The test allows no warning. With durability ``memory``, a slow disk causes none.
        async with group_of(tmp_path, raftDurability="memory") as group:
            await group.everywhere(register())

    with caplog.at_level(logging.INFO):
        run(body)
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []
