"""Requests of operators about groups, queues and statistics (request codes 222, 223, 303 to 352).

Settings that operators change survive a restart of the broker.
"""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import pytest

from routekeeper.broker.requests.group_requests import QUEUES_MAX
from routekeeper.broker.requests.inspection import ENTRIES_MAX
from routekeeper.broker.tables.stats import GROUP_GET_NUMS, ITEMS_MAX, TOPIC_PUT_NUMS, Stats
from routekeeper.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    MessageQueue,
    QueueOffsets,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.inspection import ConsumerStatus
from routekeeper.remoting.lenient import ANSWER, loads
from routekeeper.remoting.message import decode_messages
from tests.broker.conftest import StartBroker, Wire


def read(answer: RemotingCommand) -> Any:
    assert answer.code == 0, answer.remark
    return loads(answer.body, ANSWER)


def create(wire: Wire, topic: str, queues: int = 2) -> None:
    ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues)}
    ext |= {"writeQueueNums": str(queues), "perm": "6", "topicFilterType": "SINGLE_TAG"}
    assert wire.call(17, ext).code == 0


def create_group(wire: Wire, group: str) -> None:
    assert wire.call(200, body=SubscriptionGroupConfig(group_name=group).encode()).code == 0


def commit(wire: Wire, group: str, topic: str, offset: int, queue_id: int = 0) -> None:
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    assert wire.call(15, ext).code == 0


def committed(wire: Wire, group: str, topic: str, queue_id: int = 0) -> int:
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
    return int(wire.call(14, ext).ext_fields["offset"])


def join(
    wire: Wire, group: str, topic: str, *, client_id: str = "c1", version: int = 479, expression: str = "*"
) -> None:
    subscription = SubscriptionData(topic=topic, sub_string=expression)
    data = HeartbeatData(
        client_id=client_id,
        consumers=(ConsumerData(group_name=group, subscriptions=(subscription,)),),
        producer_groups=(f"{group}-producers",),
    )
    request = RemotingCommand(code=34, ext_fields={}, body=data.encode(), version=version)
    assert wire.answer(wire.send(request)).code == 0


def offsets(answer: RemotingCommand) -> dict[int, int]:
    assert answer.code == 0, answer.remark
    return {queue.queue_id: offset for queue, offset in QueueOffsets.decode(answer.body).offsets.items()}


def reset(wire: Wire, topic: str, group: str, timestamp: int, **changes: str) -> RemotingCommand:
    ext = {"topic": topic, "group": group, "timestamp": str(timestamp), "isForce": "true"}
    return wire.call(222, ext | changes)


def test_offsets_of_a_group_without_members_are_reset_and_kept(start_broker: StartBroker) -> None:
    broker = start_broker()
    wire = broker.wire()
    create(wire, "Reset")
    create_group(wire, "G")
    for number in range(5):
        wire.send_message("Reset", b"%d" % number)
    assert offsets(reset(wire, "Reset", "G", -1)) == {0: 5, 1: 0}
    assert committed(wire, "G", "Reset") == 5
    assert offsets(reset(wire, "Reset", "G", 0)) == {0: 0, 1: 0}
    assert offsets(reset(wire, "Reset", "G", 2**62)) == {0: 5, 1: 0}
    assert offsets(reset(wire, "Reset", "G", 0, queueId="0", offset="3")) == {0: 3}
    assert offsets(reset(wire, "Reset", "G", -1, isForce="false")) == {0: 3, 1: 0}
    broker.kill()
    assert committed(start_broker(store=broker.store).wire(), "G", "Reset") == 3


def test_resets_out_of_range_are_refused(wire: Wire) -> None:
    create(wire, "ResetBad")
    create_group(wire, "ResetBad")
    assert reset(wire, "NoSuchTopic", "ResetBad", 0).code == 17
    assert reset(wire, "ResetBad", "NoSuchGroup", 0).code == 26
    for queue_id in (2, -2, 2**31 - 1):
        answer = reset(wire, "ResetBad", "ResetBad", 0, queueId=str(queue_id))
        assert (answer.code, str(queue_id) in str(answer.remark)) == (29, True)
    assert offsets(reset(wire, "ResetBad", "ResetBad", 0, queueId="1", offset=str(2**62))) == {1: 0}


