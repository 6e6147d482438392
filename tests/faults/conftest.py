"""A fixture that starts a new cluster of real processes for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster, make_members, running


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Run three members with default settings."""
    with running(make_members(tmp_path)) as cluster:
        yield cluster
