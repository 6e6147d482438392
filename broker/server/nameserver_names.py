"""Nameservers of a broker, from its settings, from look-ups of host names, or from an address server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from routekeeper.broker.config import BrokerConfig
from routekeeper.remoting.addresses import join_address, split_address
from routekeeper.remoting.errors import LocalProtocolError
from routekeeper.remoting.transport.lookups import look_up

if TYPE_CHECKING:
    from routekeeper.remoting.http.asking import AddressServer  # loaded only if an address server is used

logger = logging.getLogger(__name__)

#: Longest wait for a look-up in seconds. The system's resolver may take a minute. The look-up then continues
#: in its own thread.
LOOK_UP_S: Final = 3.0
#: Upper bound, in seconds, of the pause after the first look-up and after a failed look-up. Source:
#: BrokerController.initialize, RocketMQ 5.3.
RETRY_S: Final = 10.0
#: Largest number of addresses to use from the look-up of one host name.
ADDRESSES_MAX: Final = 16


class NameserverNames:
    """The list of a broker's nameservers, kept up to date.

    The list comes from the settings:

    - ``namesrvAddr`` lists addresses. With ``fetchNameSrvAddrByDnsLookup``, host names in this setting are
      replaced by their current addresses. RocketMQ's brokers look up one name. Here the setting may have
      several names, and also addresses.
    - Without ``namesrvAddr``, an address server lists the nameservers if ``fetchNamesrvAddrByAddressServer``
      is set.

    If a look-up fails, or if the address server lists no nameserver, the known addresses stay. After a change
    of the settings, the addresses of the former settings stay, too, until each new name has an address.
    Otherwise the broker would unregister from all its nameservers if the first look-up of a new name fails.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, ...]] = {}
        self._failing: set[str] = set()
        self._is_first = True
        self._server: AddressServer | None = None
        self._listed: tuple[str, ...] = ()
        self._source: tuple[str, ...] = ()  # the settings from which the current list was made
        self._found: tuple[str, ...] = ()  # addresses from these settings alone
        self._complete: tuple[str, ...] = ()  # the last list in which each name had an address
        self._partial: tuple[str, ...] = ()  # the last list of later settings, in which a name had no address
        self._former: tuple[str, ...] = ()  # addresses of former settings that stay for the time being

    async def nameservers(self, config: BrokerConfig) -> tuple[str, ...]:
        """Return the current nameservers of a broker, in order."""
        source = _source(config)
        if source != self._source:
            # Keep two former lists at most. Clients may change the settings repeatedly, so the number of
            # incomplete lists needs a bound.
            self._partial = self._found or self._partial
            self._former = self._complete + self._partial
            self._source, self._listed = source, ()
        if config.asks_address_server:
            self._found = await self._ask(config.address_server_url)
            is_complete = bool(self._found)
        elif config.look_up_namesrv:
            self._found = await self.look_up(config.namesrv_addrs)
            is_complete = all(self._known.values())
        else:
            self._found, is_complete = config.namesrv_addrs, True
        if is_complete:
            self._complete, self._partial, self._former = self._found, (), ()
        return tuple(dict.fromkeys(self._found + self._former))

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    async def _ask(self, url: str) -> tuple[str, ...]:
        """Return the addresses that the address server at ``url`` lists, or () if it never listed any."""
        from routekeeper.remoting.http.asking import AddressServer, AddressServerFailure

        if self._server is None:
            self._server = AddressServer(within_s=LOOK_UP_S)
        self._failing &= {url}
        try:
            self._listed = await self._server.nameservers(url)
        except AddressServerFailure as error:
            level = logging.DEBUG if url in self._failing else logging.WARNING
            self._failing.add(url)
            logger.log(level, "address server failed, known addresses stay url=%s reason=%s", url, str(error))
        else:
            self._failing.discard(url)
        return self._listed

    async def look_up(self, names: Iterable[str]) -> tuple[str, ...]:
        """Resolve a list of ``name:port``. Return addresses with their ports, in the order of the list."""
        names = tuple(names)
        found = await asyncio.gather(*map(self._look_up, names))
        self._known = dict(zip(names, found, strict=True))
        self._failing &= set(names)
        return tuple(dict.fromkeys(addr for addrs in found for addr in addrs))

    def pause_s(self, config: BrokerConfig) -> float | None:
        """Return the seconds until the next look-up or request, or None if the settings need neither."""
        if config.asks_address_server:
            period_s = config.fetch_period_ms / 1000
        elif config.look_up_namesrv:
            period_s = config.look_up_period_ms / 1000
        else:
            return None
        soon, self._is_first = self._is_first or bool(self._failing), False
        return min(period_s, RETRY_S) if soon else period_s

    async def _look_up(self, name: str) -> tuple[str, ...]:
        try:
            found = await _addresses(name)
        except (OSError, ValueError, TimeoutError) as error:
            reason = str(error) or f"no answer within {LOOK_UP_S:g} s"
            level = logging.DEBUG if name in self._failing else logging.WARNING
            self._failing.add(name)
            logger.log(level, "look-up failed, known addresses stay nameserver=%s reason=%s", name, reason)
            return self._known.get(name, ())
        self._failing.discard(name)
        return found


async def numeric_addresses(name: str) -> frozenset[str] | None:
    """Resolve a ``name:port`` into addresses with this port, or return None if the look-up fails."""
    try:
        return frozenset(await _addresses(name))
    except (OSError, ValueError, TimeoutError):
        return None


def _source(config: BrokerConfig) -> tuple[str, ...]:
    """Return the settings that name the nameservers: addresses, names, or the URL of an address server."""
    if config.asks_address_server:
        return ("address server", config.address_server_url)
    return ("names" if config.look_up_namesrv else "addresses", *config.namesrv_addrs)


async def _addresses(name: str) -> tuple[str, ...]:
    try:
        host, port = split_address(name)
    except LocalProtocolError as error:
        raise ValueError(str(error)) from None
    async with asyncio.timeout(LOOK_UP_S):
        found = await asyncio.wrap_future(look_up(host))
    return tuple(join_address(address, port) for address in sorted(found)[:ADDRESSES_MAX])
