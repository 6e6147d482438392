"""Tests of the handlers of requests.

From a request and the route table, a handler computes an answer, or a command that changes the table.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.nameserver.commands import DeleteTopic, RegisterBroker, Touch, UnregisterBroker
from routekeeper.nameserver.handlers import SERVED, Decision, Renewal, SettingsChange, answer_for
from routekeeper.nameserver.modes.explain import explain_route
from routekeeper.nameserver.modes.history import History, Note
from routekeeper.nameserver.modes.notes import note_change
from routekeeper.nameserver.registration import Registration, decode_registration
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, BrokerAddr, BrokerKey, ClusterName, LeaveReason, Request
from routekeeper.nameserver.verdicts import Applied, Moved, NoChange, RegisterReply
from routekeeper.remoting.codes import HeaderCodec, RequestCode
from routekeeper.remoting.command import RemotingCommand, read_command
from routekeeper.remoting.fields import RegisterBrokerFields
from routekeeper.remoting.lenient import loads
from routekeeper.remoting.registration import RegisterBody, body_crc32, encode_register_body
from routekeeper.remoting.route import DataVersion, TopicConfig, decode_cluster_info, decode_route
from routekeeper.remoting.steps import finish
from tests.registrations import decided


@dataclass
class Sender:
    """A nameserver that applies each command to its route table at once.

    It has no mode (independent or raft), because the tests need no leases and no log.
    """

    table: RouteTable = field(default_factory=RouteTable)
    settings: NamesrvSettings = field(default_factory=NamesrvSettings)
    uptime_s: float = 1000.0
    applied: list[Any] = field(default_factory=list)

    def decide(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", version: int = 479
    ) -> Decision:
        request = Request(code=code, ext_fields=ext or {}, body=body, version=version)
        return decided(self.table.view, request, self.settings, uptime_s=self.uptime_s)

    def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", version: int = 479
    ) -> Answer:
        decision = self.decide(code, ext, body, version)
        match decision:
            case Answer():
                return decision
            case Renewal():
                return decision.answer
            case SettingsChange():
                return Answer()
        verdict = self.table.apply(decision)
        self.applied.append((decision, verdict))
        assert not isinstance(verdict, Moved)
        return answer_for(decision, verdict, self.settings)

    def register(self, **changes: Any) -> Answer:
        return self.ask(*registration(**changes))

    def route(self, topic: str, **ext: str) -> Any:
        answer = self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, **ext})
        assert answer.code == 0, answer.remark
        return decode_route(answer.body)


def registration(
    *,
    name: str = "a",
    addr: str = "10.0.0.1:10911",
    cluster: str = "c",
    broker_id: int = 0,
    counter: int = 1,
    state_version: int = 0,
    topics: tuple[str, ...] = ("t1", "t2"),
    perm: int = 6,
    flags: int = 0,
    filters: tuple[str, ...] | None = (),
    mapping: dict[str, Any] | None = None,
    compressed: bool = False,
    version: int = 479,
    ext: dict[str, str] | None = None,
) -> tuple[int, dict[str, str], bytes, int]:
    body = encode_register_body(
        RegisterBody(
            data_version=DataVersion(counter=counter, state_version=state_version),
            topic_configs=tuple(
                TopicConfig(topic_name=topic, perm=perm, topic_sys_flag=flags) for topic in topics
            ),
            filter_servers=filters,
            mapping_infos=mapping or {},
        ),
        compressed=compressed,
        version=version,
    )
    header = {
        "brokerName": name,
        "brokerAddr": addr,
        "clusterName": cluster,
        "haServerAddr": addr[:-1] + "2",
        "brokerId": str(broker_id),
        "compressed": str(compressed).lower(),
        "bodyCrc32": str(body_crc32(body)),
    }
    return RequestCode.REGISTER_BROKER, header | (ext or {}), body, version


A = BrokerKey(ClusterName("c"), BrokerAddr("10.0.0.1:10911"))


def unregistration(addr: str = "10.0.0.1:10911", broker_id: str = "0", name: str = "a") -> dict[str, str]:
    return {"brokerName": name, "brokerAddr": addr, "clusterName": "c", "brokerId": broker_id}


# -- registration -----------------------------------------------------------------------------------------


def the_long_way(request: Request) -> Registration | Answer:
    """Decode a registration only with the slow decoders, which accept every valid form.

    The fast decoders accept only the usual forms, and must give the same result.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RegisterBrokerFields, "parse", RegisterBrokerFields.parse_slowly)
        for module in "routekeeper.remoting.registration", "routekeeper.nameserver.registration":
            patch.setattr(f"{module}.read_plain_json", lambda *_: None)
        return decode_registration(request)


def meant(decoded: Registration | Answer) -> object:
    """Return a value by which tests compare decoded registrations; it includes the decoded topics."""
    if isinstance(decoded, Answer):
        return decoded
    parts = {name: getattr(decoded, name) for name in decoded.__struct_fields__ if name != "table"}
    return parts | {"topics": finish(decoded.topics())}


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" "), min_size=1, max_size=6)
numbers = st.sampled_from(["0", "1", "-1", "+7", "x", "", "120000", "2147483648", "9223372036854775808"])


