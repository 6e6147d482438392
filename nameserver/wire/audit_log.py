"""Writes audit lines, a bounded number for each host and for all of them, and says how many it left out."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import Final

from nameserver.audit import AUDITED, line_about, line_of
from nameserver.types import Answer, Request
from remoting.line_limit import LineLimit

log = logging.getLogger("nameserver.audit")

LINES_PER_HOST: Final = 20
"""Lines about one host in a window."""
LINES_OVERALL: Final = 200
"""Lines about all hosts in a window."""
WINDOW_S: Final = 10.0


class AuditLog:
    """The audit of one process; wire and HTTP share it."""

    def __init__(self) -> None:
        self._limit = LineLimit(per_peer=LINES_PER_HOST, overall=LINES_OVERALL, window_s=WINDOW_S)
        self._loop = asyncio.get_running_loop()
        self._turn: asyncio.TimerHandle | None = None

    def request(self, request: Request, answer: Answer) -> None:
        """Note a request over the wire if it is one that changes what is served."""
        if request.code in AUDITED and self._allowed(request.peer):
            log.info("%s", line_of(request, answer))

    def note(self, peer: str, change: str, result: str, fields: Mapping[str, str]) -> None:
        """Note any other change."""
        if self._allowed(peer):
            log.info("%s", line_about(peer, change, result, fields))

    def close(self) -> None:
        """End the window if there is one, and say what was left out in it."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
            if suppressed := self._limit.turn(math.inf):  # when it is over, the timer says
                log.info("audit lines left out suppressed=%d", suppressed)

    def _allowed(self, peer: str) -> bool:
        if self._turn is None:
            self._turn = self._loop.call_later(WINDOW_S, self.close)
        return self._limit.allow(peer.rpartition(":")[0] or peer)
