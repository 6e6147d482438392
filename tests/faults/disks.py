"""A full or hanging disk for a single member. Most of these functions need root."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tests.broker.disks import fill, need_root_and, run_or_skip, small_disk

from .cluster import Member


@contextmanager
def small_disks(members: list[Member], *, size_bytes: int = 48 << 20) -> Iterator[None]:
    """Mount a small tmpfs at the data directory of each member."""
    with ExitStack() as stack:
        for member in members:
            stack.enter_context(small_disk(member.data, size_bytes=size_bytes))
        yield


@contextmanager
def filled(member: Member) -> Iterator[None]:
    """Fill the disk of a member's data directory, and free the space at the end."""
    filler = fill(member.data)
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def freezable_disks(members: list[Member], *, size_mib: int = 96) -> Iterator[None]:
    """Mount a new ext4 file system at the data directory of each member."""
    need_root_and("mount", "umount", "mkfs.ext4", "fsfreeze")
    with ExitStack() as stack:
        for member in members:
            member.data.mkdir()
            image = member.data.with_suffix(".ext4")
            with open(image, "wb") as file:
                file.truncate(size_mib << 20)
            run_or_skip("mkfs.ext4", "-q", "-m", "0", str(image))
            run_or_skip("mount", "-o", "loop", str(image), str(member.data))
            stack.callback(run_or_skip, "umount", "--lazy", str(member.data))
        yield


@contextmanager
def frozen(member: Member, *, longest_s: float) -> Iterator[Callable[[], bool]]:
    """Let the disk of a member's data directory hang, so that every write waits.

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
