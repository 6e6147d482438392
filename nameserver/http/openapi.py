"""The OpenAPI document of what is served: a table of paths, and schemas made from the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec

from nameserver.modes.group import GroupStatus

from . import answers
from .problems import JSON, PROBLEM

_REF: Final = "#/components/schemas/{name}"
_BINARY: Final = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_TEXT: Final = {"text/plain": {"schema": {"type": "string"}}}
_OBJECT: Final = {JSON: {"schema": {"type": "object"}}}

_PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "consistency": {
        "in": "query",
        "schema": {"type": "string", "enum": ["stale", "default", "linearizable"], "default": "default"},
        "description": "stale: local, always. default: misses no change acknowledged more than one minimum "
        "election timeout before. linearizable: misses none acknowledged before; 400 where the mode does "
        "not offer it.",
    },
    "index": {
        "in": "query",
        "schema": {"type": "integer", "minimum": 0},
        "description": "Answer only once the topic's index is greater than this, or wait has passed.",
    },
    "epoch": {
        "in": "query",
        "schema": {"type": "integer", "minimum": 0},
        "description": "Epoch of that index, from the same answer: in another one the answer comes at once. "
        "Needs index.",
    },
    "wait": {
        "in": "query",
        "schema": {"type": "string", "pattern": r"^\d{1,4}(\.\d{1,3})?s?$", "default": "30s"},
        "description": "Longest wait in seconds, at most 60s. Needs index.",
    },
    "timeout": {
        "in": "query",
        "schema": {"type": "string", "pattern": r"^[0-9]{1,3}(\.[0-9]{1,3})?s?$", "default": "30s"},
        "description": "How long the change may take, above 0s and up to 100s.",
        "example": "60s",
    },
}

_PARAMETER_UNKNOWN: Final = "A parameter is unknown."
_NO_GROUP: Final = "The nameserver belongs to no raft group: it runs in another mode."
_READ_PROBLEMS: Final = {
    400: "A parameter is unknown or wrong, or this mode never offers the freshness asked for.",
    503: "The freshness asked for cannot be given now; see Retry-After.",
}
_CHANGE_PROBLEMS: Final = {
    400: "A parameter or the body is unknown or wrong.",
    401: "The token is missing or wrong.",
    403: "Changes are off: the nameserver has no --http-token-file.",
    404: _NO_GROUP,
    409: "Refused, and nothing was done; the detail says why and what would help.",
    413: "The body is too large.",
    421: "Only the leader does this; the member leader names it by its raft address. Nothing was done.",
    503: "No leader is known. Nothing was done.",
    504: "Outcome unknown: the change was begun and not seen to end in time. It may come to pass yet.",
}


@dataclass(frozen=True, slots=True)
class _Operation:
    """What is served under one method of one path.

    Attributes:
        answer: Type of the body, or the content as it stands in the document.
        query: Names of parameters.
        body: Type or content of the request's body; None if it needs none.
    """

    method: str
    path: str
    name: str
    summary: str
    said: str
    answer: type | dict[str, Any]
    problems: dict[int, str]
    query: Sequence[str] = ()
    body: type | dict[str, Any] | None = None
    body_required: bool = True

    @property
    def changes(self) -> bool:
        return self.method != "get"

    def describe(self) -> dict[str, Any]:
        in_path = [
            {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
            for part in self.path.split("/")
            if part.startswith("{")
        ]
        in_query = [{"$ref": f"#/components/parameters/{name}"} for name in self.query]
        described: dict[str, Any] = {"operationId": self.name, "summary": self.summary}
        if self.changes:
            described["security"] = [{"token": []}]
        if in_path or in_query:
            described["parameters"] = in_path + in_query
        if self.body is not None:
            described["requestBody"] = {"required": self.body_required, "content": _content(self.body)}
        described["responses"] = {"200": {"description": self.said, "content": _content(self.answer)}} | {
            str(code): {"description": said, "content": _content(answers.ProblemDetails, PROBLEM)}
            for code, said in self.problems.items()
        }
        return described


def _content(body: type | dict[str, Any], media: str = JSON) -> dict[str, Any]:
    return body if isinstance(body, dict) else {media: {"schema": {"$ref": _REF.format(name=body.__name__)}}}


def _read(path: str, name: str, summary: str, said: str, answer: type, **more: str) -> _Operation:
    """Describe a read of the table; ``more`` holds what else may be asked, and what a 404 means."""
    query = ("consistency", *more.get("query", "").split())
    gone = {404: more["gone"]} if "gone" in more else {}
    return _Operation("get", path, name, summary, said, answer, gone | _READ_PROBLEMS, query)


def _change(
    method: str,
    path: str,
    name: str,
    summary: str,
    said: str,
    answer: type | dict[str, Any],
    body: type | dict[str, Any] | None = None,
    *,
    body_required: bool = True,
) -> _Operation:
    return _Operation(
        method, path, name, summary, said, answer, _CHANGE_PROBLEMS, ("timeout",), body, body_required
    )


_SNAPSHOT_SAID: Final = (
    "It is on this nameserver's disk; with Accept: application/octet-stream the answer is it."
)
_REMOVE: Final = "Take a member out; it stops. A leader hands over first and then names the new one (421)"

OPERATIONS: Final = (
    _read("/v1/topics", "listTopics", "Names of all topics, sorted", "The topics.", answers.Topics),
    _read(
        "/v1/topics/{topic}/route",
        "getRoute",
        "Where a topic lives, as RocketMQ's request 105 answers it",
        "The route.",
        answers.Route,
        query="index epoch wait",
        gone="No broker lists the topic; events and likely_causes say why.",
    ),
    _read(
        "/v1/topics/{topic}/explain",
        "explainTopic",
        "Why a topic has the route it has, or none",
        "The explanation.",
        answers.Explanation,
    ),
    _read(
        "/v1/brokers",
        "listBrokers",
        "All registered brokers, by cluster and address",
        "The brokers.",
        answers.Brokers,
    ),
    _read(
        "/v1/clusters",
        "listClusters",
        "Clusters, their broker names and addresses by broker id",
        "The clusters.",
        answers.Clusters,
    ),
    _read(
        "/v1/kv/{namespace}",
        "getKvNamespace",
        "One namespace of the KV configuration",
        "The values by key.",
        answers.KvNamespace,
        gone="The namespace never existed.",
    ),
    _Operation(
        "get",
        "/v1/status",
        "getStatus",
        "State of this nameserver in its group",
        "The state.",
        answers.Status,
        {400: _PARAMETER_UNKNOWN},
    ),
    _Operation(
        "get",
        "/v1/digest",
        "getDigest",
        "Digests of the table, to compare nameservers",
        "The digests.",
        answers.Digests,
        {400: _PARAMETER_UNKNOWN},
    ),
    _Operation(
        "get",
        "/v1/raft/status",
        "getRaftStatus",
        "Figures of this member of the raft group",
        "The figures.",
        GroupStatus,
        {400: _PARAMETER_UNKNOWN, 404: _NO_GROUP},
    ),
    _change(
        "post",
        "/v1/raft/members",
        "addMember",
        "Take a member in: a learner first, a voter once it has caught up",
        "It is a voter.",
        answers.Members,
        answers.NewMember,
    ),
    _change("delete", "/v1/raft/members/{address}", "removeMember", _REMOVE, "It is out.", answers.Members),
    _change(
        "post",
        "/v1/raft/transfer",
        "transferLeadership",
        "Hand leadership over",
        "Somebody else leads.",
        answers.Leader,
        answers.Transfer,
        body_required=False,
    ),
    _change(
        "post",
        "/v1/raft/snapshot",
        "saveSnapshot",
        "Write the state to a file that can be copied and restored",
        _SNAPSHOT_SAID,
        _content(answers.Snapshot) | _BINARY,
    ),
    _change(
        "post",
        "/v1/raft/restore",
        "restoreSnapshot",
        "Replace the state by a snapshot file; only in a group of one member",
        "It is the state of this group.",
        answers.Restored,
        _BINARY,
    ),
    _Operation("get", "/healthz", "getHealth", "The process runs", "It does.", _TEXT, {}),
    _Operation(
        "get",
        "/readyz",
        "getReadiness",
        "Reads and writes can be served",
        "They can.",
        _TEXT,
        {503: "They cannot; detail says what is waited for."},
    ),
    _Operation("get", "/metrics", "getMetrics", "Prometheus metrics", "Text format 0.0.4.", _TEXT, {}),
    _Operation("get", "/openapi.json", "getOpenApi", "This document", "OpenAPI 3.1.", _OBJECT, {}),
)


@cache
def document() -> bytes:
    """Return the document, encoded."""
    paths: dict[str, dict[str, Any]] = {}
    types: list[type] = [answers.ProblemDetails, answers.TopicRouteData, answers.Snapshot]
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = operation.describe()
        types += [kind for kind in (operation.answer, operation.body) if isinstance(kind, type)]
    _, schemas = msgspec.json.schema_components(dict.fromkeys(types), ref_template=_REF)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "RouteKeeper nameserver",
                "version": "1",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
                "description": "Reads of a nameserver's route table, and administration of its raft group. "
                "Every read of the table follows the consistency asked for; status, digest, health and "
                "metrics are about this process and always answered. Changes of the group need a token, are "
                "off without --http-token-file, and are done by the leader alone.",
            },
            "paths": paths,
            "components": {
                "parameters": {name: {"name": name, **said} for name, said in _PARAMETERS.items()},
                "schemas": schemas,
                "securitySchemes": {
                    "token": {
                        "type": "http",
                        "scheme": "bearer",
                        "description": "The one word in the nameserver's --http-token-file.",
                    }
                },
            },
        }
    )
