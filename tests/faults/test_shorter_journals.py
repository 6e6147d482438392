"""A group must not lose an acknowledged value if one member's journal lost its end.

The only other member that has all the lost entries is not running.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.waiting import wait_until

from .brokers import ask
from .cluster import Member, make_members, running

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.one_core, pytest.mark.timeout(300)]

NAMESPACE = "kept"
VALUES = {f"key-{number}": f"value-{number}" for number in range(60)}
#: Three times the longest election timeout, in seconds. A group that can elect a leader elects it within this
#: time.
ELECTION_S = 3.0


def put_values(member: Member) -> None:
    """Write all values at one member, one after another. Wait for the acknowledgement of each value."""
    with BlockingClient() as client:
        for key, value in VALUES.items():
            fields = {"namespace": NAMESPACE, "key": key, "value": value}
            request = RemotingCommand.request(RequestCode.PUT_KV_CONFIG, fields)
            wait_until(lambda r=request: ask(client, member.listen, r) == "applied", f"{key} is acknowledged")  # type: ignore[misc]


def values(member: Member) -> dict[str, str] | None:
    code, body = member.get(f"/v1/kv/{NAMESPACE}")
    return body["table"] if code == 200 else None


def stop(member: Member, how: signal.Signals) -> None:
    member.signal(how)
    member.reap()


def cut_to_a_third(member: Member) -> None:
    written = member.journal.read_bytes().rstrip(b"\0")
    os.truncate(member.journal, len(written) // 3)


def served(members: list[Member]) -> dict[str, str] | None:
    """Return the values from the first default read that succeeds.

    Return None if no read succeeds within ELECTION_S.
    """
    deadline = time.monotonic() + ELECTION_S
    while time.monotonic() < deadline:
        for member in members:
            if member.ready() and (found := values(member)) is not None:
                return found
    return None


# tests/nameserver/raft/test_shorter_journals.py tests all pairs of these values.
@pytest.mark.parametrize(
    ("durability", "how"),
    [("journal", signal.SIGTERM), ("fsync", signal.SIGKILL)],
    ids=["journal, a clean stop", "fsync, a kill"],
)
def test_no_acknowledged_value_is_missing_after_a_journal_was_cut_to_a_third(
    tmp_path: Path, durability: str, how: signal.Signals
) -> None:
    """Cut the journal of one of the only two members that have all values.

    The first member was down during the writes. The second member lost two thirds of its journal. So only the
    third member still has all values, and it starts last.
    """
    with running(make_members(tmp_path, arguments=("--durability", durability))) as cluster:
        away = cluster.others(cluster.leader())[0]
        stop(away, signal.SIGTERM)
        cut, whole = cluster.others(away)
        put_values(whole)
        stop(whole, signal.SIGTERM)
        stop(cut, how)
        cut_to_a_third(cut)
        away.start()
        cut.start()
        assert served([away, cut]) in (None, VALUES)
        whole.start()
        cluster.wait_ready()
        cluster.wait_equal()
        for member in cluster.members:
            assert values(member) == VALUES
        wait_until(lambda: "it returns as a learner" in cut.log(), "its log says so")
