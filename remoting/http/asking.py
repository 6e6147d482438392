"""HTTP requests to an address server, on the event loop and with a time limit."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from routekeeper.remoting.address_server import addresses_in
from routekeeper.remoting.logs import shortened
from routekeeper.remoting.transport.lookups import look_up

#: Largest accepted answer in bytes.
ANSWER_SIZE_MAX: Final = 64 * 1024


class AddressServerFailure(Exception):
    """The address server named no nameserver; the message gives the reason."""


class _Resolver(AbstractResolver):
    """Resolver that looks up names in separate threads, so that a slow look-up delays no other work."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        lookup = look_up(host)
        addresses = lookup.result() if lookup.done() else await asyncio.wrap_future(lookup)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Do nothing, because this resolver has nothing to close."""


class AddressServer:
    """Client of an address server, which is an HTTP server with a page that lists the nameservers' addresses.

    Args:
        within_s: Longest wait for an answer, in seconds.
    """

    def __init__(self, *, within_s: float) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(resolver=_Resolver(), limit=4, force_close=True),
            timeout=aiohttp.ClientTimeout(total=within_s),
        )

    async def nameservers(self, url: str) -> tuple[str, ...]:
        """Fetch the page at ``url`` and return the addresses in it, at least one.

        Raises:
            AddressServerFailure: If the page cannot be fetched, or if it names no address.
        """
        try:
            addrs = addresses_in(await self._get(url))
        except (TimeoutError, OSError, ValueError, aiohttp.ClientError) as error:
            raise AddressServerFailure(shortened(str(error) or type(error).__name__)) from None
        if not addrs:
            raise AddressServerFailure("it names no address")
        return addrs

    async def close(self) -> None:
        await self._session.close()

    async def _get(self, url: str) -> str:
        async with self._session.get(url, allow_redirects=False) as reply:
            if reply.status != 200:
                raise AddressServerFailure(f"status {reply.status}")
            content = b""
            while part := await reply.content.read(ANSWER_SIZE_MAX):
                content += part
                if len(content) > ANSWER_SIZE_MAX:
                    raise AddressServerFailure(f"its answer is above {ANSWER_SIZE_MAX} bytes")
            return content.decode("utf-8", "replace")
