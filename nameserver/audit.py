"""Who changed what, and what came of it, in one line a change. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from nameserver.modes.interface import NO_QUORUM_TAG, OUTCOME_UNKNOWN_TAG
from nameserver.types import Answer, Request
from remoting.codes import RequestCode, ResponseCode

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

#: Fields that say what a request is about.
_ABOUT: Final = ("topic", "brokerName", "clusterName", "namespace", "key")

_PLAIN: Final = re.compile(r"[^\s=\"\\]+")
_WORD_MAX: Final = 128  # characters of each word that a stranger chose


def line_of(request: Request, answer: Answer) -> str:
    """Return the line about a request over the wire and its answer."""
    fields = {name: text for name in _ABOUT if (text := request.ext_fields.get(name)) is not None}
    return line_about(request.peer, RequestCode(request.code).name, result_of(answer), fields)


def line_about(peer: str, change: str, result: str, fields: Mapping[str, str]) -> str:
    """Return the line about any change; ``peer`` is the ``host:port`` of who asked."""
    about = "".join(f" {name}={_word(text[:_WORD_MAX])}" for name, text in fields.items())
    return f"audit peer={peer} change={change}{about} result={result}"


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
