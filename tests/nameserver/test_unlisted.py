"""A nameserver remembers only a limited number of brokers without a record in the route table.

A broker has no record before its first registration is applied, and after its record was removed. Without the
limit, a client could fill the memory with names of brokers.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from routekeeper.nameserver import liveness as liveness_module
from routekeeper.nameserver.liveness import Liveness
from routekeeper.nameserver.types import BrokerAddr, BrokerKey, ClusterName, ConnectionId
from tests.nameserver.contacts import check

A = BrokerKey(ClusterName("c"), BrokerAddr("10.0.0.1:10911"))
ONE, TWO = ConnectionId(1), ConnectionId(2)


def at_revision(revision: int) -> Callable[[BrokerKey], int | None]:
    return lambda broker: revision


def names(count: int) -> list[BrokerKey]:
    return [BrokerKey(ClusterName("c"), BrokerAddr(f"10.0.2.{number}:10911")) for number in range(count)]


def connected(liveness: Liveness) -> set[BrokerKey]:
    return {broker for broker, contact in liveness.changes_since(0) if contact.connected}


def test_of_names_without_a_record_the_newest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness_module, "SPARE_MAX", 3)
    liveness = Liveness()
    liveness.registering(A, ONE)
    liveness.registered(A, ONE, revision=1)
    keys = names(6)
    for key in keys:
        liveness.registering(key, TWO)
        check(liveness)
    assert connected(liveness) == {A, *keys[-3:]}, "a broker with a record stays"
    assert liveness.closed(TWO, by_us=False, revision_of=at_revision(9)) == tuple(keys[-3:])
    assert not liveness.carries_broker(TWO)


def test_a_forgotten_name_that_registers_again_is_known_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness_module, "SPARE_MAX", 1)
    liveness = Liveness()
    first, second = names(2)
    liveness.registering(first, ONE)
    liveness.registering(second, ONE)
    liveness.registered(first, ONE, revision=4)  # the registration of ``first`` is applied only now
    liveness.registering(first, ONE)
    check(liveness)
    assert connected(liveness) == {first, second}
    assert liveness.connections_of(first, up_to_revision=4) == (ONE,)


def test_names_whose_records_are_gone_count_as_names_without_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker whose record was removed counts towards the limit on brokers without a record.

    Otherwise, a client could fill the memory if it registered and unregistered one broker after the other.
    """
    monkeypatch.setattr(liveness_module, "SPARE_MAX", 3)
    liveness = Liveness()
    keys = names(6)
    for revision, key in enumerate(keys):
        liveness.registering(key, ONE)
        liveness.registered(key, ONE, revision=revision)
        liveness.withdrawn(key, ONE, revision=revision)
        liveness.removed(key)
        check(liveness)
    assert [key for key in keys if liveness.connections_of(key, up_to_revision=99)] == keys[-3:]


def test_names_of_many_connections_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness_module, "SPARE_MAX", 3)
    liveness = Liveness()
    for number in range(9):
        liveness.registering(A, ConnectionId(number + 1))
        check(liveness)
    over = [number for number in range(1, 10) if liveness.carries_broker(ConnectionId(number))]
    assert over == [7, 8, 9]


def test_older_connections_of_brokers_with_a_record_are_bounded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A nameserver remembers only a limited number of older connections of all listed brokers.

    In this test, a client registers the same listed broker over each of many connections.
    """
    monkeypatch.setattr(liveness_module, "SPARE_MAX", 3)
    liveness = Liveness()
    for number in range(1, 10):
        liveness.registering(A, ConnectionId(number))
        liveness.registered(A, ConnectionId(number), revision=number)
        check(liveness)
    for number in range(1, 4):  # register again over the oldest connections
        liveness.registering(A, ConnectionId(number))
        liveness.registered(A, ConnectionId(number), revision=number + 9)
        check(liveness)
    over = [number for number in range(1, 10) if liveness.carries_broker(ConnectionId(number))]
    assert over == [1, 2, 3, 9], "the youngest, and three that registered last"
