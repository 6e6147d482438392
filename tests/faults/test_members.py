"""Tests of groups of real nameservers whose members change.

The tests add and remove members, move leadership, and restore a group that lost its quorum.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.standstill import elapsed
from tests.waiting import wait_until

from .brokers import Call, Writers, judge
from .cluster import (
    CONDITION_S,
    TOKEN,
    Cluster,
    Member,
    administer,
    make_members,
    running,
    token_flags,
)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


def _members(root: Path, size: int) -> list[Member]:
    """Return members that accept membership changes over HTTP."""
    # The election timeout is long, so that only requests of the test move leadership. A busy machine must not
    # cause elections.
    arguments = (*token_flags(root), "--election-timeout-ms", "2000")
    return make_members(root, size=size, arguments=arguments)


def _fetched(member: Member) -> bytes:
    """Return a new snapshot of one member, as an operator downloads it."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/octet-stream"}
    request = urllib.request.Request(f"http://{member.http}/v1/raft/snapshot", method="POST", headers=headers)
    with urllib.request.urlopen(request, timeout=CONDITION_S) as response:
        assert response.headers.get_content_type() == "application/octet-stream"
        found: bytes = response.read()
        return found


def _done(cluster: Cluster, method: str, path: str, body: dict[str, Any] | bytes | None = None) -> Any:
    """Make a change like an operator: ask the leader, and retry if the problem is temporary."""

    def asked() -> Any:
        code, answer = administer(cluster.leader(), method, path, body)
        retry = (
            code in (421, 503)
            or (code == 409 and "ask again" in answer["detail"])
            # POST /members may be repeated, because the second request continues the same change.
            or (code == 504 and (method, path) == ("POST", "members"))
        )
        assert retry or code == 200, (code, answer)
        return None if retry else answer

    return wait_until(asked, f"{method} {path}")


def _join(cluster: Cluster, newcomer: Member) -> None:
    """Start a member with an empty disk and add it to the group.

    The new member's list of peers names the current members and the new member.
    """
    shutil.rmtree(newcomer.data, ignore_errors=True)
    known = {member.raft for member in cluster.members} | {newcomer.raft}
    newcomer.peers = ",".join(sorted(known))
    newcomer.start()
    assert newcomer.status()["role"] == "learner"
    for _ in range(2):  # the second request changes nothing
        answer = _done(cluster, "POST", "members", {"address": newcomer.raft})
        assert (set(answer["voters"]), answer["learners"]) == (known, [])
    cluster.members.append(newcomer)
    cluster.wait_ready()


class _Reader:
    """A client that asks the next nameserver whenever a nameserver does not answer."""

    def __init__(self, members: list[Member]) -> None:
        self._members = members
        self._stop = threading.Event()
        self.reads = 0
        self.failed: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        at = 0
        while not self._stop.is_set():
            for step in range(len(self._members)):
                member = self._members[(at + step) % len(self._members)]
                code, body = member.get("/v1/topics?consistency=default")
                if code == 200 and "shared" in body["topics"]:
                    at = (at + step) % len(self._members)
                    break
                if code != 0:  # The member runs, but it refuses the read.
                    self.failed.append(f"member {member.number}: {code} {body!r}")
            else:
                self.failed.append("no member answered")
            self.reads += 1
            self._stop.wait(0.005)

    def __enter__(self) -> _Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(CONDITION_S)


def _restart(cluster: Cluster, member: Member) -> None:
    assert member.process is not None
    member.signal(signal.SIGTERM)
    assert member.process.wait(CONDITION_S) == 0, member.log()
    member.reap()
    member.start()
    cluster.wait_ready()


def _check(cluster: Cluster, calls: list[Call]) -> None:
    cluster.wait_ready()
    cluster.wait_equal()
    for member in cluster.members:
        topics = member.topics("stale")
        assert topics is not None
        wrong = [line for line in judge(calls, topics) if line.startswith(("lost", "refused", "from"))]
        assert not wrong, f"member {member.number}: {wrong[:5]}"
    assert sum(call.outcome == "applied" for call in calls) > 50


