"""The HTTP routes and the OpenAPI document. Both are made from the decorators of the handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache
from types import MethodType
from typing import Any, Final, TypeAlias, TypeVar, get_type_hints

import msgspec
from aiohttp import web

from routekeeper.nameserver.settings.declared import in_camel_case

from . import answers
from .lists import LIMIT_MAX
from .problems import JSON, PROBLEM

_REF: Final = "#/components/schemas/{name}"
BINARY: Final = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
TEXT: Final = {"text/plain": {"schema": {"type": "string"}}}
#: The result of a handler. A struct is sent as JSON.
Answer: TypeAlias = web.StreamResponse | msgspec.Struct
_Handler = TypeVar("_Handler", bound=Callable[..., Awaitable[Answer]])

#: Regular expression for a list of one or more event kinds, separated by commas.
KINDS_PATTERN: Final = "^(topics|brokers|members|console)(,(topics|brokers|members|console))*$"
_PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "consistency": {
        "schema": {"type": "string", "enum": ["stale", "default", "linearizable"], "default": "default"},
        "description": "stale: the state of this nameserver; always available. default: contains every "
        "change that was acknowledged more than one minimum election timeout before the request. "
        "linearizable: contains every change that was acknowledged before the request; independent mode "
        "answers 400.",
    },
    "prefix": {
        "schema": {"type": "string"},
        "description": "Only names that begin with this text.",
    },
    "broker_prefix": {
        "name": "prefix",
        "schema": {"type": "string"},
        "description": "Only brokers whose broker name begins with this text.",
    },
    "contains": {
        "schema": {"type": "string"},
        "description": "Only names that contain this text, in upper or lower case.",
    },
    "broker_contains": {
        "name": "contains",
        "schema": {"type": "string"},
        "description": "Only brokers whose name or address contains this text, in upper or lower case.",
    },
    "after": {
        "schema": {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
        "description": "Number of the last event that the client knows. The answer contains only later "
        "events, and earlier events that were repeated later. Without after: the last events.",
    },
    "cluster": {
        "schema": {"type": "string"},
        "description": "Only entries of this cluster. A topic belongs to the clusters of its brokers.",
    },
    "limit": {
        "schema": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX},
        "description": "Largest number of entries in the page. Without limit: all remaining entries.",
    },
    "cursor": {
        "schema": {"type": "string"},
        "description": "The next_cursor of the previous page. Send the same prefix, contains and cluster as "
        "before. An entry that is added or removed between two requests may or may not appear. Each other "
        "entry appears once.",
    },
    "index": {
        "schema": {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
        "description": "Index of an earlier answer. The nameserver answers when the topic has changed after "
        "this index; for a list, when any entry of its kind (topics, brokers or KV values) has changed. It "
        "also answers when wait has passed.",
    },
    "epoch": {
        "schema": {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
        "description": "Epoch in the answer that contained the index. If the table has another epoch now, "
        "the nameserver answers at once. Allowed only with index.",
    },
    "wait": {
        # Give no default in the schema: generated clients would send the default even in requests without an
        # index, and such requests are refused.
        "schema": {"type": "string", "pattern": r"^[0-9]{1,4}(\.[0-9]{1,3})?s?$"},
        "description": "Longest wait in seconds, up to 60s. Without wait: 30s. Allowed only with index.",
    },
    "kinds": {
        "schema": {"type": "string", "default": "topics,brokers,members", "pattern": KINDS_PATTERN},
        "description": "Kinds of events, separated by commas. console: an event for each change of "
        "/v1/console/cluster or /v1/console/history. While a client watches this kind, the nameserver "
        "requests data from the other nameservers.",
    },
    "state": {
        "schema": {"type": "string", "enum": ["full", "none"], "default": "full"},
        "description": "full: the whole present state follows each reset. none: only changes follow.",
    },
    "last_event_id": {
        "schema": {"type": "string"},
        "description": "Same as the header Last-Event-ID. If a request has both, the header counts.",
    },
    "timeout": {
        "schema": {"type": "string", "pattern": r"^[0-9]{1,3}(\.[0-9]{1,3})?s?$", "default": "30s"},
        "description": "Largest duration of the change, above 0s and up to 100s.",
        "example": "60s",
    },
}

PARAMETER_PROBLEM: Final = {400: "A parameter is unknown."}
NO_GROUP: Final = {404: "This nameserver belongs to no raft group, because it runs in independent mode."}
_READ_PROBLEMS: Final = {
    400: "A parameter is unknown or wrong, or this mode does not offer the requested consistency.",
    503: "A read with the requested consistency is not possible now; see Retry-After.",
}
_CHANGE_PROBLEMS: Final = {
    400: "A parameter or the body is unknown or wrong.",
    401: "The token is missing or wrong.",
    403: "Changes are off: the nameserver has no --http-token-file.",
    **NO_GROUP,
    409: "The change was refused, and nothing was changed; detail says why and what to do.",
    413: "The body is too large.",
    421: "This member does not lead, and did not make the change; leader is the leader's raft address.",
    503: "No leader is known. Nothing was changed.",
    504: "Outcome unknown: the change began and did not end in time. It may still be applied.",
}


_KV_PROBLEMS: Final = {
    400: "A parameter or the body is unknown or wrong, or the value is too large.",
    401: "The token is missing or wrong.",
    403: "Changes are off: the nameserver has no --http-token-file.",
    409: "The change was refused, and nothing was changed; detail says why.",
    412: "The condition in If-Match or If-None-Match is not met. Nothing was changed.",
    413: "The body is too large.",
    503: "No leader is known. Nothing was changed; see Retry-After.",
    504: "Outcome unknown: the change began and did not end in time. It may still be applied.",
    507: "Only in independent mode: the change is in force, but not written to the disk yet.",
}
#: Request headers of conditional changes, with their descriptions.
CONDITIONS: Final = {
    "If-Match": "Change the value only if it still has this ETag. With *: only if the key exists.",
    "If-None-Match": "With *: put the value only if the key does not exist.",
}


@dataclass(frozen=True, slots=True)
class Serves:
    """Description of the operation that a handler serves. The handler's docstring becomes its summary.

    Attributes:
        said: Description of the answer.
        answer: Type of the answer's body. None stands for the return type of the handler. A dictionary is
            used in the document as it is.
        problems: Descriptions of error statuses, by status. By default, only the error for unknown parameters
            is described.
        query: Names of query parameters, separated by blanks.
        body: Type or content of the request's body; None if the request needs no body.
        tagged: True if the answer has an entity tag. A client that sends the current tag gets status 304.
        headers: Descriptions of the request headers that the handler reads, by name.
    """

    method: str
    path: str
    said: str
    problems: dict[int, str] = field(default_factory=PARAMETER_PROBLEM.copy)
    _: KW_ONLY
    answer: type | dict[str, Any] | None = None
    query: str = ""
    body: type | dict[str, Any] | None = None
    body_required: bool = True
    tagged: bool = False
    headers: dict[str, str] = field(default_factory=dict)

    def __call__(self, handler: _Handler) -> _Handler:
        _OPERATIONS[handler] = replace(self, answer=self.answer or get_type_hints(handler)["return"])
        return handler

    def describe(self, handler: Callable[..., Any]) -> dict[str, Any]:
        in_path = [
            {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
            for part in self.path.split("/")
            if part.startswith("{")
        ]
        in_query = [{"$ref": f"#/components/parameters/{name}"} for name in self.query.split()]
        described: dict[str, Any] = {
            "operationId": in_camel_case(handler.__name__),
            "summary": (handler.__doc__ or "").rstrip("."),
        }
        if self.method != "GET":
            described["security"] = [{"token": []}]
        headers = (
            {"If-None-Match": "ETag of an earlier answer. If the content is the same, the status is 304."}
            if self.tagged
            else {}
        )
        in_header = [
            {"name": name, "in": "header", "schema": {"type": "string"}, "description": said}
            for name, said in (headers | self.headers).items()
        ]
        if in_path or in_query or in_header:
            described["parameters"] = in_path + in_query + in_header
        if self.body is not None:
            described["requestBody"] = {"required": self.body_required, "content": content(self.body)}
        assert self.answer is not None
        described["responses"] = {"200": {"description": self.said, "content": content(self.answer)}} | {
            str(code): {"description": said, "content": content(answers.ProblemDetails, PROBLEM)}
            for code, said in self.problems.items()
        }
        if self.tagged:
            tag = {"ETag": {"schema": {"type": "string"}, "description": "Version, for If-None-Match."}}
            described["responses"]["200"]["headers"] = tag
            described["responses"]["304"] = {
                "description": "The content still has the ETag in If-None-Match."
            }
        return described


_OPERATIONS: Final[dict[Callable[..., Any], Serves]] = {}


def routes(part: object) -> list[web.RouteDef]:
    """Return the HTTP routes of those methods of an object that are handlers."""
    return [
        web.route(serves.method, serves.path, MethodType(handler, part))
        for handler, serves in _OPERATIONS.items()
        if handler in vars(type(part)).values()
    ]


def content(body: type | dict[str, Any], media: str = JSON) -> dict[str, Any]:
    return body if isinstance(body, dict) else {media: {"schema": {"$ref": _REF.format(name=body.__name__)}}}


def read(path: str, said: str, *, query: str = "", gone: str | None = None, **more: Any) -> Serves:
    """Describe a handler that reads the table.

    Args:
        said: Description of status 200.
        more: Further arguments of :class:`Serves`.
        query: Query parameters in addition to ``consistency``.
        gone: Description of status 404; None if the handler never answers 404.
    """
    problems = ({} if gone is None else {404: gone}) | _READ_PROBLEMS
    return Serves("GET", path, said, problems, query=f"consistency {query}", **more)


def listing(path: str, said: str, answer: type, *, query: str, gone: str | None = None) -> Serves:
    """Describe a handler that returns a list from the table page by page.

    The arguments are as in :func:`read`; ``answer`` is the type of the answer's body.
    """
    query = f"{query} limit cursor index epoch wait"
    return read(path, said, query=query, gone=gone, answer=answer, tagged=True)


def change(method: str, path: str, said: str, **more: Any) -> Serves:
    """Describe a handler that changes the group.

    Args:
        said: Description of status 200.
        more: Further arguments of :class:`Serves`.
    """
    return Serves(method, path, said, _CHANGE_PROBLEMS, query="timeout", **more)


def change_kv(method: str, said: str, **more: Any) -> Serves:
    """Describe a handler that changes a KV value. ``more`` are arguments of :class:`Serves`."""
    problems = _KV_PROBLEMS | ({404: "There is no such key."} if method == "DELETE" else {})
    return Serves(method, "/v1/kv/{namespace}/{key}", said, problems, query="timeout", **more)


def _rank(operation: tuple[Any, Serves]) -> tuple[bool, bool]:
    """Return an operation's sort key.

    Operations on the table and the process come first, then the raft group, then paths outside ``/v1``.
    """
    path = operation[1].path
    return not path.startswith("/v1/"), path.startswith("/v1/raft/")


@cache
def document() -> bytes:
    """Return the OpenAPI document as JSON."""
    paths: dict[str, dict[str, Any]] = {}
    types: list[type] = [answers.ProblemDetails, answers.TopicRouteData, answers.Snapshot]
    types += [answers.Broker, answers.Cluster]
    for handler, serves in sorted(_OPERATIONS.items(), key=_rank):
        paths.setdefault(serves.path, {})[serves.method.lower()] = serves.describe(handler)
        types += [kind for kind in (serves.answer, serves.body) if isinstance(kind, type)]
    _, schemas = msgspec.json.schema_components(dict.fromkeys(types), ref_template=_REF)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "RouteKeeper nameserver",
                "version": "1",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
                "description": "Reads of a nameserver's route table, and administration of its raft group. "
                "Every read of the table has the requested consistency. Status, digest, health and metrics "
                "describe this process and are always answered. Changes need the token of "
                "--http-token-file, and are off without this flag. Only the leader changes the group.",
            },
            "paths": paths,
            "components": {
                "parameters": {
                    name: {"name": name, "in": "query"} | said for name, said in _PARAMETERS.items()
                },
                "schemas": schemas,
                "securitySchemes": {
                    "token": {
                        "type": "http",
                        "scheme": "bearer",
                        "description": "The token in the file that --http-token-file names.",
                    }
                },
            },
        }
    )
