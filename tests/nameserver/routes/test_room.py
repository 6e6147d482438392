"""Tests of the limits on the table's content, in total and for each host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from routekeeper.nameserver.commands import (
    BrokerQueues,
    DeleteTopic,
    Evict,
    QueueMapping,
    RegisterBroker,
    RegisterTopic,
    TableLimits,
    TopicQueues,
    Update,
    decode_command,
    encode_command,
    format_of,
)
from routekeeper.nameserver.handlers import table_limits
from routekeeper.nameserver.modes.independent import Independent
from routekeeper.nameserver.routes.image import encode_image
from routekeeper.nameserver.routes.registrations import CLUSTERS_MAX, TOPIC_MAPPINGS_BYTES_MAX
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import (
    Answer,
    BrokerAddr,
    BrokerKey,
    BrokerName,
    ClusterName,
    ConnectionId,
    LeaveReason,
    MinBrokerChange,
)
from routekeeper.nameserver.verdicts import Applied, NoChange, Rejected, Verdict
from routekeeper.remoting.route import DataVersion
from tests.registrations import as_it_came, registration
from tests.tables import check_table

C = ClusterName("c")
MINE, THEIRS = "10.0.0.1", "10.0.0.2"


def limits(host: str = MINE, *, topics: int = 10, pairs: int = 20, brokers: int = 4, size: int = 1000) -> Any:
    return TableLimits(topics, pairs, brokers, size, host, 50)


def registered(
    table: RouteTable, name: str, topics: tuple[str, ...], *, limits: TableLimits | None, **changes: Any
) -> Verdict:
    """Apply a broker's registration as a nameserver does: as a difference (class Update) if possible."""
    broker = BrokerKey(changes.pop("cluster_name", C), BrokerAddr(f"{name}:1"))
    values: dict[str, Any] = {
        "broker_id": 0,
        "ha_server_addr": "",
        "data_version": DataVersion(counter=table.revision + 1),
        "filter_servers": None,
        "mappings": (),
        "lease_ms": 120_000,
        "enable_acting_master": None,
        "zone_name": None,
        "delete_absent": False,
    }
    values |= changes
    whole = RegisterBroker(
        cluster_name=broker.cluster_name,
        broker_name=BrokerName(name),
        broker_addr=broker.broker_addr,
        topics=tuple(TopicQueues(topic, 4, 4, 6) for topic in topics),
        incremental=len(topics) == 1,
        record_revision=table.view.base("record", broker),
        name_revision=table.view.base("name", name),
        limits=limits,
        **values,
    )
    short = table.shortened(as_it_came(whole), delete_absent=whole.delete_absent, limits=limits)
    before = table.view.state_digest()
    verdict = table.apply(decode_command(encode_command(short or whole)))
    if isinstance(verdict, Rejected):
        assert table.view.state_digest() == before, "a refused command changes nothing"
        assert table.excess(short or whole) == verdict, "a proposer that judges alone says the same"
    check_table(table)
    return verdict


def refused(verdict: Verdict, *words: str) -> None:
    assert isinstance(verdict, Rejected), verdict
    for word in words:
        assert word in verdict.remark, verdict.remark


def test_one_host_fills_its_share_and_leaves_the_rest_to_others() -> None:
    table = RouteTable()
    assert isinstance(registered(table, "a", ("t1", "t2", "t3"), limits=limits()), Applied)
    refused(
        registered(table, "b", ("t4", "t5", "t6"), limits=limits()),
        "host 10.0.0.1 would hold 6 topics, allowed: 5",
        "tableHostPercent=50 of tableTopicsMax=10",
    )
    refused(registered(table, "a", ("t1", "t2", "t3", "u1", "u2", "u3"), limits=limits()), "tableTopicsMax")
    theirs = tuple(f"u{number}" for number in range(5))
    assert isinstance(registered(table, "b", theirs, limits=limits(THEIRS)), Applied)
    refused(registered(table, "c", ("v1", "v2", "v3"), limits=limits("")), "11 topics", "tableTopicsMax=10")
    assert isinstance(registered(table, "c", ("v1", "v2"), limits=limits("")), Applied), "loopback has it all"


