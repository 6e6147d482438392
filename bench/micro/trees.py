"""Checkouts of other commits, which benchmarks compare with this checkout."""

from __future__ import annotations

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
