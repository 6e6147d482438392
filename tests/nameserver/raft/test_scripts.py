"""Tests that run the scripts of events in ``testdata``.

The scripts check that defects of the raft library stay fixed, and that a group obeys docs/raft-rules.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.nameserver.raft.scripts import FOLDER, play


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_events_have_the_output_beside_them(name: str, world: Callable[..., Any]) -> None:
    play(world, name)
