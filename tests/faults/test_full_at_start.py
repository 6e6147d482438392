"""If the disk is full at the first start, a member prints one error line and leaves no half-written files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.broker.disks import resize
from tests.waiting import wait_until

from .cluster import Member, make_members
from .disks import small_disks

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

PAGE = 4096
VOTE, END, STANDING, IDENTITY = 2, 3, 32, 1
"""Sizes of four files in pages of :data:`PAGE` bytes.

A new data directory gets the four files in this order, and after them the journal.
"""


@pytest.mark.parametrize(
    ("pages", "where"),
    [
        pytest.param(VOTE + END + STANDING // 2, "data directory {data}", id="standing"),
        pytest.param(VOTE + END + STANDING + IDENTITY, "{data}/raft", id="journal"),
    ],
)
def test_a_full_disk_at_the_first_start_is_one_line_and_leaves_nothing_behind(
    tmp_path: Path, pages: int, where: str
) -> None:
    member = make_members(tmp_path, size=1)[0]
    with small_disks([member], size_bytes=pages * PAGE):
        said = member.refuse_to_start()
        assert said.startswith(f"mqnamesrv: raft: {where.format(data=member.data)}"), said
        assert said.endswith(": No space left on device"), said
        left = {str(path.relative_to(member.data)) for path in member.data.rglob("*") if path.is_file()}
        assert left <= {"lock", "raft/vote", "raft/end"}, "what is left is what the next start makes anew"
        resize(member.data, size_bytes=48 << 20)
        starts(member)


def test_a_file_size_limit_at_the_first_start_is_one_line(tmp_path: Path) -> None:
    if shutil.which("prlimit") is None:
        pytest.skip("prlimit is not here")
    member = make_members(tmp_path, size=1)[0]
    member.prefix = ("prlimit", f"--fsize={PAGE}")
    said = member.refuse_to_start()
    assert said == f"mqnamesrv: raft: data directory {member.data}: File too large"
    member.prefix = ()
    starts(member)


def starts(member: Member) -> None:
    try:
        member.start()
        wait_until(member.ready, "it leads itself")
    finally:
        member.kill()
        member.reap()
