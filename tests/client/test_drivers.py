"""The same operations with both clients and real sockets. Scripted servers fail as each test demands."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

import routekeeper.client.aio
import routekeeper.client.blocking
from routekeeper.bench.broker_registration import (
    Registration,
    encode_registration,
    encode_unregistration,
    tell,
)
from routekeeper.client.admin import Admin
from routekeeper.client.config import ClientConfig, ProducerConfig
from routekeeper.client.core import ClientCore
from routekeeper.client.errors import (
    InvalidArgument,
    NoNameserver,
    NoRoute,
    NotApplied,
    OutcomeUnknown,
    SendNotApplied,
    SendOutcomeUnknown,
)
from routekeeper.client.operation import (
    Clock,
    Deliver,
    Instant,
    Invoke,
    Oneway,
    Operation,
    Signal,
    Spawn,
    invoke,
    wait,
)
from routekeeper.client.producer import Message, ProducerCore, SendResult, SendStatus
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RequestTimeout, ResponseError, Withdrawn
from routekeeper.remoting.fields import RegisterBrokerFields, SendMessageFields
from routekeeper.remoting.message import SYS_COMPRESSED, decode_batch, decode_properties, decompress_body
from routekeeper.remoting.route import TopicConfig
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.registrations import read_registration

Runner = Callable[..., Any]
NewPeer = Callable[..., Any]
STORED = {"msgId": "0" * 32, "queueId": "1", "queueOffset": "7", "MSG_REGION": "R", "TRACE_ON": "true"}
BEFORE_THE_DEFAULT_S = 2.5
"""Limit in s for a call with a short timeout. A call with the default timeout of 3 s takes longer."""


def config(*addrs: str, **values: Any) -> ClientConfig:
    """Return settings with such long time limits that only a server without any answer exceeds them."""
    return ClientConfig(
        nameservers=addrs, **{"nameserver_try_s": 5.0, "connect_timeout_s": 5.0, "shutdown_s": 1.0, **values}
    )


def producer(core: ClientCore, **values: Any) -> ProducerCore:
    values = {"group": "pg", "send_timeout_s": 10.0, **values}
    return ProducerCore(ProducerConfig(**values), core.directory, core.ids, random.Random(3))


def message(topic: str = "T", body: bytes = b"hello", **values: Any) -> Message:
    return Message(topic=topic, body=body, **values)


def stored(request: RemotingCommand) -> RemotingCommand:
    return request.reply(ext_fields=STORED)


@pytest.fixture
def storing(peer: Any) -> Any:
    """Return a peer that is nameserver and broker of topic T, and answers sends as a broker does."""
    routes = peer.answer
    sends = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    peer.answer = lambda request: stored(request) if request.code in sends else routes(request)
    return peer


# Drivers, the code that does the I/O of operations -------------------------------------------------


def test_operations_share_signals_and_spawned_ones_run_beside(run: Runner) -> None:
    def background(signal: Signal, seen: list[str]) -> Operation[None]:
        instant: Instant = yield Clock()
        assert instant.wall_ms > 1_600_000_000_000
        seen.append("ran")
        signal.notify()

    def build(core: ClientCore) -> Operation[tuple[bool, bool, list[str]]]:
        signal, seen = Signal(), list[str]()
        version = signal.version
        yield Spawn(background(signal, seen), "background")
        woken = yield from wait(signal, version, 5.0)
        late = yield from wait(signal, signal.version, 0.01)
        return woken, late, seen

    assert run(config("127.0.0.1:1"), build) == (True, False, ["ran"])


def test_exceptions_of_user_code_reach_the_operation(run: Runner) -> None:
    def build(core: ClientCore) -> Operation[str]:
        def fail(value: int) -> None:
            raise KeyError(value)

        try:
            yield Deliver(fail, 5)
        except KeyError as error:
            return f"caught {error.args[0]}"
        return "not raised"

    assert run(config("127.0.0.1:1"), build) == "caught 5"


def test_coroutine_listeners_are_awaited_by_the_asyncio_driver() -> None:
    async def listen(value: int) -> int:
        await asyncio.sleep(0)
        return value + 1

    def build(core: ClientCore) -> Operation[int]:
        result: int = yield Deliver(listen, 1)
        return result

    async def main() -> int:
        async with routekeeper.client.aio.Client(config("127.0.0.1:1")) as started:
            return await started.run(build(started.core))

    assert asyncio.run(main()) == 2


def test_a_blocking_client_starts_no_thread_until_told_to(peer: Any) -> None:
    before = set(threading.enumerate())
    started = routekeeper.client.blocking.Client(config(peer.addr))
    try:
        assert started.route("T", nameserver=peer.addr).broker_datas[0].broker_name == "broker-a"
        assert set(threading.enumerate()) <= before
    finally:
        started.close()


def test_client_that_is_closed_while_it_starts_a_thread_waits_for_it(
    new_peer: NewPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = routekeeper.client.blocking.Client(config(new_peer().addr))
    starting, ended = threading.Event(), threading.Event()

    class Slow(threading.Thread):
        def start(self) -> None:
            starting.set()
            while not started.core.closing:
                time.sleep(0.001)
            time.sleep(0.05)  # meanwhile close() begins to wait for the threads
            super().start()

    def background() -> Operation[None]:
        ended.set()
        return
        yield

    def spawning() -> Operation[None]:
        yield Spawn(background(), "late")

    spawner = threading.Thread(target=lambda: started.run(spawning()))
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", Slow)
        spawner.start()
        assert starting.wait(30)
        started.close()
        spawner.join(30)
    assert ended.is_set()
    assert "late" not in {thread.name for thread in threading.enumerate()}


def test_many_threads_share_one_blocking_client(storing: Any) -> None:
    results: list[SendResult] = []
    with routekeeper.client.blocking.Client(config(storing.addr)) as started:
        sender = started.producer(ProducerConfig(group="pg"))

        def work() -> None:
            for _ in range(20):
                results.append(sender.send(message()))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
    assert len(results) == 160
    assert len({result.message_id for result in results}) == 160


# Nameservers -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_silent_nameserver_costs_one_short_try(
    run: Runner, new_peer: NewPeer, answers: Any, route_body: Any
) -> None:
    silent = new_peer(lambda request: None)
    good = new_peer()
    good.answer = answers({"T": route_body(broker_a=good.addr)})

    def build(core: ClientCore) -> Operation[list[float]]:
        core.directory.nameservers.answered(silent.addr)  # so that the client asks this server first
        times = []
        for _ in range(3):
            before: Instant = yield Clock()
            yield from core.directory.fetch_route("T")
            after: Instant = yield Clock()
            times.append(after.now_s - before.now_s)
        return times

    first, *others = run(config(silent.addr, good.addr, nameserver_try_s=1.5, call_timeout_s=30.0), build)
    assert 1.4 < first < 20.0, "not what the whole call may last"
    assert min(others) < 1.4, "the dead one is not asked again while another answers"
    assert silent.codes().count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == 1


def test_a_member_without_quorum_is_passed_over(
    run: Runner, new_peer: NewPeer, answers: Any, route_body: Any
) -> None:
    refusing = new_peer(lambda request: request.reply(1, remark="[NO_QUORUM] no leader"))
    good = new_peer()
    good.answer = answers({"T": route_body(broker_a=good.addr)})

    def build(core: ClientCore) -> Operation[Any]:
        core.directory.nameservers.answered(refusing.addr)
        return (yield from core.directory.fetch_route("T"))

    assert run(config(refusing.addr, good.addr), build).broker_datas[0].broker_name == "broker-a"
    with pytest.raises(ResponseError, match="NO_QUORUM"):
        run(config(refusing.addr), build)


def test_a_read_survives_the_loss_of_an_old_connection(run: Runner, peer: Any) -> None:
    peer.hang_up_once.add(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    route = run(config(peer.addr), lambda core: core.directory.fetch_route("T"))
    assert route.broker_datas[0].broker_name == "broker-a"
    assert peer.codes().count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == 2


def test_without_any_nameserver_each_failure_is_named(run: Runner) -> None:
    with pytest.raises(NoNameserver, match="no nameserver answered") as caught:
        run(config("127.0.0.1:1", "127.0.0.1:2"), lambda core: core.directory.fetch_route("T"))
    assert set(caught.value.failures) == {"127.0.0.1:1", "127.0.0.1:2"}


@pytest.mark.slow
def test_the_whole_call_ends_at_its_timeout(run: Runner, new_peer: NewPeer) -> None:
    peers = [new_peer(lambda request: None) for _ in range(3)]

    def build(core: ClientCore) -> Operation[float]:
        before: Instant = yield Clock()
        with pytest.raises(NoNameserver):
            yield from core.directory.fetch_route("T", timeout_s=0.5)
        after: Instant = yield Clock()
        return after.now_s - before.now_s

    assert 0.4 < run(config(*(peer.addr for peer in peers)), build) < BEFORE_THE_DEFAULT_S, "not even one try"


def test_changes_go_to_each_nameserver_and_every_failure_is_returned(run: Runner, new_peer: NewPeer) -> None:
    good, refusing = new_peer(), new_peer(lambda request: request.reply(1, remark="disk full"))

    def build(core: ClientCore) -> Operation[Any]:
        return (yield from Admin(core.directory).kv_put("N", "k", "v"))

    result = run(config(refusing.addr, "127.0.0.1:1", good.addr), build)
    assert [answer.addr for answer in result] == [refusing.addr, "127.0.0.1:1", good.addr]
    assert set({answer.addr: answer.error for answer in result if answer.error is not None}) == {
        refusing.addr,
        "127.0.0.1:1",
    }
    assert good.requests[-1].ext_fields == {"namespace": "N", "key": "k", "value": "v"}


@pytest.mark.slow
@pytest.mark.parametrize("page", ["", "; "])
def test_the_page_of_nameservers_replaces_the_list(
    page: str, run: Runner, http_page: Callable[[str], str]
) -> None:
    url = http_page(f"127.0.0.1:1;127.0.0.1:2{page}")

    def build(core: ClientCore) -> Operation[tuple[str, ...]]:
        yield from core.directory.fetch_nameservers()
        return core.directory.nameserver_list()

    assert set(run(config("127.0.0.1:3", nameserver_url=url), build)) == {"127.0.0.1:1", "127.0.0.1:2"}
    with pytest.raises(InvalidArgument, match="is not host:port"):
        run(config("127.0.0.1:3", nameserver_url=http_page("<html>")), build)


# Sending -----------------------------------------------------------------------------------------


def test_a_message_is_sent_as_java_sends_it(run: Runner, storing: Any) -> None:
    given = message(
        body=b"x" * 5000, tags="TagA", keys=["k1", "k2"], flag=9, delay_level=3, properties={"p": "v"}
    )
    result = run(config(storing.addr), lambda core: producer(core).send(given))

    assert (result.status, result.queue.queue_id, result.queue_offset) == (SendStatus.SEND_OK, 1, 7)
    sent = next(request for request in storing.requests if request.code == RequestCode.SEND_MESSAGE_V2)
    fields = SendMessageFields.parse_v2(sent.ext_fields)
    properties = decode_properties(fields.properties or "")
    assert (fields.producer_group, fields.topic, fields.default_topic, fields.flag) == (
        "pg",
        "T",
        "TBW102",
        9,
    )
    assert fields.sys_flag == SYS_COMPRESSED
    assert decompress_body(sent.body, fields.sys_flag) == b"x" * 5000
    assert properties == {
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "DELAY": "3",
        "p": "v",
        "WAIT": "true",
        "UNIQ_KEY": result.message_id,
    }
    assert len(result.message_id) == 32


def test_who_does_not_wait_for_the_store_tells_the_broker(run: Runner, storing: Any) -> None:
    run(config(storing.addr), lambda core: producer(core).send(message(wait_store=False)))
    run(config(storing.addr), lambda core: producer(core).send_batch([message(wait_store=False)]))
    sends = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    sent = [SendMessageFields.parse_v2(each.ext_fields) for each in storing.requests if each.code in sends]
    assert [decode_properties(fields.properties or "")["WAIT"] for fields in sent] == ["false", "false"]


def test_a_batch_is_one_request_with_an_id_per_message(run: Runner, storing: Any) -> None:
    result = run(
        config(storing.addr),
        lambda core: producer(core).send_batch([message(body=b"1", tags="A"), message(body=b"2")]),
    )
    sent = next(request for request in storing.requests if request.code == RequestCode.SEND_BATCH_MESSAGE)
    items = decode_batch(sent.body)
    assert [item.body for item in items] == [b"1", b"2"]
    assert ",".join(decode_properties(item.properties)["UNIQ_KEY"] for item in items) == result.message_id
    assert SendMessageFields.parse_v2(sent.ext_fields).batch is True


def test_a_topic_without_route_is_sent_by_the_default_topics_route(
    run: Runner, new_peer: NewPeer, answers: Any, route_body: Any
) -> None:
    peer = new_peer()
    routes = answers({"TBW102": route_body(queues=8, perm=7, broker_a=peer.addr)})
    peer.answer = lambda request: (
        stored(request) if request.code == RequestCode.SEND_MESSAGE_V2 else routes(request)
    )

    def build(core: ClientCore) -> Operation[Any]:
        sender = producer(core)
        yield from sender.send(message("New"))
        return (yield from sender.queues("New"))

    assert len(run(config(peer.addr), build)) == 4
    with pytest.raises(NoRoute, match="No route info of this topic: New"):
        run(config(new_peer(answers({})).addr), build)


@pytest.mark.parametrize(
    ("first", "outcome"),
    [
        pytest.param(ResponseCode.TOPIC_NOT_EXIST, False, id="refused there, stored elsewhere"),
        pytest.param("hang up", True, id="maybe stored there, stored elsewhere"),
    ],
)
def test_a_failed_try_is_repeated_at_another_broker(
    first: Any, outcome: bool, run: Runner, new_peer: NewPeer, answers: Any, route_body: Any
) -> None:
    bad, good = new_peer(), new_peer(stored)
    if first == "hang up":
        bad.hang_up.add(RequestCode.SEND_MESSAGE_V2)
    else:
        bad.answer = lambda request: request.reply(17 if request.code == RequestCode.SEND_MESSAGE_V2 else 0)
    namesrv = new_peer(answers({"T": route_body(queues=1, bad=bad.addr, good=good.addr)}))

    def build(core: ClientCore) -> Operation[list[SendResult]]:
        sender = producer(core)
        results = []
        for _ in range(4):
            results.append((yield from sender.send(message())))
        return results

    results = run(config(namesrv.addr), build)
    assert {result.queue.broker_name for result in results} == {"good"}
    repeated = [result for result in results if result.tries == 2]
    assert repeated
    assert {result.maybe_repeated for result in repeated} == {outcome}


@pytest.mark.parametrize(
    ("script", "error", "tries"),
    [
        pytest.param(lambda request: request.reply(14), SendNotApplied, 3, id="refused by all"),
        pytest.param(
            lambda request: request.reply(13, remark="too big"), SendNotApplied, 1, id="refused for good"
        ),
        pytest.param(
            lambda request: request.reply(1, remark="NPE"), SendOutcomeUnknown, 3, id="failed inside"
        ),
        pytest.param("hang up", SendOutcomeUnknown, 3, id="connection lost after sending"),
        pytest.param("dead", SendNotApplied, 3, id="no connection"),
    ],
)
def test_a_send_that_fails_says_whether_the_message_may_be_stored(
    script: Any,
    error: type[SendNotApplied | SendOutcomeUnknown],
    tries: int,
    run: Runner,
    new_peer: NewPeer,
    answers: Any,
    route_body: Any,
) -> None:
    broker = new_peer(None if isinstance(script, str) else script)
    if script == "hang up":
        broker.hang_up.add(RequestCode.SEND_MESSAGE_V2)
    addr = "127.0.0.1:1" if script == "dead" else broker.addr
    namesrv = new_peer(answers({"T": route_body(broker_a=addr)}))
    with pytest.raises(error) as caught:
        run(config(namesrv.addr), lambda core: producer(core).send(message()))
    assert isinstance(caught.value, SendNotApplied | SendOutcomeUnknown)
    assert len(caught.value.failures) == tries


@pytest.mark.slow
def test_a_silent_broker_uses_up_the_time_that_all_tries_share(
    run: Runner, new_peer: NewPeer, answers: Any, route_body: Any
) -> None:
    silent = new_peer(
        lambda request: None if request.code == RequestCode.SEND_MESSAGE_V2 else request.reply()
    )
    namesrv = new_peer(answers({"T": route_body(broker_a=silent.addr)}))
    before = time.monotonic()
    with pytest.raises(SendOutcomeUnknown):
        run(config(namesrv.addr), lambda core: producer(core).send(message(), timeout_s=1.0))
    assert 0.9 < time.monotonic() - before < 8.0, "not the 10 s of the producer's settings"
    assert silent.codes().count(RequestCode.SEND_MESSAGE_V2) == 1


def test_unknown_outcomes_are_not_repeated_if_told_so(
    run: Runner, new_peer: NewPeer, answers: Any, route_body: Any
) -> None:
    broker = new_peer()
    broker.hang_up.add(RequestCode.SEND_MESSAGE_V2)
    namesrv = new_peer(answers({"T": route_body(broker_a=broker.addr)}))
    with pytest.raises(SendOutcomeUnknown):
        run(config(namesrv.addr), lambda core: producer(core, retry_unknown=False).send(message()))
    assert broker.codes().count(RequestCode.SEND_MESSAGE_V2) == 1


def test_oneway_is_sent_once_and_nobody_waits(
    run: Runner, new_peer: NewPeer, answers: Any, route_body: Any
) -> None:
    broker = new_peer()
    namesrv = new_peer(answers({"T": route_body(broker_a=broker.addr)}))

    def build(core: ClientCore) -> Operation[None]:
        yield from producer(core).send_oneway(message())
        yield Invoke(broker.addr, RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO), 3.0)

    run(config(namesrv.addr), build)
    sent = next(request for request in broker.requests if request.code == RequestCode.SEND_MESSAGE_V2)
    assert sent.is_oneway


# Registration ------------------------------------------------------------------------------------

REGISTRATION = Registration(
    cluster_name="C",
    broker_name="b",
    broker_addr="192.0.2.1:10911",
    topics=(TopicConfig(topic_name="A"), TopicConfig(topic_name="B", perm=4)),
)


def test_a_registration_reads_back(run: Runner, new_peer: NewPeer) -> None:
    peer = new_peer(lambda request: request.reply())
    run(config(peer.addr), lambda core: tell(peer.addr, encode_registration(REGISTRATION), timeout_s=3.0))
    sent = peer.requests[0]
    fields = RegisterBrokerFields.parse(sent.ext_fields)
    body = read_registration(sent.body, compressed=fields.compressed, version=sent.version)
    assert set(body.topics) == {"A", "B"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "error"),
    [
        pytest.param(
            lambda request: request.reply(1, remark="[NO_QUORUM] 1 of 3"), NotApplied, id="no quorum"
        ),
        pytest.param(lambda request: request.reply(1, remark="crc32 not match"), NotApplied, id="refused"),
        pytest.param(
            lambda request: request.reply(1, remark="[OUTCOME_UNKNOWN] 2.5 s"),
            OutcomeUnknown,
            id="unknown there",
        ),
        pytest.param("hang up", OutcomeUnknown, id="connection lost after sending"),
        pytest.param("silent", OutcomeUnknown, id="no answer"),
    ],
)
def test_a_failed_registration_says_whether_it_may_be_applied(
    script: Any, error: type, run: Runner, new_peer: NewPeer
) -> None:
    silent = script == "silent"
    peer = new_peer((lambda request: None) if silent else None if isinstance(script, str) else script)
    if script == "hang up":
        peer.hang_up |= {RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER}
    # The timeout must be long enough for a busy machine to send the request. If the timeout ran out before
    # the request is sent, the outcome would be "not applied" instead of "unknown".
    timeout_s = 1.5 if silent else 10.0
    for encode in (encode_registration, encode_unregistration):
        with pytest.raises(error):
            run(
                config(peer.addr),
                lambda core, encode=encode: tell(peer.addr, encode(REGISTRATION), timeout_s=timeout_s),
            )


def test_a_dead_nameserver_leaves_a_registration_not_applied(run: Runner) -> None:
    request = encode_registration(REGISTRATION)
    with pytest.raises(NotApplied):
        run(config("127.0.0.1:1"), lambda core: tell("127.0.0.1:1", request, timeout_s=3.0))


def test_timeouts_are_the_callers(run: Runner, new_peer: NewPeer) -> None:
    peer = new_peer(lambda request: None)
    before = time.monotonic()
    with pytest.raises(RequestTimeout):
        run(
            config(peer.addr, call_timeout_s=30.0),
            lambda core: invoke(peer.addr, RemotingCommand.request(28), 1.5),
        )
    assert 1.4 < time.monotonic() - before < 20.0, "not the 30 s that hold without one"


# Requests that are withdrawn before they are sent --------------------------------------------------


@pytest.mark.parametrize("oneway", [False, True], ids=["answered", "oneway"])
def test_what_holds_no_more_is_not_sent(run: Runner, new_peer: NewPeer, *, oneway: bool) -> None:
    peer = new_peer()
    asked: list[bool] = []

    def holds_no_more() -> bool:
        asked.append(True)
        return True

    def build(core: ClientCore) -> Operation[None]:
        request = RemotingCommand.request(28, oneway=oneway)
        sent = Oneway(peer.addr, request) if oneway else Invoke(peer.addr, request, 5.0)
        with pytest.raises(Withdrawn):
            yield replace(sent, unless=holds_no_more)
        assert asked == [True]
        yield replace(sent, unless=lambda: False)
        yield Invoke(peer.addr, RemotingCommand.request(29), 5.0)

    run(config(peer.addr), build)
    assert peer.codes() == [28, 29], "only the second one, and the connection served on"


def test_a_thread_is_asked_only_when_nothing_can_be_sent_before_its_request() -> None:
    asked, reading = threading.Event(), threading.Event()

    def holds_no_more() -> bool:
        asked.set()
        return reading.is_set()

    with socket.create_server(("127.0.0.1", 0)) as server, BlockingClient() as blocking:
        # Keep the receive buffer small, so that the large request below does not fit into the buffers.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        addr = f"127.0.0.1:{server.getsockname()[1]}"
        large = RemotingCommand.request(28, body=bytes(15 << 20), oneway=True)
        first = threading.Thread(target=blocking.invoke_oneway, args=(addr, large), kwargs={"timeout_s": 30})
        first.start()
        peer, _ = server.accept()
        with peer:
            length = int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "big")
            # The peer does not read any more, so the first thread now hangs while it sends.
            withdrawn: list[bool] = []

            def send() -> None:
                try:
                    small = RemotingCommand.request(29, oneway=True)
                    blocking.invoke_oneway(addr, small, timeout_s=30, unless=holds_no_more)
                except Withdrawn:
                    withdrawn.append(True)

            second = threading.Thread(target=send)
            second.start()
            assert not asked.wait(0.5)
            reading.set()
            assert len(peer.recv(length, socket.MSG_WAITALL)) == length
            first.join(30)
            second.join(30)
    assert withdrawn == [True]
