"""Tests of a member whose journal was shortened, so that it may lack acknowledged entries."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nameserver.raft.cluster import Cluster, cluster_of, run
from tests.waiting import until

DURABILITIES = pytest.mark.parametrize("durability", ["journal", "fsync"])
MARK = b"\xd7RKJ"


def last_segment(raft: Path) -> Path:
    return sorted(raft.glob("journal-*"))[-1]


def cut_between_frames(raft: Path) -> None:
    path = last_segment(raft)
    os.truncate(path, path.read_bytes().rindex(MARK))


def cut_in_a_frame(raft: Path) -> None:
    path = last_segment(raft)
    os.truncate(path, path.read_bytes().rindex(MARK) + 13)


def zeros_in_place_of_the_last_frame(raft: Path) -> None:
    whole = (path := last_segment(raft)).read_bytes()
    path.write_bytes(whole[: whole.rindex(MARK)] + bytes(len(whole) - whole.rindex(MARK)))


def lose_the_last_segment(raft: Path) -> None:
    last_segment(raft).unlink()


def empty_the_last_segment(raft: Path) -> None:
    os.truncate(last_segment(raft), 0)


SHORTENED = pytest.mark.parametrize(
    "shorten",
    [
        cut_between_frames,
        cut_in_a_frame,
        zeros_in_place_of_the_last_frame,
        lose_the_last_segment,
        empty_the_last_segment,
    ],
    ids=lambda shorten: shorten.__name__,
)


async def wrote_two_segments(cluster: Cluster) -> str:
    """Start a group of one member and write entries into two segments.

    Return the member's name.
    """
    await cluster.start()
    (name,) = cluster.peers
    await cluster.put(*(b"%d" % i for i in range(50)))
    raft = cluster.config(name).data_dir / "raft"
    before = last_segment(raft)
    member = cluster.up[name]
    assert member._writer is not None
    member._writer.rotate()
    await until(lambda: last_segment(raft) != before)
    for i in range(50, 60):
        await cluster.put(b"%d" % i)
    return name


@DURABILITIES
@SHORTENED
def test_a_member_whose_journal_was_shortened_after_a_clean_stop_does_not_count(
    tmp_path: Path, durability: str, shorten: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, 1, durability=durability) as cluster:
            name = await wrote_two_segments(cluster)
            await cluster.close(name)
            shorten(cluster.config(name).data_dir / "raft")
            for _ in range(2):  # at the second start, the member still knows that entries may be missing
                await cluster.start(name)
                assert cluster.up[name].distrusted == (name,)
                assert not cluster.up[name].leads
                await cluster.close(name)
            await cluster.start(name, force_new_cluster=True)
            await until(lambda: cluster.up[name].leads)
            assert cluster.up[name].distrusted == ()

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert "it returns as a learner" in caplog.text


def as_if_killed(cluster: Cluster, name: str) -> None:
    """Copy the files of a running member to the folder ``killed``. A kill would leave them in this state."""
    data = cluster.config(name).data_dir
    shutil.copytree(data, data.with_name("killed"))


def take_its_place(cluster: Cluster, name: str) -> Path:
    data = cluster.config(name).data_dir
    shutil.rmtree(data)
    data.with_name("killed").rename(data)
    return data / "raft"


@DURABILITIES
@SHORTENED
async def test_a_member_whose_journal_was_shortened_after_a_kill_does_not_count(
    tmp_path: Path, durability: str, shorten: Callable[[Path], None]
) -> None:
    async with cluster_of(tmp_path, 1, durability=durability) as cluster:
        name = await wrote_two_segments(cluster)
        as_if_killed(cluster, name)
        await cluster.close(name)
        shorten(take_its_place(cluster, name))
        await cluster.start(name)
        assert cluster.up[name].distrusted == (name,)
        assert not cluster.up[name].leads


@DURABILITIES
async def test_a_frame_that_was_torn_by_a_kill_costs_nothing(tmp_path: Path, durability: str) -> None:
    async with cluster_of(tmp_path, 1, durability=durability) as cluster:
        name = await wrote_two_segments(cluster)
        as_if_killed(cluster, name)
        await cluster.close(name)
        path = last_segment(take_its_place(cluster, name))
        whole = path.read_bytes().rstrip(b"\0")
        path.write_bytes(whole + whole[whole.rindex(MARK) :][:-1])
        await cluster.start(name)
        await until(lambda: cluster.up[name].leads)
        assert cluster.payloads() == [b"%d" % i for i in range(60)]
        await cluster.close(name)
        await cluster.start(name)
        await until(lambda: cluster.up[name].leads)


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: os.truncate(path, 0)], ids=["missing", "empty"])
async def test_a_member_that_lost_the_record_of_its_journal_s_end_does_not_count(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    async with cluster_of(tmp_path, 1) as cluster:
        name = await wrote_two_segments(cluster)
        await cluster.close(name)
        lose(cluster.config(name).data_dir / "raft" / "end")
        await cluster.start(name)
        assert cluster.up[name].distrusted == (name,)