def test_members_are_told_where_to_go_on(shared_broker: Any, wire: Wire) -> None:
    member = shared_broker.wire()
    create(wire, "ResetOn")
    create_group(wire, "ResetOn")
    join(member, "ResetOn", "ResetOn")
    for number in range(3):
        wire.send_message("ResetOn", b"%d" % number)
    commit(wire, "ResetOn", "ResetOn", 1)
    assert offsets(reset(wire, "ResetOn", "ResetOn", -1)) == {0: 3, 1: 0}
    told = member.receive()
    while told.code != 220:
        told = member.receive()
    assert told.is_oneway
    assert (told.ext_fields["topic"], told.ext_fields["group"]) == ("ResetOn", "ResetOn")
    assert QueueOffsets.decode(told.body).offsets[MessageQueue(topic="ResetOn", broker_name="broker-a", queue_id=0)] == 3  # fmt: skip  # noqa: E501
    # The broker sends the new offset to the member. The committed offset stays until the member commits.
    assert committed(wire, "ResetOn", "ResetOn") == 1
    old = shared_broker.wire()
    join(old, "ResetOn", "ResetOn", client_id="old", version=27)
    assert (answer := reset(wire, "ResetOn", "ResetOn", -1)).code == 1
    assert "version=27" in str(answer.remark)


def test_members_say_where_they_are(shared_broker: Any, wire: Wire) -> None:
    member = shared_broker.wire()
    create(wire, "Status")
    assert wire.call(223, {"topic": "Status", "group": "Status"}).code == 1
    join(member, "Status", "Status")
    queue = MessageQueue(topic="Status", broker_name="broker-a", queue_id=1)

    def answer() -> None:
        asked = member.receive()
        while asked.code != 221:
            asked = member.receive()
        member.socket.sendall(asked.reply(body=ConsumerStatus(offsets={queue: 7}).encode()).encode())

    thread = threading.Thread(target=answer)
    thread.start()
    body = read(wire.call(223, {"topic": "Status", "group": "Status"}))
    thread.join()
    (table,) = body["consumerTable"].values()
    assert list(body["consumerTable"]) == ["c1"]
    assert list(table.values()) == [7]
    assert wire.call(223, {"topic": "Status", "group": "Status", "clientAddr": "other"}).code == 1


def test_answers_of_members_that_one_request_gathers_are_bounded_by_their_bytes(
    shared_broker: Any, wire: Wire
) -> None:
    create(wire, "Gathered")
    members = [shared_broker.wire() for _ in range(8)]
    queues = [MessageQueue(topic="Gathered", broker_name="b", queue_id=number) for number in range(65_000)]
    body = ConsumerStatus(offsets=dict.fromkeys(queues, 7)).encode()
    assert 2 << 20 < len(body) < 4 << 20
    for number, member in enumerate(members):
        join(member, "Gathered", "Gathered", client_id=f"c{number}")

    def answer(member: Wire) -> None:
        asked = member.receive()
        while asked.code != 221:
            asked = member.receive()
        member.socket.sendall(asked.reply(body=body).encode())

    threads = [threading.Thread(target=answer, args=(member,)) for member in members]
    for thread in threads:
        thread.start()
    answered = wire.call(223, {"topic": "Gathered", "group": "Gathered"})
    for thread in threads:
        thread.join()
    assert answered.code == 0, answered.remark
    assert len(re.findall(rb'"c\d":', answered.body)) == (8 << 20) // len(body), "the first ones"


