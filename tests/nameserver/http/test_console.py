"""Tests of the console's HTTP resources.

The resources are the table of nameservers and brokers, the state of a topic at all nameservers, and the last
events.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from routekeeper.nameserver.http.console import asking
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import ConnectionLost
from routekeeper.remoting.transport.aio import RemotingClient
from routekeeper.remoting.transport.blocking import BlockingClient
from routekeeper.remoting.transport.server import RemotingServer
from tests.nameserver.http.consoles import Server, registered, servers
from tests.nameserver.http.test_server_http import Running, running
from tests.ports import free_addresses
from tests.waiting import WITHIN_S, until, wait_until

pytestmark = pytest.mark.slow


def cells(picture: dict[str, Any], broker: str) -> list[dict[str, Any]]:
    """Return the cells in the table row of ``broker``, one for each nameserver."""
    (row,) = [row for row in picture["rows"] if row["broker_name"] == broker]
    return [{"state": "listed", **cell} for cell in row["cells"]]


def states(picture: dict[str, Any]) -> list[str]:
    return [each["state"] for each in picture["nameservers"]]


# Two independent nameservers whose settings contain each other's address --------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    folder = tmp_path_factory.mktemp("pair")
    addresses = free_addresses(2)
    one, other = (
        Server(folder / str(number), "--console-peers", ",".join(addresses), http=http)
        for number, http in enumerate(addresses)
    )
    with servers(one, other):
        yield one, other


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    with BlockingClient() as client:
        yield client


def told(client: BlockingClient, server: Server, *requests: RemotingCommand) -> None:
    for request in requests:
        assert client.invoke(server.wire, request, timeout_s=WITHIN_S).code == 0


def test_cells_that_differ_between_two_nameservers_say_by_what(
    pair: tuple[Server, Server], client: BlockingClient
) -> None:
    one, other = pair
    told(client, one, registered("same", "T"), registered("aged", "T", "U", counter=2))
    told(client, one, registered("only-here", "T"), registered("renamed", "T", addr="10.0.0.7:1"))
    told(client, other, registered("same", "T"), registered("aged", "T", counter=1))
    told(client, other, registered("renamed-there", "T", addr="10.0.0.7:1", counter=1))

    def differing() -> tuple[dict[str, Any], ...]:
        """Return the answers to ``cluster`` and ``pulse``, or an empty tuple if they show different states.

        The tag in an answer names the state that the answer shows. Both answers must have the same tag, and
        the state must include the data of the other nameserver. On a busy machine, these data may come a
        second late.
        """
        picture, pulse = one.get("/v1/console/cluster"), one.get("/v1/console/pulse")
        whole = states(picture) == ["this", "answered"] and picture["differing"] == 3
        return (picture, pulse) if whole and pulse["tag"] == picture["tag"] else ()

    picture, pulse = wait_until(differing, "the drift")
    assert picture["asked"] == "listed"
    assert [each["same_table"] for each in picture["nameservers"]] == [True, False]
    assert [cell["state"] for cell in cells(picture, "same")] == ["listed", "listed"]
    assert [cell["state"] for cell in cells(picture, "only-here")] == ["listed", "missing"]
    here, there = cells(picture, "aged")
    assert here["state"] == "listed"
    assert (there["state"], there["differs"]) == ("older", ["data version", "number of topics"])
    assert there["broker"]["data_version"]["counter"] == 1
    _, there = cells(picture, "renamed")
    assert (there["state"], there["differs"]) == ("differs", ["broker name", "HA address"])
    # The other nameserver's console shows the same differences from its own side.
    seen = wait_until(lambda: (found := other.get("/v1/console/cluster"))["differing"] == 3 and found, "it")
    assert [cell["state"] for cell in cells(seen, "only-here")] == ["missing", "listed"]

    ages = [each["seen_s"] for each in pulse["nameservers"]]
    assert all(0 <= age < WITHIN_S for age in ages[0])
    assert ages[1].count(-1) == 1  # -1 stands for a broker that the other nameserver does not list


def test_topic_is_shown_from_every_nameserver_with_order_change_and_explanation(
    pair: tuple[Server, Server], client: BlockingClient
) -> None:
    one, _other = pair
    told(client, one, registered("orders", "Orders", queues=4))
    told(
        client,
        one,
        RemotingCommand.request(
            100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "Orders", "value": "orders:4"}
        ),
    )

    def both() -> dict[str, Any]:
        found: dict[str, Any] = one.get("/v1/console/topics/Orders")
        return found if [each["state"] for each in found["nameservers"]] == ["this", "answered"] else {}

    found = wait_until(both, "both nameservers")
    here, there = found["nameservers"]
    assert found["differs"]
    assert here["own"]["route"]["queueDatas"][0]["writeQueueNums"] == 4
    assert here["own"]["order_configuration"] == "orders:4"
    (change,) = here["own"]["changes"]
    assert (change["by"], change["detail"]) == ("127.0.0.1", "PUT_KV_CONFIG applied")
    assert abs(change["at_ms"] / 1000 - time.time()) < WITHIN_S
    assert (there["own"]["listed"], there["own"]["route"], there["same"]) == (False, None, False)
    assert there["own"]["summary"]
    assert there["own"]["likely_causes"]


def test_history_has_the_events_of_all_nameservers(
    pair: tuple[Server, Server], client: BlockingClient
) -> None:
    one, other = pair
    with BlockingClient() as broker:
        told(broker, other, registered("leaves", "L"))
    told(client, one, RemotingCommand.request(100, {"namespace": "N", "key": "k", "value": "secret"}))

    def events() -> dict[tuple[str, str], dict[str, Any]]:
        one.get("/v1/console/cluster")
        found = one.get("/v1/console/history")["events"]
        named = {(each["event"]["kind"], each["event"]["subject"]): each for each in found}
        return named if ("left", "C/leaves.test:10911") in named and ("changed", "N/k") in named else {}

    named = wait_until(events, "the events")
    left = named["left", "C/leaves.test:10911"]
    assert (left["nameserver"], left["event"]["detail"]) == (other.wire, "the broker's connection closed")
    changed = named["changed", "N/k"]
    assert (changed["nameserver"], changed["event"]["by"]) == (one.wire, "127.0.0.1")
    assert "secret" not in str(named)


@pytest.mark.one_core
def test_peer_that_stands_still_is_shown_as_silent_and_costs_a_second_once(
    pair: tuple[Server, Server], client: BlockingClient
) -> None:
    """A nameserver that hangs delays only the console's first answer, by a second.

    The test uses the shortest of three times, because a busy machine can make requests only slower.
    """
    one, other = pair
    tries = range(3)
    told(client, one, registered("still", *(f"Still-{number}" for number in tries)))
    first_s: list[float] = []
    next_s: list[float] = []
    for number in tries:
        wait_until(lambda: states(one.get("/v1/console/cluster")) == ["this", "answered"], "an answer")
        other.process.send_signal(signal.SIGSTOP)
        try:
            begun = time.monotonic()
            topic = one.get(f"/v1/console/topics/Still-{number}")
            first_s.append(time.monotonic() - begun)
            assert topic["nameservers"][0]["own"]["listed"]
            assert topic["nameservers"][1]["own"] is None
            picture = wait_until(
                lambda: (
                    (found := one.get("/v1/console/cluster"))["nameservers"][1]["state"] == "silent" and found
                ),
                "silence",
            )
            assert picture["nameservers"][1]["reason"] == "no answer within 1 s"
            assert cells(picture, "still")[1]["state"] == "unknown"
            begun = time.monotonic()
            one.get("/v1/console/cluster")
            one.get(f"/v1/console/topics/Other-{number}")
            next_s.append(time.monotonic() - begun)
        finally:
            other.process.send_signal(signal.SIGCONT)
    assert min(first_s) < 2 * asking.ANSWER_S, first_s
    assert min(next_s) < asking.ANSWER_S, next_s  # the console does not wait for the silent nameserver again
    wait_until(lambda: states(one.get("/v1/console/cluster")) == ["this", "answered"], "its answer")


# Consoles in a raft group --------------------------------------------------------------------------------


@pytest.mark.one_core
def test_members_are_shown_and_the_ones_that_the_group_cannot_lose(tmp_path: Path) -> None:
    rafts, https, secret = free_addresses(3), free_addresses(3), tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("a secret of the members, thirty-two bytes and more")
    members = [
        Server(
            tmp_path / str(number),
            *("--mode", "raft", "--raft", raft, "--peers", ",".join(rafts), "--durability", "memory"),
            *("--raft-secret-file", str(secret)),  # members exchange HTTP addresses only with a secret
            http=http,
        )
        for number, (raft, http) in enumerate(zip(rafts, https, strict=True))
    ]
    with servers(*members), BlockingClient() as client:
        for member in members:
            member.await_ready()
        # Repeat the registration until it succeeds. On a busy machine, the leader may step down, and then the
        # registration is refused. Afterwards, the members may have other roles and links.
        wait_until(
            lambda: client.invoke(members[0].wire, registered("b", "T"), timeout_s=WITHIN_S).code == 0,
            "the broker is registered",
        )

        def whole() -> dict[str, Any]:
            picture: dict[str, Any] = members[0].get("/v1/console/cluster")
            found = picture["nameservers"]
            return (
                picture
                if states(picture) == ["this", "answered", "answered"]
                and all(each["same_table"] for each in found)
                and sorted(each["role"] for each in found) == ["follower", "follower", "leader"]
                and not any(each["stops_group"] for each in found)
                else {}
            )

        picture = wait_until(whole, "all members, one of which leads; the group can lose any of them")
        assert picture["asked"] == "members"
        assert {each["name"] for each in picture["nameservers"]} == set(rafts)

        def kinds() -> set[str]:
            return {each["event"]["kind"] for each in members[0].get("/v1/console/history")["events"]}

        wait_until(lambda: {"leader", "joined"} <= kinds(), "the events")

        members[2].process.kill()

        def critical() -> set[str]:
            found = members[0].get("/v1/console/cluster")["nameservers"]
            return {each["name"] for each in found if each["stops_group"]}

        wait_until(lambda: critical() == set(rafts[:2]), "two members that are a bare majority")

        def lost() -> tuple[str, bool]:
            found = members[0].get("/v1/console/cluster")["nameservers"]
            return next((each["state"], each["linked"]) for each in found if each["name"] == rafts[2])

        wait_until(lambda: lost() == ("silent", False), "the silence of the third")


# Nameservers whose addresses the console reads from the settings of brokers ---------------------------


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give nameservers a long time to answer, because all run in this process, perhaps on a busy machine."""
    monkeypatch.setattr(asking, "ANSWER_S", WITHIN_S)


