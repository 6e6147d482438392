"""Apache's ``mqadmin`` does at our broker what operators do every day: one JVM for all of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .apache import RELEASES, Apache, ask, has_route, wait_until
from .ours import OurBroker, await_broker, await_namesrv, create_topic, launch_broker, start_namesrv

pytestmark = pytest.mark.interop
TOPIC = "Daily"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, OurBroker]]:
    """Address of a nameserver of ours, and its broker."""
    folder = tmp_path_factory.mktemp("operators")
    namesrv = start_namesrv(["--data", str(folder / "data")], folder / "namesrv", "127.0.0.1:0")
    broker = None
    try:
        await_namesrv(namesrv)
        broker = launch_broker([namesrv.addr], folder, name="broker-ours")
        await_broker(broker, [namesrv.addr])
        yield namesrv.addr, broker
    finally:
        if broker is not None:
            broker.stop()
        namesrv.stop()


@pytest.mark.parametrize("release", RELEASES)
def test_apache_mqadmin_does_the_daily_work_at_our_broker(
    release: str, apaches: dict[str, Apache], ours: tuple[str, OurBroker]
) -> None:
    namesrv, broker = ours
    topic, group, addr = f"{TOPIC}{release[0]}", f"group{release[0]}", broker.addr
    retry = f"%RETRY%{group}"  # by which Apache's tool finds the brokers of a group
    for name in (topic, retry):
        create_topic(addr, name, queues=2)
    wait_until(lambda: has_route(namesrv, topic, addr) and has_route(namesrv, retry, addr), "routed")
    ids = []
    unique = f"7F00000100000000000000000000000{release[0]}"
    for number in range(3):
        marks = {"KEYS": f"key{number} all", "UNIQ_KEY": f"{unique[:-2]}{number}{release[0]}", "TAGS": "TagA"}
        properties = "".join(f"{name}\x01{value}\x02" for name, value in marks.items())
        fields = {"a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
        code, answer, _ = ask(addr, 310, fields | {"i": properties}, b"body %d" % number)
        assert code == 0
        ids.append(answer["extFields"]["msgId"])
    first = f"{broker.name:<40}  {0:<40}"
    id_flags = ("-t", topic) if release.startswith("5") else ()
    for args, text in (
        (("updateSubGroup", "-b", addr, "-g", group), f"create subscription group to {addr} success."),
        (("getConsumerConfig", "-g", group), f"{'groupName':<40}=  {group}"),
        (("brokerStatus", "-b", addr), "putTps"),
        (("getBrokerConfig", "-b", addr), "brokerName"),
        (("updateBrokerConfig", "-b", addr, "-k", "traceOn", "-v", "true"), "success"),
        (("updateTopicPerm", "-b", addr, "-t", topic, "-p", "4"), "from 6 to 4"),
        (("topicClusterList", "-t", topic), broker.cluster),
        (("queryMsgById", *id_flags, "-i", ids[1]), f"{'Queue Offset:':<20} 1"),
        (("queryMsgByKey", "-t", topic, "-k", "key2"), f"{2:>40}"),
        (("queryMsgByUniqueKey", "-t", topic, "-i", f"{unique[:-2]}1{release[0]}"), "[key1 all]"),
        (("queryMsgByOffset", "-t", topic, "-b", broker.name, "-i", "0", "-o", "2"), "[key2 all]"),
        (("printMsg", "-t", topic), "BODY: body 2"),
        (("queryCq", "-t", topic, "-q", "0", "-i", "0", "-c", "2", "-b", addr), "max: 3, min: 0"),
        (("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0"), f"{first}  {0:<40}"),
        (("skipAccumulatedMessage", "-g", group, "-t", topic), f"{first}  {3:<40}"),
        (("consumerProgress", "-g", group), topic),
        (("brokerConsumeStats", "-b", addr), group),
        (("statsAll", "-t", topic), group),
        (("cleanExpiredCQ", "-b", addr), "success"),
        (("cleanUnusedTopic", "-b", addr), "success"),
        (("deleteExpiredCommitLog", "-b", addr), "success"),
        (("deleteSubGroup", "-b", addr, "-g", group), "success"),
    ):
        result = apaches[release].admin(*args, namesrvs=[namesrv])
        assert text in result.stdout, f"{args}\n{result.stdout}\n{result.stderr}"
