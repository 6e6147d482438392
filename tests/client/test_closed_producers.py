"""A closed producer uses no memory in its client, because a program may make one producer for each task."""

from __future__ import annotations

import asyncio
import gc
import weakref

from routekeeper import AsyncClient, Client

NOBODY = "127.0.0.1:1"
"""An address at which no nameserver listens: no producer here sends anything."""


def test_client_keeps_no_closed_producer() -> None:
    with Client(NOBODY) as client:
        producer = client.producer("g")
        kept = weakref.ref(producer.core)
        producer.close()
        del producer
        gc.collect()
        assert kept() is None


def test_asyncio_client_keeps_no_closed_producer() -> None:
    async def main() -> None:
        async with AsyncClient(NOBODY) as client:
            producer = client.producer("g")
            kept = weakref.ref(producer.core)
            await producer.close()
            del producer
            gc.collect()
            assert kept() is None

    asyncio.run(main())