@contextlib.asynccontextmanager
async def broker_at(
    ns: Running, settings: bytes, *, addr: str = "", name: str = "b"
) -> AsyncIterator[list[int]]:
    """Register a broker that answers request 26 with ``settings``.

    Yield the codes of the requests that the broker gets.
    """
    codes: list[int] = []

    def answer(_connection: object, command: RemotingCommand) -> RemotingCommand:
        codes.append(command.code)
        return command.reply(0, body=settings)

    async with asyncio.TaskGroup() as group, RemotingClient() as client:
        server = RemotingServer(handlers=dict.fromkeys((26, 105, 106), answer), group=group)
        bound = await server.start("127.0.0.1", 0)
        request = registered(name, "T", addr=addr or bound)
        assert (await client.invoke(ns.wire, request)).code == 0
        yield codes
        await server.close(drain_s=0.0)


async def rounds(ns: Running, count: int) -> None:
    """Keep a console page open until the console has asked all other nameservers ``count`` more times."""
    peers = ns.web_server.console.peers
    wanted = peers.rounds + count
    with peers.watched():
        await until(lambda: peers.rounds >= wanted)


@pytest.mark.usefixtures("patient")
async def test_nameservers_that_a_broker_names_are_asked_over_the_wire(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as ns, running(tmp_path / "b") as other:
        ns.live.bound(listen=ns.wire, http=ns.http)
        itself = f"{ns.wire};localhost:{ns.wire.rpartition(':')[2]}"
        settings = f"brokerName=b\nnamesrvAddr={itself};{other.wire}\n".encode()
        async with broker_at(ns, settings) as codes:
            await other.register("elsewhere", "Elsewhere", "T")
            await rounds(ns, 2)
            _, picture = await ns.get("/v1/console/cluster")
            assert picture["asked"] == "brokers"
            _here, there = picture["nameservers"]
            assert (there["name"], there["source"], there["state"]) == (other.wire, "broker", "answered")
            assert (there["knows"], there["named_by"]) == ("listing", 1)
            assert [cell["state"] for cell in cells(picture, "b")] == ["listed", "missing"]
            assert [cell["state"] for cell in cells(picture, "elsewhere")] == ["missing", "listed"]
            _, topic = await ns.get("/v1/console/topics/Elsewhere")
            assert [each["own"]["listed"] for each in topic["nameservers"]] == [False, True]
            assert set(codes) == {26}  # the console must send brokers only request 26


#: Addresses that the console must not ask. The console reads only eight addresses from a broker's settings,
#: so each text has at most eight. test_console_pure.py has more of them.
EVIL = {
    "of no single machine": "169.254.169.254:80;224.0.0.1:9876;255.255.255.255:9876;0.0.0.0:9876;[::]:9876;"
    "[::ffff:169.254.169.254]:80",
    "no address": "127.0.0.1:0;127.0.0.1;http://127.0.0.1/?;\\u0000;'; DROP TABLE",
}


@pytest.mark.parametrize("named", EVIL.values(), ids=EVIL)
async def test_addresses_that_no_machine_has_are_not_asked(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    invoke = RemotingClient.invoke

    async def watched(self: RemotingClient, addr: str, *arguments: Any, **more: Any) -> RemotingCommand:
        asked.append(addr)
        # Send nothing to other machines, even if the console has a defect.
        if not addr.startswith("127.0.0.1:"):
            raise ConnectionLost("not dialled", sent=False)
        return await invoke(self, addr, *arguments, **more)

    async with running(tmp_path) as ns, broker_at(ns, f"namesrvAddr={named}".encode()) as codes:
        monkeypatch.setattr(RemotingClient, "invoke", watched)
        (broker,) = [record.broker.broker_addr for record in ns.mode._table.view.records()]
        await rounds(ns, 2)
        assert codes == [26]
        assert set(asked) == {broker}
        _, picture = await ns.get("/v1/console/cluster")
        assert all(each["state"] in ("this", "refused", "silent") for each in picture["nameservers"])


async def test_broker_that_registers_from_elsewhere_is_not_asked(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as ns,
        broker_at(ns, b"namesrvAddr=127.0.0.1:1", addr="10.0.0.9:1") as codes,
    ):
        await rounds(ns, 2)
        assert codes == []
        assert ns.web_server.console.peers.questions == 0
        _, picture = await ns.get("/v1/console/cluster")
        assert "--console-peers" in picture["note"]


async def test_many_addresses_are_asked_in_bounds_and_ever_less_often(tmp_path: Path) -> None:
    """The console sends few requests, even if the settings of a broker contain a thousand addresses.

    No server listens at any of these addresses.
    """
    ports = ";".join(f"127.0.0.1:{port}" for port in range(1, 1001))
    async with running(tmp_path) as ns, broker_at(ns, f"namesrvAddr={ports}".encode()):
        peers = ns.web_server.console.peers
        await rounds(ns, 6)
        assert len(peers.told) == 8
        # In the first of six rounds, the console asks the broker. Later it asks eight of the addresses, and
        # each of them in at most four rounds, because the pause after a failure doubles.
        assert peers.questions <= 1 + 4 * 8


async def test_off_asks_nobody(tmp_path: Path) -> None:
    async with (
        running(tmp_path, console_peers="off") as ns,
        broker_at(ns, b"namesrvAddr=127.0.0.1:1") as codes,
    ):
        with ns.web_server.console.watched():
            _, picture = await ns.get("/v1/console/cluster")
            await ns.get("/v1/console/topics/T")
        assert (picture["asked"], states(picture)) == ("off", ["this"])
        assert codes == []


# Limits on the rate of requests to peers ----------------------------------------------------------------


async def test_pages_share_one_round_and_without_a_page_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "OPEN_S", 0.5)
    async with (
        running(tmp_path / "a") as ns,
        running(tmp_path / "b") as other,
        broker_at(ns, f"namesrvAddr={other.wire}".encode()),
    ):
        peers = ns.web_server.console.peers
        await asyncio.sleep(0.3)  # no page is open in this time
        assert peers.questions == 0
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while peers.rounds < 3:
            await asyncio.gather(*(ns.get("/v1/console/cluster") for _ in range(5)))
            await ns.get(f"/v1/console/topics/T{peers.rounds}")
        passed_s = loop.time() - begun
        assert passed_s >= 2 * asking.EVERY_S * 0.95
        # The console sends 1 request to the broker. In each of three rounds, it sends 1 request to the other
        # nameserver, and at most 2 requests for a topic. Two more are allowed, because a fourth round may
        # have begun.
        assert peers.questions <= 1 + 3 + 2 * 3 + 2
        await until(lambda: peers._task is None)
        before = peers.questions
        await asyncio.sleep(asking.EVERY_S * 1.2)  # no page is open in this time
        assert peers.questions == before


@pytest.mark.usefixtures("patient")
async def test_topics_that_are_asked_for_in_a_flood_reach_peers_in_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running(tmp_path / "a") as ns,
        running(tmp_path / "b") as other,
        broker_at(ns, f"namesrvAddr={other.wire}".encode()),
    ):
        await rounds(ns, 2)
        monkeypatch.setattr(asking, "EVERY_S", 600.0)  # ask the other nameservers only once during the test
        answers = await asyncio.gather(*(ns.get(f"/v1/console/topics/T{n}") for n in range(50)))
        reached = [body["nameservers"][1]["state"] for _, body in answers]
        assert reached.count("answered") == asking.TOPICS_PER_ROUND
        assert reached.count("unknown") == 50 - asking.TOPICS_PER_ROUND


