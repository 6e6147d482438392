"""Members of consumer groups, and the notices that the broker sends them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routekeeper.broker.tables.groups import CLIENT_EXPIRY_S, Client, ClientTable
from routekeeper.broker.tables.locks import QueueLocks
from routekeeper.broker.tables.stats import Rate
from routekeeper.remoting.bodies import ConsumerData, HeartbeatData, MessageQueue, SubscriptionData
from routekeeper.remoting.codes import LanguageCode


def client(connection: int, client_id: str = "") -> Client:
    return Client(
        connection=connection,
        client_id=client_id or f"c{connection}",
        client_addr="127.0.0.1:1",
        language=LanguageCode.JAVA,
        version=479,
    )


def beat(
    table: ClientTable,
    connection: int,
    *,
    now: float = 0.0,
    group: str = "G",
    topics: dict[str, int] | None = None,
    client_id: str = "",
) -> tuple[str, ...]:
    subscriptions = tuple(
        SubscriptionData(topic=topic, sub_version=version)
        for topic, version in ({"T": 1} if topics is None else topics).items()
    )
    data = HeartbeatData(
        client_id=client_id or f"c{connection}",
        consumers=(ConsumerData(group_name=group, subscriptions=subscriptions),),
        producer_groups=("P",),
    )
    return table.heartbeat(client(connection, client_id), data, now=now)


def test_change_is_reported_once() -> None:
    table = ClientTable()
    assert beat(table, 1) == ("G",)
    assert beat(table, 1) == ()
    assert beat(table, 2) == ("G",)
    assert tuple(table.members("G")) == (1, 2)


def test_topics_count_as_change_and_newer_versions_do_not() -> None:
    table = ClientTable()
    beat(table, 1)
    assert beat(table, 1, topics={"T": 1, "U": 1}) == ("G",)
    assert beat(table, 1, topics={"T": 9, "U": 1}) == ()
    assert beat(table, 1, topics={"T": 3, "U": 1}) == ()
    group = table.consumer_group("G")
    assert group is not None
    assert group.subscriptions["T"].sub_version == 9
    assert beat(table, 1, topics={"U": 1}) == ("G",)
    assert set(group.subscriptions) == {"U"}


def test_unregistering_and_closing_leave_nothing_behind() -> None:
    table = ClientTable()
    beat(table, 1)
    beat(table, 1, group="H")
    beat(table, 2)
    assert table.unregister(1, producer_group="P", consumer_group="G") == ("G",)
    assert table.unregister(1, producer_group="P", consumer_group="G") == ()
    assert [found.connection for found in table.producers("P")] == [2]
    assert table.closed(1) == ("H",)
    assert table.closed(1) == ()
    assert table.consumer_group("H") is None
    assert table.closed(2) == ("G",)
    assert table.producers("P") == ()
    assert table.producer_groups() == {}


def test_silent_client_is_dropped_with_its_connection() -> None:
    table = ClientTable()
    beat(table, 1, now=0.0)
    beat(table, 2, now=50.0)
    assert table.expire(CLIENT_EXPIRY_S) == ((), ())
    assert table.expire(CLIENT_EXPIRY_S + 0.1) == ((1,), ("G",))
    assert tuple(table.members("G")) == (2,)
    assert [found.connection for found in table.producers("P")] == [2]


def test_client_ids_are_unique_in_order() -> None:
    table = ClientTable()
    beat(table, 3, client_id="x")
    beat(table, 1, client_id="a")
    beat(table, 2, client_id="x")
    group = table.consumer_group("G")
    assert group is not None
    assert group.client_ids() == ("x", "a")
    assert table.consumers_of("T") == ("G",)
    assert table.consumers_of("U") == ()


def test_rate_is_growth_over_the_window() -> None:
    rate = Rate()
    assert rate.per_second(10, 0.0) == 0.0
    for second in range(0, 700, 5):
        rate.sample(float(second))
        rate.total += 50
    assert rate.per_second(10, 699.0) == 50 * 2 / 9  # from 690 s to 699 s, the total grew by 100
    assert rate.per_second(600, 700.0) == 10.0
    assert len(rate.spell(700.0).split()) == 3


def test_locks_have_a_bound_and_those_held_are_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routekeeper.broker.tables.locks.LOCKS_MAX", 3)
    locks = QueueLocks()
    queues = [MessageQueue(topic="T", broker_name="b", queue_id=queue_id) for queue_id in range(5)]
    assert locks.lock("G", "c", queues, now=0.0) == tuple(queues[:3])
    assert locks.lock("H", "c", queues, now=1.0) == ()
    assert locks.lock("G", "c", queues, now=2.0) == tuple(queues[:3])
    locks.unlock("G", "c", queues[:1])
    assert locks.lock("H", "c", queues, now=3.0) == tuple(queues[:1])


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_size_of_the_table_is_that_of_what_is_in_it(data: st.DataObject) -> None:
    """The table's computed size stays right through any sequence of heartbeats and unregistrations.

    A heartbeat adds no more than ``growth`` predicts.
    """
    table, names = ClientTable(), st.sampled_from(("A", "B", "Long" * 20))
    versions = st.integers(0, 2)
    subscription = st.builds(SubscriptionData, topic=names, sub_string=names, sub_version=versions)
    consumer = st.builds(
        ConsumerData, group_name=names, subscriptions=st.lists(subscription, max_size=3).map(tuple)
    )
    heartbeat = st.builds(
        HeartbeatData,
        client_id=names,
        consumers=st.lists(consumer, max_size=2, unique_by=lambda each: each.group_name).map(tuple),
        producer_groups=st.lists(names, max_size=3).map(tuple),
    )
    for turn in range(data.draw(st.integers(1, 8))):
        connection = data.draw(st.integers(1, 3))
        match data.draw(st.sampled_from(("beat", "beat", "beat", "closed", "unregister", "expire"))):
            case "beat":
                beat = data.draw(heartbeat)
                speaker = client(connection, beat.client_id)
                most = table.size + table.growth(speaker, beat)
                table.heartbeat(speaker, beat, now=turn * 30.0)
                assert table.size <= most
            case "closed":
                table.closed(connection)
            case "unregister":
                table.unregister(connection, producer_group=data.draw(names), consumer_group=data.draw(names))
            case "expire":
                table.expire(turn * 30.0)
        assert table.size >= 0
    for connection in (1, 2, 3):
        table.closed(connection)
    assert table.size == 0


def test_heartbeat_that_says_nothing_new_needs_no_room() -> None:
    table = ClientTable()
    subscription = SubscriptionData(topic="T", sub_string="a || b", tags=("a", "b"), codes=(97, 98))
    data = HeartbeatData(
        client_id="c1",
        consumers=(ConsumerData(group_name="G", subscriptions=(subscription, subscription)),),
        producer_groups=("P",),
    )
    assert table.growth(client(1), data) > 1000
    table.heartbeat(client(1), data, now=0.0)
    size = table.size
    assert table.growth(client(1), data) == 0
    table.heartbeat(client(1), data, now=1.0)
    assert table.size == size
    assert 0 < table.growth(client(2), data) < 1000