def test_brokers_and_bytes_are_bounded_as_topics_are() -> None:
    table = RouteTable()
    for name in ("a", "b"):
        assert isinstance(registered(table, name, (), limits=limits()), Applied)
    refused(registered(table, "c", (), limits=limits()), "3 brokers, allowed: 2", "tableBrokersMax=4")
    long = ("t" * 300, "u" * 300)
    refused(registered(table, "a", long, limits=limits()), "bytes", "tableBytesMax=1000")
    filters = tuple(f"f{number}.example:1" for number in range(50))
    refused(registered(table, "a", (), limits=limits(), filter_servers=filters), "tableBytesMax=1000")
    info = QueueMapping(topic="t", epoch=1, info="[" + "1," * 300 + "1]")
    assert isinstance(registered(table, "a", ("t", "u"), limits=limits()), Applied)
    refused(registered(table, "a", ("t", "u"), limits=limits(), mappings=(info,)), "tableBytesMax=1000")


def test_mapping_of_a_topic_that_the_same_registration_adds_is_counted() -> None:
    table = RouteTable()
    info = QueueMapping(topic="t", epoch=1, info="[" + "1," * 300 + "1]")
    refused(registered(table, "a", ("t", "u"), limits=limits(), mappings=(info,)), "tableBytesMax=1000")
    assert isinstance(registered(table, "b", ("t",), limits=limits()), Applied)
    assert isinstance(registered(table, "a", ("u",), limits=limits()), Applied)
    refused(registered(table, "a", ("t", "u"), limits=limits(), mappings=(info,)), "tableBytesMax=1000")


