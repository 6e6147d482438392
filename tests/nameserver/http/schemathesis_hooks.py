"""Loaded by schemathesis: requests name existing things, and none of them waits for long."""

from __future__ import annotations

from typing import Any

import schemathesis

#: A topic, a namespace and a key that the test has created, and a member.
THERE = {"topic": "T", "namespace": "N", "key": "k"}


@schemathesis.hook
def before_call(
    context: schemathesis.HookContext, case: schemathesis.Case[Any], kwargs: dict[str, Any]
) -> None:
    """Put known names for the shortest ones, and short times for all that are valid."""
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
