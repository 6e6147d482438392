"""Fixtures: simulated groups with a virtual clock, and checks that scenarios fail without a fix."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sim.engines import World


@pytest.fixture
def world() -> Callable[..., World]:
    """Return a function that makes a simulated group, which by default is started and has a leader."""

    def make(seed: int = 1, *, started: bool = True, **settings: object) -> World:
        made = World(seed, **settings)  # type: ignore[arg-type]
        if started:
            made.start()
            made.settle()
        return made

    return make


@pytest.fixture
def find_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that switches off a fix, runs a scenario, and checks that the scenario fails."""

    def find(
        switch_off: Callable[[pytest.MonkeyPatch], None],
        scenario: Callable[[Path, pytest.MonkeyPatch], object],
        *,
        also: tuple[type[Exception], ...] = (),
    ) -> None:
        def play() -> None:
            found = scenario(tmp_path, monkeypatch)
            if inspect.iscoroutine(found):
                # A scenario that hangs ends with a TimeoutError. This is not the expected failure.
                asyncio.run(asyncio.wait_for(found, 60))

        switch_off(monkeypatch)
        with pytest.raises((AssertionError, pytest.fail.Exception, *also)):
            play()

    return find
