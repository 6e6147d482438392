"""Work that is divided into steps, so that the caller can do other work between two steps.

The work is a generator: it yields None after each step, and it returns the result. The generator does not
watch the time. Its caller decides how many steps to run before it does other work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias, TypeVar, TypeVarTuple

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

Steps: TypeAlias = Generator[None, None, _T]

STEP: Final = 1_000
"""Largest number of items, such as topics, that one step handles."""


def finish(steps: Steps[_T]) -> _T:
    """Run all remaining steps, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result


def in_steps(
    work: Callable[[Collection[_T], *_Ts], object], things: Collection[_T], *arguments: *_Ts
) -> Iterable[None]:
    """Call ``work`` with at most :data:`STEP` items at a time; each call is a step that the caller runs.

    If there are at most :data:`STEP` items, this function calls ``work`` at once and returns no steps. For so
    few items, a generator would cost more than the work.
    """
    if len(things) > STEP:
        return _in_steps(work, things, *arguments)
    work(things, *arguments)
    return ()


def _in_steps(
    work: Callable[[Collection[_T], *_Ts], object], things: Collection[_T], *arguments: *_Ts
) -> Steps[None]:
    for done, chunk in enumerate(in_chunks(things)):
        if done:
            yield
        work(chunk, *arguments)


def in_chunks(things: Iterable[_T]) -> Iterator[list[_T]]:
    """Yield the items in lists of at most :data:`STEP` items."""
    left = iter(things)
    while chunk := list(islice(left, STEP)):
        yield chunk
