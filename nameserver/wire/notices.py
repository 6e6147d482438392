"""Notices to brokers about a new smallest broker id.

A notice is a oneway request 905. This nameserver opens the connections for these requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final

from routekeeper.nameserver.types import ConnectionId, MinBrokerChange
from routekeeper.remoting.addresses import canonical_host
from routekeeper.remoting.bounds import is_address
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.fields import NotifyMinBrokerIdFields
from routekeeper.remoting.transport.aio import RemotingClient

log = logging.getLogger(__name__)

#: Longest time for sending a notice, in seconds. Source: RouteInfoManager.notifyMinBrokerIdChanged (300 ms).
NOTIFY_TIMEOUT_S: Final = 0.3
#: Largest number of notices that are sent at the same time. Further notices are dropped, because a oneway
#: request may be lost anyway.
NOTICES_MAX: Final = 256
#: Largest number of addresses that one client connection can make this nameserver connect to. A process with
#: several brokers registers several addresses.
PER_CONNECTION_MAX: Final = 64


class Notices:
    """Sender of notices: if the smallest broker id of a broker name changes, its brokers get the new id.

    Any client of this port can register any address. So the nameserver connects to an address only if a
    connection from the same host registered it and is still open. A client can therefore cause connections
    only to its own host.

    Args:
        group: Task group for the tasks that open connections and send notices.
    """

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._client = RemotingClient(connect_timeout_s=NOTIFY_TIMEOUT_S, idle_s=30.0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._registered: dict[ConnectionId, set[str]] = {}
        self._dialable: Counter[str] = Counter()  # by address: number of connections that registered it

    def registered(self, origin: ConnectionId, host: str, addr: str) -> None:
        """Record the broker address that a registration names, even if the registration is refused later.

        Args:
            host: Host of the connection over which the registration came.
            addr: The broker's address in the registration.
        """
        named = addr.rpartition(":")[0]
        is_its_own = named == host or canonical_host(named) == canonical_host(host)
        if is_its_own and is_address(addr):
            addrs = self._registered.setdefault(origin, set())
            if len(addrs) < PER_CONNECTION_MAX and addr not in addrs:
                addrs.add(addr)
                self._dialable[addr] += 1

    def closed(self, origin: ConnectionId) -> None:
        for addr in self._registered.pop(origin, ()):
            self._dialable[addr] -= 1
            if not self._dialable[addr]:
                del self._dialable[addr]

    def send(self, change: MinBrokerChange) -> None:
        notice = RemotingCommand.request(
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
            NotifyMinBrokerIdFields(
                min_broker_id=change.min_broker_id,
                min_broker_addr=change.min_broker_addr,
                offline_broker_addr=change.offline_addr,
                ha_broker_addr=change.ha_addr,
            ).to_ext(),
            oneway=True,
        )
        for addr in change.tell:
            if addr not in self._dialable:
                log.info("notice of smallest broker id not sent addr=%s reason=registered elsewhere", addr)
            elif len(self._tasks) >= NOTICES_MAX:
                log.warning("notice of smallest broker id dropped addr=%s", addr)
            else:
                task = self._group.create_task(self._send(addr, notice))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _send(self, addr: str, notice: RemotingCommand) -> None:
        try:
            await self._client.invoke_oneway(addr, notice, timeout_s=NOTIFY_TIMEOUT_S)
        except RemotingError as error:
            log.info("notice of smallest broker id not sent addr=%s error=%s", addr, error)
        except Exception:  # a failed notice must not end the task group, and with it the server
            log.exception("notice of smallest broker id failed addr=%s", addr)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._client.close()
