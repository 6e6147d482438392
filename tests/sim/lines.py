"""A recorder of the executed lines of the nameserver's functions, by ``sys.settrace``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from routekeeper import nameserver

PACKAGE = Path(str(nameserver.__file__)).parent


def functions_of(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of all functions in a module.

    Functions inside classes and functions are included.
    """
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 0x2:  # functions have CO_NEWLOCALS; the body of a class does not
                yield constant
            yield from functions_of(constant)


def lines_of(code: CodeType) -> set[int]:
    """Return the numbers of a function's lines that can run, without the line of its ``def``."""
    return {line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno}


class Lines:
    """A collector of the lines that are executed while :meth:`recording` is active.

    When all lines of a function have run, the function is no longer traced, so it runs at full speed.
    """

    def __init__(self, package: Path = PACKAGE) -> None:
        self._package = package
        self._left: dict[CodeType, set[int]] = {}
        self._begins = str(package)

    @contextmanager
    def recording(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            inside = code.co_filename.startswith(self._begins)
            left = self._left[code] = lines_of(code) if inside else set()
        if not left:
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self._left[frame.f_code].discard(frame.f_lineno)
        return self._line

    def report(self) -> dict[str, tuple[int, int]]:
        """Return for each module of the package how many lines have run, and how many lines can run."""
        seen: dict[str, set[int]] = {}
        for code, left in self._left.items():
            if code.co_filename.startswith(self._begins):
                seen.setdefault(code.co_filename, set()).update(lines_of(code) - left)
        found = {}
        for path in sorted(self._package.rglob("*.py")):
            module = compile(path.read_text(encoding="utf-8"), str(path), "exec")
            there = set().union(*map(lines_of, functions_of(module)))
            if there:
                run = seen.get(str(path), set()) & there
                found[str(path.relative_to(self._package.parent))] = len(run), len(there)
        return found
