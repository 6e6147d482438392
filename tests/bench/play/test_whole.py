"""The test helper `is_whole` is true for a design without faults, and false after each kind of fault."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from routekeeper.bench.play.model import Answer, Broker, Client, Design, Link, Server
from tests.bench.play.sessions import is_whole

NAMES = ["broker-0", "broker-1", "broker-2"]
SINCE_MS = 1_000


def whole() -> Design:
    last = Answer(verdict="right", topic="Orders", sent_ms=SINCE_MS, done_ms=SINCE_MS + 1)
    return Design(
        name="raft",
        phase="running",
        servers=[
            Server(
                name=f"nameserver-{number}",
                addr="a",
                life="up",
                answers=True,
                serves=True,
                brokers=NAMES,
                read_ms=SINCE_MS,
            )
            for number in range(3)
        ],
        brokers=[Broker(name=name, addr="a", life="up") for name in NAMES],
        clients=[Client(name=f"client-{number}", life="up", last=last) for number in range(4)],
        links=[Link(dialler="broker-0", acceptor="nameserver-0", forward="open", back="open")],
    )


def broker(design: Design, **changes: object) -> None:
    design.brokers[1] = msgspec.structs.replace(design.brokers[1], **changes)


def server(design: Design, **changes: object) -> None:
    design.servers[2] = msgspec.structs.replace(design.servers[2], **changes)


def client(design: Design, **changes: object) -> None:
    last = design.clients[3].last
    assert last is not None
    design.clients[3] = msgspec.structs.replace(
        design.clients[3], last=msgspec.structs.replace(last, **changes)
    )


def link(design: Design, **changes: object) -> None:
    design.links[0] = msgspec.structs.replace(design.links[0], **changes)


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda each: broker(each, life="starting"), id="a broker starts"),
        pytest.param(lambda each: broker(each, life="paused"), id="a broker is paused"),
        pytest.param(lambda each: server(each, life="paused"), id="a server is paused"),
        pytest.param(lambda each: server(each, serves=False), id="a server refuses"),
        pytest.param(lambda each: server(each, read_ms=SINCE_MS - 1), id="an old reading"),
        pytest.param(lambda each: client(each, sent_ms=SINCE_MS - 1), id="an old answer"),
        pytest.param(lambda each: link(each, back="cut"), id="a link is cut one way"),
        pytest.param(lambda each: link(each, forward_ms=150), id="a link is slow"),
        pytest.param(lambda each: server(each, brokers=NAMES[:2]), id="a broker is not listed"),
        pytest.param(lambda each: client(each, verdict="stale"), id="a stale answer"),
    ],
)
def test_a_design_with_a_trace_of_a_fault_is_not_whole(broken: Callable[[Design], None]) -> None:
    design = whole()
    assert is_whole(design, since_ms=SINCE_MS)
    broken(design)
    assert not is_whole(design, since_ms=SINCE_MS)
