"""Tests of real members that start with damaged data directories.

Some journals end in the middle of a frame or have a wrong byte. Some directories are empty, in use, or belong
to another member.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_addresses
from tests.waiting import wait_until

from .brokers import Writers
from .cluster import CONDITION_S, Cluster, Member, administer, make_members, running, token_flags

pytestmark = [pytest.mark.faults, pytest.mark.one_core, pytest.mark.timeout(300)]

SAYS_WHAT_TO_DO = "restore it, or empty this member's data directory while the others are up"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Run three members that accept membership changes over HTTP."""
    with running(make_members(tmp_path, arguments=token_flags(tmp_path))) as cluster:
        yield cluster


def stop(member: Member) -> None:
    member.kill()
    member.reap()


def wipe(member: Member) -> None:
    shutil.rmtree(member.data)


def wait_for_voter(member: Member) -> None:
    """Wait until a member with an emptied directory has caught up and is a voter again."""
    wait_until(
        lambda: member.status().get("role") in ("follower", "leader"), f"member {member.number} is a voter"
    )


def _says_that_its_tail_was_torn(member: Member) -> bool:
    return "journal torn tail cut" in member.log()


def test_torn_journals_of_all_lose_nothing_acknowledged(cluster: Cluster) -> None:
    """Check that incomplete frames at the ends of all journals lose no acknowledged entry.

    A kill during a write leaves an incomplete frame. No member has acknowledged the entry in this frame.
    """
    with Writers(cluster) as writers:
        writers.wait_for_load(cluster.members)
        for member in cluster.members:
            member.kill()
        for number, member in enumerate(cluster.members):
            member.reap()
            whole = member.journal.read_bytes()
            last = whole[whole.rindex(b"\xd7RKJ") :]
            with open(member.journal, "ab") as file:
                file.write(last[: (3, len(last) // 2, len(last) - 1)[number]])
        cluster.start()
        for member in cluster.members:
            wait_until(partial(_says_that_its_tail_was_torn, member), "its log says so")
        writers.wait_for_progress(cluster.members)
        print(writers.check())


def test_damaged_journal_is_refused_until_the_directory_is_emptied(cluster: Cluster) -> None:
    with Writers(cluster) as writers:
        writers.wait_for_load(cluster.members)
        member = cluster.others(cluster.leader())[0]
        stop(member)
        whole = bytearray(member.journal.read_bytes())
        whole[len(whole) // 3] ^= 1
        member.journal.write_bytes(whole)
        # The second start must refuse the journal, too, because only the operator may repair it.
        for _ in range(2):
            said = member.refuse_to_start()
            assert str(member.journal) in said
            assert SAYS_WHAT_TO_DO in said
        assert member.journal.read_bytes() == whole
        writers.wait_for_progress(cluster.others(member))
        wipe(member)
        member.start()
        wait_for_voter(member)
        writers.wait_for_progress(cluster.members)
        print(writers.check())


def test_truncated_snapshot_is_refused_until_it_is_restored_or_the_directory_emptied(
    cluster: Cluster,
) -> None:
    with Writers(cluster) as writers:
        writers.wait_for_load(cluster.members)
        member = cluster.leader()
        saved = wait_until(lambda: change(member, "snapshot"), f"member {member.number} saves a snapshot")
        snapshot = Path(saved["path"])
        writers.wait_for_load(cluster.members)
        stop(member)
        whole = snapshot.read_bytes()
        snapshot.write_bytes(whole[: len(whole) // 2])
        said = member.refuse_to_start()
        assert str(snapshot) in said
        assert SAYS_WHAT_TO_DO in said
        snapshot.write_bytes(whole)
        member.start()
        cluster.wait_ready()
        writers.wait_for_progress(cluster.members)
        stop(member)
        snapshots = sorted((member.data / "raft").glob("snapshot-*"))
        snapshots[-1].write_bytes(b"")
        assert SAYS_WHAT_TO_DO in member.refuse_to_start()
        wipe(member)
        member.start()
        wait_for_voter(member)
        writers.wait_for_progress(cluster.members)
        print(writers.check())


def test_directory_in_use_of_another_member_or_of_another_mode_is_refused(tmp_path: Path) -> None:
    (one,) = make_members(tmp_path, size=1)
    other, listen, http = free_addresses(3)
    second = replace(one, listen=listen, http=http)
    with running([one]) as cluster:
        assert "in use by another process" in second.refuse_to_start()
        wait_until(one.ready, "the first one goes on")
        assert one.process is not None
        assert one.process.poll() is None
        stop(one)
        second.raft, second.peers = other, f"{one.raft},{other}"
        assert f"belongs to member {one.raft}, not {other}" in second.refuse_to_start()
        independent = subprocess.run(
            [
                *(sys.executable, "-m", "routekeeper.nameserver", "--mode", "independent"),
                *("--listen", "127.0.0.1:0", "--http", "off", "--data", str(one.data)),
            ],
            capture_output=True,
            text=True,
            timeout=CONDITION_S,
            check=False,
        )
        assert independent.returncode == 2, independent.stderr
        assert "belongs to mode raft" in independent.stderr
        (one.data / "raft" / "vote").rename(one.root / "vote")
        assert "what this member promised is unknown" in one.refuse_to_start()
        (one.root / "vote").rename(one.data / "raft" / "vote")
        one.start()
        cluster.wait_ready()


def test_wiped_disks_one_after_the_other_lose_nothing(cluster: Cluster) -> None:
    with Writers(cluster) as writers:
        for member in [cluster.leader(), *cluster.members]:
            writers.wait_for_load(cluster.members)
            stop(member)
            wipe(member)
            member.start()
            wait_for_voter(member)
        writers.wait_for_progress(cluster.members)
        print(writers.check())


def test_all_disks_wiped_but_one_found_no_empty_cluster_beside_it(cluster: Cluster) -> None:
    with Writers(cluster) as writers:
        writers.wait_for_load(cluster.members)
        writers.stop()
        cluster.wait_equal()
        survivor, *emptied = cluster.members
        topics = survivor.served_topics()
        assert topics
        for member in cluster.members:
            stop(member)
        for member in emptied:
            wipe(member)
        for member in cluster.members:
            member.start()
        linked = {member.raft for member in emptied}
        wait_until(
            lambda: set(survivor.raft_status().get("linked", ())) == linked,
            "the survivor is linked with the empty ones",
        )
        watched_from = time.monotonic()
        while time.monotonic() < watched_from + 2.0:  # more than three times the longest election timeout
            for member in cluster.members:
                assert member.get("/v1/topics")[0] == 503, "no default read without a quorum"
                assert member.status()["role"] != "leader"
        for member in emptied:
            assert member.status()["role"] == "learner"
            assert member.get("/readyz")[0] == 503
        stale = survivor.topics("stale")
        # The survivor has not applied its last entries, because it does not know if they are committed.
        assert stale
        assert stale <= topics
        # Follow docs/operations.md: make a cluster of one from the survivor, then add the other members.
        for member in cluster.members:
            stop(member)
        survivor.arguments += ("--force-new-cluster",)
        survivor.start()
        wait_until(survivor.ready, "the survivor leads itself")
        assert survivor.served_topics() == topics
        for member in emptied:
            wipe(member)
            member.start()
            address = {"address": member.raft}
            wait_until(partial(change, survivor, "members", address), "the member is added")
        cluster.wait_ready()
        cluster.wait_equal()
        assert all(member.served_topics() == topics for member in cluster.members)


def change(member: Member, path: str, body: dict[str, str] | None = None) -> Any:
    """Request a membership change or a snapshot, and return the answer.

    Return None, so that the caller asks again, if there is no leader, another member leads, the outcome is
    unknown, or another change is under way.
    """
    code, answer = administer(member, "POST", path, body or {})
    if code == 200:
        return answer
    assert code in (421, 503, 504) or (code == 409 and "ask again" in answer["detail"]), (code, answer)
    return None


def test_data_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    if not os.path.ismount("/proc"):
        pytest.skip("no /proc, a place that even root cannot write to")
    member = make_members(tmp_path)[0]
    member.data = Path("/proc/routekeeper")
    assert "data directory" in member.refuse_to_start()
