"""Fixtures for tests of the playground's page: a browser, and playgrounds that a module's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from routekeeper.bench.play.model import Change
from tests.bench.play.sessions import Session, session
from tests.bench.play_page import written
from tests.browser import chromium


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    """Yield a browser."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Yield a replayed session of three designs without faults. A replay starts no process of a design."""
    out = tmp_path_factory.mktemp("quiet")
    folder = written.write(out / "session", [Change(id=0, at_ms=1, design="raft", topics=["Orders"])])
    with session("--replay", str(folder), out=out) as made:
        yield made


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Yield a playground of all three designs, with timers divided by 60."""
    with session("--divisor", "60", out=tmp_path_factory.mktemp("three")) as made:
        made.await_started()
        yield made


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Yield a playground of the design independent, with timers divided by 60."""
    with session("--divisor", "60", "--designs", "independent", out=tmp_path_factory.mktemp("one")) as made:
        made.await_started()
        yield made
