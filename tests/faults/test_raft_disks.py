"""A full or hung disk of one member loses no acknowledged registration, while all members are under load.

``RAFT_FAULT_CYCLES`` is the number of repetitions (default: a few).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from routekeeper.nameserver.raft.types import ELECTION_TIMEOUT_MS
from tests.waiting import wait_until

from .brokers import Registers, Writers
from .cluster import (
    Cluster,
    Member,
    chooser,
    cycles,
    hold,
    make_members,
    running,
)
from .disks import filled, freezable_disks, frozen, small_disks

ELECTION_TIMEOUT_S = ELECTION_TIMEOUT_MS / 1000

pytestmark = [pytest.mark.faults, pytest.mark.one_core, pytest.mark.timeout(300 + 90 * cycles(0))]


#: Seconds after which a frozen disk answers again, even if the test has not ended the freeze.
FROZEN_S = 20.0


def test_full_disk_of_one_loses_no_acknowledged_registration(tmp_path: Path) -> None:
    # This test uses durability "fsync", and the next test uses "journal". The next test limits the size of
    # each file instead: for a journal, this is the same fault as a full disk.
    members = make_members(tmp_path, arguments=("--durability", "fsync"))
    with small_disks(members), running(members) as cluster:
        fill_again_and_again(cluster, filled)


def test_file_size_limit_of_one_loses_no_acknowledged_registration(cluster: Cluster) -> None:
    def limited(member: Member) -> AbstractContextManager[None]:
        return member.file_size_limit(max(member.journal.stat().st_size, member.log_size()) + 8192)

    fill_again_and_again(cluster, limited)


def wait_for_line(member: Member, text: str, since: int) -> None:
    wait_until(lambda: text in member.log(since), f"member {member.number} says {text!r}")


def fill_again_and_again(cluster: Cluster, full: Callable[[Member], AbstractContextManager[None]]) -> None:
    took, rng = [], chooser()
    with Writers(cluster) as writers, Registers(cluster) as registers:
        for cycle in range(cycles(2)):
            writers.wait_for_load(cluster.members)
            leader = cluster.leader()
            member = leader if cycle % 2 == 0 else rng.choice(cluster.others(leader))
            said = member.log_size()
            with full(member):
                wait_for_line(member, "journal full", said)
                full_at = time.monotonic()
                took.append(writers.wait_for_progress(cluster.others(member)))
                # Wait longer than the time after which a leader that cannot write its journal steps down.
                hold(full_at + 1.5)
                writers.wait_for_progress(cluster.others(member))
                assert member.get("/v1/topics?consistency=stale")[0] == 200
            # Wait until the member has noticed that its disk has space again. An acknowledgement does not
            # prove that, because the member also acknowledges entries that only the other members have
            # stored.
            wait_for_line(member, "journal has room again", said)
            writers.wait_for_progress(cluster.members)
            cluster.wait_ready()
        print(registers.check(promise_s=ELECTION_TIMEOUT_S))
        print(writers.check())
    print("full to next acknowledged registration at the others, s:", [round(s, 3) for s in took])


# Both settings need a test, because ``fsync`` works differently. It fills the end of the journal's last
# segment with zeros. It also sometimes lets the event loop wait until a write is on the disk.
@pytest.mark.parametrize("durability", ["journal", "fsync"])
def test_disk_that_stands_still_loses_no_acknowledged_registration(tmp_path: Path, durability: str) -> None:
    took, rng = [], chooser()
    members = make_members(tmp_path, arguments=("--durability", durability))
    with (
        freezable_disks(members),
        running(members) as cluster,
        Writers(cluster) as writers,
        Registers(cluster) as registers,
    ):
        for cycle in range(cycles(1)):
            writers.wait_for_load(cluster.members)
            leader = cluster.leader()
            # Test both roles even in a run of only one cycle. With one durability the leader's disk hangs,
            # and with the other durability a follower's disk hangs.
            hits_leader = (cycle + 2 * (durability == "fsync")) % 3 < 2
            member = leader if hits_leader else rng.choice(cluster.others(leader))
            with frozen(member, longest_s=FROZEN_S) as is_frozen:
                frozen_at = time.monotonic()
                took.append(writers.wait_for_progress(cluster.others(member)))
                while True:
                    assert member.get("/v1/topics?consistency=stale", timeout_s=2 * FROZEN_S)[0] == 200
                    assert is_frozen(), "what needs no disk waits for it"
                    if time.monotonic() > frozen_at + 4.0:
                        break
            writers.wait_for_progress(cluster.members)
            cluster.wait_ready()
        print(registers.check(promise_s=ELECTION_TIMEOUT_S))
        print(writers.check())
    print("still to next acknowledged registration at the others, s:", [round(s, 3) for s in took])
