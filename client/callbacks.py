"""Checks of functions that users pass to the client. This module does no I/O and reads no clock.

A call of such a function must run its code at once, which is not so for a generator function. The function
must accept the client's arguments, and return an allowed result.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any

from routekeeper.remoting.logs import shortened
from routekeeper.remoting.transport import RPCHook

from .errors import InvalidArgument


def gives_coroutine(call: Any) -> bool:
    """Return True if calling ``call`` returns a coroutine, which runs no code until it is awaited."""
    call = _unwrapped(call)
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)


def check_callback(name: str, call: Any, *, arguments: int, awaited: bool = False) -> None:
    """Reject a function whose code would not run when it is called.

    Args:
        name: Name of the function for the error text.
        arguments: Number of arguments that the client passes to the function.
        awaited: True if the client awaits a coroutine that the function returns.

    Raises:
        InvalidArgument: If ``call`` does not accept this number of arguments, or if calling it would run no
            code.
    """
    allowed = f"allowed a function of {arguments} arguments"
    if not callable(call):
        raise InvalidArgument(f"{name}={shortened(repr(call))} cannot be called, {allowed}")
    inner = _unwrapped(call)
    for function in (inner, type(inner).__call__):
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidArgument(
                f"{name}={shortened(repr(call))} is a generator function, a call of it runs nothing,"
                f" {allowed} without yield"
            )
    check_not_awaited(name, call, awaited=awaited)
    try:
        signature = inspect.signature(call)
    except (ValueError, TypeError):
        return  # some C functions have no signature: only a call can show whether the arguments fit
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        raise InvalidArgument(f"{name}={shortened(repr(call))}: {error}, {allowed}") from None


def check_not_awaited(name: str, call: Any, *, awaited: bool = False) -> None:
    """Reject a coroutine function if nobody would await its coroutine.

    This check takes less time than :func:`check_callback`.

    Raises:
        InvalidArgument: If ``call`` is a coroutine function and ``awaited`` is False.
    """
    if not awaited and gives_coroutine(call):
        raise InvalidArgument(
            f"{name}={shortened(repr(call))} is a coroutine function and nobody would await it,"
            " allowed a plain function"
            + (", or a coroutine function with AsyncClient" if name == "listener" else "")
        )


def check_hooks(hooks: tuple[RPCHook, ...]) -> None:
    """Reject hooks whose methods do not accept the arguments that the client passes to hooks.

    Raises:
        InvalidArgument: If a method of a hook is missing or does not accept the arguments.
    """
    for hook in hooks:
        for method, arguments in (("before_request", 2), ("after_response", 3)):
            name = f"{method} of hook {type(hook).__name__}"
            check_callback(name, getattr(hook, method, None), arguments=arguments)


def never_runs(result: Any) -> bool:
    """Return True if a callback returned a coroutine or generator, whose code will not run."""
    return isinstance(result, Coroutine | Generator | AsyncGenerator)


def discarded(result: Any) -> str:
    """Describe a result that a callback must not return, and close it if it is a coroutine or generator."""
    text = shortened(repr(result))
    if isinstance(result, Coroutine | Generator):
        result.close()
    return f"{text}, which nobody runs" if never_runs(result) else text


def _unwrapped(call: Any) -> Any:
    while isinstance(call, functools.partial):
        call = call.func
    return call
