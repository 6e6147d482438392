"""A nameserver that does not answer gets one registration of all topics at a time, and no change is lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from routekeeper.broker.server import registrar
from routekeeper.broker.server.registrar import LARGE_UNDER_WAY_MAX, Registrar
from routekeeper.broker.server.registration import Trigger
from routekeeper.broker.tables.state import BrokerState
from routekeeper.remoting.codes import VERSION, RequestCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.registration import RegisterBody, read_any_json
from routekeeper.remoting.route import TopicConfig
from tests.broker.states import NOW, state_in
from tests.waiting import until

#: Time in s in which a registration that is sent too early would arrive.
QUIET_S: Final = 0.3


class SilentNameserver:
    """A nameserver that answers only when the test says so.

    Attributes:
        requests: Registrations and unregistrations that it received, in order.
    """

    def __init__(self) -> None:
        self.requests: list[RemotingCommand] = []
        self.addr = ""
        self._unanswered: list[tuple[asyncio.StreamWriter, RemotingCommand]] = []

    async def listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.addr = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    def answer(self) -> None:
        """Answer all requests that have no answer yet."""
        for writer, request in self._unanswered:
            writer.write(request.reply().encode())
        self._unanswered.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for frame in decoder.feed(data):
                    request = decode_command(frame)
                    if request.code in (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER):
                        self.requests.append(request)
                        self._unanswered.append((writer, request))


def topics_of(request: RemotingCommand) -> set[str]:
    return set(read_any_json(request.body, version=VERSION).topics)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[BrokerState]:
    state = state_in(tmp_path, TopicConfig(topic_name="T"))
    yield state
    state.store.log.close()


@contextlib.asynccontextmanager
async def registering(
    state: BrokerState, nameservers: list[SilentNameserver], *, timeout_ms: int = 60_000
) -> AsyncIterator[Registrar]:
    """Run a registrar that registers with the nameservers."""
    async with contextlib.AsyncExitStack() as stack:
        for each in nameservers:
            server = await each.listen()
            stack.callback(server.close)
        state.config = replace(
            state.config,
            namesrv_addr=";".join(each.addr for each in nameservers),
            register_timeout_ms=timeout_ms,
        )
        announcer = Registrar(
            state, broker_addr="192.0.2.2:10911", ha_addr="192.0.2.2:10912", changed=lambda: None
        )
        running = asyncio.create_task(announcer.run())
        try:
            yield announcer
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await announcer.close()


def test_changes_during_a_registration_are_sent_in_one_further_registration(state: BrokerState) -> None:
    async def act() -> None:
        server = SilentNameserver()
        async with registering(state, [server]) as announcer:
            await until(lambda: server.requests, "the registration at the start")
            calls = []
            for number in range(10):
                state.topics.put(TopicConfig(topic_name=f"New{number}"), now_ms=NOW)
                calls.append(asyncio.create_task(announcer.register_all(Trigger.PERMISSION)))
            await asyncio.sleep(QUIET_S)
            assert len(server.requests) == 1
            state.topics.put(TopicConfig(topic_name="Last"), now_ms=NOW)
            server.answer()
            await until(lambda: len(server.requests) > 1, "the further registration")
            assert topics_of(server.requests[1]) == {config.topic_name for config in state.topics}
            assert not any(call.done() for call in calls), "they wait for an answer to their changes"
            server.answer()
            await asyncio.gather(*calls)
            await asyncio.sleep(QUIET_S)
            assert len(server.requests) == 2

    asyncio.run(act())


def test_change_during_the_second_registration_is_sent_in_a_third_one(state: BrokerState) -> None:
    async def act() -> None:
        server = SilentNameserver()
        async with registering(state, [server]) as announcer:
            await until(lambda: server.requests, "the registration at the start")
            second = asyncio.create_task(announcer.register_all(Trigger.PERMISSION))
            server.answer()
            await until(lambda: len(server.requests) == 2, "the second registration")
            state.topics.put(TopicConfig(topic_name="Last"), now_ms=NOW)
            third = asyncio.create_task(announcer.register_all(Trigger.PERMISSION))
            server.answer()
            await second
            await until(lambda: len(server.requests) == 3, "the third registration")
            assert not third.done()
            assert "Last" in topics_of(server.requests[2])
            server.answer()
            await third

    asyncio.run(act())


def test_changes_are_registered_after_a_time_out(state: BrokerState) -> None:
    async def act() -> None:
        server = SilentNameserver()
        async with registering(state, [server], timeout_ms=500) as announcer:
            await until(lambda: server.requests, "the registration at the start")
            state.topics.put(TopicConfig(topic_name="New"), now_ms=NOW)
            call = asyncio.create_task(announcer.register_all(Trigger.PERMISSION))
            await until(lambda: len(server.requests) == 2, "the registration after the time-out")
            assert "New" in topics_of(server.requests[1])
            await call

    asyncio.run(act())


def test_other_nameservers_and_single_topics_do_not_wait(state: BrokerState) -> None:
    async def act() -> None:
        silent, quick = SilentNameserver(), SilentNameserver()
        async with registering(state, [silent, quick]) as announcer:
            await until(lambda: silent.requests and quick.requests, "the registrations at the start")
            quick.answer()
            call = asyncio.create_task(announcer.register_all(Trigger.PERMISSION))
            await until(lambda: len(quick.requests) == 2, "the registration with the other nameserver")
            assert len(silent.requests) == 1
            config = TopicConfig(topic_name="New")
            state.topics.put(config, now_ms=NOW)
            single = asyncio.create_task(announcer.register_topics([(config, state.topics.data_version)]))
            await until(lambda: len(silent.requests) == 2, "the registration of one topic")
            await until(lambda: len(quick.requests) == 3, "its registration with the other nameserver")
            assert topics_of(silent.requests[1]) == topics_of(quick.requests[2]) == {"New"}
            quick.answer()
            silent.answer()
            await until(lambda: len(silent.requests) == 3, "the further registration of all topics")
            silent.answer()
            await asyncio.gather(call, single)

    asyncio.run(act())


def test_changed_topics_reach_each_nameserver_while_another_one_is_silent(state: BrokerState) -> None:
    async def act() -> None:
        silent, quick = SilentNameserver(), SilentNameserver()
        async with registering(state, [silent, quick], timeout_ms=10_000) as announcer:
            await until(lambda: silent.requests and quick.requests, "the registrations at the start")
            quick.answer()
            silent.answer()
            changes = []
            for number in range(3):
                config = TopicConfig(topic_name=f"New{number}")
                state.topics.put(config, now_ms=NOW)
                changes.append((config, state.topics.data_version))
            started = time.monotonic()
            call = asyncio.create_task(announcer.register_topics(changes))
            for number in range(3):
                told = [{f"New{each}"} for each in range(number + 1)]
                await until(lambda: [*map(topics_of, quick.requests[1:])] == told, "the next topic")  # noqa: B023
                quick.answer()
            assert time.monotonic() - started < 10, "the time-out of the silent nameserver"
            assert len(silent.requests) == 2, "the next topic waits for an answer to the one before"
            silent.answer()
            await until(lambda: len(silent.requests) == 3, "the second topic at the silent nameserver")
            await call  # after the time-out for the second topic
            told = [topics_of(request) for request in silent.requests]
            assert {"New2"} not in told, "the third topic would have to wait for as long again"

    asyncio.run(act())


def test_no_registration_follows_the_unregistration(state: BrokerState) -> None:
    async def act() -> None:
        server = SilentNameserver()
        async with registering(state, [server]) as announcer:
            await until(lambda: server.requests, "the registration at the start")
            call = asyncio.create_task(announcer.register_all(Trigger.PERMISSION))
            await asyncio.sleep(QUIET_S)  # now the call waits for the end of the first registration
            leaving = asyncio.create_task(announcer.unregister())
            await until(lambda: len(server.requests) == 2, "the unregistration")
            server.answer()
            await asyncio.gather(call, leaving)
            await asyncio.sleep(QUIET_S)
            codes = [request.code for request in server.requests]
            assert codes == [RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER]

    asyncio.run(act())


def test_few_large_registrations_are_under_way_at_a_time(
    state: BrokerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    encode = registrar.encode_fitting

    def count(content: RegisterBody, *, compressed: bool) -> tuple[bytes, bool]:
        encoded.append(len(content.topic_configs))
        return encode(content, compressed=compressed)

    monkeypatch.setattr(registrar, "encode_fitting", count)
    for number in range(registrar._INLINE_TOPICS_MAX):
        state.topics.put(TopicConfig(topic_name=f"T{number}"), now_ms=NOW)

    async def act() -> None:
        servers = [SilentNameserver() for _ in range(LARGE_UNDER_WAY_MAX + 3)]

        def received() -> list[SilentNameserver]:
            return [each for each in servers if each.requests]

        async with registering(state, servers):
            await until(lambda: len(received()) >= LARGE_UNDER_WAY_MAX, "the first registrations")
            await asyncio.sleep(QUIET_S)
            assert len(received()) == LARGE_UNDER_WAY_MAX
            for each in servers:
                each.answer()
            await until(lambda: len(received()) == len(servers), "the other registrations")
            assert all(topics_of(each.requests[0]) >= {"T", "T0"} for each in servers)
        assert encoded == [len(state.topics)], "one body for all nameservers"

    asyncio.run(act())
