"""Tests of restored snapshots.

After a restore, the table's revision is lower, so answers that were cached at later revisions are invalid.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from routekeeper.nameserver.http.app import HttpServer
from routekeeper.nameserver.modes.interface import Freshness
from routekeeper.nameserver.raft.storage.images import Snapshots
from routekeeper.nameserver.replicated import Replicated
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.ranking import load_settings
from routekeeper.nameserver.wire.server import NameServer
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import decode_route
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.ports import free_addresses
from tests.registrations import registration
from tests.waiting import until

TOKEN = "a-token-of-enough-length-for-this"


class Alone:
    """The only member of a group, in this process, with its ports for RocketMQ's protocol, HTTP and raft."""

    def __init__(self, mode: Replicated, wire: str, http: str, web: aiohttp.ClientSession) -> None:
        self.mode = mode
        self.wire = wire
        self.http = http
        self.web = web
        # Keep this connection open. It is the broker's only connection, and without a connection the broker
        # would be evicted.
        self.client = BlockingClient()

    async def register(self, topic: str, *, queues: int, counter: int) -> None:
        request = registration("b", "127.0.0.1:10911", (topic,), queues=queues, counter=counter)
        answer = await self.invoke(request)
        assert answer.code == 0, answer.remark

    async def queues(self, topic: str) -> int:
        """Return the number of write queues in a topic's route.

        The query has the same bytes each time, so that the route cache answers repeated queries.
        """
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer = await self.invoke(RemotingCommand.request(105, fields))
        assert answer.code == 0, answer.remark
        return decode_route(answer.body).queue_datas[0].write_queue_nums

    async def invoke(self, request: RemotingCommand) -> RemotingCommand:
        return await asyncio.to_thread(self.client.invoke, self.wire, request, timeout_s=20.0)

    async def get(self, path: str) -> dict[str, Any]:
        async with self.web.get(f"http://{self.http}{path}") as answer:
            found: dict[str, Any] = json.loads(await answer.read())
            return found

    async def post(self, path: str, data: bytes = b"", *, accept: str = "application/json") -> bytes:
        headers = {"Authorization": f"Bearer {TOKEN}", "Accept": accept}
        async with self.web.post(f"http://{self.http}{path}", data=data, headers=headers) as answer:
            raw = await answer.read()
            assert answer.status == 200, raw
            return raw

    async def save(self) -> bytes:
        return await self.post("/v1/raft/snapshot", accept="application/octet-stream")

    async def restore(self, image: bytes) -> None:
        await self.post("/v1/raft/restore", image)


@contextlib.asynccontextmanager
async def alone(root: Path, raft: str) -> AsyncIterator[Alone]:
    flags = {
        "dataDir": str(root),
        "listenPort": "0",
        "httpListen": "127.0.0.1:0",
        "mode": "raft",
        "raftAddress": raft,
        "raftPeers": raft,
    }
    live = LiveSettings(load_settings(flags=flags).settings)
    async with asyncio.TaskGroup() as group, aiohttp.ClientSession() as web:
        server = NameServer(settings=live, group=group)
        mode = Replicated(live, server, boot_id=1)
        await mode.start()
        http = HttpServer(consistency=mode, server=server, settings=live, version="test", token=TOKEN)
        try:
            wire = await server.start(mode)
            port = int(wire.rpartition(":")[2])
            one = Alone(mode, f"127.0.0.1:{port}", await http.start("127.0.0.1", 0), web)
            await until(lambda: mode.status().writes_ready, "it leads")
            with one.client:
                yield one
        finally:
            await http.close()
            await server.close(drain_s=1.0)
            await mode.close()


@pytest.mark.slow
async def test_an_answer_of_before_a_restore_is_not_given_at_the_same_revision(tmp_path: Path) -> None:
    async with alone(tmp_path, free_addresses(1)[0]) as one:
        await one.register("T", queues=4, counter=1)
        image = await one.save()
        await one.register("T", queues=8, counter=2)
        assert [await one.queues("T") for _ in range(2)] == [8, 8]
        revision = one.mode.view(Freshness.STALE).revision
        await one.restore(image)
        await one.register("T", queues=16, counter=3)
        assert one.mode.view(Freshness.STALE).revision == revision, "else this proves nothing"
        assert await one.queues("T") == 16


@pytest.mark.slow
async def test_who_waits_for_a_change_is_answered_when_a_snapshot_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raft = free_addresses(1)[0]
    async with alone(tmp_path, raft) as one:
        await one.register("T", queues=4, counter=1)
        image = await one.save()
        for counter in range(2, 5):
            await one.register("T", queues=counter, counter=counter)
        before = await one.get("/v1/topics/T/route")
        last = f"/v1/topics/T/route?index={before['index']}&epoch={before['epoch']}&wait=50s"
        asked, changed = asyncio.Event(), one.mode.changed

        async def noted(topic: str, after: int, *, deadline: float) -> int:
            asked.set()
            return await changed(topic, after, deadline=deadline)

        monkeypatch.setattr(one.mode, "changed", noted)
        waiting = asyncio.create_task(one.get(last))
        async with asyncio.timeout(30):
            await asked.wait()
        await one.restore(image)
        async with asyncio.timeout(30):
            after = await waiting
        assert after["index"] < before["index"]
        assert after["epoch"] > before["epoch"]
        # A client may send its next query only now, with an index from before the restore. The answer must
        # have the new epoch, too.
        async with asyncio.timeout(30):
            assert (await one.get(last))["epoch"] == after["epoch"]
    async with alone(tmp_path, raft) as again:
        assert (await again.get("/v1/topics/T/route"))["epoch"] == after["epoch"], "it is kept"


@pytest.mark.slow
async def test_a_snapshot_of_a_newer_release_is_not_restored(tmp_path: Path) -> None:
    """A member refuses a snapshot of a newer release; the answer says why, and that nothing changed."""
    newer = Snapshots(tmp_path)
    newer.store(1000, 1, b"", msgspec.msgpack.encode([1, 1, msgspec.msgpack.encode([9])]))
    assert newer.newest is not None
    image = newer.newest.path.read_bytes()
    async with alone(tmp_path / "data", free_addresses(1)[0]) as one:
        await one.register("T", queues=4, counter=1)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        restore = f"http://{one.http}/v1/raft/restore"
        async with one.web.post(restore, data=image, headers=headers) as answer:
            assert answer.status == 409
            assert "image is of format 9, this program reads 2" in await answer.text()
        assert await one.queues("T") == 4