@given(
    topics=st.lists(names, max_size=4, unique=True).map(tuple),
    mapping=st.booleans(),
    compressed=st.booleans(),
    version=st.sampled_from([34, 401, 413, 479]),
    codec=st.sampled_from(HeaderCodec),
    ext=st.dictionaries(
        st.sampled_from(
            [
                "brokerName",
                "brokerAddr",
                "clusterName",
                "haServerAddr",
                "compressed",
                "__ZONE_NAME",
                "unheard",
            ]
        ),
        st.sampled_from(["", "a", "true", "False"]),
        max_size=2,
    ),
    odd=st.dictionaries(
        st.sampled_from(["brokerId", "bodyCrc32", "heartbeatTimeoutMillis", "enableActingMaster"]),
        numbers,
        max_size=2,
    ),
    left_out=st.none() | st.sampled_from(["brokerName", "brokerAddr", "brokerId", "bodyCrc32", "compressed"]),
    cut=st.none() | st.integers(0, 400),
)
def test_registration_is_decoded_the_short_way_as_the_long_way(
    topics: tuple[str, ...],
    mapping: bool,
    compressed: bool,
    version: int,
    codec: HeaderCodec,
    ext: dict[str, str],
    odd: dict[str, str],
    left_out: str | None,
    cut: int | None,
) -> None:
    infos = {"t": {"epoch": 1, "topic": "t"}} if mapping else None
    code, header, body, _ = registration(
        topics=topics, mapping=infos, compressed=compressed, version=version, ext=ext | odd
    )
    if left_out is not None:
        header.pop(left_out)
    frame = RemotingCommand(
        code=code, ext_fields=header, body=body[:cut], version=version, codec=codec
    ).encode()
    request = read_command(frame, 0, len(frame) - 4)
    assert meant(decode_registration(request)) == meant(the_long_way(request))


def test_registration_makes_the_route_of_its_topics() -> None:
    sender = Sender()
    assert sender.register() == Answer()
    route = sender.route("t1")
    assert [(q.broker_name, q.perm, q.read_queue_nums) for q in route.queue_datas] == [("a", 6, 16)]
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
    assert route.filter_server_table == {}
    assert route.order_topic_conf is None


@pytest.mark.parametrize("version", [36, 409, 479], ids=["3.0", "4.9", "5.3"])
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "zlib"])
def test_registration_of_every_generation_is_read(version: int, compressed: bool) -> None:
    sender = Sender()
    assert sender.register(version=version, compressed=compressed).code == 0
    assert sender.table.view.topics() == ["t1", "t2"]


def test_slave_is_told_its_master_and_brings_no_topics() -> None:
    sender = Sender()
    sender.register(addr="s:1", broker_id=1, topics=("only-slave", "t1"))
    assert sender.table.view.topics() == []
    assert sender.table.view.broker_data("a") is not None
    sender.register()
    answer = sender.register(addr="s:1", broker_id=1, topics=("t1", "t2"), counter=2)
    assert answer.ext_fields == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}


def test_registration_without_body_lists_a_broker_without_topics() -> None:
    sender = Sender()
    code, header, _, version = registration()
    assert sender.ask(code, header | {"bodyCrc32": "0"}, b"", version).code == 0
    record = sender.table.view.record(A)
    assert record is not None
    assert record.data_version == DataVersion()
    assert record.complete


def test_order_topics_come_back_unless_switched_off() -> None:
    sender = Sender()
    assert sender.register().body == b""
    sender.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "t1", "value": "a:4"})
    assert sender.register().body == b'{"table":{"t1":"a:4"}}'
    sender.ask(RequestCode.DELETE_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "t1"})
    assert sender.register(counter=2).body == b'{"table":{}}'
    sender.settings = NamesrvSettings(return_order_topic_config_to_broker=False)
    assert sender.register(counter=3).body == b""


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"brokerName": ""}, "brokerName is empty"),
        ({"brokerAddr": None}, "brokerAddr"),
        ({"clusterName": None}, "clusterName"),
        ({"brokerId": None}, "brokerId"),
        ({"brokerId": "x"}, "brokerId"),
        ({"brokerId": "-1"}, "negative"),
        (
            {"heartbeatTimeoutMillis": "86400001"},
            "heartbeatTimeoutMillis is 86400001, allowed: at most 86400000",
        ),
        ({"heartbeatTimeoutMillis": str(2**62)}, f"heartbeatTimeoutMillis is {2**62}, allowed"),
        ({"brokerAddr": "a:" + "9" * 5000}, "brokerAddr is 'a:999"),
        ({"brokerName": "b" * 256}, "brokerName is 'bbb"),
        ({"bodyCrc32": "1"}, "crc32 not match"),
        ({"compressed": "true", "bodyCrc32": "0"}, "Failed to decode RegisterBrokerBody"),
    ],
)
def test_bad_registration_is_named_and_changes_nothing(changes: dict[str, str | None], remark: str) -> None:
    sender = Sender()
    code, header, body, version = registration()
    header = {k: v for k, v in (header | changes).items() if v is not None}
    answer = sender.ask(code, header, body, version)
    assert answer.code == 1
    assert remark in (answer.remark or "")
    assert sender.table.revision == 0


