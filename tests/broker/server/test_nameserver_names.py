"""A failed look-up of nameservers never takes the broker from the nameservers that list it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.server import nameserver_names
from routekeeper.broker.server.nameserver_names import NameserverNames
from routekeeper.broker.server.registrar import Registrar
from routekeeper.broker.tables.state import BrokerState
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import decode_command
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.route import TopicConfig
from tests.broker.states import state_in
from tests.waiting import until

#: Time in s in which an unregistration that is sent by mistake would arrive.
QUIET_S: Final = 0.3
#: Time in ms between two look-ups. A broker's own settings allow no shorter time than 1000 ms.
PERIOD_MS: Final = 50


class Nameserver:
    """A nameserver that answers each request at once, and lists at most one broker.

    Attributes:
        lists: True while the broker is registered.
        left: Number of unregistrations.
    """

    def __init__(self) -> None:
        self.lists = False
        self.left = 0
        self.port = 0

    async def listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for request in map(decode_command, decoder.feed(data)):
                    if request.code == RequestCode.REGISTER_BROKER:
                        self.lists = True
                    elif request.code == RequestCode.UNREGISTER_BROKER:
                        self.lists = False
                        self.left += 1
                    writer.write(request.reply().encode())


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the addresses of names in the domain ``example``. Look-ups of its other names fail."""
    found: dict[str, str] = {}
    resolve: Callable[..., list[Any]] = socket.getaddrinfo

    def getaddrinfo(host: str, *args: Any, **options: Any) -> list[Any]:
        if not str(host).endswith(".example"):
            return resolve(host, *args, **options)
        if host not in found or options.get("flags", 0) & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve(found[host], *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return found


@pytest.fixture
def state(tmp_path: Path) -> Iterator[BrokerState]:
    state = state_in(tmp_path, TopicConfig(topic_name="T"))
    yield state
    state.store.log.close()


def with_nameservers(
    state: BrokerState, act: Callable[[Nameserver, Nameserver, Callable[..., None]], Awaitable[None]]
) -> None:
    """Run a registrar. Pass two nameservers, and a function that changes settings, to ``act``."""

    async def run() -> None:
        first, second = Nameserver(), Nameserver()
        servers = [await each.listen() for each in (first, second)]
        registrar = Registrar(
            state, broker_addr="192.0.2.2:10911", ha_addr="192.0.2.2:10912", changed=lambda: None
        )

        def change(**settings: Any) -> None:
            state.config = replace(state.config, **settings)
            registrar.nameservers_changed()

        change(look_up_period_ms=PERIOD_MS, fetch_period_ms=PERIOD_MS, register_timeout_ms=3_000)
        running = asyncio.create_task(registrar.run())
        try:
            await act(first, second, change)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await registrar.close()
            for server in servers:
                server.close()

    asyncio.run(run())


def test_broker_stays_registered_when_look_ups_are_turned_on_and_fail(
    state: BrokerState, hosts: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def act(server: Nameserver, _: Nameserver, change: Callable[..., None]) -> None:
        hosts["ns1.example"] = "127.0.0.1"
        change(namesrv_addr=f"ns1.example:{server.port}")
        await until(lambda: server.lists, "registered")
        hosts.clear()
        change(look_up_namesrv=True)
        await until(lambda: "look-up failed" in caplog.text, "a look-up failed")
        await asyncio.sleep(QUIET_S)
        assert server.left == 0
        hosts["ns1.example"] = "127.0.0.1"
        left = f"connection closed to former nameserver=ns1.example:{server.port}"
        await until(lambda: left in caplog.text, "only the address is in the list")
        assert server.left == 0

    caplog.set_level("INFO")
    with_nameservers(state, act)


def test_broker_leaves_the_former_nameserver_only_after_the_new_name_has_an_address(
    state: BrokerState, hosts: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def act(old: Nameserver, new: Nameserver, change: Callable[..., None]) -> None:
        hosts["old.example"] = "127.0.0.1"
        change(namesrv_addr=f"old.example:{old.port}", look_up_namesrv=True)
        await until(lambda: old.lists, "registered with the old one")
        change(namesrv_addr=f"new.example:{new.port}")
        await until(lambda: "look-up failed" in caplog.text, "a look-up failed")
        await asyncio.sleep(QUIET_S)
        assert old.left == 0
        hosts["new.example"] = "127.0.0.1"
        await until(lambda: new.lists and not old.lists, "registered with the new one only")

    with_nameservers(state, act)


def test_broker_keeps_its_nameservers_while_the_address_server_is_down(
    state: BrokerState, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(server: Nameserver, _: Nameserver, change: Callable[..., None]) -> None:
        change(fetch_namesrv=True, namesrv_domain="127.0.0.1:1", namesrv_addr=f"127.0.0.1:{server.port}")
        await until(lambda: server.lists, "registered")
        change(namesrv_addr="")
        await until(lambda: "address server failed" in caplog.text, "the address server failed")
        await asyncio.sleep(QUIET_S)
        assert server.left == 0
        change(fetch_namesrv=False)
        await until(lambda: not server.lists, "unregistered, because the settings name no nameserver")

    with_nameservers(state, act)


def test_broker_stays_registered_when_an_address_replaces_a_name_that_cannot_be_looked_up(
    state: BrokerState, hosts: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def act(server: Nameserver, _: Nameserver, change: Callable[..., None]) -> None:
        hosts["ns1.example"] = "127.0.0.1"
        change(namesrv_addr=f"ns1.example:{server.port}")
        await until(lambda: server.lists, "registered")
        hosts.clear()
        change(namesrv_addr=f"127.0.0.1:{server.port}")
        left = f"connection closed to former nameserver=ns1.example:{server.port}"
        await until(lambda: left in caplog.text or server.left, "only the address is in the list")
        assert server.left == 0

    caplog.set_level("INFO")
    with_nameservers(state, act)


def config(*names: str) -> BrokerConfig:
    return BrokerConfig(namesrv_addr=";".join(names), look_up_namesrv=True)


async def test_names_without_an_address_drop_no_address_of_the_former_settings(hosts: dict[str, str]) -> None:
    names = NameserverNames()
    hosts |= {"a.example": "192.0.2.1", "b.example": "192.0.2.2"}
    assert await names.nameservers(config("a.example:1", "b.example:1")) == ("192.0.2.1:1", "192.0.2.2:1")
    both = ("192.0.2.2:1", "192.0.2.1:1")
    assert await names.nameservers(config("b.example:1", "c.example:1")) == both
    hosts["e.example"] = "192.0.2.5"
    former = ("192.0.2.1:1", "192.0.2.2:1")
    assert await names.nameservers(config("e.example:1", "c.example:1")) == ("192.0.2.5:1", *former)
    assert await names.nameservers(config("c.example:1")) == (*former, "192.0.2.5:1")
    assert await names.nameservers(config("d.example:1")) == (*former, "192.0.2.5:1")
    hosts["d.example"] = "192.0.2.4"
    assert await names.nameservers(config("d.example:1")) == ("192.0.2.4:1",)
    hosts.clear()
    assert await names.nameservers(config("d.example:1")) == ("192.0.2.4:1",)
    assert await names.nameservers(BrokerConfig()) == ()


async def test_list_stays_bounded_while_no_list_of_names_has_all_its_addresses(hosts: dict[str, str]) -> None:
    names = NameserverNames()
    assert await names.nameservers(BrokerConfig(namesrv_addr="192.0.2.200:1")) == ("192.0.2.200:1",)
    for number in range(100):
        hosts[f"n{number}.example"] = f"192.0.2.{number}"
        found = await names.nameservers(config(f"n{number}.example:1", f"x{number}.example:1"))
        assert found[0] == f"192.0.2.{number}:1"
        assert len(found) <= 3
    for name in ("x.example:1", "y.example:1"):
        assert await names.nameservers(config(name)) == ("192.0.2.200:1", "192.0.2.99:1")


async def test_name_that_never_had_an_address_keeps_no_former_address_of_another_name(
    hosts: dict[str, str],
) -> None:
    names = NameserverNames()
    settings = config("a.example:1", "wrong.example:1")
    hosts["a.example"] = "192.0.2.1"
    assert await names.nameservers(settings) == ("192.0.2.1:1",)
    hosts["a.example"] = "192.0.2.7"
    assert await names.nameservers(settings) == ("192.0.2.7:1",)


async def test_look_up_without_an_answer_in_time_drops_no_address(
    hosts: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(nameserver_names, "LOOK_UP_S", 0.0)
    names = NameserverNames()
    assert await names.nameservers(BrokerConfig(namesrv_addr="a.example:1")) == ("a.example:1",)
    hosts["a.example"] = "192.0.2.1"
    assert await names.nameservers(config("a.example:1")) == ("a.example:1",)
    assert "nameserver=a.example:1 reason=no answer within 0 s" in caplog.text
