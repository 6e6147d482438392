"""Tests of the notices that tell brokers about a change of the smallest broker id.

No address in a registration may end the nameserver, or make it connect to another host than the broker's
host.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from pathlib import Path

import pytest

from routekeeper.nameserver.types import BrokerAddr, ConnectionId, MinBrokerChange
from routekeeper.nameserver.wire.notices import NOTICES_MAX, PER_CONNECTION_MAX, Notices
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.fields import RegisterBrokerFields
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.cost import least_cpu_s, on_this_machine
from tests.faults.servers import server

WITHIN_S = 30.0


def registration(addr: str, broker_id: int) -> RemotingCommand:
    fields = RegisterBrokerFields(
        broker_name="b", broker_addr=addr, cluster_name="c", broker_id=broker_id, ha_server_addr="10.0.0.1:2"
    )
    return RemotingCommand.request(RequestCode.REGISTER_BROKER, fields.to_ext())


def listener(host: str) -> tuple[socket.socket, str]:
    one = socket.create_server((host, 0))
    one.settimeout(WITHIN_S)
    return one, f"{host}:{one.getsockname()[1]}"


def test_three_requests_of_a_stranger_end_nothing(tmp_path: Path) -> None:
    with server("nameserver", tmp_path) as running, BlockingClient() as client:
        addr = running.listen
        change = RemotingCommand.request(
            RequestCode.UPDATE_NAMESRV_CONFIG, body=b"notifyMinBrokerIdChanged=true\n"
        )
        answer = client.invoke(addr, change)
        assert answer.code != ResponseCode.SUCCESS
        assert "notifyMinBrokerIdChanged" in (answer.remark or "")
        for broker_id, port in ((1, "1"), (0, "80"), (2, "9" * 5000)):
            client.invoke(addr, registration("x" * 64 + ".example:" + port, broker_id))
        assert client.invoke(addr, RemotingCommand.request(RequestCode.GET_NAMESRV_CONFIG)).code == 0


def test_brokers_are_dialled_where_they_come_from_and_nobody_else(tmp_path: Path) -> None:
    broker, broker_addr = listener("127.0.0.1")
    victim, victim_addr = listener("127.0.0.3")
    with (
        broker,
        victim,
        server("nameserver", tmp_path, "--notifyMinBrokerIdChanged", "true") as running,
        BlockingClient() as stranger,
        running.connect() as link,
    ):
        addr = running.listen
        strange = (victim_addr, "x" * 64 + ".example:80", "127.0.0.1:" + "9" * 5000)
        # Smaller ids than the broker's id 5, so they get notices first.
        for broker_id, sent in enumerate(strange, 2):
            stranger.invoke(addr, registration(sent, broker_id))
        link.sendall(registration(broker_addr, 5).with_opaque(1).encode())
        link.recv(65536)
        stranger.invoke(addr, registration("127.0.0.1:1", 0))  # the smallest id changes, so notices are sent
        dialled, _ = broker.accept()
        with dialled:
            dialled.settimeout(WITHIN_S)
            (frame,) = FrameDecoder().feed(dialled.recv(65536))
            notice = decode_command(frame)
            assert (notice.code, notice.ext_fields["minBrokerId"]) == (905, "0")
        assert not select.select([victim], [], [], 0)[0], "a stranger had it dial another host"
        assert stranger.invoke(addr, RemotingCommand.request(RequestCode.GET_NAMESRV_CONFIG)).code == 0


@pytest.mark.parametrize(
    ("host", "addr", "dialled"),
    [
        ("127.0.0.1", "127.0.0.1:10911", True),
        ("127.0.0.1", "127.0.0.2:10911", False),
        ("127.0.0.1", "", False),
        pytest.param("127.0.0.1", "127.0.0.1:" + "1" * 1_000_000, False, id="much text, no port"),
    ],
)
def test_address_counts_if_its_connection_comes_from_there(
    host: str, addr: str, dialled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert refused([addr], host, [addr], caplog) == (0 if dialled else 1)


@pytest.mark.parametrize("addr", ["[0:0:0:0:0:0:0:1]:10911", "::1:10911", "0:0:0:0:0:0:0:1:10911"])
def test_address_counts_however_it_is_spelt(addr: str, caplog: pytest.LogCaptureFixture) -> None:
    assert refused([addr], "[::1]", [addr], caplog) == 0


def test_one_connection_has_a_bounded_number_of_addresses_dialled(caplog: pytest.LogCaptureFixture) -> None:
    addrs = [f"127.0.0.1:{port}" for port in range(1, 101)]
    assert refused(addrs, "127.0.0.1", addrs, caplog) == 100 - 64


def test_addresses_of_a_closed_connection_are_not_dialled(caplog: pytest.LogCaptureFixture) -> None:
    assert refused(["127.0.0.1:10911"], "127.0.0.1", ["127.0.0.1:10911"], caplog, closed=True) == 1


def refused(
    registered: list[str],
    host: str,
    tell: list[str],
    caplog: pytest.LogCaptureFixture,
    *,
    closed: bool = False,
) -> int:
    """Register addresses over a connection from ``host``.

    Return the number of addresses in ``tell`` to which the server then refuses to connect.

    Args:
        registered: The addresses.
        tell: Addresses to which the server is asked to send a notice.
        closed: If True, close the connection before the notices.
    """

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            notices = Notices(group)
            for addr in registered:
                notices.registered(ConnectionId(1), host, addr)
            if closed:
                notices.closed(ConnectionId(1))
            notices.send(change(tell))
            await notices.close()

    caplog.set_level(logging.INFO, "routekeeper.nameserver.wire.notices")
    asyncio.run(main())
    return sum("reason=registered elsewhere" in message for message in caplog.messages)


def change(addrs: list[str]) -> MinBrokerChange:
    return MinBrokerChange(
        min_broker_id=0,
        min_broker_addr=BrokerAddr("10.0.0.1:1"),
        offline_addr=None,
        ha_addr=None,
        tell=tuple(map(BrokerAddr, addrs)),
    )


async def test_notice_that_fails_in_a_way_nobody_expected_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*arguments: object, **named: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("routekeeper.nameserver.wire.notices.RemotingClient.invoke_oneway", fail)
    async with asyncio.TaskGroup() as group:  # an exception in the task group would end the whole process
        notices = Notices(group)
        notices.registered(ConnectionId(1), "10.0.0.1", "10.0.0.1:1")
        notices.send(change(["10.0.0.1:1"]))
        await asyncio.sleep(0)  # the task that sends the notice runs, and fails
        await notices.close()
    assert "notice of smallest broker id failed addr=10.0.0.1:1" in caplog.text


def test_address_stays_known_until_the_last_connection_that_registered_it_closes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "routekeeper.nameserver.wire.notices")

    async def main() -> list[bool]:
        sent = []
        async with asyncio.TaskGroup() as group:
            notices = Notices(group)
            for _ in range(3):
                notices.registered(ConnectionId(1), "127.0.0.1", "127.0.0.1:1")
            notices.registered(ConnectionId(2), "127.0.0.1", "127.0.0.1:1")
            for number in (3, 2, 2, 1):
                notices.closed(ConnectionId(number))
                caplog.clear()
                notices.send(change(["127.0.0.1:1"]))
                sent.append("registered elsewhere" not in caplog.text)
            await notices.close()
        return sent

    assert asyncio.run(main()) == [True, True, True, False]


@pytest.mark.slow
def test_notice_costs_no_more_for_the_addresses_of_all_connections() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            notices = Notices(group)
            for number in range(5_000):
                for port in range(1, PER_CONNECTION_MAX + 1):
                    host = f"10.0.{number // 250}.{number % 250}"
                    notices.registered(ConnectionId(number), host, f"{host}:{port}")
            allowed = on_this_machine(0.005)
            took_s = least_cpu_s(lambda: lambda: notices.send(change(["10.1.1.1:1"])), below=allowed)
            await notices.close()
        assert took_s < allowed

    asyncio.run(main())


async def test_notices_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[object] = []

    async def stand_still(client: object, addr: str, *arguments: object, **named: object) -> None:
        dialled.append(addr)
        await asyncio.Event().wait()

    monkeypatch.setattr("routekeeper.nameserver.wire.notices.RemotingClient.invoke_oneway", stand_still)
    async with asyncio.TaskGroup() as group:
        notices = Notices(group)
        addrs = [f"10.0.0.1:{port}" for port in range(1, NOTICES_MAX + 51)]
        for number, addr in enumerate(addrs):
            notices.registered(ConnectionId(number), "10.0.0.1", addr)
        notices.send(change(addrs))
        await asyncio.sleep(0)
        assert len(dialled) == NOTICES_MAX
        await notices.close()