@pytest.mark.parametrize("crc", ["0", "4294967295", "x"], ids=["zero", "unmasked", "no number"])
def test_checksum_that_java_does_not_check_is_not_checked(crc: str) -> None:
    assert Sender().register(ext={"bodyCrc32": crc}).code == 0


def test_compressed_body_that_names_a_topic_twice_counts_the_last() -> None:
    parts = [b'{"counter":1}', *(f"t {n} 4 6 SINGLE_TAG".encode() for n in (1, 2)), b"[]"]
    sized = [len(p).to_bytes(4, "big") + p for p in parts]
    body = zlib.compress(sized[0] + (2).to_bytes(4, "big") + b"".join(sized[1:]))
    sender = Sender()
    code, header, _, _ = registration(compressed=True)
    for _ in range(2):
        decision = sender.decide(code, header | {"bodyCrc32": "0"}, body, 409)
        sender.ask(code, header | {"bodyCrc32": "0"}, body, 409)
    assert isinstance(decision, Renewal)
    assert sender.route("t").queue_datas[0].read_queue_nums == 2


def test_registration_that_changes_nothing_renews_only() -> None:
    sender = Sender()
    sender.register()
    revision = sender.table.revision
    decision = sender.decide(*registration())
    assert isinstance(decision, Renewal)
    assert (decision.record.broker, decision.record.revision) == (A, revision)
    assert isinstance(decision.otherwise, Touch)
    assert isinstance(sender.table.apply(decision.otherwise), Applied)


def test_touch_moves_when_the_record_differs_by_then() -> None:
    sender = Sender()
    sender.register()
    decision = sender.decide(*registration())
    assert isinstance(decision, Renewal)
    assert isinstance(decision.otherwise, Touch)
    sender.register(counter=2)
    assert isinstance(sender.table.apply(decision.otherwise), Moved)


@pytest.mark.parametrize(
    "changes",
    [
        {"counter": 2},
        {"counter": 0},
        {"name": "b"},
        {"broker_id": 1},
        {"filters": ("f:1",)},
        {"ext": {"haServerAddr": "x:1"}},
        {"ext": {"heartbeatTimeoutMillis": "10000"}},
        {"ext": {"enableActingMaster": "true"}},
        {"ext": {"__ZONE_NAME": "z"}},
        {"cluster": "d"},
    ],
    ids=str,
)
def test_registration_that_differs_in_anything_kept_is_a_command(changes: dict[str, Any]) -> None:
    sender = Sender()
    sender.register()
    assert isinstance(sender.decide(*registration(**changes)), RegisterBroker)


def test_an_older_counter_that_is_no_late_copy_overwrites() -> None:
    """A registration with an older counter overwrites the broker's record, unless it is a late copy.

    The handler does not check for late copies: class Liveness has done this before the handler is called.
    """
    sender = Sender()
    sender.register(counter=5, perm=6)
    sender.register(counter=4, perm=4)
    assert sender.route("t1").queue_datas[0].perm == 4


def test_topics_are_not_looked_at_while_the_version_is_equal() -> None:
    sender = Sender()
    sender.register()
    sender.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "t1"})
    sender.register()
    assert sender.table.view.topics() == ["t2"]
    sender.register(counter=2)
    assert sender.table.view.topics() == ["t1", "t2"]


def test_topics_absent_from_a_body_stay_unless_the_setting_removes_them() -> None:
    sender = Sender()
    sender.register(topics=("t1", "t2", "t3"))
    sender.register(counter=2, topics=("t1", "t2"))
    assert sender.table.view.topics() == ["t1", "t2", "t3"]
    sender.settings = NamesrvSettings(delete_topic_with_broker_registration=True)
    sender.register(counter=3, topics=("t1", "t2"))
    assert sender.table.view.topics() == ["t1", "t2"]


def test_regression_delete_topic_with_broker_registration_spares_the_others_on_an_increment() -> None:
    # With this setting, a registration deletes each of the broker's topics that it does not contain. An
    # increment is a registration with only the changed topic. So in RocketMQ 5.1.4 and later, an increment
    # deletes all other topics. Here, an increment must delete nothing.
    sender = Sender(settings=NamesrvSettings(delete_topic_with_broker_registration=True))
    sender.register(topics=("t1", "t2", "t3"))
    sender.register(counter=2, topics=("t2",))
    assert sender.table.view.topics() == ["t1", "t2", "t3"]


