"""A full or hanging disk for a single member. Most of these functions need root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from .cluster import Member


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        pytest.skip(f"{command[0]} does not work here: {done.stderr.strip()}")


def _need_root_and(*programs: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not here")


@contextmanager
def small_disks(members: list[Member], *, size_bytes: int = 48 << 20) -> Iterator[None]:
    """Mount a small tmpfs at the data directory of each member."""
    _need_root_and("mount", "umount")
    with ExitStack() as stack:
        for member in members:
            member.data.mkdir()
            _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "routekeeper-test", str(member.data))
            stack.callback(_run, "umount", "--lazy", str(member.data))
        yield


def enlarge(member: Member, *, size_bytes: int = 48 << 20) -> None:
    """Increase the size of a member's small disk."""
    _run("mount", "-o", f"remount,size={size_bytes}", str(member.data))


@contextmanager
def filled(member: Member) -> Iterator[None]:
    """Fill the disk of a member's data directory; free the space at the end."""
    filler = member.data / "filler"
    try:
        with open(filler, "wb", buffering=0) as file:
            for chunk in (bytes(1 << 20), bytes(4096)):
                try:
                    while True:
                        file.write(chunk)
                except OSError:
                    pass  # Try a smaller chunk: the disk has no space left for a chunk of this size.
        yield
    finally:
        filler.unlink()


@contextmanager
def freezable_disks(members: list[Member], *, size_mib: int = 96) -> Iterator[None]:
    """Mount a new ext4 file system at the data directory of each member."""
    _need_root_and("mount", "umount", "mkfs.ext4", "fsfreeze")
    with ExitStack() as stack:
        for member in members:
            member.data.mkdir()
            image = member.data.with_suffix(".ext4")
            with open(image, "wb") as file:
                file.truncate(size_mib << 20)
            _run("mkfs.ext4", "-q", "-m", "0", str(image))
            _run("mount", "-o", "loop", str(image), str(member.data))
            stack.callback(_run, "umount", "--lazy", str(member.data))
        yield


@contextmanager
def frozen(member: Member, *, longest_s: float) -> Iterator[Callable[[], bool]]:
    """Let the disk of a member's data directory hang: every write waits.

    Yield a function that returns True while the disk hangs.

    A separate process ends the hang after ``longest_s`` even if the test is killed. Otherwise, processes that
    wait for the frozen disk would remain for ever, because no signal can kill them.
    """
    thawing = member.data.with_suffix(".thawing")
    thawing.unlink(missing_ok=True)
    script = (
        f'fsfreeze -f "{member.data}" && echo frozen && read -t {longest_s} line; touch "{thawing}";'
        f' fsfreeze -u "{member.data}"'
    )
    freezer = subprocess.Popen(
        ["bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert freezer.stdin is not None
    assert freezer.stdout is not None
    try:
        assert freezer.stdout.readline() == "frozen\n", "the file system cannot be frozen"
        yield lambda: not thawing.exists()
    finally:
        freezer.stdin.close()
        freezer.wait(60)
        freezer.stdout.close()