def test_lone_answer_that_is_too_large_is_an_error_and_no_empty_success(
    shared_broker: Any, wire: Wire
) -> None:
    create(wire, "Lone")
    member = shared_broker.wire()
    name = "b" * 100
    queues = [MessageQueue(topic="Lone", broker_name=name, queue_id=number) for number in range(65_000)]
    body = ConsumerStatus(offsets=dict.fromkeys(queues, 7)).encode()
    assert 8 << 20 < len(body) < 15 << 20
    join(member, "Lone", "Lone", client_id="c")

    def answer() -> None:
        asked = member.receive()
        while asked.code != 221:
            asked = member.receive()
        member.socket.sendall(asked.reply(body=body).encode())

    thread = threading.Thread(target=answer)
    thread.start()
    answered = wire.call(223, {"topic": "Lone", "group": "Lone"})
    thread.join()
    assert answered.code == 1
    assert f"text of {len(body)} bytes" in (answered.remark or "")


def test_answers_that_cannot_be_read_are_left_out_unless_all_of_them_are(
    shared_broker: Any, wire: Wire
) -> None:
    create(wire, "Unread")
    members = {name: shared_broker.wire() for name in ("good", "broken", "wrong")}
    for name, member in members.items():
        join(member, "Unread", "Unread", client_id=name)
    queue = MessageQueue(topic="Unread", broker_name="broker-a", queue_id=1)
    good = ConsumerStatus(offsets={queue: 7}).encode()

    def status(bodies: dict[str, bytes]) -> RemotingCommand:
        opaque = wire.send(RemotingCommand.request(223, {"topic": "Unread", "group": "Unread"}))
        for name, member in members.items():
            while (asked := member.receive()).code != 221:
                pass
            member.socket.sendall(asked.reply(body=bodies[name]).encode())
        return wire.answer(opaque)

    bad = {"broken": b"{", "wrong": b'{"messageQueueTable":{"1":true}}'}
    answer = status(bad | {"good": good})
    assert answer.code == 0, answer.remark
    assert list(read(answer)["consumerTable"]) == ["good"]
    answer = status(bad | {"good": b""})
    assert (answer.code, bool(answer.remark)) == (1, True)
    # Such strings take much time to read. Only programs of operators read them in answers.
    raw = good.replace(b'{"consumerTable"', b'{"jstack":"a\nb","consumerTable"')
    assert ConsumerStatus.decode(raw).offsets == {queue: 7}
    answer = status({"broken": raw, "wrong": raw, "good": good})
    assert list(read(answer)["consumerTable"]) == ["good"]


def test_time_spans_of_a_group(wire: Wire) -> None:
    create(wire, "Span")
    for number in range(3):
        wire.send_message("Span", b"%d" % number)
    commit(wire, "G", "Span", 2)
    assert wire.call(303, {"topic": "NoSuchTopic", "group": "G"}).code == 17
    spans = read(wire.call(303, {"topic": "Span", "group": "G"}))["consumeTimeSpanSet"]
    first, second = sorted(spans, key=lambda span: span["messageQueue"]["queueId"])
    assert first["minTimeStamp"] <= first["consumeTimeStamp"] <= first["maxTimeStamp"]
    assert first["delayTime"] >= 0
    assert (second["minTimeStamp"], second["maxTimeStamp"], second["delayTime"]) == (-1, -1, 0)


def test_correction_of_offsets(wire: Wire) -> None:
    create(wire, "Correct")
    for _ in range(9):
        wire.send_message("Correct", b"")
    for group, offset in (("slow", 2), ("fast", 8), ("left", 1)):
        commit(wire, group, "Correct", offset)
    ext = {"topic": "Correct", "compareGroup": "fast", "filterGroups": "left,other"}
    assert read(wire.call(308, ext))["correctionOffsets"] == {"0": 8}
    assert read(wire.call(308, ext | {"compareGroup": "left"}))["correctionOffsets"] == {"0": 2**63 - 1}


