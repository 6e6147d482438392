"""If the route table is full, the nameserver refuses additions and still serves the routes.

Its answer names the limit that was reached.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from routekeeper.remoting.bodies import TopicList
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.cost import TRIES
from tests.registrations import registration
from tests.waiting import wait_until

from .brokers import register
from .cluster import make_members, running
from .servers import Running, memory, server

pytestmark = [pytest.mark.faults, pytest.mark.one_core, pytest.mark.slow]

SETTINGS = "tableTopicsMax=50\ntablePairsMax=80\ntableBrokersMax=3\ntableBytesMax=3000\n"


def names(count: int, prefix: str = "t") -> tuple[str, ...]:
    return tuple(f"{prefix}{number:05}" for number in range(count))


def settings_file(folder: Path) -> Path:
    path = folder / "namesrv.conf"
    path.write_text(SETTINGS)
    return path


def independent(tmp_path: Path) -> contextlib.AbstractContextManager[Running]:
    """Run an independent nameserver with the limits of :data:`SETTINGS`."""
    return server("nameserver", tmp_path, "-c", str(settings_file(tmp_path)))


def topics_at(client: BlockingClient, addr: str) -> set[str]:
    request = RemotingCommand.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
    answer = client.invoke(addr, request)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return set(TopicList.decode(answer.body).topics)


def refused(client: BlockingClient, addr: str, request: RemotingCommand, words: str) -> None:
    answer = client.invoke(addr, request)
    assert answer.code == ResponseCode.SYSTEM_ERROR, "the table has no room for it"
    assert re.search(words, answer.remark or ""), answer.remark


def fill(client: BlockingClient, addr: str) -> None:
    """Try to exceed each limit of a table in which one broker has 40 topics.

    Check that requests beyond a limit are refused, and that all other requests succeed.
    """
    mine = names(40)

    def other(topics: tuple[str, ...], name: str = "b") -> RemotingCommand:
        return registration(name, f"{name}.example:10911", topics, counter=1)

    refused(client, addr, other(names(11, "u")), "51 .*tableTopicsMax=50")
    refused(client, addr, other((*mine, "u")), "81 .*tablePairsMax=80")
    refused(client, addr, other(names(8, "u" * 500)), r"\d{4} .*tableBytesMax=3000")
    for name in ("c", "d"):
        assert client.invoke(addr, other((), name)).code == ResponseCode.SUCCESS
    refused(client, addr, other(()), "4 .*tableBrokersMax=3")
    assert topics_at(client, addr) == set(mine), "nothing of what was refused is there"
    # A listed broker may repeat its topics, change its queues and remove a topic, even if the table is full.
    # It may add a topic only if the table is not full, here after it has removed a topic.
    for counter, topics in ((1, mine), (2, mine), (3, mine[:-1]), (4, (*mine, "one-more"))):
        request = registration("a", "10.0.0.1:10911", topics, counter=counter, queues=4)
        answer = client.invoke(addr, request)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert topics_at(client, addr) == {*mine, "one-more"}


def test_independent_nameserver_refuses_more_than_its_table_holds(tmp_path: Path) -> None:
    with independent(tmp_path) as one, BlockingClient() as client:
        answer = client.invoke(one.listen, registration("a", "10.0.0.1:10911", names(40), counter=1))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        fill(client, one.listen)


def test_group_refuses_more_than_its_table_holds_and_stays_equal(tmp_path: Path) -> None:
    # Each request is sent only once, so an election would make it fail. The long timeout prevents elections
    # even on a busy machine.
    arguments = ("-c", str(settings_file(tmp_path)), "--election-timeout-ms", "4000")
    with running(make_members(tmp_path, arguments=arguments)) as cluster, BlockingClient() as client:
        leader = cluster.leader()
        follower = cluster.others(leader)[0]
        register(client, leader, registration("a", "10.0.0.1:10911", names(40), counter=1))
        wait_until(lambda: len(topics_at(client, follower.listen)) == 40, "the topics are there")
        fill(client, follower.listen)
        cluster.wait_equal()


REFUSED = 3_000
KEPT_BYTES = 300


def memory_of_refused(addr: str, pid: int) -> float:
    """Return the number of bytes that the process keeps for each broker name that it has refused.

    All refused registrations come over one connection, which stays open. The function measures several times
    and returns the smallest value. A new thread, or log lines that are not written yet, may make a single
    measurement too high.
    """
    with BlockingClient() as client:

        def register_names(first: int, count: int) -> None:
            for number in range(first, first + count):
                request = registration(f"n{number}", f"n{number}.example:10911", ("t",), counter=1)
                refused(client, addr, request, "tableBrokersMax=3")

        for name in ("a", "b", "c"):
            answer = client.invoke(addr, registration(name, f"{name}.example:10911", (), counter=1))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        register_names(0, REFUSED)
        grown = []
        for attempt in range(1, 1 + TRIES):
            before = memory(pid)
            register_names(attempt * REFUSED, REFUSED)
            grown.append((memory(pid) - before) / REFUSED)
            if grown[-1] < KEPT_BYTES:
                break
        return min(grown)


def test_member_keeps_nothing_of_brokers_that_it_refused(tmp_path: Path) -> None:
    arguments = ("-c", str(settings_file(tmp_path)))
    with running(make_members(tmp_path, size=1, arguments=arguments)) as cluster:
        leader = cluster.leader()
        assert leader.process is not None
        assert memory_of_refused(leader.listen, leader.process.pid) < KEPT_BYTES


def test_independent_nameserver_keeps_nothing_of_brokers_that_it_refused(tmp_path: Path) -> None:
    with independent(tmp_path) as one:
        assert memory_of_refused(one.listen, one.pid) < KEPT_BYTES
