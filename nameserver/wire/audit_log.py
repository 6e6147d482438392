"""Changes by people at a nameserver, over the wire; each leaves a line in the audit."""

from __future__ import annotations

import logging
from typing import Final

from routekeeper.nameserver.modes.interface import NO_QUORUM_TAG, OUTCOME_UNKNOWN_TAG
from routekeeper.nameserver.types import Answer, Request
from routekeeper.remoting import audit_log
from routekeeper.remoting.codes import RequestCode, ResponseCode

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

#: Fields that say what a request is about.
_ABOUT: Final = ("topic", "brokerName", "clusterName", "namespace", "key")


class AuditLog(audit_log.AuditLog):
    """The audit of a nameserver; wire and HTTP share it."""

    def __init__(self) -> None:
        super().__init__(log)

    def request(self, peer: str, request: Request, answer: Answer) -> None:
        """Note a request over the wire if it is one that changes what is served, see :meth:`note`."""
        if request.code in AUDITED:
            fields = {name: text for name in _ABOUT if (text := request.ext_fields.get(name)) is not None}
            self.note(peer, RequestCode(request.code).name, result_of(answer), fields)


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