def test_offsets_are_cloned(wire: Wire) -> None:
    create(wire, "Clone")
    for _ in range(5):
        wire.send_message("Clone", b"")
    commit(wire, "from", "Clone", 4)
    ext = {"srcGroup": "from", "destGroup": "to", "topic": "Clone", "offline": "true"}
    assert wire.call(314, ext).code == 0
    assert committed(wire, "to", "Clone") == 4
    assert wire.call(314, ext | {"destGroup": "bad name!"}).code == 29
    assert wire.call(314, ext | {"topic": "NoSuchTopic"}).code == 17
    assert wire.call(314, ext | {"destGroup": "all", "topic": ""}).code == 0
    assert committed(wire, "all", "Clone") == 4


def test_consume_stats_of_all_groups(wire: Wire) -> None:
    create(wire, "All")
    create_group(wire, "AllGroup")
    for _ in range(5):
        wire.send_message("All", b"")
    commit(wire, "AllGroup", "All", 2)
    body = read(wire.call(317, {"isOrder": "false"}))
    (stats,) = [group["AllGroup"] for group in body["consumeStatsList"] if "AllGroup" in group]
    assert sum(row["brokerOffset"] - row["consumerOffset"] for row in stats[0]["offsetTable"].values()) == 3
    assert body["totalDiff"] >= 3
    assert "AllGroup" not in str(read(wire.call(317, {"isOrder": "true"})))
    assert read(wire.call(343, {"group": "AllGroup"}))["topicList"] == ["All"]


