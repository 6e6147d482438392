"""The client's cache of routes: a route's queues for sends and for reads, and the route's age."""

from __future__ import annotations

import pytest

from routekeeper.client.route_cache import (
    QUEUES_MAX,
    MessageQueue,
    RouteCache,
    clamp_default_route,
    pick_read_addr,
    publish_info,
    subscribe_queues,
)
from routekeeper.remoting.bounds import QUEUE_NUMS_MAX
from routekeeper.remoting.route import BrokerData, QueueData, TopicRouteData


def queue_data(broker: str, *, read: int = 2, write: int = 2, perm: int = 6) -> QueueData:
    return QueueData(
        broker_name=broker, read_queue_nums=read, write_queue_nums=write, perm=perm, topic_sys_flag=0
    )


def broker_data(broker: str, *ids: int) -> BrokerData:
    return BrokerData(
        cluster="C",
        broker_name=broker,
        broker_addrs={number: f"{broker}-{number}:10911" for number in ids or (0,)},
    )


def route(
    *queues: QueueData, brokers: tuple[BrokerData, ...] | None = None, order: str | None = None
) -> TopicRouteData:
    if brokers is None:
        brokers = tuple(broker_data(data.broker_name) for data in queues)
    return TopicRouteData(queue_datas=queues, broker_datas=brokers, order_topic_conf=order)


def names(queues: tuple[MessageQueue, ...]) -> list[tuple[str, int]]:
    return [(queue.broker_name, queue.queue_id) for queue in queues]


def test_publish_queues_are_sorted_by_broker_name() -> None:
    info = publish_info("T", route(queue_data("b"), queue_data("a", write=1)))
    assert names(info.queues) == [("a", 0), ("b", 0), ("b", 1)]


def test_a_broker_without_write_permission_or_master_takes_no_messages_but_is_read() -> None:
    given = route(
        queue_data("a", perm=4),
        queue_data("b"),
        queue_data("c", perm=2),
        brokers=(broker_data("a"), broker_data("b", 1), broker_data("c")),
    )
    assert names(publish_info("T", given).queues) == [("c", 0), ("c", 1)]
    assert names(subscribe_queues("T", given)) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_the_order_configuration_replaces_the_queue_data() -> None:
    info = publish_info("T", route(queue_data("a", write=9), order="b:1;a:2;"))
    assert info.order
    assert names(info.queues) == [("b", 0), ("a", 0), ("a", 1)]


def test_a_malformed_item_of_the_order_configuration_is_skipped() -> None:
    info = publish_info("T", route(queue_data("a"), order="a;b:x;c:1"))
    assert names(info.queues) == [("c", 0)]


def test_one_log_line_counts_all_malformed_items_of_an_order_configuration(
    caplog: pytest.LogCaptureFixture,
) -> None:
    info = publish_info("T", route(queue_data("a"), order="y" * 5000 + ";" + "x; ;" * 1000 + "c:1"))
    assert names(info.queues) == [("c", 0)]
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("order configuration items ignored topic=T items=1001 first='yyy")
    assert len(line) < 400


@pytest.mark.slow
def test_a_route_of_billions_of_queues_makes_no_more_than_a_client_may_hold() -> None:
    huge = 2**31 - 1
    given = route(*(queue_data(f"b{number}", read=huge, write=huge) for number in range(1000)))
    assert len(publish_info("T", given).queues) == len(subscribe_queues("T", given)) == QUEUES_MAX
    one = route(queue_data("b", read=huge, write=huge))
    assert len(publish_info("T", one).queues) == len(subscribe_queues("T", one)) == QUEUE_NUMS_MAX
    for order, count in (("a:999999999", QUEUE_NUMS_MAX), ("a:" + "9" * 5000, 0), ("a:\u00b2;a:1", 1)):
        assert len(publish_info("T", route(order=order)).queues) == count


def test_the_default_route_is_clamped_to_the_queues_a_new_topic_gets() -> None:
    clamped = clamp_default_route(
        route(queue_data("a", read=8, write=8), queue_data("b", read=3, write=8)), 4
    )
    assert [(data.read_queue_nums, data.write_queue_nums) for data in clamped.queue_datas] == [(4, 4), (3, 3)]


def test_reads_go_where_the_broker_suggests_else_to_the_master_else_to_any_slave() -> None:
    assert pick_read_addr({0: "m", 1: "s"}, 1) == "s"
    assert pick_read_addr({0: "m", 1: "s"}, 7) == "m"
    assert pick_read_addr({2: "s2", 1: "s1"}, 0) == "s1"
    assert pick_read_addr({}, 0) is None


def test_a_route_is_due_after_the_refresh_period_whatever_the_last_answer_was() -> None:
    cache = RouteCache(refresh_s=30.0)
    cache.use("T")
    assert cache.due(0.0) == ("T",)
    cache.asked("T", 0.0)
    assert cache.due(29.9) == ()
    assert cache.due(30.0) == ("T",)
    cache.put("T", route(queue_data("a")), 30.0)
    assert cache.due(59.9) == ()


def test_put_reports_only_what_is_new() -> None:
    cache = RouteCache(refresh_s=30.0)
    assert cache.put("T", route(queue_data("a"), queue_data("b")), 0.0)
    reordered = route(queue_data("b"), queue_data("a"))
    assert not cache.put("T", reordered, 1.0)
    assert cache.put("T", route(queue_data("a", perm=4), queue_data("b")), 2.0)
    assert cache.master("b") == "b-0:10911"


def test_a_provisional_route_never_replaces_a_real_one_and_is_not_read_from() -> None:
    cache = RouteCache(refresh_s=30.0)
    assert cache.put("T", route(queue_data("a")), 0.0, provisional=True)
    info = cache.publish("T")
    assert info is not None
    assert info.provisional
    assert cache.subscribe("T") == ()
    assert cache.put("T", route(queue_data("a")), 1.0)
    assert not cache.put("T", route(queue_data("z")), 2.0, provisional=True)
    assert names(cache.subscribe("T")) == [("a", 0), ("a", 1)]


def test_addresses_come_from_the_youngest_route_that_names_the_broker() -> None:
    cache = RouteCache(refresh_s=30.0)
    old = BrokerData(cluster="C", broker_name="a", broker_addrs={0: "old:1"})
    new = BrokerData(cluster="C", broker_name="a", broker_addrs={0: "new:1"})
    cache.put("T1", route(queue_data("a"), brokers=(old,)), 0.0)
    cache.put("T2", route(queue_data("a"), brokers=(new,)), 1.0)
    assert cache.master("a") == "new:1"


def test_a_broker_in_no_route_any_more_is_forgotten() -> None:
    cache = RouteCache(refresh_s=30.0)
    cache.put("T", route(queue_data("a")), 0.0)
    cache.put("T", route(queue_data("b")), 1.0)
    assert cache.master("a") is None
    assert set(cache.brokers()) == {"b"}