def test_regression_lost_increment_is_repaired_by_the_next_full_registration() -> None:
    # An increment is a registration with only the changed topic. If an increment is lost, RocketMQ's
    # nameserver applies the next increment and its data version. Then it ignores full registrations with this
    # version, so the lost topic stays missing.
    sender = Sender()
    sender.register(topics=("t1", "t2"), counter=1)
    # The increment with counter=2 would have created t3, but it is lost. The increment with counter=3 creates
    # t4.
    sender.register(topics=("t4",), counter=3)
    assert sender.table.view.topics() == ["t1", "t2", "t4"]
    question = registration()[1]
    answer = sender.ask(RequestCode.QUERY_DATA_VERSION, question, DataVersion(counter=3).encode())
    assert answer.ext_fields == {"changed": "true"}
    sender.register(topics=("t1", "t2", "t3", "t4"), counter=3)
    assert sender.table.view.topics() == ["t1", "t2", "t3", "t4"]
    answer = sender.ask(RequestCode.QUERY_DATA_VERSION, question, DataVersion(counter=3).encode())
    assert answer.ext_fields == {"changed": "false"}


def test_regression_late_increment_is_contained_in_a_newer_full_registration() -> None:
    sender = Sender()
    sender.register(topics=("t1", "t2"), counter=5, perm=4)
    decision = sender.decide(*registration(topics=("t1",), counter=4, perm=6))
    assert isinstance(decision, Renewal)
    assert isinstance(decision.otherwise, Touch)
    assert decision.otherwise.data_version == DataVersion(counter=5)
    assert sender.route("t1").queue_datas[0].perm == 4


def test_first_registration_with_one_topic_is_accepted_and_incomplete() -> None:
    sender = Sender()
    assert sender.register(topics=("t1",)).code == 0
    record = sender.table.view.record(A)
    assert record is not None
    assert not record.complete
    assert sender.table.view.topics() == ["t1"]
    assert isinstance(sender.decide(*registration(topics=("t1",))), Renewal)
    assert isinstance(sender.decide(*registration(topics=("t1", "t2"))), RegisterBroker)


def test_regression_registration_above_the_frame_limit_arrives_compressed_or_split() -> None:
    # Without compression, a body with 60,000 topics is larger than the frame limit of 16 MiB, so RocketMQ's
    # brokers cannot register these topics.
    names = tuple(f"topic-{i:060d}" for i in range(60_000))
    sender = Sender()
    code, header, body, version = registration(topics=names, compressed=True)
    assert len(body) < 16 * 1024 * 1024
    assert sender.ask(code, header, body, version).code == 0
    assert sender.table.view.topic_count == 60_000
    assert sender.register(topics=names[:2], counter=2).code == 0
    assert sender.register(topics=("one-more", "and-more"), counter=3).code == 0
    assert sender.table.view.topic_count == 60_002


def test_regression_ipv6_addresses_work_in_every_field() -> None:
    sender = Sender()
    addr = "[2001:db8::1%eth0]:10911"
    sender.register(addr=addr, filters=("[::1]:30000",))
    slave = sender.register(addr="[2001:db8::2]:10911", broker_id=1)
    assert slave.ext_fields == {"masterAddr": addr, "haServerAddr": addr[:-1] + "2"}
    route = sender.route("t1")
    assert route.broker_datas[0].broker_addrs == {0: addr, 1: "[2001:db8::2]:10911"}
    assert route.filter_server_table[addr] == ("[::1]:30000",)
    assert sender.ask(RequestCode.UNREGISTER_BROKER, unregistration(addr)).code == 0
    assert sender.table.view.record(BrokerKey(ClusterName("c"), BrokerAddr(addr))) is None


# -- two broker addresses with the same broker id ---------------------------------------------------------


def test_last_of_two_masters_wins_without_state_versions_and_its_topics_count() -> None:
    sender = Sender()
    sender.register(addr="x:1", topics=("t1", "t2"))
    sender.register(addr="y:1", topics=("t1", "t3"), perm=4)
    data = sender.table.view.broker_data("a")
    assert data is not None
    assert data.broker_addrs == {0: "y:1"}
    assert sender.route("t1").queue_datas[0].perm == 4
    sender.register(addr="x:1", topics=("t1", "t2"))
    # The versions are equal, but the registration is applied: a broker that takes over an id from another
    # address counts as new.
    assert sender.route("t1").queue_datas[0].perm == 6


def test_greater_state_version_fences_and_the_answer_is_an_empty_success() -> None:
    sender = Sender()
    sender.register(addr="new:1", state_version=2)
    decision = sender.decide(*registration(addr="old:1", state_version=1))
    assert isinstance(decision, RegisterBroker), "there is no record to renew"
    assert sender.table.apply(decision) == NoChange(revision=1, reply=RegisterReply(revision=None))
    assert sender.register(addr="old:1", state_version=1) == Answer()
    sender.register(addr="old:1", broker_id=1)
    sender.register(addr="old:1", state_version=1)
    data = sender.table.view.broker_data("a")
    assert data is not None
    assert data.broker_addrs == {0: "new:1"}
    assert len(sender.table.view.records()) == 1


