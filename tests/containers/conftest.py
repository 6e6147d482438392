"""Fixtures: a container engine and an image, which all container tests share."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from .engine import ENDING, IMAGE, PROGRAMS, Engine, say


def end(number: int, _: object) -> NoReturn:
    """End the test session after a signal, so that all fixtures remove their containers and files."""
    pytest.exit(f"ended by {signal.Signals(number).name}", returncode=128 + number)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        pytest.fail(f"make containers needs root (uid {os.geteuid()}) and, from Debian: {' '.join(missing)}")
    previous = {number: signal.signal(number, end) for number in ENDING}
    root = Path(tempfile.mkdtemp(prefix="rk-containers-"))
    root.chmod(0o755)  # user 10001 in the containers must be able to read the secrets
    images_of = os.environ.get("CONTAINERS_IMAGES_OF")
    engine = Engine(root, Path(images_of) if images_of else None)
    try:
        yield engine
    finally:
        engine.close()
        for number, handler in previous.items():
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def base(engine: Engine) -> str:
    began = time.monotonic()
    base = engine.prepare()
    say(f"base image {engine.image_mb(base):.0f} MB, and wheels, in {time.monotonic() - began:.0f} s")
    return base


@pytest.fixture(scope="session")
def image(engine: Engine, request: pytest.FixtureRequest) -> str:
    if engine.images_of is None:
        base = request.getfixturevalue("base")
        began = time.monotonic()
        engine.build("server", IMAGE, base)
        say(f"image {engine.image_mb(IMAGE):.0f} MB in {time.monotonic() - began:.0f} s")
    return IMAGE
