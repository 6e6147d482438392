"""``help`` and ``inspect.signature`` show the real signatures and result types of the public methods."""

from __future__ import annotations

import inspect
import pydoc
import typing
from collections.abc import Iterator
from types import FunctionType

import pytest

import routekeeper
from routekeeper import AsyncProducer, Producer

PAIRS = ("Client", "Producer", "PushConsumer", "PullConsumer", "Admin")


def public_methods(kind: type) -> Iterator[tuple[type, str, FunctionType]]:
    """Yield for each public method of a class: the class that defines it, its name, and the function."""
    for owner in kind.__mro__:
        for name, method in vars(owner).items():
            shown = not name.startswith("_") and isinstance(method, FunctionType)
            if shown and owner.__module__.startswith("routekeeper.") and getattr(kind, name) is method:
                yield owner, name, method


def walked() -> Iterator[object]:
    for public in routekeeper.__all__:
        kind = getattr(routekeeper, public)
        if isinstance(kind, type) and kind.__module__.startswith("routekeeper."):
            for owner, name, method in public_methods(kind):
                yield pytest.param(owner, name, method, id=f"{public}.{name}")


@pytest.mark.parametrize(("owner", "name", "method"), list(walked()))
def test_a_public_method_says_its_own_name_and_result(owner: type, name: str, method: FunctionType) -> None:
    assert (method.__module__, method.__qualname__) == (owner.__module__, f"{owner.__name__}.{name}")
    signature = inspect.signature(method)
    assert next(iter(signature.parameters)) == "self"
    assert signature.return_annotation is not inspect.Signature.empty
    assert "Operation" not in str(signature.return_annotation)
    assert "Operation[" not in str(typing.get_type_hints(method)["return"])
    assert inspect.getdoc(method), "help has nothing to say"


def test_both_drivers_have_the_same_signatures() -> None:
    compared = 0
    for name in PAIRS:
        blocking, asynchronous = (getattr(routekeeper, prefix + name) for prefix in ("", "Async"))
        theirs = {name: method for _, name, method in public_methods(asynchronous)}
        for _, method_name, method in public_methods(blocking):
            # put returns a future of the driver's own type (blocking or asyncio), so its signatures differ.
            if method_name in theirs and method_name != "put":
                other = theirs[method_name]
                assert inspect.signature(method) == inspect.signature(other), method_name
                compared += 1
    assert compared > 40


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
def test_help_shows_what_is_called_and_returned(kind: type) -> None:
    text = pydoc.plain(pydoc.render_doc(kind.send))  # type: ignore[attr-defined]
    heading, _, call = text.splitlines()[:3]
    assert heading.endswith(f"in module {kind.__module__}")
    wanted = (
        "send(self, message: 'Message', *, queue: 'MessageQueue | None' = None,"
        " select: 'QueueSelector | None' = None, timeout_s: 'float | None' = None) -> 'SendResult'"
    )
    assert call == ("async " if kind is AsyncProducer else "") + wanted
    assert "Core" not in text