def test_role_switch_lists_an_address_once() -> None:
    sender = Sender()
    sender.register(addr="m:1")
    sender.register(addr="s:1", broker_id=1)
    sender.register(addr="s:1", broker_id=0)
    data = sender.table.view.broker_data("a")
    assert data is not None
    assert data.broker_addrs == {0: "s:1"}


# -- brokers that leave -------------------------------------------------------------------------------------


def test_unregistration_is_a_command_that_matches_by_address() -> None:
    sender = Sender()
    sender.register()
    # Only the address matters. An unregistration with the right id but another address removes nothing. An
    # unregistration with the right address removes the broker, even if the id is wrong.
    assert sender.ask(RequestCode.UNREGISTER_BROKER, unregistration("10.0.0.9:1")).code == 0
    assert sender.table.view.record(A) is not None
    assert sender.ask(RequestCode.UNREGISTER_BROKER, unregistration(broker_id="7")).code == 0
    assert sender.table.view.record(A) is None
    assert sender.table.view.topics() == []
    assert sender.table.view.cluster_info().cluster_addr_table == {}


def test_regression_stale_unregister_does_not_remove_the_new_master() -> None:
    # RocketMQ 4.9 compares only the id. So the late unregistration of the old master removed the new master,
    # which had the same id.
    sender = Sender()
    sender.register(addr="old:1")
    sender.register(addr="new:1")
    sender.ask(RequestCode.UNREGISTER_BROKER, unregistration("old:1"))
    assert sender.route("t1").broker_datas[0].broker_addrs == {0: "new:1"}


def test_unregistration_with_an_id_that_is_no_number_succeeds() -> None:
    sender = Sender()
    assert sender.ask(RequestCode.UNREGISTER_BROKER, unregistration(broker_id="x")).code == 0


def test_master_that_leaves_an_acting_master_name_takes_the_write_permission() -> None:
    sender = Sender()
    acting = {"enableActingMaster": "true"}
    sender.register(ext=acting)
    sender.register(addr="s:1", broker_id=1, ext=acting)
    sender.ask(RequestCode.UNREGISTER_BROKER, unregistration())
    assert sender.route("t1").queue_datas[0].perm == 4
    _, verdict = sender.applied[-1]
    (change,) = verdict.min_changes
    assert (change.min_broker_id, change.min_broker_addr, change.offline_addr) == (1, "s:1", A.broker_addr)
    assert change.tell == ("s:1",)


def test_newcomer_with_a_smaller_id_is_announced_to_the_others_only() -> None:
    sender = Sender()
    sender.register(addr="s:2", broker_id=2)
    sender.register(addr="s:1", broker_id=1)
    _, verdict = sender.applied[-1]
    (change,) = verdict.min_changes
    assert (change.min_broker_id, change.tell, change.offline_addr) == (1, ("s:2",), None)
    assert change.ha_addr == "s:2"


# -- routes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "faq"),
    [
        (409, "http://rocketmq.apache.org/docs/faq/"),
        (479, "https://rocketmq.apache.org/docs/bestPractice/06FAQ"),
    ],
)
@pytest.mark.parametrize(("ext", "shown"), [({"topic": "T"}, "T"), ({}, "null")])
def test_topic_without_route_is_17_with_the_callers_faq(
    version: int, faq: str, ext: dict[str, str], shown: str
) -> None:
    answer = Sender().ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, version=version)
    assert answer.code == 17
    assert answer.remark == (
        f"No topic route info in name server for the topic: {shown}\nSee {faq} for further details."
    )


@pytest.mark.parametrize(
    ("version", "ext", "quoted"),
    [(399, {}, False), (399, {"acceptStandardJsonOnly": "true"}, True), (401, {}, True)],
)
def test_route_dialect_follows_the_callers_version(version: int, ext: dict[str, str], quoted: bool) -> None:
    sender = Sender()
    sender.register()
    body = sender.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "t1"} | ext, version=version).body
    assert (b'"brokerAddrs":{"0":' in body) == quoted
    assert (b'"brokerAddrs":{0:' in body) != quoted


def test_regression_cold_start_refuses_routes_while_it_should_wait() -> None:
    # Without this setting, a nameserver that has just started answers 17 (no such topic), as documented.
    # Clients then drop routes that are still valid.
    sender = Sender(settings=NamesrvSettings(need_wait_for_service=True), uptime_s=44.9)
    sender.register()
    answer = sender.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "t1"})
    assert (answer.code, answer.remark) == (1, "name server not ready")
    sender.uptime_s = 45.0
    assert sender.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "t1"}).code == 0
    sender.uptime_s = 0.0
    sender.settings = NamesrvSettings()
    assert sender.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "t1"}).code == 0


