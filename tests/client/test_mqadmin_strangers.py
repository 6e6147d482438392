"""Attacks through mqadmin: names that control the terminal or forge output lines, and theft of the token."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from routekeeper.client.fetch import http_fetch
from routekeeper.client.operation import Fetch
from routekeeper.remoting.bodies import KVTable, TopicList
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    RouteDialect,
    TopicRouteData,
    encode_cluster_info,
    encode_route,
)
from tests.client.mqadmin import mqadmin as run

EVIL = "a\r\nforged line\x1b[2J\x9b31m\u202eb\u2028c\td"


@pytest.fixture
def evil(new_peer: Callable[..., Any]) -> str:
    """Return the address of a peer that acts as nameserver and broker.

    The names that the peer answers contain control codes for a terminal.
    """
    peer = new_peer()
    data = BrokerData(cluster=EVIL, broker_name=EVIL, broker_addrs={0: peer.addr, 1: EVIL})

    def answer(request: RemotingCommand) -> RemotingCommand:
        match request.code:
            case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                return request.reply(body=TopicList(topics=("good", EVIL)).encode())
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                info = ClusterInfo(broker_addr_table={EVIL: data}, cluster_addr_table={EVIL: (EVIL,)})
                return request.reply(body=encode_cluster_info(info))
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                queues = QueueData(broker_name=EVIL, read_queue_nums=1, write_queue_nums=1, perm=6)
                route = TopicRouteData(queue_datas=(queues,), broker_datas=(data,), order_topic_conf=EVIL)
                return request.reply(body=encode_route(route, RouteDialect.QUOTED))
            case RequestCode.GET_BROKER_RUNTIME_INFO:
                return request.reply(body=KVTable(table={"brokerVersionDesc": EVIL}).encode())
            case RequestCode.GET_NAMESRV_CONFIG:
                return request.reply(body=b"name\x1b[2J=value\x1b[2J\xc2\x9b, no forged line")
        return request.reply(1, remark=EVIL)

    peer.answer = answer
    return str(peer.addr)


@pytest.mark.parametrize(
    "argv",
    [
        ["topicList"],
        ["topicList", "-o", "json"],
        ["clusterList"],
        ["clusterList", "-o", "json"],
        ["topicRoute", "-t", "T"],
        ["topicRoute", "-t", "T", "-l"],
        ["topicRoute", "-t", "T", "-o", "json"],
        ["getNamesrvConfig"],
        ["updateKvConfig", "-s", "n", "-k", "k", "-v", "v"],
        ["wipeWritePerm", "-b", "broker"],
    ],
    ids=" ".join,
)
def test_names_of_strangers_neither_steer_the_terminal_nor_forge_lines(argv: list[str], evil: str) -> None:
    _, out, err = run(*argv, namesrv=evil)
    assert "forged line" in out + err, "the name is shown"
    for line in (out + err).splitlines():
        assert line.lstrip("\t").isprintable(), ascii(line)
        assert not line.lstrip().startswith("forged line")
    if "json" in argv:
        assert EVIL in str(json.loads(out)) or repr(EVIL)[1:-1] in str(json.loads(out)), "and reads back"


class Page(http.server.BaseHTTPRequestHandler):
    """A handler that answers every request with the status and headers in the server's ``answer``.

    The server's list ``asked`` gets the headers of each request.
    """

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(dict(self.headers))  # type: ignore[attr-defined]
        status, headers = self.server.answer  # type: ignore[attr-defined]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_POST = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def pages() -> Iterator[Callable[[int, dict[str, str]], Any]]:
    servers: list[http.server.ThreadingHTTPServer] = []

    def serve(status: int, headers: dict[str, str]) -> Any:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        server.answer, server.asked = (status, headers), []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_gets_no_token_and_counts_as_nothing_done(
    status: int, pages: Callable[..., Any], tmp_path: Path
) -> None:
    elsewhere = pages(200, {})
    asked = pages(status, {"Location": f"http://127.0.0.1:{elsewhere.server_port}/v1/raft/transfer"})
    token = tmp_path / "token"
    token.write_text("the-secret-word-of-32-characters\n")
    address = f"127.0.0.1:{asked.server_port}"
    code, out, err = run("transferLeader", "--http", address, "--token-file", str(token))
    assert (code, out) == (1, "")
    assert f"status {status}" in err
    assert len(asked.asked) == 1
    assert elsewhere.asked == []


@pytest.mark.slow
def test_reads_follow_no_redirection_either(pages: Callable[..., Any]) -> None:
    elsewhere = pages(200, {})
    asked = pages(302, {"Location": f"http://127.0.0.1:{elsewhere.server_port}/"})
    reply = http_fetch(Fetch(f"http://127.0.0.1:{asked.server_port}/", 5.0))
    assert reply.status == 302
    assert elsewhere.asked == []
