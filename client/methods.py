"""Corrected names and signatures for public methods that wrap an operation of a core class."""

from __future__ import annotations

import inspect
from typing import Final, TypeVar

C = TypeVar("C")
_OPERATION: Final = "Operation["


def show_as_called(kind: type[C]) -> type[C]:
    """Correct the names and result types of a class's methods that wrap an operation.

    Without this decorator, ``help`` shows the operation's qualified name, and shows ``Operation[SendResult]``
    instead of ``SendResult``.
    """
    for name, method in vars(kind).items():
        operation = getattr(method, "__wrapped__", None)
        if operation is None:
            continue
        signature = inspect.signature(operation)
        result = str(signature.return_annotation)
        assert result.startswith(_OPERATION), f"{operation.__qualname__} returns {result}"
        result = result.removeprefix(_OPERATION).removesuffix("]")
        method.__module__, method.__qualname__ = kind.__module__, f"{kind.__qualname__}.{name}"
        method.__annotations__ = {**operation.__annotations__, "return": result}
        method.__signature__ = signature.replace(return_annotation=result)
    return kind