def test_order_configuration_shows_only_when_enabled() -> None:
    sender = Sender()
    sender.register()
    sender.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "t1", "value": "a:4"})
    assert sender.route("t1").order_topic_conf is None
    sender.settings = NamesrvSettings(order_message_enable=True)
    assert sender.route("t1").order_topic_conf == "a:4"
    assert sender.route("t2").order_topic_conf is None


def test_acting_master_is_shown_as_master_only_when_supported() -> None:
    sender = Sender()
    acting = {"enableActingMaster": "true"}
    body = ("t1", "rmq_sys_SYNC_BROKER_MEMBER_a")
    sender.register(addr="s:1", broker_id=1, ext=acting, topics=body)
    sender.register(addr="s:2", broker_id=2, ext=acting, topics=body)
    assert sender.route("t1").queue_datas[0].perm == 4, "a prime slave's topics are stored without write"
    assert sender.route("t1").broker_datas[0].broker_addrs == {1: "s:1", 2: "s:2"}
    sender.settings = NamesrvSettings(support_acting_master=True)
    assert sender.route("t1").broker_datas[0].broker_addrs == {0: "s:1", 2: "s:2"}
    assert sender.route(body[1]).broker_datas[0].broker_addrs == {1: "s:1", 2: "s:2"}


def test_zone_mode_keeps_the_zone_and_brokers_without_a_master() -> None:
    sender = Sender()
    sender.register(name="a", addr="a:1", ext={"__ZONE_NAME": "East"})
    sender.register(name="b", addr="b:1", filters=("f:1",))
    sender.register(name="m", addr="m:1")
    sender.register(name="m", addr="m:2", broker_id=1)
    sender.ask(RequestCode.UNREGISTER_BROKER, unregistration("m:1", name="m"))
    zone = {"__ZONE_MODE": "true", "__ZONE_NAME": "east"}
    route = sender.route("t1", **zone)
    assert [data.broker_name for data in route.broker_datas] == ["a", "m"]
    assert [data.broker_name for data in route.queue_datas] == ["a", "m"]
    assert route.filter_server_table == {}
    assert len(sender.route("t1", __ZONE_MODE="true").broker_datas) == 3
    west = sender.route("t2", **zone | {"__ZONE_NAME": "west"})
    assert [data.broker_name for data in west.broker_datas] == ["m"]


def test_static_topic_mapping_is_kept_by_epoch() -> None:
    sender = Sender()
    sender.register(mapping={"t1": {"topic": "t1", "bname": "a", "epoch": 3, "currIdMap": {"0": 0}}})
    sender.register(counter=2, mapping={"t1": {"topic": "t1", "bname": "a", "epoch": 2}})
    route = sender.route("t1")
    assert route.topic_queue_mapping_by_broker == {
        "a": {"topic": "t1", "bname": "a", "epoch": 3, "currIdMap": {"0": 0}}
    }
    assert sender.route("t2").topic_queue_mapping_by_broker is None


def test_filter_servers_null_keeps_and_empty_removes() -> None:
    sender = Sender()
    sender.register(filters=("f:1",))
    sender.register(counter=2, filters=None)
    assert sender.route("t1").filter_server_table == {A.broker_addr: ("f:1",)}
    sender.register(counter=3, filters=())
    assert sender.route("t1").filter_server_table == {}


# -- requests that are neither registrations nor route queries -----------------------------------


