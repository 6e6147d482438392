"""Counter of an event loop's iterations. It shows tests between which steps other work could run."""

from __future__ import annotations

import asyncio


class Turns:
    """Counter of the event loop's iterations since this object was made."""

    def __init__(self) -> None:
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self.number += 1
        self._handle = self._loop.call_soon(self._tick)

    def end(self) -> int:
        self._handle.cancel()
        return self.number
