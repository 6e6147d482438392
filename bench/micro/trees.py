"""Checkouts of other commits, which benchmarks compare with this checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Final

THIS: Final = Path(__file__).resolve().parents[2]


def nameserver_of(tree: Path) -> str:
    """Return the module that ``-m`` runs as a tree's nameserver; in older trees its name is ``nameserver``.

    Decide by the tree's files, not by an import. If the other tree's ``routekeeper`` has no nameserver, an
    import could find this tree's nameserver by an editable install. Then the benchmark would compare this
    tree with itself.
    """
    text = (tree / "nameserver" / "__main__.py").read_text()
    return "routekeeper.nameserver" if "from routekeeper." in text else "nameserver"
