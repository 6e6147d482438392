"""Seeds to play, from the environment: SIM_SEEDS how many, SIM_FIRST from where."""

from __future__ import annotations

import os

import pytest

SEEDS = int(os.environ.get("SIM_SEEDS", "8"))
FIRST = int(os.environ.get("SIM_FIRST", "1"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test that asks for a ``seed`` all of them."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(FIRST, FIRST + SEEDS))