def test_mapping_infos_of_one_topic_are_bounded_over_all_broker_names() -> None:
    table, ample = RouteTable(), limits(topics=1000, pairs=1000, brokers=1000, size=1 << 30)
    info = QueueMapping(topic="t", epoch=1, info='"' + "x" * 60_000 + '"')
    names = [f"b{number}" for number in range(TOPIC_MAPPINGS_BYTES_MAX // 60_002)]
    for name in names:
        assert isinstance(registered(table, name, ("t", "u"), limits=ample, mappings=(info,)), Applied)
    size = 60_002 * (len(names) + 1)
    last = f"topic 't' would have {size} bytes of mapping infos, allowed: {TOPIC_MAPPINGS_BYTES_MAX}"
    refused(registered(table, "last", ("t", "u"), limits=ample, mappings=(info,)), last)
    newer = QueueMapping(topic="t", epoch=2, info=info.info)
    assert isinstance(registered(table, names[0], ("t", "u"), limits=ample, mappings=(newer,)), Applied)


def test_broker_name_has_a_bounded_number_of_clusters() -> None:
    table = RouteTable()
    for number in range(CLUSTERS_MAX):
        cluster = ClusterName(f"c{number:02}")
        assert isinstance(registered(table, "a", (), limits=limits(), cluster_name=cluster), Applied)
    last = f"broker name 'a' would be in {CLUSTERS_MAX + 1} clusters, allowed: {CLUSTERS_MAX}"
    refused(registered(table, "a", (), limits=limits(), cluster_name=ClusterName("c99")), last)
    assert isinstance(registered(table, "a", (), limits=limits(), cluster_name=ClusterName("c00")), Applied)


def test_replicated_table_applies_what_a_proposer_of_an_older_release_let_through() -> None:
    """In raft mode, a table applies a log entry even if the entry exceeds a limit of this release.

    If members of different releases decided differently about an entry, their tables would differ.
    """
    table, few = RouteTable(), limits(size=500)
    table.strict = False
    for number in range(CLUSTERS_MAX + 1):
        cluster = ClusterName(f"c{number:02}")
        assert isinstance(registered(table, "a", (), limits=few, cluster_name=cluster), Applied)
    info = QueueMapping(topic="t", epoch=1, info='"' + "x" * 600 + '"')
    assert isinstance(registered(table, "b", ("t", "u"), limits=few, mappings=(info,)), Applied)
    other = RouteTable.restore(encode_image(table.copy_for_snapshot()))
    table.adopt(other)
    assert not table.strict, "the state is exchanged, not the rule"


def test_broker_that_is_listed_goes_on_when_the_table_is_full() -> None:
    table = RouteTable()
    mine = ("t1", "t2", "t3")
    assert isinstance(registered(table, "a", mine, limits=limits()), Applied)
    full = limits(topics=1, pairs=1, brokers=1, size=1)
    assert isinstance(registered(table, "a", mine, limits=full), Applied), "another version"
    assert isinstance(registered(table, "a", mine[:2], limits=full), Applied)
    assert isinstance(
        registered(table, "a", mine, limits=full, data_version=DataVersion()), Applied | NoChange
    )
    refused(registered(table, "a", (*mine, "t4"), limits=full), "tableTopicsMax=1")
    record = table.view.record(BrokerKey(C, BrokerAddr("a:1")))
    assert record is not None
    gone = Evict(
        cluster_name=C,
        broker_addr=BrokerAddr("a:1"),
        revision=record.revision,
        reason=LeaveReason.LEASE_EXPIRED,
    )
    assert isinstance(table.apply(gone), Applied)
    check_table(table)
    assert not table.ledger.by_host


def test_host_that_adds_to_a_broker_name_is_charged_for_all_of_it() -> None:
    table = RouteTable()
    few = limits(THEIRS, pairs=6)
    assert isinstance(registered(table, "a", ("t1", "t2", "t3"), limits=limits()), Applied)
    refused(registered(table, "a", ("t1", "t2", "t3", "t4"), limits=few), "4 pairs", "tablePairsMax=6")
    added = RegisterTopic(
        topic="t1",
        queues=(BrokerQueues(BrokerName("a"), 8, 8, 6),),
        topic_revision=table.revision,
        limits=few,
    )
    assert isinstance(table.apply(added), Applied), "other queues of a topic that is there are no growth"
    for topic, verdict in (("t4", Rejected), ("t4", Applied)):
        by = few if verdict is Rejected else limits(THEIRS)
        added = RegisterTopic(
            topic=topic,
            queues=(BrokerQueues(BrokerName("a"), 8, 8, 6),),
            topic_revision=table.revision,
            limits=by,
        )
        assert isinstance(table.apply(added), verdict)
        check_table(table)
    assert table.ledger.by_host[THEIRS].pairs == 4
    assert table.ledger.by_host[MINE].pairs == 0


def _new_topic(table: RouteTable, *names: str, limits: TableLimits) -> RegisterTopic:
    queues = tuple(BrokerQueues(BrokerName(name), 8, 8, 6) for name in names)
    return RegisterTopic(topic="new", queues=queues, topic_revision=table.revision, limits=limits)


def test_host_that_adds_a_topic_to_a_broker_name_is_charged_for_its_mapping_infos() -> None:
    table = RouteTable()
    for name, host in (("a", MINE), ("b", THEIRS)):
        info = QueueMapping(topic="t", epoch=1, info='"' + "x" * 250 + '"')
        assert isinstance(registered(table, name, ("t", "u"), limits=limits(host), mappings=(info,)), Applied)
    added = _new_topic(table, "a", limits=limits(THEIRS))
    before = table.excess(added)
    assert isinstance(before, Rejected)
    assert f"host {THEIRS} would hold 5" in before.remark, "of 500 bytes"
    refused(table.apply(added), f"host {THEIRS} would hold 5", "tableBytesMax=1000")
    check_table(table)


def test_broker_name_that_a_topic_lists_twice_counts_once() -> None:
    table = RouteTable()
    assert isinstance(registered(table, "a", ("t1", "t2", "t3"), limits=limits()), Applied)
    added = _new_topic(table, "a", "a", limits=limits(pairs=8))
    assert table.excess(added) is None
    assert isinstance(table.apply(added), Applied)
    check_table(table)


@given(st.data())
def test_counts_equal_a_recount_whatever_happens(data: st.DataObject) -> None:
    table = RouteTable()
    names, topics = st.sampled_from("abc"), st.sets(st.sampled_from(["t", "u", "v", "w", "ü"]))
    hosts = st.sampled_from(["", MINE, THEIRS])
    for _ in range(data.draw(st.integers(1, 12))):
        name, host = data.draw(names), data.draw(hosts)
        few = limits(host, topics=3, pairs=6, brokers=3, size=60) if data.draw(st.booleans()) else None
        match data.draw(st.sampled_from(["register", "register", "delete", "evict", "restore"])):
            case "register":
                said = tuple(sorted(data.draw(topics)))
                info = tuple(QueueMapping(topic=t, epoch=table.revision, info='{"é":1}') for t in said[:1])
                mappings = info if data.draw(st.booleans()) else ()
                absent = data.draw(st.booleans())
                registered(table, name, said, limits=few, mappings=mappings, delete_absent=absent)
            case "delete":
                table.apply(DeleteTopic(topic="t", cluster_name=None, topic_revision=table.revision))
            case "evict":
                broker = BrokerKey(C, BrokerAddr(f"{name}:1"))
                revision = table.view.base("record", broker)
                table.apply(Evict(*broker, revision=revision, reason=LeaveReason.LEASE_EXPIRED))
            case "restore":
                table = RouteTable.restore(encode_image(table.copy_for_snapshot()))
        check_table(table)


def test_only_a_command_that_adds_something_needs_members_that_know_limits() -> None:
    table = RouteTable()
    registered(table, "a", ("t1", "t2"), limits=None)
    for topics, needed in ((("t1",), 2), (("t3",), 3)):
        whole = RegisterBroker(
            cluster_name=C,
            broker_name=BrokerName("a"),
            broker_addr=BrokerAddr("a:1"),
            broker_id=0,
            ha_server_addr="",
            data_version=DataVersion(counter=9),
            topics=tuple(TopicQueues(topic, 4, 4, 6) for topic in topics),
            incremental=True,
            filter_servers=None,
            mappings=(),
            lease_ms=120_000,
            enable_acting_master=None,
            zone_name=None,
            delete_absent=False,
            record_revision=table.revision,
            name_revision=table.revision,
        )
        short = table.shortened(as_it_came(whole), delete_absent=False, limits=limits())
        assert isinstance(short, Update)
        assert format_of(encode_command(short)) == needed


def test_defaults_let_in_what_a_large_deployment_has_even_behind_one_address() -> None:
    of = table_limits(NamesrvSettings(), MINE)
    for most, needed in ((of.topics, 100_000), (of.pairs, 1_000_000), (of.brokers, 300)):
        assert most * of.host_percent // 100 >= needed


class _NoEffects:
    def close_connection(self, origin: ConnectionId) -> None:
        raise AssertionError("a listed broker's connection stays")

    def notify_min_broker(self, change: MinBrokerChange) -> None:
        pass


async def test_refused_registration_of_a_listed_broker_renews_its_lease(tmp_path: Path) -> None:
    live = LiveSettings(NamesrvSettings(data_dir=str(tmp_path), table_topics_max=3))
    server = Independent(live, _NoEffects(), boot_id=7, clock=lambda: 0.0)
    now = 0.0
    server.tick(now)

    def register(topics: tuple[str, ...], counter: int) -> Answer:
        request = registration("a", "10.0.0.1:10911", topics, counter=counter, lease_ms=30_000)
        answer = server.register(
            request, ConnectionId(1), deadline=9.0, answered=lambda answer: None, host=MINE
        )
        assert answer is not None
        return answer

    assert register(("t",), 1).code == 0
    for _ in range(8):
        for _ in range(80):
            now += 0.25
            server.tick(now)
        assert "tableTopicsMax=3" in (register(("t", "u", "v", "w"), 2).remark or "")
    assert server._table.view.topics() == ["t"], "nothing but refusals for five leases"
