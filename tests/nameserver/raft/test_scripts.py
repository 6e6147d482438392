"""Tests that run scripts of events.

The scripts show fixed defects of the raft library, and rules of the raft group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.nameserver.raft.scripts import FOLDER, play


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_events_have_the_output_beside_them(name: str, world: Callable[..., Any]) -> None:
    play(world, name)
