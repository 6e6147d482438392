"""Our broker, announced in ZooKeeper. Start: ``python -m routekeeper.bench.arms.zookeeper_broker``.

The program has the flags of ``mqbroker``, but ``-n`` names the ensemble's servers. The session timeout is the
lease of 120 s, divided by ``timerDivisor``.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable

from kazoo.exceptions import KazooException

from routekeeper.bench.arms.interface import broker_index
from routekeeper.bench.arms.layout import nodes_of
from routekeeper.bench.arms.zookeeper import THREADS, Standing, connect, end
from routekeeper.bench.events import SIMULATED_FROM
from routekeeper.broker.__main__ import main
from routekeeper.broker.config import NAMESRV_KEYS
from routekeeper.broker.server.registrar import Announcer
from routekeeper.broker.server.registration import Trigger
from routekeeper.broker.tables.state import BrokerState
from routekeeper.remoting.route import DataVersion, TopicConfig

log = logging.getLogger("routekeeper.broker.zookeeper")

LEASE_S = 120.0
PUT_TIMEOUT_S = 3.0
#: Pause in s after a failed announcement.
RETRY_S = 0.1


class ZooKeeperAnnouncer:
    """An announcer that keeps a broker's ephemeral nodes equal to the broker's topics.

    It repeats a failed attempt until an attempt succeeds.
    """

    def __init__(
        self, state: BrokerState, /, *, broker_addr: str, ha_addr: str, changed: Callable[[], object]
    ) -> None:
        self._state = state
        self._addr = broker_addr
        index = broker_index(state.config.broker_name)
        if index is None or index >= SIMULATED_FROM:
            raise ValueError(f"broker name {state.config.broker_name!r} is not broker-N")
        self._index = index
        self._loop = asyncio.get_running_loop()
        self._wanted = asyncio.Event()
        self._done = asyncio.Event()
        self._client = connect(
            list(state.config.namesrv_addrs),
            session_s=LEASE_S / state.config.timer_divisor,
            first=index,
        )
        self._standing = Standing(self._client, lambda: self._loop.call_soon_threadsafe(self._wanted.set))
        self._wanted.set()

    async def run(self) -> None:
        self._client.start_async()
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            topics = {
                config.topic_name: config.write_queue_nums for config in self._state.topics if config.perm
            }
            nodes = dict(nodes_of(self._index, self._addr, topics))
            try:
                await asyncio.to_thread(self._standing.put, nodes, PUT_TIMEOUT_S)
            except (KazooException, *THREADS.timeouts) as error:
                log.warning("announcement failed error=%s: %s", type(error).__name__, error)
                self._wanted.set()
                await asyncio.sleep(RETRY_S)
                continue
            self._done.set()

    async def register_all(self, trigger: Trigger) -> None:
        await self._announced()

    async def register_topics(self, changes: Iterable[tuple[TopicConfig, DataVersion]]) -> None:
        await self._announced()

    def nameservers_changed(self) -> None:
        """Do nothing, because the settings that name the ensemble cannot change while a broker runs."""

    async def _announced(self) -> None:
        self._done.clear()
        self._wanted.set()
        await self._done.wait()

    async def unregister(self) -> None:
        try:
            await asyncio.to_thread(self._standing.take_back, PUT_TIMEOUT_S)
        except (KazooException, *THREADS.timeouts) as error:
            log.warning("unregistration failed error=%s: %s", type(error).__name__, error)

    async def close(self) -> None:
        await asyncio.to_thread(end, self._client)


def announcer(
    state: BrokerState,
    /,
    *,
    broker_addr: str,
    ha_addr: str,
    changed: Callable[[], object],
    tls: object = None,
) -> Announcer:
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    return ZooKeeperAnnouncer(state, broker_addr=broker_addr, ha_addr=ha_addr, changed=changed)


if __name__ == "__main__":
    sys.exit(main(announcer=announcer, fixed_keys=NAMESRV_KEYS))
