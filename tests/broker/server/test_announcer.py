"""A broker whose announcer does not register it at nameservers, but only records its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.server.process import BrokerServer
from routekeeper.broker.server.registrar import Announcer
from routekeeper.broker.server.registration import Trigger
from routekeeper.broker.tables.state import BrokerState
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import DataVersion, TopicConfig
from routekeeper.remoting.transport.aio import RemotingClient


class Listed:
    """An announcer that records its calls."""

    def __init__(self, state: BrokerState, broker_addr: str, said: list[str]) -> None:
        self._state = state
        self._said = said
        said.append(f"made {broker_addr}")

    async def run(self) -> None:
        self._said.append("runs")
        await asyncio.Event().wait()

    async def register_all(self, trigger: Trigger) -> None:
        self._said.append(f"all {trigger.value}")

    async def register_topics(self, changes: Iterable[tuple[TopicConfig, DataVersion]]) -> None:
        self._said += [f"topic {config.topic_name}" for config, _ in changes]

    def nameservers_changed(self) -> None:
        self._said.append("others")

    async def unregister(self) -> None:
        self._said.append("gone")

    async def close(self) -> None:
        self._said.append("closed")


def test_announcer_hears_of_start_topics_and_end(tmp_path: Path) -> None:
    said: list[str] = []
    addrs: list[str] = []

    def announcer(
        state: BrokerState,
        /,
        *,
        broker_addr: str,
        ha_addr: str,
        changed: Callable[[], object],
        tls: object = None,
    ) -> Announcer:
        return Listed(state, broker_addr, said)

    async def act() -> None:
        stop = asyncio.Event()
        bound: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with asyncio.TaskGroup() as group, RemotingClient() as client:
            server = BrokerServer(BrokerConfig(listen_port=0), tmp_path, announcer)
            group.create_task(server.run(stop, bound.set_result))
            addrs.append(await bound)
            fields = {"a": "P", "b": "New", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
            answer = await client.invoke(addrs[0], RemotingCommand.request(310, fields, b"x"), timeout_s=20.0)
            assert answer.code == ResponseCode.SUCCESS
            stop.set()

    asyncio.run(act())
    assert said == [f"made {addrs[0]}", "runs", "topic New", "gone", "closed"]
