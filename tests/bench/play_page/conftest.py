"""Playgrounds and a browser that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.bench.play.sessions import Session, session
from tests.browser import chromium


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    """A browser."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Three designs whose timers are divided by 60."""
    with session("--divisor", "60", out=tmp_path_factory.mktemp("three")) as made:
        made.await_started()
        yield made


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """The design without a leader alone, its timers divided by 60."""
    with session("--divisor", "60", "--designs", "independent", out=tmp_path_factory.mktemp("one")) as made:
        made.await_started()
        yield made
