"""Checkouts of other commits, which benchmarks compare with this checkout."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Final

THIS: Final = Path(__file__).resolve().parents[2]


def nameserver_of(tree: Path) -> str:
    """Return the name of a tree's nameserver module, for ``python -m``; in older trees it is ``nameserver``.

    Look at the tree's files; do not import the module. An import could find the nameserver of this tree, if
    this tree is installed as editable and the other tree has no such module. Then the benchmark would compare
    this tree with itself.
    """
    text = (tree / "nameserver" / "__main__.py").read_text()
    return "routekeeper.nameserver" if "from routekeeper." in text else "nameserver"


def program_of(tree: Path | None, python: str) -> tuple[str, str]:
    """Return the command that runs ``-m PROGRAM``, and the nameserver's module.

    Args:
        tree: Checkout whose programs run; None for this checkout.
        python: Command of a Python; empty for this Python.
    """
    interpreter = python or shlex.quote(sys.executable)
    if tree is None:
        return interpreter, "routekeeper.nameserver"
    return f"env {shlex.quote(f'PYTHONPATH={tree.resolve()}')} {interpreter}", nameserver_of(tree)
