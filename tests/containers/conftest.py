"""One engine, one image, for every cluster."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .engine import PROGRAMS, Engine, say


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        pytest.fail(f"make containers needs root (uid {os.geteuid()}) and, from Debian: {' '.join(missing)}")
    root = Path(tempfile.mkdtemp(prefix="rk-containers-"))
    root.chmod(0o755)  # secrets lie in it, which user 10001 reads
    engine = Engine(root)
    previous = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that it cleans up
    try:
        yield engine
    finally:
        engine.close()
        signal.signal(signal.SIGTERM, previous)


@pytest.fixture(scope="session")
def base(engine: Engine) -> str:
    began = time.monotonic()
    base = engine.base()
    say(f"base image {engine.image_mb(base):.0f} MB in {time.monotonic() - began:.0f} s")
    return base


@pytest.fixture(scope="session")
def image(engine: Engine, base: str) -> str:
    began = time.monotonic()
    engine.build("server", "routekeeper", base, "requirements.lock")
    say(f"image {engine.image_mb('routekeeper'):.0f} MB in {time.monotonic() - began:.0f} s")
    return "routekeeper"
