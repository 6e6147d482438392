"""If a nameserver's answer cannot be read, the client asks the next nameserver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from routekeeper.client.admin import Admin
from routekeeper.client.core import ClientCore
from routekeeper.client.errors import NoNameserver
from routekeeper.client.operation import Operation
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import ResponseError
from tests.client.test_drivers import config, message, producer, stored

Runner = Callable[..., Any]
NewPeer = Callable[..., Any]


def wrong(request: RemotingCommand) -> RemotingCommand:
    """Answer with code 0, and with a body that is no route, no list and no table."""
    return request.reply(body=b"[]")


def test_a_send_succeeds_although_the_current_nameserver_sends_no_route(
    run: Runner, new_peer: NewPeer, answers: Any, route_body: Any
) -> None:
    strange, good = new_peer(wrong), new_peer()
    body = route_body(broker_a=good.addr)
    routes = answers({"T": body, "U": body})
    good.answer = lambda request: (
        stored(request) if request.code == RequestCode.SEND_MESSAGE_V2 else routes(request)
    )

    def build(core: ClientCore) -> Operation[None]:
        core.directory.nameservers.answered(strange.addr)  # the client asks this nameserver first
        sender = producer(core)
        for topic in ("T", "U"):
            yield from sender.send(message(topic))

    run(config(strange.addr, good.addr), build)
    assert strange.codes().count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == 1, "for U, it is not asked again"


def test_a_send_without_any_readable_route_is_not_applied(run: Runner, new_peer: NewPeer) -> None:
    peers = [new_peer(wrong), new_peer(wrong)]
    addrs = [peer.addr for peer in peers]
    with pytest.raises(NoNameserver, match="its answer cannot be used") as caught:
        run(config(*addrs), lambda core: producer(core).send(message()))
    assert set(caught.value.failures) == set(addrs)


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        pytest.param(lambda admin: admin.kv_list("N"), {"k": "v"}, id="kv_list"),
        pytest.param(lambda admin: admin.topic_list(), ("T",), id="topic_list"),
    ],
)
def test_other_reads_go_on_to_the_next_nameserver_too(
    read: Callable[[Admin], Operation[Any]], expected: object, run: Runner, new_peer: NewPeer
) -> None:
    strange = new_peer(wrong)
    good = new_peer(lambda request: request.reply(body=b'{"topicList":["T"],"table":{"k":"v"}}'))

    def build(core: ClientCore) -> Operation[Any]:
        core.directory.nameservers.answered(strange.addr)
        return (yield from read(Admin(core.directory)))

    found = run(config(strange.addr, good.addr), build)
    assert getattr(found, "topics", found) == expected
    assert strange.requests


def test_a_refusal_is_an_answer(run: Runner, new_peer: NewPeer) -> None:
    refusing = new_peer(lambda request: request.reply(16, remark="no permission"))
    other = new_peer()

    def build(core: ClientCore) -> Operation[Any]:
        core.directory.nameservers.answered(refusing.addr)
        return (yield from core.directory.fetch_route("T"))

    with pytest.raises(ResponseError, match="no permission"):
        run(config(refusing.addr, other.addr), build)
    assert not other.requests