def test_more_consume_stats_than_fit_are_refused(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Wide1", "Wide2"):
        create(wire, name, QUEUES_MAX // 2 + 1)
        create_group(wire, "WideGroup")
        commit(wire, "WideGroup", name, 0)
    answer = wire.call(317, {"isOrder": "false"})
    assert (answer.code, str(QUEUES_MAX) in str(answer.remark)) == (1, True)
    for name in ("Wide1", "Wide2"):
        assert wire.call(215, {"topic": name}).code == 0


def test_group_configuration_and_subscription(shared_broker: Any, wire: Wire) -> None:
    create(wire, "Sub")
    join(shared_broker.wire(), "SubGroup", "Sub")
    assert read(wire.call(352, {"group": "SubGroup"}))["groupName"] == "SubGroup"
    assert wire.call(352, {"group": "NoSuchGroup"}).code == 26
    found = read(wire.call(345, {"group": "SubGroup", "topic": "Sub"}))
    assert found["subscriptionData"]["subString"] == "*"
    assert "subscriptionData" not in read(wire.call(345, {"group": "SubGroup", "topic": "Other"}))


def test_producers_are_listed(shared_broker: Any, wire: Wire) -> None:
    join(shared_broker.wire(), "Listed", "T")
    (row,) = read(wire.call(328))["data"]["Listed-producers"]
    assert (row["clientId"], row["language"], row["version"]) == ("c1", "PYTHON", 479)
    assert row["remoteIP"].startswith("/127.0.0.1:")


def test_queue_entries_are_listed(shared_broker: Any, wire: Wire) -> None:
    create(wire, "Cq")
    for tag in ("TagA", "TagB"):
        wire.send_message("Cq", b"x", properties=f"TAGS\x01{tag}\x02")
    ext = {"topic": "Cq", "queueId": "0", "index": "0", "count": "2"}
    body = read(wire.call(321, ext))
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 2)
    assert [entry["tagsCode"] for entry in body["queueData"]] == [2598919, 2598920]
    # Without a consumer group in the request, the broker evaluates no subscription.
    assert [entry["eval"] for entry in body["queueData"]] == [False, False]
    join(shared_broker.wire(), "OfTagA", "Cq", expression="TagA")
    body = read(wire.call(321, ext | {"consumerGroup": "OfTagA"}))
    assert [entry["eval"] for entry in body["queueData"]] == [True, False]
    for index in (-5, 2**62):
        assert read(wire.call(321, ext | {"index": str(index)}))["maxQueueIndex"] == 2
    for count in (0, -1, ENTRIES_MAX + 1, 2**31 - 1):
        answer = wire.call(321, ext | {"count": str(count)})
        assert (answer.code, str(ENTRIES_MAX) in str(answer.remark)) == (29, True)
    assert wire.call(321, ext | {"queueId": "99"}).code == 1
    assert "not online" in read(wire.call(321, ext | {"consumerGroup": "Nobody"}))["filterData"]


def test_cleaning_unused_topics_is_accepted_and_keeps_every_topic(wire: Wire) -> None:
    """Request 316 removes nothing. test_retention.py tests requests 306 and 329, which remove old files."""
    create(wire, "Unused")
    assert wire.call(316).code == 0
    assert wire.call(202, {"topic": "Unused"}).code == 0


@pytest.mark.slow
def test_what_was_stored_and_fetched_is_counted(wire: Wire) -> None:
    assert wire.call(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "Counted"}).code == 1
    for _ in range(3):
        wire.send_message("Counted", b"x")
    for _ in range(2):
        answer = wire.answer(wire.pull("Counted", 0, group="CountedGroup"))
        assert answer.code == 0
    stored = next(decode_messages(answer.body))
    back = {"offset": str(stored.physical_offset), "group": "CountedGroup", "delayLevel": "1"}
    assert wire.call(36, back | {"originMsgId": ""}).code == 0
    size = len(answer.body)

    def minute(name: str, key: str) -> Any:
        body = read(wire.call(315, {"statsName": name, "statsKey": key}))
        assert set(body) == {"statsMinute", "statsHour", "statsDay"}
        return body["statsMinute"]

    deadline = time.monotonic() + 40
    # The broker samples its counters every 10 s, so the first figures may take that long.
    while minute("SNDBCK_PUT_NUMS", "Counted@CountedGroup")["sum"] < 1:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    for name, key, total, times in (
        ("TOPIC_PUT_NUMS", "Counted", 3, 3),
        ("TOPIC_PUT_SIZE", "Counted", size, 3),
        ("GROUP_GET_NUMS", "Counted@CountedGroup", 6, 2),
        ("GROUP_GET_SIZE", "Counted@CountedGroup", 2 * size, 2),
        ("SNDBCK_PUT_NUMS", "Counted@CountedGroup", 1, 1),
    ):
        told = minute(name, key)
        assert (told["sum"], told["avgpt"]) == (total, total / times), name
        assert 0 < told["tps"] < total
    for name, least in (("BROKER_PUT_NUMS", 3), ("BROKER_GET_NUMS", 6)):
        assert minute(name, "DefaultCluster")["sum"] >= least
    assert wire.call(215, {"topic": "Counted"}).code == 0
    assert wire.call(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "Counted"}).code == 1


def test_reset_by_time_goes_to_the_first_message_stored_at_or_after_that_instant(wire: Wire) -> None:
    create(wire, "ByTime", queues=1)
    create_group(wire, "ByTime")
    for number in range(4):
        wire.send_message("ByTime", b"%d" % number)
        time.sleep(0.02)
    times = [message.store_timestamp for message in decode_messages(wire.answer(wire.pull("ByTime", 0)).body)]
    assert times == sorted(set(times))
    for offset, instant in enumerate(times):
        for asked, wanted in ((instant - 1, offset), (instant, offset), (instant + 1, min(offset + 1, 3))):
            by_time = {"topic": "ByTime", "queueId": "0", "timestamp": str(asked)}
            assert wire.call(29, by_time).ext_fields["offset"] == str(wanted)
            if instant < times[-1]:
                assert offsets(reset(wire, "ByTime", "ByTime", asked)) == {0: wanted}