@pytest.mark.usefixtures("patient")
async def test_watchers_of_the_console_are_told_when_a_peer_differs(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "a") as ns,
        running(tmp_path / "b") as other,
        broker_at(ns, f"namesrvAddr={other.wire}".encode()),
    ):
        url = f"http://{ns.http}/v1/watch?kinds=console&state=none"
        async with ns.web.get(url) as stream:
            await until(lambda: ns.web_server.console.tag)
            tag = ns.web_server.console.tag
            await other.register("new", "New")
            picture: dict[str, Any] = {"rows": []}
            async with asyncio.timeout(WITHIN_S):
                while "new" not in [row["broker_name"] for row in picture["rows"]]:
                    line = (await stream.content.readline()).decode()
                    if line.startswith('data: {"tag"') and f'"{tag}"' not in line and '""' not in line:
                        _, picture = await ns.get("/v1/console/cluster")
        assert [cell["state"] for cell in cells(picture, "new")] == ["missing", "listed"]


# Search -----------------------------------------------------------------------------------------------


async def test_topics_are_found_by_a_part_of_their_names_page_by_page(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        names = [f"app-{n:03}-{'ORDERS' if n % 3 == 0 else 'bills'}" for n in range(30)]
        await ns.register("b", *names)
        await ns.register("c", "far-orders", cluster="D")
        found: list[str] = []
        cursor = ""
        while True:
            _, body = await ns.get(f"/v1/topics?contains=Orders&limit=4{cursor}")
            found += body["topics"]
            if "next_cursor" not in body:
                break
            cursor = f"&cursor={body['next_cursor']}"
        assert found == [*(name for name in names if "ORDERS" in name), "far-orders"]
        assert (await ns.get("/v1/topics?contains=orders&cluster=D"))[1]["topics"] == ["far-orders"]
        assert (await ns.get("/v1/topics?contains=orders&prefix=far"))[1]["topics"] == ["far-orders"]
        assert (await ns.get("/v1/topics?contains=none"))[1]["topics"] == []
        (broker,) = (await ns.get("/v1/brokers?contains=C&cluster=D"))[1]["brokers"]
        assert broker["broker_name"] == "c"


def test_settings_that_name_no_nameserver_are_refused() -> None:
    from routekeeper.nameserver.settings.declared import ConfigError, NamesrvSettings, validate

    for value, words in (
        ("a:9880;b:9880", "more than one address"),
        ("a", "is not HOST:PORT"),
        ("a:0", "needs a port"),
        ("http://a:9880", "has a scheme"),
        (" , ", "names 0 nameservers"),
        (",".join(f"a:{port}" for port in range(1, 20)), "names 19 nameservers"),
    ):
        with pytest.raises(ConfigError, match=words):
            validate(replace(NamesrvSettings(), console_peers=value))
    for value in ("brokers", "off", "a:9880", "a:9880, [fd00::1]:9880"):
        validate(replace(NamesrvSettings(), console_peers=value))
