"""The proxy between a run's processes cuts and heals links, refuses connections, and counts bytes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from routekeeper.bench.cluster import Cluster
from routekeeper.bench.events import LinkSample
from routekeeper.bench.links import Link, between_groups, both_ways
from routekeeper.bench.network import ProxyNetwork
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.proxy import Proxy
from tests.ports import free_addresses
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

WAIT_S = 10.0


class Echo:
    """A server that echoes each byte until it is closed."""

    def __init__(self, addr: str) -> None:
        host, _, port = addr.rpartition(":")
        self._listening = socket.create_server((host, int(port)))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self._open.append(connection)
                threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := connection.recv(1024):
                connection.sendall(data)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


class Dialler:
    """A caller that opens connections, and closes all of them at the end."""

    def __init__(self) -> None:
        self.made = contextlib.ExitStack()

    def __call__(self, addr: str) -> socket.socket:
        host, _, port = addr.rpartition(":")
        return self.made.enter_context(socket.create_connection((host, int(port)), timeout=WAIT_S))

    def when_open(self, addr: str) -> socket.socket:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                return self(addr)
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.005)

    def until_refused(self, addr: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            # The listener may be closing when the connection arrives. As at any server, the connection then
            # waits in the listener's queue and is reset.
            with contextlib.suppress(ConnectionResetError):
                self(addr)


@pytest.fixture
def dial() -> Iterator[Dialler]:
    dialler = Dialler()
    with dialler.made:
        yield dialler


def passes(connection: socket.socket, word: bytes, *, within_s: float = WAIT_S) -> bool:
    """Send a word, and return True if the word comes back in time."""
    connection.settimeout(within_s)
    connection.sendall(word)
    try:
        return connection.recv(1024) == word
    except TimeoutError:
        return False


@contextlib.contextmanager
def proxied(links: list[Link], folder: Path) -> Iterator[ProxyNetwork]:
    network = ProxyNetwork(folder, lambda sample: None)
    network.links += links
    network.carriers()
    network.process.launch()
    try:
        network.process.wait_ready()
        yield network
    finally:
        network.process.kill()


def test_cut_holds_both_what_is_said_and_who_dials_and_healing_delivers_it(
    tmp_path: Path, dial: Dialler
) -> None:
    to, of_one, of_other = free_addresses(3)
    links = [
        Link(dialler="broker-0", acceptor="nameserver-0", listen=of_one, to=to),
        Link(dialler="broker-1", acceptor="nameserver-0", listen=of_other, to=to),
    ]
    echo = Echo(to)
    with proxied(links, tmp_path) as network:
        one, other = dial.when_open(of_one), dial.when_open(of_other)
        assert passes(one, b"a")
        assert passes(other, b"a")
        network.cut(both_ways(["broker-0"], ["nameserver-0"]))
        assert not passes(one, b"held", within_s=0.2)
        assert passes(other, b"b")
        late = dial(of_one)
        assert not passes(late, b"late", within_s=0.2)
        network.heal()
        for connection, word in ((one, b"held"), (late, b"late")):
            connection.settimeout(WAIT_S)
            assert connection.recv(1024) == word
        counts = {link.dialler: (link.forward.bytes, link.back.bytes) for link in network.look()}
        assert counts == {"broker-0": (9, 9), "broker-1": (2, 2)}
    echo.close()


def test_links_are_looked_at_again_after_a_look_without_an_answer_and_another_command(tmp_path: Path) -> None:
    to, listen = free_addresses(2)
    link = Link(dialler="broker-0", acceptor="nameserver-0", listen=listen, to=to)
    with proxied([link], tmp_path) as network:
        network.process.signal(signal.SIGSTOP)
        with pytest.raises(ClusterError, match="silent for too long"):
            network.look(0.1)
        network.process.signal(signal.SIGCONT)
        network.cut([("broker-0", "nameserver-0")])
        for _ in range(2):
            (seen,) = network.look(WAIT_S)
            assert (seen.forward.open, seen.back.open) == (False, True)


def test_links_of_a_killed_proxy_are_unknown_at_every_look(tmp_path: Path) -> None:
    to, listen = free_addresses(2)
    link = Link(dialler="broker-0", acceptor="nameserver-0", listen=listen, to=to)
    with proxied([link], tmp_path) as network:
        network.process.signal(signal.SIGKILL)
        # Another thread of the playground samples the proxy, and reaps it.
        wait_until(lambda: not network.process.alive, "the proxy has ended")
        for _ in range(3):
            with pytest.raises(ClusterError, match="the proxy is gone"):
                network.look(WAIT_S)


def test_whoever_gives_up_before_a_cut_ends_was_never_there(tmp_path: Path, dial: Dialler) -> None:
    to, listen, of_echo, of_other = free_addresses(4)
    host, _, port = to.rpartition(":")
    links = [
        Link(dialler="side-a", acceptor="broker-0", listen=listen, to=to),
        Link(dialler="side-b", acceptor="broker-1", listen=of_other, to=of_echo),
    ]
    echo = Echo(of_echo)
    with socket.create_server((host, int(port))) as server, proxied(links, tmp_path) as network:
        server.settimeout(WAIT_S)
        dial.when_open(listen)
        dial.made.enter_context(server.accept()[0])
        network.cut(both_ways(["side-a"], ["broker-0"]))
        impatient = dial(listen)
        impatient.sendall(b"impatient")
        impatient.close()
        patient = dial(listen)
        patient.sendall(b"patient")
        other = dial.when_open(of_other)
        assert all(passes(other, b"%d" % turn) for turn in range(20)), "the proxy has had time to notice"
        network.heal()
        accepted = dial.made.enter_context(server.accept()[0])
        accepted.settimeout(WAIT_S)
        assert accepted.recv(1024) == b"patient"
    echo.close()


def test_one_way_cut_lets_the_other_direction_through(tmp_path: Path, dial: Dialler) -> None:
    to, listen = free_addresses(2)
    host, _, port = to.rpartition(":")
    with (
        socket.create_server((host, int(port))) as server,
        proxied([Link(dialler="side-a", acceptor="broker-0", listen=listen, to=to)], tmp_path) as network,
    ):
        client = dial.when_open(listen)
        server.settimeout(WAIT_S)
        accepted = dial.made.enter_context(server.accept()[0])
        network.cut([("broker-0", "side-a")])
        client.sendall(b"question")
        accepted.settimeout(WAIT_S)
        assert accepted.recv(1024) == b"question"
        accepted.sendall(b"answer")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1024)


@pytest.mark.parametrize("closing", ["dialler", "acceptor"])
def test_end_of_a_connection_reaches_the_other_process_after_the_last_bytes(
    tmp_path: Path, dial: Dialler, closing: str
) -> None:
    to, listen = free_addresses(2)
    host, _, port = to.rpartition(":")
    with (
        socket.create_server((host, int(port))) as server,
        proxied([Link(dialler="broker-0", acceptor="nameserver-0", listen=listen, to=to)], tmp_path),
    ):
        ends = {"dialler": dial.when_open(listen)}
        server.settimeout(WAIT_S)
        ends["acceptor"] = dial.made.enter_context(server.accept()[0])
        closed = ends.pop(closing)
        (other,) = ends.values()
        other.settimeout(WAIT_S)
        closed.sendall(b"last")
        closed.close()
        assert other.recv(1024) == b"last"
        assert other.recv(1024) == b""


def test_dialler_is_refused_while_nobody_listens_and_served_once_somebody_does(
    tmp_path: Path, dial: Dialler
) -> None:
    to, listen = free_addresses(2)
    with proxied([Link(dialler="side-a", acceptor="broker-0", listen=listen, to=to)], tmp_path):
        with pytest.raises(ConnectionRefusedError):
            dial(listen)
        echo = Echo(to)
        connection = dial.when_open(listen)
        assert passes(connection, b"a")
        echo.close()
        assert connection.recv(1024) == b""
        with pytest.raises(ConnectionRefusedError):
            dial.until_refused(listen)


def test_raft_member_is_known_by_its_first_frame(tmp_path: Path, dial: Dialler) -> None:
    to, listen = free_addresses(2)
    names = {"127.0.0.1:1": "nameserver-1", "127.0.0.1:2": "nameserver-2"}
    echo = Echo(to)
    link = Link(acceptor="nameserver-0", listen=listen, to=to, names=names)
    with proxied([link], tmp_path) as network:

        def hello(identity: str) -> bytes:
            frame = msgspec.msgpack.encode([1, identity, "cluster"])
            return struct.pack(">I", len(frame)) + frame

        one, two = dial.when_open(listen), dial.when_open(listen)
        assert passes(one, hello("127.0.0.1:1"))
        network.cut(both_ways(["nameserver-2"], ["nameserver-0"]))
        assert not passes(two, hello("127.0.0.1:2"), within_s=0.2)
        assert passes(one, b"x")
    echo.close()


def test_directions_between_groups_lead_out_of_each_and_never_stay_inside() -> None:
    assert sorted(between_groups([["a", "b"], ["c"]])) == [("a", "c"), ("b", "c"), ("c", "a"), ("c", "b")]
    assert len(between_groups([["a"], ["b"], ["c"]])) == 6


def test_it_ends_while_its_acceptors_end() -> None:
    """Check that the proxy can stop while the servers behind it stop, as at the end of a run."""

    async def ends(turns: int) -> None:
        """Close the servers and one connection, and stop the proxy ``turns`` loop iterations later."""
        async with contextlib.AsyncExitStack() as stack:
            accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
            targets = [
                await asyncio.start_server(lambda _, writer: accepted.put_nowait(writer), "127.0.0.1")
                for _ in range(4)
            ]
            ports = [target.sockets[0].getsockname()[1] for target in targets]
            listens = free_addresses(len(ports))
            proxy = Proxy(
                [
                    Link(dialler=f"d{port}", acceptor=f"a{port}", listen=listen, to=f"127.0.0.1:{port}")
                    for listen, port in zip(listens, ports, strict=True)
                ]
            )
            await proxy.start()
            for listen in listens:
                host, _, port = listen.rpartition(":")
                stack.callback((await asyncio.open_connection(host, int(port)))[1].close)
            writers = [await accepted.get() for _ in targets]
            for writer, target in zip(writers, targets, strict=True):
                stack.callback(writer.close)
                target.close()
            writers[0].close()  # makes the proxy check which of its connections are still open
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(WAIT_S):
                await proxy.stop()
            for listen in listens:
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", int(listen.rpartition(":")[2])))

    for turns in range(60):
        asyncio.run(ends(turns))


def test_bytes_between_two_servers_are_recorded_once_for_the_server_that_dialled(
    tmp_path: Path, dial: Dialler
) -> None:
    first, second, *identities = free_addresses(4)
    servers = [Echo(first), Echo(second)]
    names = dict(zip(identities, ("nameserver-0", "nameserver-1"), strict=True))
    links = [
        Link(acceptor=name, listen=identity, to=to, names=names)
        for (identity, name), to in zip(names.items(), (first, second), strict=True)
    ]
    recorded: list[LinkSample] = []
    with proxied(links, tmp_path) as network:
        cluster = cast(Cluster, SimpleNamespace(network=network, record=recorded.append))
        Cluster.count(cluster)
        assert recorded == []
        hello = msgspec.msgpack.encode(["x", identities[1]])
        frame = struct.pack(">I", len(hello)) + hello
        assert passes(dial(identities[0]), frame)
        Cluster.count(cluster)
    for server in servers:
        server.close()
    (link,) = recorded
    assert (link.dialler, link.acceptor) == ("nameserver-1", "nameserver-0")
    assert (link.forward_bytes, link.back_bytes) == (len(frame), len(frame))
