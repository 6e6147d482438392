"""Work in steps, so that its caller can do other work between two steps.

It is a generator that yields None and returns the result of the work. It has no clock: its driver decides how
many steps to make at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias, TypeVar, TypeVarTuple

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

Steps: TypeAlias = Generator[None, None, _T]

STEP: Final = 1_000
"""Number of names that one step handles."""


def finish(steps: Steps[_T]) -> _T:
    """Make all remaining steps, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result


def in_steps(
    work: Callable[[Collection[_T], *_Ts], object], things: Collection[_T], *arguments: *_Ts
) -> Iterable[None]:
    """Do work on things, :data:`STEP` of them in each step; return the remaining steps.

    A few things are handled at once, without remaining steps: a generator would cost more than the work.
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
    """Yield things in lists of at most :data:`STEP`."""
    left = iter(things)
    while chunk := list(islice(left, STEP)):
        yield chunk
