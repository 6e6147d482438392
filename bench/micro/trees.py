"""Checkouts of other commits, with which benchmarks compare this one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

THIS: Final = Path(__file__).resolve().parents[2]


def nameserver_of(tree: Path) -> str:
    """Return the module that ``-m`` runs as the nameserver of a tree: older trees have it at the top.

    The files of the tree decide, not an import. If the other tree's ``routekeeper`` has no nameserver, an
    editable install would supply this tree's, and the benchmark would compare this tree with itself.
    """
    text = (tree / "nameserver" / "__main__.py").read_text()
    return "routekeeper.nameserver" if "from routekeeper." in text else "nameserver"
