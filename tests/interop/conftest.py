"""Fixtures that run Apache RocketMQ's own programs next to ours.

Without Java (or without Maven while the cache is cold) the tests are skipped with one line that says so;
where the environment has ``CI=true`` a missing tool is a failure instead, so that CI never skips silently.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .apache import Apache, ToolMissing


def _open(release: str, folder: Path) -> Iterator[Apache]:
    try:
        apache = Apache.open(release, folder)
    except ToolMissing as error:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"CI must not skip: {error}", pytrace=False)
        pytest.skip(str(error))
    try:
        yield apache
    finally:
        apache.close()


@pytest.fixture(scope="session")
def apache_4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    """Apache RocketMQ 4.9.7; everything started by it ends with the session."""
    yield from _open("4.9.7", tmp_path_factory.mktemp("apache-4"))


@pytest.fixture(scope="session")
def apache_5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    """Apache RocketMQ 5.3.3; everything started by it ends with the session."""
    yield from _open("5.3.3", tmp_path_factory.mktemp("apache-5"))


@pytest.fixture(scope="session")
def apaches(apache_4: Apache, apache_5: Apache) -> dict[str, Apache]:
    """Both releases by version."""
    return {"4.9.7": apache_4, "5.3.3": apache_5}
