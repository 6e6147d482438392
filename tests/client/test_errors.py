"""The tree of exceptions in the docstring of ``routekeeper.client.errors`` agrees with the classes."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import routekeeper.client
import routekeeper.client.errors
import routekeeper.remoting
from routekeeper.remoting.errors import RemotingError


def drawn() -> list[str]:
    """Return the names in the docstring's tree, each with the spaces before it."""
    lines = (routekeeper.client.errors.__doc__ or "").splitlines()
    return [found[1] for line in lines if (found := re.match(r" {4}( *[A-Z]\w+)(?: {2,}\S|$)", line))]


def descending(kind: type[Exception], depth: int = 0) -> Iterator[str]:
    yield " " * 4 * depth + kind.__name__
    for each in sorted(kind.__subclasses__(), key=lambda one: one.__name__):
        if each.__module__.startswith(("routekeeper.client", "routekeeper.remoting")):
            yield from descending(each, depth + 1)


def test_the_tree_of_exceptions_is_drawn_as_the_classes_are() -> None:
    for package in (routekeeper.remoting, routekeeper.client):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):  # importing this module would run a program
                importlib.import_module(module.name)
    assert drawn() == list(descending(RemotingError))


def test_public_exceptions_are_in_the_tree() -> None:
    public = {
        name
        for name in routekeeper.__all__
        if isinstance(kind := getattr(routekeeper, name), type) and issubclass(kind, BaseException)
    }
    assert public
    assert public <= {name.strip() for name in drawn()}
