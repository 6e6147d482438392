"""Hooks by which a test changes the requests that schemathesis generates.

The hooks insert names that exist on the server, and they shorten waiting times.
"""

from __future__ import annotations

from typing import Any

import schemathesis

#: Names of a topic, a namespace and a key that the test has created on the server.
THERE = {"topic": "T", "namespace": "N", "key": "k"}


@schemathesis.hook
def before_call(
    context: schemathesis.HookContext, case: schemathesis.Case[Any], kwargs: dict[str, Any]
) -> None:
    """Change a request before it is sent.

    A name of at most one character is replaced by a name that exists, so that some requests succeed. Valid
    waiting times are shortened, so that the test ends soon.
    """
    for name, known in THERE.items():
        if len(str((case.path_parameters or {}).get(name, known))) <= 1:
            case.path_parameters[name] = known
    query = case.query
    if query is None or not isinstance(query, dict):
        return
    if "index" in query:
        query["wait"] = "0.02s"
    if case.method != "GET" and str(query.get("timeout", "30s")).removesuffix("s").isdigit():
        query["timeout"] = "0.2s"
