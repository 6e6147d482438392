"""The packages of the extra ``bench``, which ``pip install routekeeper`` alone does not install."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from typing import Final

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def end_without_extra(program: str) -> None:
    """End the program with exit code 2 and one line of text if a package of the extra is not installed."""
    if missing := lacking():
        print(
            f"{program}: not installed: {', '.join(missing)}; run pip install 'routekeeper[bench]'",
            file=sys.stderr,
        )
        sys.exit(2)


def lacking() -> list[str]:
    """Return the packages of the extra ``bench`` that are not installed."""
    wanted = importlib.metadata.requires("routekeeper") or []
    names = [_NAME.match(each) for each in wanted if re.search(r"extra == ['\"]bench['\"]", each)]
    return [name[0] for name in names if name is not None and not _installed(name[0])]


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
