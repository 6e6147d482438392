"""Small file systems for the files of a server. Mounting them needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def run_or_skip(*command: str) -> None:
    """Run a command. Skip the test if the command fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        pytest.skip(f"{command[0]} does not work here: {done.stderr.strip()}")


def need_root_and(*programs: str) -> None:
    """Skip the test without root or without one of the programs."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not here")


@contextmanager
def small_disk(at: Path, *, size_bytes: int) -> Iterator[None]:
    """Mount a tmpfs of this size at ``at``, and unmount it at the end of the ``with`` block."""
    need_root_and("mount", "umount")
    at.mkdir(parents=True)
    run_or_skip("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "routekeeper-test", str(at))
    try:
        yield
    finally:
        run_or_skip("umount", "--lazy", str(at))


def resize(at: Path, *, size_bytes: int) -> None:
    """Change the size of a small disk."""
    run_or_skip("mount", "-o", f"remount,size={size_bytes}", str(at))


def fill(at: Path) -> Path:
    """Write a file until the disk is full, and return its path, which the caller removes."""
    filler = at / "filler"
    with open(filler, "wb", buffering=0) as file:
        for chunk in (bytes(1 << 20), bytes(4096), b"x"):
            try:
                while True:
                    file.write(chunk)
            except OSError:
                pass  # the disk is full
    return filler