def test_growth_is_that_of_the_last_minute_hour_and_day() -> None:
    stats = Stats()
    stats.sample(1000.0)
    now = 1000.0
    for step in range(1, 721):  # for two hours, ten messages are stored every ten seconds
        now = 1000.0 + 10 * step
        stats.stored("T", 10, 100)
        stats.sample(now)
        list(stats.sample_items(now))
    item = stats.items[TOPIC_PUT_NUMS, "T"]
    assert (item.growth(0).sum, item.growth(0).per_second, item.growth(0).per_time) == (60, 1.0, 10.0)
    assert (item.growth(1).sum, item.growth(1).seconds) == (3600, 3600.0)
    assert item.growth(2).sum == 7200
    stats.begin_day(1)
    stats.begin_day(2)
    assert stats.mornings == ((0, 0), (7200, 0))
    stats.begin_day(3)
    assert stats.mornings == ((7200, 0), (7200, 0))


def test_statistics_are_bounded() -> None:
    stats = Stats()
    for number in range(ITEMS_MAX):
        stats.count(TOPIC_PUT_NUMS, str(number), 1)
    stats.count(GROUP_GET_NUMS, "one more", 1)
    assert len(stats.items) == ITEMS_MAX


@pytest.mark.slow
def test_changed_settings_are_kept_over_restarts_below_flags(start_broker: StartBroker) -> None:
    broker = start_broker()
    assert broker.wire().call(25, body=b"traceOn=false\nfileReservedTime=48\n").code == 0
    broker.kill()
    told: list[tuple[str, ...]] = []

    def setting(*flags: str) -> list[str]:
        again = start_broker(*flags, store=broker.store)
        lines = again.wire().call(26).body.decode().splitlines()
        again.stop()
        warning = r"WARNING .* not in force key=(\S+) value=(\S+) in_force=(\S+) "
        told[:] = re.findall(warning, again.log.read_text())
        return [line for line in lines if line.startswith(("traceOn=", "fileReservedTime="))]

    assert sorted(setting()) == ["fileReservedTime=48", "traceOn=false"]
    assert sorted(setting("--set", "traceOn=true")) == ["fileReservedTime=48", "traceOn=true"]
    assert sorted(setting()) == ["fileReservedTime=48", "traceOn=false"]
    file = broker.store.parent / "broker.conf"
    file.write_text("fileReservedTime=24\ntraceOn=true\n")
    assert sorted(setting("-c", str(file))) == ["fileReservedTime=48", "traceOn=false"]
    assert told == [("fileReservedTime", "24", "48"), ("traceOn", "true", "false")]
    setting("-c", str(file), "--set", "traceOn=true")
    assert told == [("fileReservedTime", "24", "48")], "a flag outranks both"
    settings = broker.store / "config" / "broker.properties"
    checksum = broker.store / "config" / "broker.properties.sha256"
    settings.write_text("listenPort=1\ntraceOn=false\n")
    checksum.unlink()
    assert "listenPort=1" not in setting()
    settings.write_text("fileReservedTime=many\n")
    checksum.unlink()
    with pytest.raises(
        AssertionError, match=r"broker\.properties: fileReservedTime=.many. is not a whole number"
    ):
        start_broker(store=broker.store)


@pytest.mark.slow
def test_settings_of_strangers_neither_end_the_broker_nor_keep_it_from_starting(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    wire = broker.wire()
    before = wire.call(26).body
    for body in (
        "fileReservedTime=\u0664\u0668",
        "fileReservedTime=48\u3000",
        "fileReservedTime=\\u0664\\u0668",
        "traceOn=true\u2003",
        "deleteWhen=04\u3000",
        "deleteWhen=04;\\n05",
        "deleteWhen=04;\\r\\ntraceOn=false",
        "deleteWhen=04;\\u008505",
        "fileReservedTime=4_8",
        "fileReservedTime=" + "9" * 4000,
    ):
        assert wire.call(25, body=body.encode()).code == 29, body
    assert wire.call(25, body=b"shortPollingTimeMills=900\n").code == 0
    assert broker.wire().call(26).body == before.replace(
        b"shortPollingTimeMills=1000\n", b"shortPollingTimeMills=900\n"
    )
    broker.kill()
    again = start_broker(store=broker.store)
    assert b"shortPollingTimeMills=900\n" in again.wire().call(26).body