def test_members_come_and_go_leadership_moves_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    *founders, fourth = _members(tmp_path, 4)
    for member in founders:
        member.peers = ",".join(m.raft for m in founders)
    with running(list(founders)) as cluster:
        try:
            with Writers(Cluster(list(founders))) as writers:
                writers.wait_for_load(founders)
                name = administer(founders[0], "GET", "status")[1]["cluster"]
                _join(cluster, fourth)
                assert administer(fourth, "GET", "status")[1]["cluster"] == name
                writers.wait_for_load(founders)

                # A follower that was removed from the group prints one line and ends. It refuses to start
                # again.
                leader = cluster.leader()
                gone = next(member for member in founders if member is not leader)
                answer = _done(cluster, "DELETE", f"members/{gone.raft}")
                assert set(answer["members"]) == {m.raft for m in cluster.members if m is not gone}
                assert gone.process is not None
                assert gone.process.wait(CONDITION_S) == 3, gone.log()
                said = [line for line in gone.log().splitlines() if line.startswith("mqnamesrv: ")]
                assert len(said) == 1, said
                assert "was removed" in said[0]
                gone.reap()
                cluster.members.remove(gone)
                assert "was removed from its cluster" in gone.refuse_to_start()
                rest = [member for member in founders if member is not gone]
                writers.wait_for_load(rest)

                # Leadership moves to the member that the request names, even if this member is new. A member
                # that is not the leader refuses the request and names the leader.
                assert _done(cluster, "POST", "transfer", {"to": fourth.raft}) == {"leader": fourth.raft}
                assert cluster.leader() is fourth
                wait_until(lambda: rest[0].status().get("leader") == fourth.raft, "the others know it")
                code, problem = administer(rest[0], "POST", "transfer", {})
                assert (code, problem["leader"]) == (421, fourth.raft)
                writers.wait_for_load(rest)

                # Restart one member after another. Meanwhile, every read of a client must succeed.
                with _Reader(cluster.members) as reader:
                    for member in list(cluster.members):
                        _restart(cluster, member)
                    wait_until(lambda: reader.reads > 200, "enough was read")
                assert reader.failed == []

                # If a leader is asked to remove itself, it first hands over leadership.
                leader = cluster.leader()
                code, problem = administer(leader, "DELETE", f"members/{leader.raft}")
                assert code == 421
                successor = next(m for m in cluster.members if m.raft == problem["leader"])
                assert successor is not leader
                wait_until(lambda: cluster.leader() is not leader, "somebody else leads")
                _done(cluster, "DELETE", f"members/{leader.raft}")
                assert leader.process is not None
                assert leader.process.wait(CONDITION_S) == 3, leader.log()
                leader.reap()
                cluster.members.remove(leader)
                _join(cluster, leader)  # A removed member may join again with an empty disk.
                _check(cluster, writers.stop())
        finally:
            Cluster([*founders, fourth]).stop()


def test_lost_quorum_is_made_good_from_the_survivors_data(tmp_path: Path) -> None:
    members = _members(tmp_path, 3)
    with running(list(members)) as cluster, Writers(Cluster(list(members))) as writers:
        writers.wait_for_load(members)
        writers.stop()
        cluster.wait_equal()
        calls = list(writers.calls)
        survivor, *lost = members
        for member in lost:
            member.kill()
            member.reap()
        wait_until(lambda: survivor.get("/readyz")[0] == 503, "the survivor knows that it is alone")
        survivor.kill()
        survivor.reap()
        cluster.members[:] = [survivor]
        usual = survivor.arguments
        survivor.arguments = (*usual, "--force-new-cluster")
        survivor.start()
        cluster.wait_ready()
        # First restart with the flag, as if the operator had forgotten to remove it. The flag must have no
        # effect. Then restart without the flag.
        name = administer(survivor, "GET", "status")[1]["cluster"]
        _restart(cluster, survivor)
        assert "force-new-cluster ignored" in survivor.log()
        assert administer(survivor, "GET", "status")[1]["cluster"] == name
        survivor.arguments = usual
        _restart(cluster, survivor)
        _check(cluster, calls)

        # If a lost member starts again with its old data, it does not belong to the new cluster. The survivor
        # and the lost member must ignore each other.
        term, said = survivor.status()["term"], survivor.log_size()
        stranger = lost[0]
        stranger.start()
        wait_until(lambda: "is no member" in survivor.log() + stranger.log(), "they are strangers")
        assert stranger.get("/readyz")[0] == 503
        # Check the term before other members join. In a group of several members, a busy machine may cause
        # elections, which increase the term.
        if "journal stalls" not in survivor.log(said):  # else the leader stepped down, because its disk hung
            assert survivor.status()["term"] == term
        stranger.kill()
        stranger.reap()
        for member in lost:
            _join(cluster, member)
        with Writers(cluster) as again:
            again.wait_for_load(members)
            calls += [replace(call) for call in again.stop()]
            # The same brokers register again, but with new topics. The old topics must remain, because a
            # registration replaces only topics of the same name.
            cluster.wait_equal()
            topics = survivor.topics("stale")
            assert topics is not None
            assert {call.topic for call in calls if call.outcome == "applied"} <= topics


def test_lost_group_is_made_good_from_a_snapshot(tmp_path: Path) -> None:
    members = _members(tmp_path, 3)
    with running(list(members)) as cluster, Writers(Cluster(list(members))) as writers:
        writers.wait_for_load(members)
        writers.stop()
        cluster.wait_equal()
        leader = cluster.leader()
        digest = leader.get("/v1/digest")[1]["digest"]
        saved = _done(cluster, "POST", "snapshot", {})
        assert Path(saved["path"]).stat().st_size == saved["size"]
        image = _fetched(leader)
        code, problem = administer(leader, "POST", "restore", image)
        assert code == 409
        assert "--force-new-cluster" in problem["detail"]
        for member in members:  # delete all data, so that only the snapshot remains
            member.kill()
            member.reap()
            shutil.rmtree(member.data)
        first, *others = members
        cluster.members[:] = [first]
        usual = first.arguments
        first.arguments = (*usual, "--force-new-cluster")
        first.start()
        cluster.wait_ready()
        for broken in (image[:-1], image[:-1] + b"x", b"\0" * 8_000_000):
            code, problem = administer(first, "POST", "restore", broken)
            assert code == 409, problem
        began = time.monotonic()
        restored = _done(cluster, "POST", "restore", image)
        assert elapsed(began) < 10
        assert restored["digest"] == digest
        first.arguments = usual
        _restart(cluster, first)
        for member in others:
            _join(cluster, member)
        _check(cluster, writers.calls)
        assert first.get("/v1/digest")[1]["digest"] == digest
