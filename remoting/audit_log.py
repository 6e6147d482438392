"""The audit log: one line for each change, with peer, change and outcome.

The number of lines within :data:`WINDOW_S` seconds is bounded, for each host and in total. If lines are
omitted, a line at the end of this time reports their number.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Mapping
from typing import Final

from routekeeper.remoting.acl.access import EXCEPTION, Denied
from routekeeper.remoting.addresses import network_of
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.line_limit import LineLimit
from routekeeper.remoting.logs import Quoted

LINES_PER_HOST: Final = 20
"""Largest number of lines about one host in one window of :data:`WINDOW_S` seconds."""
LINES_OVERALL: Final = 200
"""Largest number of lines about all hosts together in one window of :data:`WINDOW_S` seconds."""
WINDOW_S: Final = 10.0

_PLAIN: Final = re.compile(r"[^\s=\"\\]+")
_WORD_MAX: Final = 128  # largest number of logged characters of a text that a client chose


class AuditLog:
    """Writer of the audit log of one process.

    Args:
        log: Logger whose name ends in ``.audit``. The limit on repeated events does not apply to loggers with
            such names.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._limit = LineLimit(per_peer=LINES_PER_HOST, overall=LINES_OVERALL, window_s=WINDOW_S)
        self._loop = asyncio.get_running_loop()
        self._turn: asyncio.TimerHandle | None = None

    def note(self, peer: str, change: str, result: str, fields: Mapping[str, str]) -> None:
        """Log a change; ``peer`` is the ``host:port`` of the client."""
        if self._turn is None:
            self._turn = self._loop.call_later(WINDOW_S, self.close)
        if self._limit.allow(network_of(peer.rpartition(":")[0] or peer)):
            # The names of fields are the program's own texts, so they may be part of the format string.
            names = "".join(f" {name}=%s" for name in fields)
            words = (_word(text[:_WORD_MAX]) for text in fields.values())
            self._log.info(f"audit peer=%s change=%s{names} result=%s", peer, change, *words, result)

    def refusal(self, peer: str, code: int, denied: Denied) -> None:
        """Log a request that was refused because of its account or its network."""
        try:
            name = RequestCode(code).name
        except ValueError:
            name = str(code)
        fields = {"accessKey": denied.access_key, "reason": denied.remark.removeprefix(EXCEPTION)}
        self.note(peer, name, f"refused({denied.code})", fields)

    def close(self) -> None:
        """End the present window of :data:`WINDOW_S` seconds, if there is one.

        Also log the number of lines that were omitted in this window.
        """
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
            if suppressed := self._limit.turn(math.inf):  # infinity ends the window at once
                self._log.info("audit lines left out suppressed=%d", suppressed)


def _word(text: str) -> str:
    """Return a client's text, with quotes if the text could look like further fields of the line."""
    return text if _PLAIN.fullmatch(text) else Quoted(text)
