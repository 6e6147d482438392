"""The routes of HTTP and the OpenAPI document, both made from the handlers' own descriptions."""

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
#: The result of a handler; a value is answered as JSON.
Answer: TypeAlias = web.StreamResponse | msgspec.Struct
_Handler = TypeVar("_Handler", bound=Callable[..., Awaitable[Answer]])

#: Schema of one or more kinds, separated by commas.
KINDS_PATTERN: Final = "^(topics|brokers|members|console)(,(topics|brokers|members|console))*$"
_PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "consistency": {
        "schema": {"type": "string", "enum": ["stale", "default", "linearizable"], "default": "default"},
        "description": "stale: this member's state, always answered. default: contains every change that "
        "was acknowledged more than one minimum election timeout before. linearizable: "
        "contains every change that was acknowledged before; 400 where the mode does not "
        "offer it.",
    },
    "prefix": {
        "schema": {"type": "string"},
        "description": "Only names that begin with it.",
    },
    "broker_prefix": {
        "name": "prefix",
        "schema": {"type": "string"},
        "description": "Only brokers whose broker name begins with it.",
    },
    "contains": {
        "schema": {"type": "string"},
        "description": "Only names with this text anywhere in them, in upper or lower case.",
    },
    "broker_contains": {
        "name": "contains",
        "schema": {"type": "string"},
        "description": "Only brokers with this text anywhere in name or address, in upper or lower case.",
    },
    "after": {
        "schema": {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
        "description": "Only events that happened, or happened again, after this number. Without it: the "
        "last events.",
    },
    "cluster": {
        "schema": {"type": "string"},
        "description": "Only entries of this cluster; a topic belongs to the clusters of its brokers.",
    },
    "limit": {
        "schema": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX},
        "description": "Largest number of entries in the page; without it all remaining entries.",
    },
    "cursor": {
        "schema": {"type": "string"},
        "description": "The next_cursor of the page before, with the same prefix and cluster. Entries that "
        "were added or removed meanwhile may appear; each other entry appears once.",
    },
    "index": {
        "schema": {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
        "description": "Answer only when a requested entry has changed after this index, or when wait has "
        "passed.",
    },
    "epoch": {
        "schema": {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
        "description": "Epoch of that index, from the same answer. If the epoch is another one now, the "
        "answer comes at once. Needs index.",
    },
    "wait": {
        # The schema has no default: else generated clients would send it without an index.
        "schema": {"type": "string", "pattern": r"^[0-9]{1,4}(\.[0-9]{1,3})?s?$"},
        "description": "Longest wait in seconds, at most 60s; 30s if it is absent. Needs index.",
    },
    "kinds": {
        "schema": {"type": "string", "default": "topics,brokers,members", "pattern": KINDS_PATTERN},
        "description": "Kinds to watch, separated by commas. console: an event for each change of the "
        "picture of /v1/console/cluster or of its history; other nameservers are asked "
        "during the watch.",
    },
    "state": {
        "schema": {"type": "string", "enum": ["full", "none"], "default": "full"},
        "description": "full: the whole present state follows each reset. none: only changes.",
    },
    "last_event_id": {
        "schema": {"type": "string"},
        "description": "Same as the header Last-Event-ID, which has priority.",
    },
    "timeout": {
        "schema": {"type": "string", "pattern": r"^[0-9]{1,3}(\.[0-9]{1,3})?s?$", "default": "30s"},
        "description": "How long the change may take, above 0s and up to 100s.",
        "example": "60s",
    },
}

PARAMETER_PROBLEM: Final = {400: "A parameter is unknown."}
NO_GROUP: Final = {404: "The nameserver belongs to no raft group: it runs in another mode."}
_READ_PROBLEMS: Final = {
    400: "A parameter is unknown or wrong, or this mode never offers the requested freshness.",
    503: "The requested freshness cannot be given now; see Retry-After.",
}
_CHANGE_PROBLEMS: Final = {
    400: "A parameter or the body is unknown or wrong.",
    401: "The token is missing or wrong.",
    403: "Changes are off: the nameserver has no --http-token-file.",
    **NO_GROUP,
    409: "Refused, and nothing was done; detail says why and what to do.",
    413: "The body is too large.",
    421: "Only the leader does this; the member leader names it by its raft address. Nothing was done.",
    503: "No leader is known. Nothing was done.",
    504: "Outcome unknown: the change began and did not end in time. It may still be applied.",
}


_KV_PROBLEMS: Final = {
    400: "A parameter or the body is unknown or wrong, or the value is too large.",
    401: "The token is missing or wrong.",
    403: "Changes are off: the nameserver has no --http-token-file.",
    409: "Refused, and nothing was done; the detail says why.",
    412: "If-Match or If-None-Match does not hold. Nothing was done.",
    413: "The body is too large.",
    503: "No leader is known. Nothing was done; see Retry-After.",
    504: "Outcome unknown: the change began and did not end in time. It may still be applied.",
    507: "In force, and not written to the disk yet; independent mode.",
}
#: Headers of conditional changes.
CONDITIONS: Final = {
    "If-Match": "Change the value only if it still has this ETag, or with * only if there is one.",
    "If-None-Match": "With *: put the value only if there is none.",
}


@dataclass(frozen=True, slots=True)
class Serves:
    """Describes the operation that a handler serves. The operation has the name and docstring of the handler.

    Attributes:
        said: Description of the answer.
        answer: Type of the body, if the handler's annotation does not name it; or the content as it stands in
            the document.
        problems: Status codes of errors with their meaning; by default only that of an unknown parameter.
        query: Names of parameters, separated by blanks.
        body: Type or content of the request's body; None if it needs none.
        tagged: The answer has an entity tag; a client that has this version already gets 304.
        headers: Headers that the handler reads from a request, with their descriptions.
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
            {"If-None-Match": "The ETag of an earlier answer: 304 while the content is the same."}
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
            tag = {"ETag": {"schema": {"type": "string"}, "description": "For If-None-Match."}}
            described["responses"]["200"]["headers"] = tag
            described["responses"]["304"] = {
                "description": "The content still has the ETag in If-None-Match."
            }
        return described


_OPERATIONS: Final[dict[Callable[..., Any], Serves]] = {}


def routes(part: object) -> list[web.RouteDef]:
    """Return what the handlers among an object's methods serve."""
    return [
        web.route(serves.method, serves.path, MethodType(handler, part))
        for handler, serves in _OPERATIONS.items()
        if handler in vars(type(part)).values()
    ]


def content(body: type | dict[str, Any], media: str = JSON) -> dict[str, Any]:
    return body if isinstance(body, dict) else {media: {"schema": {"$ref": _REF.format(name=body.__name__)}}}


def read(path: str, said: str, *, query: str = "", gone: str | None = None, **more: Any) -> Serves:
    """Describe a handler that reads the table; ``more`` as of :class:`Serves`.

    Args:
        query: Parameters beside the freshness.
        gone: Meaning of a 404.
    """
    problems = ({} if gone is None else {404: gone}) | _READ_PROBLEMS
    return Serves("GET", path, said, problems, query=f"consistency {query}", **more)


def listing(path: str, said: str, answer: type, *, query: str, gone: str | None = None) -> Serves:
    """Describe a handler that lists a part of the table, page by page, as :func:`read`."""
    query = f"{query} limit cursor index epoch wait"
    return read(path, said, query=query, gone=gone, answer=answer, tagged=True)


def change(method: str, path: str, said: str, **more: Any) -> Serves:
    """Describe a handler that changes the group; ``more`` as of :class:`Serves`."""
    return Serves(method, path, said, _CHANGE_PROBLEMS, query="timeout", **more)


def change_kv(method: str, said: str, **more: Any) -> Serves:
    """Describe a handler that changes a KV value; ``more`` as of :class:`Serves`."""
    problems = _KV_PROBLEMS | ({404: "There is no such key."} if method == "DELETE" else {})
    return Serves(method, "/v1/kv/{namespace}/{key}", said, problems, query="timeout", **more)


def _rank(operation: tuple[Any, Serves]) -> tuple[bool, bool]:
    """Return an operation's sort key: reads and the process, then the group, then unversioned paths."""
    path = operation[1].path
    return not path.startswith("/v1/"), path.startswith("/v1/raft/")


@cache
def document() -> bytes:
    """Return the document, encoded."""
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
                "are about this process and always answered. Changes of the group need a token, are off "
                "without --http-token-file, and only the leader makes them.",
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
                        "description": "The token in the file of the nameserver's --http-token-file.",
                    }
                },
            },
        }
    )
