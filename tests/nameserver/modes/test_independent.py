"""Tests of independent mode.

They cover leases of brokers, KV values and settings in files, and requests that wait for a topic.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from routekeeper.nameserver.modes import independent, kept_file
from routekeeper.nameserver.modes.independent import Independent
from routekeeper.nameserver.modes.interface import Freshness, FreshnessNotOffered
from routekeeper.nameserver.routes.kv import KV_BYTES_MAX, KV_ENTRY_BYTES_MAX
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.settings.files import load_kv_file
from routekeeper.nameserver.types import (
    Answer,
    BrokerAddr,
    BrokerKey,
    ClusterName,
    ConnectionId,
    LeaveReason,
    MinBrokerChange,
    Request,
)
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.registration import RegisterBody, encode_register_body
from routekeeper.remoting.route import DataVersion, TopicConfig
from tests.waiting import until

T = TypeVar("T")
A = BrokerKey(ClusterName("c"), BrokerAddr("a:1"))


def never(answer: Answer) -> None:
    raise AssertionError("nothing waits as long as the clock stands")


class Recorder:
    """A record of the actions that a mode requests: connections to close, and notices to send."""

    def __init__(self) -> None:
        self.closed: list[ConnectionId] = []
        self.told: list[MinBrokerChange] = []

    def close_connection(self, origin: ConnectionId) -> None:
        self.closed.append(origin)

    def notify_min_broker(self, change: MinBrokerChange) -> None:
        self.told.append(change)


class Bench:
    """One nameserver in independent mode, with a clock that the test advances."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] | None = None, **changes: Any) -> None:
        self.effects = Recorder()
        self.live = LiveSettings(NamesrvSettings(data_dir=str(folder), **changes))
        self.now = 0.0
        self.server = Independent(self.live, self.effects, boot_id=7, clock=clock or (lambda: self.now))
        if clock is None:
            self.server.tick(self.now)

    def wait(self, seconds: float) -> None:
        """Advance the clock by `seconds` in steps of 0.25 s, like the real nameserver."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.25
            self.server.tick(self.now)

    async def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, over: int = 1
    ) -> Answer:
        deadline = asyncio.get_running_loop().time() + 5
        request = Request(code=code, ext_fields=ext or {}, body=body)
        if code == RequestCode.REGISTER_BROKER:
            answer = self.server.register(request, ConnectionId(over), deadline=deadline, answered=never)
            assert answer is not None, "as long as the clock stands, nothing waits for its turn"
            return answer
        return await self.server.execute(request, ConnectionId(over), deadline=deadline)

    async def register(self, key: BrokerKey = A, *, over: int = 1, counter: int = 1, **ext: str) -> Answer:
        topics = tuple(TopicConfig(topic_name=topic) for topic in ("t1", "t2"))
        body = encode_register_body(
            RegisterBody(data_version=DataVersion(counter=counter), topic_configs=topics),
            compressed=False,
            version=479,
        )
        return await self.ask(RequestCode.REGISTER_BROKER, {**ext_of(key), **ext}, body, over=over)

    def topics(self) -> list[str]:
        return self.server.view(Freshness.DEFAULT).topics()


def ext_of(key: BrokerKey = A) -> dict[str, str]:
    return {
        "brokerName": "n" + key.broker_addr[0],
        "brokerAddr": key.broker_addr,
        "clusterName": key.cluster_name,
        "brokerId": "0",
        "haServerAddr": "h:1",
    }


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(main)


async def test_bad_registration_reaches_neither_liveness_nor_table(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    answer = await bench.ask(RequestCode.REGISTER_BROKER, ext_of(), b"garbage", over=1)
    assert answer.code == 1
    assert bench.topics() == []
    assert not bench.server.carries_broker(ConnectionId(1))
    await bench.register(over=1)
    assert bench.server.carries_broker(ConnectionId(1))


async def test_closed_connection_removes_every_broker_registered_over_it_at_once(tmp_path: Path) -> None:
    # All brokers of the connection must be removed. After a connection closed, RocketMQ removes only one of
    # the brokers that registered over it, and the other brokers stay until their leases end.
    bench = Bench(tmp_path)
    other = BrokerKey(ClusterName("c"), BrokerAddr("b:1"))
    await bench.register()
    await bench.register(other)
    await bench.register(BrokerKey(ClusterName("c"), BrokerAddr("z:1")), over=2)
    bench.server.closed(ConnectionId(1), by_us=False)
    assert list(dict(bench.server.view(Freshness.STALE).names())) == ["nz"]
    events = bench.server.explain("t1").events
    assert [event.broker for event in events] == [A, other]
    assert {event.reason for event in events} == {LeaveReason.CONNECTION_CLOSED}
    assert bench.effects.closed == []


async def test_close_that_we_start_is_no_evidence_but_the_lease_still_runs_out(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.register()
    bench.server.closed(ConnectionId(1), by_us=True)
    bench.wait(119)
    assert bench.topics() == ["t1", "t2"]
    bench.wait(12)
    assert bench.topics() == []


async def test_close_of_an_older_connection_changes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.register(over=1)
    await bench.register(over=2)
    bench.server.closed(ConnectionId(1), by_us=False)
    assert bench.topics() == ["t1", "t2"]
    await bench.register(over=1)
    bench.server.closed(ConnectionId(2), by_us=False)
    assert bench.topics() == []


async def test_silent_broker_leaves_at_the_scan_after_its_lease_and_its_connection_is_closed(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    await bench.register()
    bench.wait(120)
    assert bench.topics() == ["t1", "t2"]
    bench.wait(10.5)
    assert bench.topics() == []
    assert bench.effects.closed == [1]


async def test_lease_a_5x_broker_asks_for_counts_and_scans_come_after_5_then_every_interval(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    await bench.register(heartbeatTimeoutMillis="1000")
    bench.wait(4.75)
    assert bench.topics() != []
    bench.wait(0.5)
    assert bench.topics() == []
    await bench.register(heartbeatTimeoutMillis="1000")
    bench.wait(9.25)
    assert bench.topics() != []
    bench.wait(0.75)
    assert bench.topics() == []


async def test_shorter_scan_interval_counts_as_soon_as_it_is_set(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.wait(6)
    await bench.register(heartbeatTimeoutMillis="500")
    await bench.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"scanNotActiveBrokerInterval=500")
    bench.wait(1.5)
    assert bench.topics() == []


@pytest.mark.parametrize("how", ["register", "question", "heartbeat"])
async def test_whatever_a_broker_says_renews_its_lease(tmp_path: Path, how: str) -> None:
    bench = Bench(tmp_path)
    await bench.register()
    for _ in range(3):
        bench.wait(100)
        if how == "register":
            await bench.register()
        elif how == "question":
            answer = await bench.ask(RequestCode.QUERY_DATA_VERSION, ext_of(), b"{}")
            assert answer.ext_fields["changed"] == "true"
        else:
            await bench.ask(RequestCode.BROKER_HEARTBEAT, ext_of())
    assert bench.topics() == ["t1", "t2"]
    assert bench.server.view(Freshness.STALE).revision == 1, "renewals change nothing"


@pytest.mark.parametrize("how", ["register", "question", "heartbeat"])
async def test_silent_broker_is_evicted_within_a_step_after_its_lease_and_never_before(
    tmp_path: Path, how: str
) -> None:
    bench = Bench(tmp_path, scan_interval_ms=83)
    await bench.register(heartbeatTimeoutMillis="2100")
    bench.wait(0.25)
    bench.now += 0.24  # directly before the next step of the clock
    if how == "register":
        await bench.register(heartbeatTimeoutMillis="2100")
    elif how == "question":
        await bench.ask(RequestCode.QUERY_DATA_VERSION, ext_of(), b"{}")
    else:
        await bench.ask(RequestCode.BROKER_HEARTBEAT, {**ext_of(), "heartbeatTimeoutMillis": "2100"})
    silent_from = bench.now
    bench.now = 0.5
    bench.server.tick(bench.now)
    while bench.topics() and bench.now < 10:
        bench.wait(0.25)
    assert 2.1 <= bench.now - silent_from <= 2.1 + 0.25


async def test_paused_process_does_not_expire_everybody_when_it_wakes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.register()
    bench.now += 3600
    bench.server.tick(bench.now)
    bench.wait(60)
    assert bench.topics() == ["t1", "t2"]


async def test_goodbye_over_the_own_connection_removes_the_broker_before_the_answer(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.register()
    assert await bench.ask(RequestCode.UNREGISTER_BROKER, ext_of()) == Answer()
    assert bench.topics() == []
    assert bench.server.explain("t1").events[-1].reason is LeaveReason.UNREGISTERED
    await bench.register()
    assert bench.topics() == ["t1", "t2"]


async def test_regression_late_goodbye_of_a_former_process_is_answered_ignored_and_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path)
    await bench.register(over=1)
    await bench.register(over=2)
    assert await bench.ask(RequestCode.UNREGISTER_BROKER, ext_of(), over=1) == Answer()
    assert bench.topics() == ["t1", "t2"]
    assert "late unregistration ignored" in caplog.text


async def test_goodbye_over_a_connection_that_registered_nothing_is_a_command(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.register(over=1)
    assert await bench.ask(RequestCode.UNREGISTER_BROKER, ext_of(), over=9) == Answer()
    assert bench.topics() == []
    bench.server.closed(ConnectionId(1), by_us=False)


async def test_connection_that_carries_a_broker_is_known_as_such(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert not bench.server.carries_broker(ConnectionId(1))
    await bench.register()
    assert bench.server.carries_broker(ConnectionId(1))
    bench.server.closed(ConnectionId(1), by_us=False)
    assert not bench.server.carries_broker(ConnectionId(1))


async def test_fenced_broker_has_no_lease(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    new = await bench.register(over=1)
    assert new.code == 0
    view = bench.server.view(Freshness.STALE)
    body = encode_register_body(
        RegisterBody(data_version=DataVersion(state_version=5)), compressed=False, version=479
    )
    await bench.ask(RequestCode.REGISTER_BROKER, ext_of(), body)
    fenced = BrokerKey(ClusterName("c"), BrokerAddr("a:9"))
    assert (await bench.register(fenced, over=2)).code == 0
    assert view.record(fenced) is None
    assert not bench.server.carries_broker(ConnectionId(2))
    bench.server.closed(ConnectionId(2), by_us=False)
    bench.wait(100)
    assert view.record(A) is not None


def test_brokers_are_told_of_a_new_smallest_id_only_when_set(tmp_path: Path) -> None:
    async def main(notify: bool) -> int:
        bench = Bench(tmp_path, notify_min_broker_id_changed=notify)
        await bench.register()
        slave = BrokerKey(ClusterName("c"), BrokerAddr("a:2"))
        await bench.register(slave, over=2, brokerId="1")
        bench.server.closed(ConnectionId(1), by_us=False)
        return len(bench.effects.told)

    assert run(main(True)) == 1
    assert run(main(False)) == 0


# -- files ------------------------------------------------------------------------------------------------


async def test_kv_configuration_is_on_disk_before_the_answer_and_back_after_a_restart(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for key in ("k1", "k2"):
        ext = {"namespace": "n", "key": key, "value": "v"}
        assert (await bench.ask(RequestCode.PUT_KV_CONFIG, ext)).code == 0
        kept = json.loads((tmp_path / "kvConfig.json").read_text())
        assert kept["configTable"]["n"][key] == "v"
    await bench.ask(RequestCode.DELETE_KV_CONFIG, {"namespace": "n", "key": "k1"})
    await bench.server.close()
    again = Bench(tmp_path)
    assert again.server.view(Freshness.STALE).kv("n") == {"k2": "v"}
    assert again.topics() == [], "routes are not kept"


async def test_kv_configuration_has_a_bound_below_what_is_read_at_a_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    async def put(key: str, value: str) -> Answer:
        return await bench.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": key, "value": value})

    answer = await put("k", "v" * KV_ENTRY_BYTES_MAX)
    assert answer.code == 1
    assert f"{KV_ENTRY_BYTES_MAX + 2} bytes together, at most {KV_ENTRY_BYTES_MAX}" in (answer.remark or "")
    assert (await put("k", "\ud800")).code == 1  # a lone surrogate cannot be encoded as UTF-8
    kept = {}
    for number in range(7):
        value = "\x01" * 900_000
        answer = await put(str(number), value)
        if answer.code == 0:
            kept[str(number)] = value
    assert f"at most {KV_BYTES_MAX} are allowed; it has" in (answer.remark or "")
    assert len(kept) == 3
    assert (await put("0", "small")).code == 0  # also at the limit, a smaller value may replace a larger one
    assert (await put("3", "v" * 800_000)).code == 0
    await bench.server.close()
    again = Bench(tmp_path)
    assert again.server.view(Freshness.STALE).kv("n") == kept | {"0": "small", "3": "v" * 800_000}


async def test_the_clock_goes_on_after_a_tick_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(independent, "CLOCK_PERIOD_S", 0.001)
    ticks: list[float] = []
    server = Bench(tmp_path).server
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    server.start()

    def fail(now: float) -> None:
        ticks.append(now)
        raise RuntimeError("a defect")

    server.tick = fail  # type: ignore[method-assign]
    async with asyncio.timeout(20):
        while len(ticks) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert errors
    await server.close()


def test_kv_configuration_that_a_full_disk_refused_is_written_once_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_file, "RETRY_S", 0.02)
    path, in_the_way = tmp_path / "kvConfig.json", tmp_path / "kvConfig.json.tmp"

    async def put(bench: Bench, key: str) -> Answer:
        return await bench.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": key, "value": "v"})

    async def main() -> None:
        bench = Bench(tmp_path)
        assert (await put(bench, "before")).code == 0
        in_the_way.mkdir()  # a folder with the name of the temporary file makes writes fail
        for _ in range(2):  # the second request changes nothing, and must fail, too
            answer = await put(bench, "refused")
            assert answer.code == 1
            assert (answer.remark or "").endswith("tried again every 0.02 s")
        assert load_kv_file(path) == {"n": {"before": "v"}}
        await asyncio.sleep(0.1)
        assert caplog.text.count("not kept") == 1, "each new try is no news"
        in_the_way.rmdir()
        await until(lambda: "kept again" in caplog.text)  # this also waits until the checksum is written
        assert load_kv_file(path) == {"n": {"before": "v", "refused": "v"}}
        assert (await put(bench, "refused")).code == 0
        in_the_way.mkdir()
        assert (await put(bench, "last")).code == 1
        in_the_way.rmdir()
        await bench.server.close()
        assert load_kv_file(path) == {"n": {"before": "v", "last": "v", "refused": "v"}}

    with caplog.at_level(logging.INFO):
        run(main())
    assert "kept again" in caplog.text


async def test_kv_changes_at_the_same_time_are_all_in_the_file_when_they_are_answered(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    async def put(number: int) -> None:
        ext = {"namespace": "n", "key": str(number), "value": "v"}
        assert (await bench.ask(RequestCode.PUT_KV_CONFIG, ext)).code == 0
        assert str(number) in load_kv_file(tmp_path / "kvConfig.json")["n"]

    given_up = asyncio.ensure_future(put(99))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(*(put(number) for number in range(20)))
    assert len(load_kv_file(tmp_path / "kvConfig.json")["n"]) == 21
    await bench.server.close()


async def test_changed_settings_act_at_once_and_are_kept_in_their_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert (await bench.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).code == 0
    change = b"enableAllTopicList=false\nproductEnvName=\xc3\xa9"
    assert (await bench.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=change)) == Answer()
    assert (await bench.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).remark == "disable"
    kept = (tmp_path / "namesrv.properties").read_bytes()
    assert kept == b"enableAllTopicList=false\nproductEnvName=\\u00e9\n"


# -- reads, and waiting for a change ----------------------------------------------------------------------


async def test_linearizable_is_not_offered(tmp_path: Path) -> None:
    server = Bench(tmp_path).server
    with pytest.raises(FreshnessNotOffered):
        server.view(Freshness.LINEARIZABLE)


async def test_wait_for_a_topic_ends_with_its_change_and_no_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 20
    waiting = asyncio.ensure_future(bench.server.changed("t1", 0, deadline=deadline))
    other = asyncio.ensure_future(bench.server.changed("elsewhere", 0, deadline=deadline))
    await asyncio.sleep(0)
    await bench.register()
    assert await waiting == 1
    assert not other.done()
    # A new slave of a broker changes the routes of the broker's topics. So its registration must wake a
    # request that waits for such a topic.
    waiting = asyncio.ensure_future(bench.server.changed("t1", 1, deadline=deadline))
    await asyncio.sleep(0)
    await bench.register(BrokerKey(ClusterName("c"), BrokerAddr("a:2")), over=2, brokerId="1")
    assert await waiting == 2
    assert await bench.server.changed("t1", 1, deadline=deadline) == 2
    assert await bench.server.changed("t1", 2, deadline=loop.time()) == 2
    await bench.server.close()
    assert await other == 0


async def test_clock_runs_by_itself_once_started(tmp_path: Path) -> None:
    bench = Bench(tmp_path, clock=time.monotonic, scan_interval_ms=50)
    bench.server.start()
    await bench.register(heartbeatTimeoutMillis="100")
    deadline = asyncio.get_running_loop().time() + 10
    revision = bench.server.view(Freshness.STALE).topic_revision("t1")
    assert await bench.server.changed("t1", revision, deadline=deadline) > revision
    assert bench.topics() == []
    await bench.server.close()


async def test_status_and_explanation_are_this_processs_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    empty = RouteTable().view
    assert bench.server.status().digest == empty.digest()
    assert "cold start" in bench.server.explain("t1").summary
    bench.wait(31)
    assert "never seen" in bench.server.explain("t1").summary
    await bench.register()
    status = bench.server.status()
    assert (status.boot_id, status.revision, status.reads_ready, status.writes_ready) == (
        7,
        1,
        True,
        True,
    )
    assert status.digest != empty.digest()
    assert bench.server.explain("t1").listed
    bench.server.closed(ConnectionId(1), by_us=False)
    assert "connection closed" in bench.server.explain("t1").summary
