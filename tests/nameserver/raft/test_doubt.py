"""Tests of power cuts with durability ``journal``.

A member that may have lost acknowledged entries must not count towards a majority. This is rule 9 of
docs/raft-rules.md.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from routekeeper.nameserver.raft.consensus.log import OP_COMMIT
from routekeeper.nameserver.raft.storage.identity import DataDirectory
from routekeeper.nameserver.raft.storage.journal import HEADER_SIZE, Journal
from routekeeper.nameserver.raft.types import RaftStartError, Role
from tests.nameserver.raft.cluster import Cluster, cluster_of, run
from tests.waiting import until


def cut_power(cluster: Cluster, name: str) -> None:
    """Simulate a power cut of a stopped member's machine.

    The files then look as if there was no clean stop, and a page of the journal is damaged.
    """
    directory = DataDirectory(cluster.config(name))
    directory.state = replace(directory.state, boot="another", synced=False)
    directory.standing_to_save()()
    path = sorted(directory.raft.glob("journal-*"))[-1]
    directory.close()
    raw = path.read_bytes()
    middle = HEADER_SIZE + (len(raw) - HEADER_SIZE) // 2
    path.write_bytes(raw[:middle] + bytes(min(200, len(raw) - middle)) + raw[middle + 200 :])


@pytest.mark.slow
def test_one_that_lost_power_returns_as_a_learner_and_catches_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.start()
            payloads = [b"%d" % i for i in range(50)]
            for payload in payloads:
                await cluster.put(payload)
            await cluster.settled()
            for name in cluster.peers:
                await cluster.close(name)
            one, *others = cluster.peers
            cut_power(cluster, one)
            await cluster.start(one)
            assert cluster.up[one].role is Role.LEARNER
            assert len(cluster.machines[one].applied) < len(payloads)  # this member's log is incomplete
            await cluster.start(*others)
            await until(lambda: cluster.up[one].votes)
            await cluster.put(b"more")
            await cluster.settled()
            assert cluster.payloads() == [*payloads, b"more"]

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert "the machine restarted without a clean stop" in caplog.text


@pytest.mark.slow
def test_without_a_trusted_majority_nobody_leads_until_one_is_forced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.start()
            for i in range(50):
                await cluster.put(b"%d" % i)
            await cluster.settled()
            for name in cluster.peers:
                await cluster.close(name)
            best, *lost = cluster.peers
            for name in lost:
                cut_power(cluster, name)
            await cluster.start()
            await until(lambda: all(set(m.distrusted) == set(lost) for m in cluster.up.values()))
            await until(lambda: all(m.best == best for m in cluster.up.values()))
            assert cluster.leader is None
            assert all(m.role is not Role.LEADER for m in cluster.up.values())
            for name in cluster.peers:
                await cluster.close(name)
            await cluster.start(best, force_new_cluster=True)
            await until(lambda: cluster.up[best].leads)
            assert cluster.payloads() == [b"%d" % i for i in range(50)]

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert "no majority of members is trusted" in caplog.text
    assert "--force-new-cluster" in caplog.text


async def test_a_commit_index_beyond_the_log_is_loss_and_refused(tmp_path: Path) -> None:
    """A member whose log lost committed entries must not start if its machine was not restarted.

    A power cut may lose entries, but it also restarts the machine. Then the member starts, and knows that
    entries may be missing. In this test, the machine was not restarted, so the loss must be a defect.
    """
    async with cluster_of(tmp_path, 1) as cluster:
        await cluster.start()
        await cluster.put(b"x")
        (name,) = cluster.peers
        await cluster.close(name)
        journal = Journal(cluster.config(name).data_dir / "raft", sync=False)
        journal.recover()
        journal.append([(OP_COMMIT, 900)])
        journal.close()
        with pytest.raises(RaftStartError, match="entries up to 900 were committed"):
            await cluster.start(name)
