"""Sender of changes and ticks to all open pages. A tick is a message with the present times and counters.

The number of pages, and the number of messages that wait for one page, have upper limits.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from routekeeper.bench.play.model import Change, State, Tick
from routekeeper.bench.play.picture import ChangeLog

WATCHERS_MAX: Final = 16
#: Largest number of messages that may wait for one page. If one more message would wait, the program closes
#: the connection to the page.
WAITING_MAX: Final = 2_000


class Full(Exception):
    """The number of open pages has reached the allowed maximum."""


class Watcher:
    """The queue of messages for one open page.

    ``next`` returns the next message, or None when the page is closed.
    """

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._closed = False

    def put(self, message: bytes) -> None:
        """Add a message for the page. If too many messages wait, close the watcher instead."""
        if self._closed:
            return
        if self._waiting.qsize() >= WAITING_MAX:
            self.close()
            return
        self._waiting.put_nowait(message)

    def close(self) -> None:
        """Make ``next`` return None after all waiting messages. Ignore later messages."""
        if not self._closed:
            self._closed = True
            self._waiting.put_nowait(None)

    async def next(self) -> bytes | None:
        return await self._waiting.get()


class Hub:
    """The open pages of a session. The hub sends each change and each tick to all of them."""

    def __init__(self, log: ChangeLog) -> None:
        self._log = log
        self._watchers: set[Watcher] = set()
        self._ended = False

    def join(self, state: State, last: str | None) -> Watcher:
        """Return a new watcher for a page. Its first messages are the changes after ``last``.

        If the log lacks some of these changes, or if there are too many changes, the first message is the
        whole state of all designs instead.

        Args:
            last: ``SESSION-ID`` of the last change that the page has, or None if the page has no change.

        Raises:
            Full: If too many pages watch.
        """
        if len(self._watchers) >= WATCHERS_MAX:
            raise Full(f"{WATCHERS_MAX} pages are open already, no more are allowed")
        watcher = Watcher()
        session, _, number = (last or "").rpartition("-")
        missed = None
        if session == state.session and number.isascii() and number.isdigit() and len(number) < 16:
            missed = self._log.after(int(number))
        if missed is None or len(missed) >= WAITING_MAX:
            watcher.put(message("state", state, identity=f"{state.session}-{state.id}"))
        else:
            for change in missed:
                watcher.put(self._encoded(change))
        if self._ended:
            watcher.close()
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def _encoded(self, change: Change) -> bytes:
        return message("change", change, identity=f"{self._log.now.session}-{change.id}")

    def change(self, change: Change) -> None:
        encoded = self._encoded(change)
        for watcher in self._watchers:
            watcher.put(encoded)

    def tick(self, tick: Tick) -> None:
        encoded = message("tick", tick)
        for watcher in self._watchers:
            watcher.put(encoded)

    def end(self) -> None:
        """Close all watchers, and close each new watcher at once."""
        self._ended = True
        for watcher in self._watchers:
            watcher.close()


def message(kind: str, body: msgspec.Struct, *, identity: str = "") -> bytes:
    """Return the bytes of one server-sent event."""
    line = f"id: {identity}\n" if identity else ""
    return f"{line}event: {kind}\ndata: ".encode() + msgspec.json.encode(body) + b"\n\n"
