"""Gate for HTTP requests: in each iteration of the event loop, only a few handlers begin.

aiohttp makes a task for each connection. Without a gate, requests that arrive together on many connections
would all be handled in one iteration of the loop. Meanwhile, this process would serve no other port. This
module does no I/O.
"""

from __future__ import annotations

import asyncio
from typing import Final

BEGIN_MAX: Final = 4
"""Largest number of handlers of one gate that begin in one iteration of the event loop.

While requests wait, the loop calls the gate once in each iteration.
"""


class Gate:
    """Queue of requests whose handlers have not begun; they begin in the order of their arrival.

    Attributes:
        waiting: Futures of the waiting requests. A future that gets a result or an error leaves the queue.
    """

    def __init__(self) -> None:
        self.waiting: dict[asyncio.Future[None], None] = {}
        self._begun = 0
        self._called = False

    def enter(self) -> asyncio.Future[None] | None:
        """Return None if the handler may begin now, else a future that is done when it may begin.

        The caller must call :meth:`leave` with the future if the request is abandoned.
        """
        loop = asyncio.get_running_loop()
        if not self._called:
            self._called = True
            self._begun = 0
            loop.call_soon(self._next_turn)
        if self._begun < BEGIN_MAX and not self.waiting:
            self._begun += 1
            return None
        place: asyncio.Future[None] = loop.create_future()
        self.waiting[place] = None
        return place

    def leave(self, place: asyncio.Future[None]) -> None:
        """Remove an abandoned request from the queue."""
        self.waiting.pop(place, None)

    def _next_turn(self) -> None:
        self._begun = 0
        while self.waiting and self._begun < BEGIN_MAX:
            place = next(iter(self.waiting))
            del self.waiting[place]
            if not place.done():
                place.set_result(None)
                self._begun += 1
        # If any request began now, schedule this method once more. Until its next call, new requests share
        # the limit with the requests that began now.
        self._called = self._begun > 0
        if self._called:
            asyncio.get_running_loop().call_soon(self._next_turn)
