"""Who changed what, and what came of it, in one line a change.

Lines are a bounded number for each host and for all of them, and how many were left out is said.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections.abc import Mapping
from typing import Final

from routekeeper.nameserver.modes.interface import NO_QUORUM_TAG, OUTCOME_UNKNOWN_TAG
from routekeeper.nameserver.types import Answer, Request
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.line_limit import LineLimit

log = logging.getLogger("routekeeper.nameserver.audit")

AUDITED: Final = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
    }
)
"""Requests by which people change what is served; brokers' own are in the history."""

LINES_PER_HOST: Final = 20
"""Lines about one host in a window."""
LINES_OVERALL: Final = 200
"""Lines about all hosts in a window."""
WINDOW_S: Final = 10.0

#: Fields that say what a request is about.
_ABOUT: Final = ("topic", "brokerName", "clusterName", "namespace", "key")

_PLAIN: Final = re.compile(r"[^\s=\"\\]+")
_WORD_MAX: Final = 128  # characters of each word that a stranger chose


class AuditLog:
    """The audit of one process; wire and HTTP share it."""

    def __init__(self) -> None:
        self._limit = LineLimit(per_peer=LINES_PER_HOST, overall=LINES_OVERALL, window_s=WINDOW_S)
        self._loop = asyncio.get_running_loop()
        self._turn: asyncio.TimerHandle | None = None

    def request(self, peer: str, request: Request, answer: Answer) -> None:
        """Note a request over the wire if it is one that changes what is served, see :meth:`note`."""
        if request.code in AUDITED:
            fields = {name: text for name in _ABOUT if (text := request.ext_fields.get(name)) is not None}
            self.note(peer, RequestCode(request.code).name, result_of(answer), fields)

    def note(self, peer: str, change: str, result: str, fields: Mapping[str, str]) -> None:
        """Note any change; ``peer`` is the ``host:port`` of who asked."""
        if self._turn is None:
            self._turn = self._loop.call_later(WINDOW_S, self.close)
        if self._limit.allow(peer.rpartition(":")[0] or peer):
            about = "".join(f" {name}={_word(text[:_WORD_MAX])}" for name, text in fields.items())
            log.info("audit peer=%s change=%s%s result=%s", peer, change, about, result)

    def close(self) -> None:
        """End the window if there is one, and say what was left out in it."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
            if suppressed := self._limit.turn(math.inf):  # when it is over, the timer says
                log.info("audit lines left out suppressed=%d", suppressed)


def result_of(answer: Answer) -> str:
    """Return in a word what came of a change: applied, not applied, unknown, or refused with its code."""
    remark = answer.remark or ""
    if answer.code == ResponseCode.SUCCESS:
        return "applied"
    if remark.startswith(OUTCOME_UNKNOWN_TAG):
        return "unknown"
    if remark.startswith(NO_QUORUM_TAG):
        return "not-applied"
    return f"refused({answer.code})"


def _word(text: str) -> str:
    """Return a stranger's text so that it cannot pass for other fields of the line."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
