"""A leader refuses requests that are too large for the log or for a raft link, and stays the leader."""

from __future__ import annotations

import re
import zlib
from functools import cache
from pathlib import Path

import pytest

from routekeeper.remoting.bounds import ADDR_MAX, REQUEST_HEADER_MAX
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import ConnectionLost
from routekeeper.remoting.registration import body_crc32
from routekeeper.remoting.route import DataVersion
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.registrations import registration
from tests.waiting import wait_until

from .brokers import register
from .cluster import Cluster, make_members, running

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]


@cache
def numbers_that_grow() -> RemotingCommand:
    """Return a compressed registration of about 70 kB.

    Its JSON text has 50 MB, and the command in the log would take 180 MB.
    """
    info = b'{"topic":"t","bname":"b","currIdMap":[' + b",".join([b"1e15"] * 9_900_000) + b"]}"
    none, one = bytes(4), (1).to_bytes(4, "big")
    plain = sized(DataVersion(counter=9).encode()) + none + sized(b"[]") + one + sized(info)
    body = zlib.compress(plain, 9)
    assert len(body) < 80_000
    fields = {
        **registration("b", "127.0.0.1:10911", (), counter=9).ext_fields,
        "compressed": "true",
        "bodyCrc32": str(body_crc32(body)),
    }
    return RemotingCommand.request(RequestCode.REGISTER_BROKER, fields, body=body)


def sized(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part


def refused(cluster: Cluster) -> None:
    """Send the leader requests that it must refuse.

    Check that the leader does not change, and that its links and its log stay as they were.
    """
    leader = cluster.leader()
    term, before = leader.status()["term"], cluster.wait_equal()
    said = [member.log_size() for member in cluster.members]
    with BlockingClient() as client:
        for request, reason in (
            (numbers_that_grow(), "bytes inflates above the limit of"),
            (
                registration("b", "a" * (REQUEST_HEADER_MAX - 1024) + ":10911", ("t",), counter=9),
                f"argument brokerAddr is 'aaaa.*', allowed: host:port of at most {ADDR_MAX} characters",
            ),
        ):
            answer = client.invoke(leader.listen, request, timeout_s=20.0)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert re.search(reason, answer.remark or ""), (answer.remark or "")[:500]
        seven_mb = registration("b", "a" * (7 << 20) + ":10911", ("t",), counter=9)
        with pytest.raises(ConnectionLost):
            client.invoke(leader.listen, seven_mb, timeout_s=20.0)
    reason = rf"reason=header of \d+ bytes is above the limit of {REQUEST_HEADER_MAX}"
    wait_until(lambda: re.search(reason, leader.log(said[leader.number])), "the log says why it was cut off")
    assert cluster.wait_equal() == before
    assert (cluster.leader().number, leader.status()["term"]) == (leader.number, term)
    for member, size in zip(cluster.members, said, strict=True):
        assert "raft link closed" not in member.log(size)
        assert "message refused" not in member.log(size)


def test_a_group_keeps_leader_and_links_and_starts_again(tmp_path: Path) -> None:
    # The election timeout is so long that a busy machine does not change the leader. If the leader changes
    # nevertheless, it accepted one of these requests.
    members = make_members(tmp_path, arguments=("--election-timeout-ms", "4000"))
    with running(members) as cluster, BlockingClient() as client:
        register(client, cluster.leader(), registration("b", "127.0.0.1:10911", ("t",), counter=1))
        refused(cluster)
        register(client, cluster.leader(), registration("b", "127.0.0.1:10911", ("t", "u"), counter=2))
        for member in cluster.members:
            member.wait_topics({"t", "u"})
        digest = cluster.wait_equal()
        cluster.stop()
        cluster.start()
        assert cluster.wait_equal() == digest
