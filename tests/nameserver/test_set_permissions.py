"""Tests of requests 205 and 327, by which an operator removes and restores a broker's write permission.

The broker continues to register after these requests. The tests run in both modes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import TopicConfig, decode_route
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.faults.servers import server
from tests.ports import free_addresses
from tests.registrations import registration
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@dataclass
class Nameserver:
    """A nameserver's address, and one connection to it for the broker and the operator."""

    addr: str
    client: BlockingClient

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand:
        answer = self.client.invoke(self.addr, RemotingCommand.request(code, fields, body))
        assert answer.code == 0, answer.remark
        return answer

    def register(self, broker: str, counter: int, **topics: int) -> None:
        """Register topics, each with its permission.

        A registration with a single topic is an increment.
        """
        configs = tuple(
            TopicConfig(topic_name=f"{broker}-{name}", perm=perm) for name, perm in topics.items()
        )
        request = registration(broker, f"{broker}:10911", configs, counter=counter)
        assert self.client.invoke(self.addr, request).code == 0

    def perms(self, broker: str, *topics: str) -> list[int]:
        """Return the permissions that clients see for these topics."""
        found = []
        for topic in topics:
            route = decode_route(
                self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": f"{broker}-{topic}"}).body
            )
            found += [data.perm for data in route.queue_datas]
        return found


@pytest.fixture(scope="module", params=["independent", "raft"])
def nameserver(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nameserver]:
    """Yield one nameserver of each mode for all tests. Each test uses its own broker."""
    (peer,) = free_addresses(1)
    raft = ("--raft", peer, "--peers", peer) if request.param == "raft" else ()
    folder = tmp_path_factory.mktemp(request.param)
    with (
        server("nameserver", folder, "--mode", request.param, *raft) as running,
        contextlib.closing(BlockingClient()) as client,
    ):
        first = registration("first", "first:10911", ())
        wait_until(lambda: client.invoke(running.listen, first).code == 0, "there is a leader")
        yield Nameserver(running.listen, client)


@pytest.mark.parametrize(
    ("code", "said", "set_to"),
    [
        pytest.param(RequestCode.WIPE_WRITE_PERM_OF_BROKER, 6, 4, id="wiped"),
        pytest.param(RequestCode.ADD_WRITE_PERM_OF_BROKER, 4, 6, id="added"),
    ],
)
def test_permission_that_an_operator_set_survives_an_increment_and_the_report_after_it(
    nameserver: Nameserver, code: int, said: int, set_to: int
) -> None:
    broker = f"keeps-{set_to}"
    nameserver.register(broker, 1, T1=said, T2=said)
    nameserver.ask(code, {"brokerName": broker})
    assert nameserver.perms(broker, "T1", "T2") == [set_to, set_to]
    nameserver.register(broker, 2, T3=said)
    nameserver.register(broker, 2, T1=said, T2=said, T3=said)
    # T3 was registered after the operator's change, so it has the permission that the broker sent. RocketMQ
    # 5.3.3 gives the same result.
    assert nameserver.perms(broker, "T1", "T2", "T3") == [set_to, set_to, said]


def test_permission_that_an_operator_wiped_survives_a_repeated_increment(nameserver: Nameserver) -> None:
    broker = "repeats"
    nameserver.register(broker, 1, T1=6, T2=6)
    nameserver.register(broker, 2, T2=6)
    nameserver.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": broker})
    nameserver.register(broker, 2, T2=6)
    assert nameserver.perms(broker, "T1", "T2") == [4, 4]


def test_report_of_a_newer_version_brings_wiped_permissions_back(nameserver: Nameserver) -> None:
    broker = "renews"
    nameserver.register(broker, 1, T1=6, T2=6)
    nameserver.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": broker})
    nameserver.register(broker, 2, T2=6)
    assert nameserver.perms(broker, "T1", "T2") == [4, 6]
    nameserver.register(broker, 3, T1=6, T2=6)
    assert nameserver.perms(broker, "T1", "T2") == [6, 6]


@pytest.mark.parametrize("wiped_before", [False, True], ids=["never wiped", "wiped before"])
def test_permission_in_a_lost_increment_is_repaired_by_the_next_report(
    nameserver: Nameserver, wiped_before: bool
) -> None:
    broker = f"repairs-{wiped_before}"
    nameserver.register(broker, 1, T1=4, T2=6)
    if wiped_before:
        nameserver.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": broker})
        nameserver.register(broker, 2, T1=4, T2=6)
    # The registration with only the topic T1=6, and with counter 3, is lost on its way.
    nameserver.register(broker, 4, T2=6)
    nameserver.register(broker, 4, T1=6, T2=6)
    assert nameserver.perms(broker, "T1", "T2") == [6, 6]
