"""The audit log: one line for each change that an administrator makes over RocketMQ's protocol."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from routekeeper.nameserver.modes.interface import NO_QUORUM_TAG, OUTCOME_UNKNOWN_TAG
from routekeeper.nameserver.modes.timeline import EventKind, Timeline
from routekeeper.nameserver.types import Answer, Request
from routekeeper.remoting import audit_log, wall_clock
from routekeeper.remoting.codes import ORDER_TOPIC_NAMESPACE, RequestCode, ResponseCode

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
"""Codes of requests with which people change the nameserver's data.

Requests from brokers are recorded in the nameserver's history instead.
"""

#: Fields of a request that name the subject of its change.
_ABOUT: Final = ("topic", "brokerName", "clusterName", "namespace", "key")


class AuditLog(audit_log.AuditLog):
    """The audit log of a nameserver; RocketMQ's protocol and HTTP share this object.

    Attributes:
        timeline: The nameserver's history, which also gets each change; None until the server knows its mode.
    """

    def __init__(self) -> None:
        super().__init__(log)
        self.timeline: Timeline | None = None

    def note(self, peer: str, change: str, result: str, fields: Mapping[str, str]) -> None:
        super().note(peer, change, result, fields)
        if self.timeline is not None:
            self.timeline.note(
                EventKind.CHANGED,
                at_ms=wall_clock.now_ms(),
                subject=subject_of(fields),
                detail=f"{change} {result}",
                by=peer.rpartition(":")[0] or peer,
            )

    def request(self, peer: str, request: Request, answer: Answer) -> None:
        """Log a request if it changes the nameserver's data, see :meth:`note`."""
        if request.code in AUDITED:
            fields = {name: text for name in _ABOUT if (text := request.ext_fields.get(name)) is not None}
            self.note(peer, RequestCode(request.code).name, result_of(answer), fields)


def subject_of(fields: Mapping[str, str]) -> str:
    """Return the subject of a change: a topic (also for order configuration), a KV key, or a broker."""
    if (topic := fields.get("topic")) is not None:
        return topic
    namespace, key = fields.get("namespace"), fields.get("key")
    if key is not None:
        return key if namespace == ORDER_TOPIC_NAMESPACE else f"{namespace}/{key}"
    return fields.get("brokerName") or fields.get("address") or ""


def result_of(answer: Answer) -> str:
    """Return the outcome of a change: applied, not-applied, unknown, or refused with the answer's code."""
    remark = answer.remark or ""
    if answer.code == ResponseCode.SUCCESS:
        return "applied"
    if remark.startswith(OUTCOME_UNKNOWN_TAG):
        return "unknown"
    if remark.startswith(NO_QUORUM_TAG):
        return "not-applied"
    return f"refused({answer.code})"
