"""The exit code of a subcommand, the failures that it names, and the command lines that it refuses."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from routekeeper.client.mqadmin import message
from routekeeper.client.mqadmin.__main__ import COMMANDS
from routekeeper.client.mqadmin.options import Arguments, UsageError, parse
from routekeeper.remoting.bodies import ClientConnection, ConsumerConnection
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from tests.client.mqadmin import mqadmin


class Searching:
    """A broker that searches for the message at offset 5: it asks for the same offset to be pulled again.

    Attributes:
        answers: Number of such answers before the search has ended.
    """

    def __init__(self, peer: Any, answers: int) -> None:
        self.answers = answers
        self._peer, self._known = peer, peer.answer
        peer.answer = self._answer

    def _answer(self, request: RemotingCommand) -> Any:
        match request.code:
            case RequestCode.GET_MIN_OFFSET | RequestCode.GET_MAX_OFFSET:
                offset = 5 if request.code == RequestCode.GET_MIN_OFFSET else 9
                return request.reply(ext_fields={"offset": str(offset)})
            case RequestCode.PULL_MESSAGE:
                searches = self.answers > 0
                self.answers -= 1
                code = ResponseCode.PULL_RETRY_IMMEDIATELY if searches else ResponseCode.PULL_NOT_FOUND
                bounds = {"minOffset": "5", "maxOffset": "9", "suggestWhichBrokerId": "0"}
                ext = bounds | {"nextBeginOffset": "5" if searches else "9"}
                return request.reply(code, ext_fields=ext)
        return self._known(request)


@pytest.fixture
def pulled(peer: Any, route_body: Callable[..., bytes], answers: Any, monkeypatch: Any) -> Any:
    """Return a function that runs a subcommand at a broker which searches for so many pulls."""
    peer.answer = answers({"T": route_body(queues=1, broker_a=peer.addr)})
    monkeypatch.setattr(message, "_SEARCH_PAUSE_S", 0.0)

    def run(searching: int, *argv: str) -> tuple[int, str, str]:
        Searching(peer, searching)
        return mqadmin(*argv, "-t", "T", namesrv=peer.addr)

    return run


PRINTERS = (["printMsg"], ["printMsgByQueue", "-a", "broker-a", "-i", "0"], ["consumeMessage"])


@pytest.mark.parametrize("argv", PRINTERS, ids=lambda argv: argv[0])
def test_messages_that_the_broker_still_searches_are_waited_for(argv: list[str], pulled: Any) -> None:
    code, out, err = pulled(3, *argv)
    assert (code, err) == (0, "")
    assert "status=NO_NEW_MSG, offset=9" in out or argv[0] == "printMsgByQueue"


@pytest.mark.parametrize("argv", PRINTERS, ids=lambda argv: argv[0])
def test_messages_that_the_broker_does_not_find_in_time_are_a_failure(argv: list[str], pulled: Any) -> None:
    code, _, err = pulled(1_000_000, *argv)
    assert code == 1
    assert err.count("\n") == 1
    assert "the broker still searches for the message at offset 5" in err


def test_a_json_document_does_not_hide_that_messages_are_missing(pulled: Any) -> None:
    code, out, err = pulled(1_000_000, "printMsg", "-o", "json")
    assert (code, json.loads(out)) == (1, [])
    assert "still searches" in err


def members(peer: Any, *infos: str) -> None:
    """Make a scripted broker of group G answer with one member for each running info."""
    connections = tuple(
        ClientConnection(client_id=f"member-{number}", client_addr="192.0.2.1:5")
        for number in range(len(infos))
    )
    known = peer.answer

    def answer(request: RemotingCommand) -> Any:
        if request.code == RequestCode.GET_CONSUMER_CONNECTION_LIST:
            return request.reply(body=ConsumerConnection(connections=connections).encode())
        if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            number = int(request.ext_fields["clientId"].rpartition("-")[2])
            return request.reply(body=infos[number].encode())
        return known(request)

    peer.answer = answer


SUBSCRIBED = '{"mqTable":{},"subscriptionSet":[{"topic":"T","subString":"%s"}]}'


@pytest.mark.parametrize(("tags", "expected"), [("*", 0), ("A", 1)])
def test_consumer_status_has_the_same_exit_code_in_both_forms(
    tags: str, expected: int, peer: Any, answers: Any, route_body: Any
) -> None:
    peer.answer = answers({"%RETRY%G": route_body(broker_a=peer.addr)})
    members(peer, SUBSCRIBED % "*", SUBSCRIBED % tags)
    asked = ("consumerStatus", "-g", "G")
    code, out, _ = mqadmin(*asked, namesrv=peer.addr)
    assert (code, "WARN: Different subscription" in out) == (expected, bool(expected))
    code, out, err = mqadmin(*asked, "-o", "json", namesrv=peer.addr)
    assert (code, err) == (expected, "")
    assert json.loads(out).keys() == {"member-0", "member-1"}


def test_a_topic_without_a_cluster_is_a_failure_in_both_forms(
    peer: Any, answers: Any, route_body: Any
) -> None:
    known = answers({"T": route_body(broker_a=peer.addr)})
    nobody = b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
    peer.answer = lambda request: (
        request.reply(body=nobody) if request.code == RequestCode.GET_BROKER_CLUSTER_INFO else known(request)
    )
    for form, shown in ((), ""), (("-o", "json"), "[]\n"):
        code, out, err = mqadmin("topicClusterList", "-t", "T", *form, namesrv=peer.addr)
        assert (code, out) == (1, shown)
        assert "no cluster has a broker of topic 'T'" in err


def test_an_option_given_twice_counts_once_and_changes_nothing_if_it_is_ambiguous() -> None:
    read = parse(COMMANDS["topicRoute"], ["-t", "A", "--topic", "B"])
    assert read.text("t") == "A", "as in RocketMQ's tool"
    deleting = ["-c", "C", "-t", "A"]
    assert parse(COMMANDS["deleteTopic"], [*deleting, "-t", "A"]).text("t") == "A"
    with pytest.raises(UsageError, match="Option -t is given twice: 'A' and 'B'"):
        parse(COMMANDS["deleteTopic"], [*deleting, "-t", "B"])


@pytest.mark.parametrize("text", ["1_6", "\u0661\u0666", "1 6", "0x10", "", "1e1"])
def test_only_decimal_digits_are_a_number(text: str) -> None:
    with pytest.raises(UsageError, match="readQueueNums="):
        Arguments({"r": text}).number("r", "readQueueNums", 8, low=1, high=65536)
    assert Arguments({"r": "+16"}).number("r", "readQueueNums", 8, low=1, high=65536) == 16


def test_routes_that_name_servers_do_not_tell_are_not_said_to_be_equal() -> None:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            pages = {
                "/v1/digest": {"digest": str(id(self.server))},
                "/v1/brokers": {"brokers": []},
                "/v1/topics": {"topics": []},
                "/v1/status": {"mode": "independent"},
            }
            found = pages.get(self.path.partition("?")[0])
            body = json.dumps(found).encode()
            self.send_response(503 if found is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    addresses = [f"127.0.0.1:{server.server_port}" for server in servers]
    try:
        code, out, err = mqadmin("routeDiff", "--http", ";".join(addresses), "-t", "T")
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
    assert code == 1
    assert "equal" not in out
    for addr in addresses:
        assert f"{addr}: route of topic T: answered with status 503" in err