def test_cluster_info_lists_slaves_without_routes_too() -> None:
    sender = Sender()
    sender.register()
    sender.register(name="b", addr="b:1", broker_id=1, cluster="d")
    info = decode_cluster_info(sender.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
    assert info.cluster_addr_table == {"c": ("a",), "d": ("b",)}
    assert info.broker_addr_table["b"].broker_addrs == {1: "b:1"}


def topic_list(answer: Answer) -> list[str]:
    assert answer.code == 0, answer.remark
    listed: list[str] = orjson.loads(answer.body)["topicList"]
    return listed


def test_topic_lists_and_their_switches() -> None:
    sender = Sender()
    sender.register(topics=("t1", "t2"))
    sender.register(name="b", addr="b:1", cluster="d", topics=("u", "u2"), flags=1)
    sender.register(name="e", addr="e:1", cluster="d", topics=("s", "s2"), flags=2)
    sender.register(name="f", addr="f:1", cluster="d", topics=("us", "us2"), flags=3)
    assert len(topic_list(sender.ask(206))) == 8
    assert topic_list(sender.ask(224, {"cluster": "c"})) == ["t1", "t2"]
    assert topic_list(sender.ask(224, {"cluster": "nowhere"})) == []
    assert topic_list(sender.ask(311)) == ["u", "u2", "us", "us2"]
    assert topic_list(sender.ask(312)) == ["s", "s2", "us", "us2"]
    assert topic_list(sender.ask(313)) == ["s", "s2"]
    sender.settings = NamesrvSettings(enable_topic_list=False)
    for code in (224, 311, 312, 313):
        answer = sender.ask(code, {"cluster": "c"})
        assert (answer.code, answer.remark) == (1, "disable")
    assert len(topic_list(sender.ask(206))) == 8
    sender.settings = NamesrvSettings(enable_all_topic_list=False)
    assert sender.ask(206).remark == "disable"


def test_system_topics_are_clusters_and_broker_names() -> None:
    sender = Sender()
    assert orjson.loads(sender.ask(304).body) == {"topicList": []}
    sender.register()
    assert orjson.loads(sender.ask(304).body) == {"brokerAddr": A.broker_addr, "topicList": ["c", "a"]}


def test_wipe_and_add_write_permission_count_topics_and_last_until_the_next_change() -> None:
    sender = Sender()
    sender.register(perm=7)
    assert sender.ask(205, {"brokerName": "a"}).ext_fields == {"wipeTopicCount": "2"}
    assert sender.route("t1").queue_datas[0].perm == 5
    sender.register(perm=7)
    assert sender.route("t1").queue_datas[0].perm == 5
    assert sender.ask(327, {"brokerName": "a"}).ext_fields == {"addTopicCount": "2"}
    assert sender.route("t1").queue_datas[0].perm == 6
    sender.register(perm=7, counter=2)
    assert sender.route("t1").queue_datas[0].perm == 7
    for ext in ({"brokerName": "unknown"}, {}):
        assert sender.ask(205, ext).ext_fields == {"wipeTopicCount": "0"}
        assert sender.ask(327, ext).ext_fields == {"addTopicCount": "0"}


def test_delete_topic_everywhere_or_in_one_cluster() -> None:
    sender = Sender()
    sender.register(topics=("t1", "t2"))
    sender.register(name="b", addr="b:1", cluster="d", topics=("t1", "t3"))
    assert sender.ask(216, {"topic": "t1", "clusterName": "nowhere"}).code == 0
    assert len(sender.route("t1").queue_datas) == 2
    sender.ask(216, {"topic": "t1", "clusterName": "d"})
    assert [data.broker_name for data in sender.route("t1").queue_datas] == ["a"]
    sender.ask(216, {"topic": "t1"})
    assert sender.ask(105, {"topic": "t1"}).code == 17
    assert sender.ask(216, {"topic": "t1"}).code == 0
    assert sender.ask(216, {}).code == 1


def test_single_topic_registration_needs_every_broker_known() -> None:
    sender = Sender()
    sender.register()
    queues = b'{"queueDatas":[{"brokerName":"%b","perm":6,"readQueueNums":3,"writeQueueNums":3}]}'
    assert sender.ask(217, {"topic": "new"}, queues % b"ghost").code == 0
    assert sender.ask(105, {"topic": "new"}).code == 17
    assert sender.ask(217, {"topic": "new"}, queues % b"a").code == 0
    assert sender.route("new").queue_datas[0].read_queue_nums == 3
    assert sender.ask(217, {"topic": "new"}).code == 0
    assert sender.ask(217, {"topic": "new"}, b"garbage").code == 1


def test_kv_configuration_is_put_read_listed_and_deleted() -> None:
    sender = Sender()
    named = {"namespace": "n", "key": "k"}
    missing = sender.ask(101, named)
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: n Key: k")
    assert sender.ask(219, {"namespace": "n"}).remark == "No config item, Namespace: n"
    assert sender.ask(100, named | {"value": "v"}).code == 0
    assert sender.ask(101, named).ext_fields == {"value": "v"}
    assert sender.ask(219, {"namespace": "n"}).body == b'{"table":{"k":"v"}}'
    assert sender.ask(102, named).code == 0
    assert sender.ask(102, named).code == 0
    assert sender.ask(219, {"namespace": "n"}).body == b'{"table":{}}'
    assert sender.ask(100, named).code == 0, "a missing value is stored as null"
    assert sender.ask(101, named).code == 22
    for ext in ({"namespace": "n", "value": "v"}, {"key": "k"}, {}):
        assert sender.ask(100, ext).remark == "namespace or key is null"


def test_data_version_query_answers_changed_and_the_stored_version() -> None:
    sender = Sender()
    ext = unregistration()
    unknown = sender.decide(322, ext, DataVersion(counter=1).encode())
    assert unknown == Answer(ext_fields={"changed": "true"})
    sender.register()
    for counter, changed in ((1, "false"), (2, "true"), (0, "true")):
        decision = sender.decide(322, ext, DataVersion(counter=counter).encode())
        assert isinstance(decision, Renewal), "a known broker's lease is renewed with any outcome"
        assert decision.answer.ext_fields == {"changed": changed}
        assert DataVersion.decode(decision.answer.body) == DataVersion(counter=1)
        assert isinstance(decision.otherwise, Answer)
        assert decision.otherwise.ext_fields == {"changed": "true"}
    assert sender.ask(322, ext, b"garbage").code == 1


def test_heartbeat_renews_a_known_broker_only() -> None:
    sender = Sender()
    assert sender.decide(904, unregistration()) == Answer()
    sender.register()
    decision = sender.decide(904, unregistration() | {"heartbeatTimeoutMills": "1"})
    assert isinstance(decision, Renewal)
    assert decision.record.lease_ms == 120_000, "a heartbeat does not change the lease, as in 5.x"


def test_member_group_lists_addresses_and_echoes_unknown_names() -> None:
    sender = Sender()
    sender.register()
    sender.register(addr="s:1", broker_id=1)
    answer = sender.ask(901, {"clusterName": "c", "brokerName": "a"})
    assert (answer.code, answer.remark) == (0, "not set any response code")
    assert loads(answer.body)["brokerMemberGroup"]["brokerAddrs"] == {"0": A.broker_addr, "1": "s:1"}
    unknown = loads(sender.ask(901, {"clusterName": "c", "brokerName": "x"}).body)["brokerMemberGroup"]
    assert unknown == {"brokerAddrs": {}, "brokerName": "x", "cluster": "c"}


def test_settings_are_shown_sorted_and_changed_by_allow_list() -> None:
    sender = Sender()
    lines = sender.ask(319).body.decode().splitlines()
    assert lines == sorted(lines, key=lambda line: line.partition("=")[0])
    assert "orderMessageEnable=false" in lines
    decision = sender.decide(318, body=b"orderMessageEnable=true\nunknownKey=1\n")
    assert isinstance(decision, SettingsChange)
    assert decision.after.order_message_enable
    assert decision.changes == {"orderMessageEnable": "true"}
    assert sender.decide(318) == Answer()
    assert sender.decide(318, body=b"unknownKey=1") == Answer()
    assert sender.ask(318, body=b"\xff\xfe").remark == "string2Properties error"
    assert sender.ask(318, body=b"orderMessageEnable=perhaps").code == 1


@pytest.mark.parametrize(
    "key", ["configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome", "orderMessageEnable"]
)
def test_regression_cve_2023_37582_settings_cannot_name_files_or_escape_the_black_list(key: str) -> None:
    sender = Sender(settings=NamesrvSettings(config_black_list="orderMessageEnable"))
    answer = sender.ask(318, body=f"enableTopicList=false\n{key}=true".encode())
    assert (answer.code, answer.remark) == (16, "Can not update config in black list.")


@pytest.mark.parametrize("key", ["dataDir", "listenPort", "httpTokenFile", "raftSecretFile", "raftPeers"])
def test_settings_of_the_whole_process_are_refused_at_run_time(key: str) -> None:
    answer = Sender().ask(318, body=f"{key}=1".encode())
    assert answer.code == 16
    assert key in (answer.remark or "")


def test_every_request_of_the_documents_is_served() -> None:
    documented = {
        *range(100, 107),
        205,
        206,
        216,
        217,
        219,
        224,
        304,
        311,
        312,
        313,
        318,
        319,
        322,
        327,
        901,
        904,
    }
    assert documented == SERVED


@pytest.mark.parametrize("code", sorted(SERVED))
@pytest.mark.parametrize("body", [b"", b"garbage", b"{}", b"[]", b"null", b"\x00\xff"])
def test_no_request_without_arguments_raises(code: int, body: bytes) -> None:
    sender = Sender()
    sender.register()
    assert sender.ask(code, {}, body).code in (0, 1, 17, 22)


# -- commands that are valid only for one state of the table, and history ------------------------------


def test_command_about_something_absent_names_the_table_revision() -> None:
    sender = Sender()
    sender.register()
    decision = sender.decide(216, {"topic": "absent"})
    assert isinstance(decision, DeleteTopic)
    assert decision.topic_revision == sender.table.revision
    unregister = sender.decide(104, unregistration("absent:1", name="ghost"))
    assert isinstance(unregister, UnregisterBroker)
    assert unregister.record_revision == unregister.name_revision == sender.table.revision


def test_command_applies_at_most_once() -> None:
    sender = Sender()
    sender.register()
    command = sender.decide(*registration(counter=2))
    assert isinstance(command, RegisterBroker)
    assert isinstance(sender.table.apply(command), Applied)
    assert isinstance(sender.table.apply(command), Moved)


def test_history_tells_why_a_topic_left_and_explains_it() -> None:
    sender, history = Sender(), History()
    sender.register()
    sender.ask(205, {"brokerName": "a"})
    sender.ask(104, unregistration())
    for command, verdict in sender.applied:
        note_change(history, command, verdict)
    assert [event.reason for event in history.of_topic("t1")] == [
        Note.PERMISSION_WIPED,
        LeaveReason.UNREGISTERED,
    ]
    said = explain_route(sender.table.view, "t1", history, started_ms_ago=10**6, keeps_routes=False)
    assert not said.listed
    assert "unregistered" in said.summary
    assert any("no broker is registered" in cause for cause in said.likely_causes)
