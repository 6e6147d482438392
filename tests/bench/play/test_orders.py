"""The playground accepts valid commands, applies each to the right process, and refuses invalid commands.

Commands are, for example, kill and cut.
"""

from __future__ import annotations

import pytest

from routekeeper.bench.play.model import Client, Design, Order, Server
from routekeeper.bench.play.orders import directions, named, problem_of


@pytest.mark.parametrize(
    "order",
    [
        Order(do="kill", target="nameserver-0"),
        Order(do="pause", target="leader"),
        Order(do="cut", target="client-0"),
        Order(do="cut", target="broker-1", to="nameserver-2", oneway=True),
        Order(do="slow", target="leader", delay_ms=5_000),
        Order(do="slow", target="leader"),
        Order(do="part", target="leader", designs=["raft"]),
        Order(do="heal"),
        Order(do="reconnect", target="client-1", to="nameserver-1"),
        Order(do="make-topic", topic="Payments"),
        Order(do="timers", divisor=60.0),
    ],
    ids=lambda order: order.do,
)
def test_orders_that_make_sense_are_accepted(order: Order) -> None:
    assert problem_of(order) is None


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (Order(do="kill", target="nameserver-3"), "'nameserver-3' is no name; allowed are nameserver-0,"),
        (Order(do="kill", target="client-0"), "'client-0' is a client"),
        (Order(do="restart-empty", target="broker-0"), "'broker-0' is no server"),
        (Order(do="reconnect", target="broker-0", to="nameserver-1"), "'broker-0' is no client"),
        (Order(do="reconnect", target="client-0"), "to='' is no server; allowed are nameserver-0,"),
        (Order(do="reconnect", target="client-0", to="broker-0"), "to='broker-0' is no server"),
        (Order(do="heal", target="broker-0"), "not used by heal"),
        (Order(do="cut", target="broker-0", to="broker-0"), "the target itself"),
        (Order(do="kill", target="broker-0", oneway=True), "not used by kill"),
        (
            Order(do="slow", target="broker-0", delay_ms=5_001),
            "delay_ms=5001 is out of range, allowed are 0 to",
        ),
        (Order(do="cut", target="broker-0", delay_ms=1), "not used by cut"),
        (Order(do="make-topic", topic="a b"), "'a b': allowed are 1 to 32 letters"),
        (Order(do="kill", target="broker-0", topic="a"), "not used by kill"),
        (Order(do="timers", divisor=7.0), "divisor=7: allowed are 1, 10"),
        (Order(do="timers", divisor=10.0, designs=["raft"]), "not used by timers"),
        (Order(do="heal", divisor=10.0), "not used by heal"),
        (Order(do="heal", designs=["raft", "raft"]), "raft twice"),
    ],
    ids=lambda each: each.do if isinstance(each, Order) else None,
)
def test_an_order_that_makes_no_sense_is_refused_with_the_value_and_what_is_allowed(
    order: Order, says: str
) -> None:
    assert says in (problem_of(order) or "")


def server(number: int, **more: object) -> Server:
    facts: dict[str, object] = {"life": "up", "answers": True, "role": "follower", **more}
    return Server(name=f"nameserver-{number}", addr="a", **facts)  # type: ignore[arg-type]


def test_the_leader_of_the_latest_term_is_meant_else_the_server_that_most_clients_ask() -> None:
    both = [server(0, role="leader", term=3), server(1, role="leader", term=4), server(2)]
    assert named("leader", Design(name="raft", servers=both)) == "nameserver-1"
    none = [server(0, life="down"), server(1), server(2)]
    assert named("leader", Design(name="raft", servers=none)) == "nameserver-1"
    clients = [
        Client(name=f"client-{at}", life="up", asks=f"nameserver-{asks}")
        for at, asks in enumerate((0, 2, 0, 2))
    ]
    assert named("leader", Design(name="independent", servers=none, clients=clients)) == "nameserver-2"
    assert named("leader", Design(name="raft", servers=[server(0, life="down")])) is None
    assert named("broker-2", Design(name="raft")) == "broker-2"


def test_a_cut_of_all_links_has_both_directions_and_a_oneway_cut_only_those_from_the_target() -> None:
    whole = directions(Order(do="cut", target="broker-0"), "broker-0", "")
    assert ("broker-0", "client-3") in whole
    assert ("nameserver-2", "broker-0") in whole
    one = directions(Order(do="cut", target="broker-0", to="client-1", oneway=True), "broker-0", "client-1")
    assert one == [("broker-0", "client-1")]


def test_a_partition_leaves_a_server_with_one_broker_and_one_client() -> None:
    found = set(directions(Order(do="part", target="nameserver-1"), "nameserver-1", ""))
    assert ("nameserver-1", "nameserver-0") in found
    assert ("nameserver-0", "nameserver-1") in found
    assert ("client-0", "nameserver-2") in found
    assert ("client-0", "nameserver-1") not in found
    assert ("broker-1", "nameserver-0") not in found
