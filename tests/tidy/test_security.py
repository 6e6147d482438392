"""Tests that the limits in docs/security.md equal the limits in the programs."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "security.md"
BOUNDS = re.findall(r"^\| .* \| ([0-9.]+)[^|]* \| `([\w.]+)` \|$", DOCUMENT.read_text(), re.MULTILINE)


def test_bounds_are_found() -> None:
    assert len(BOUNDS) >= 20


@pytest.mark.parametrize(("stated", "name"), BOUNDS, ids=[name for _, name in BOUNDS])
def test_bound_is_what_the_document_states(stated: str, name: str) -> None:
    parts = name.split(".")
    while True:
        try:
            found: Any = importlib.import_module(".".join(parts))
            break
        except ModuleNotFoundError:
            parts.pop()
    for part in name.split(".")[len(parts) :]:
        found = getattr(found() if isinstance(found, type) else found, part)
    assert float(stated) == found
