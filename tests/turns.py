"""A counter of an event loop's iterations.

Tests use it to check that a task pauses between its steps, so that the event loop can do other work.
"""

from __future__ import annotations

import asyncio


class Turns:
    """A counter of the event loop's iterations since the counter was made."""

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
