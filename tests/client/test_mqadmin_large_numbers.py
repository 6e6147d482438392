"""Numbers above 2**31 - 1 in brokers' answers: mqadmin prints them."""

from __future__ import annotations

from typing import Any

import orjson

from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from tests.client.mqadmin import mqadmin

#: A commit log offset beyond 2 GiB, and a number of messages that a busy topic reaches in a day.
LARGE = 5_000_000_000


def run(addr: str, *argv: str) -> str:
    code, out, err = mqadmin(*argv, namesrv=addr)
    assert (code, err) == (0, "")
    return out


def test_an_entry_beyond_2_gib_of_the_commit_log_is_printed(new_peer: Any) -> None:
    found = {
        "maxQueueIndex": LARGE + 1,
        "minQueueIndex": LARGE,
        "queueData": [{"physicOffset": LARGE, "physicSize": 100, "tagsCode": 0, "eval": True}],
    }
    peer = new_peer(lambda request: request.reply(body=orjson.dumps(found)))
    printed = run(peer.addr, "queryCq", "-t", "T", "-q", "0", "-i", str(LARGE), "-c", "1", "-b", peer.addr)
    assert f"max: {LARGE + 1}, min: {LARGE}\n" in printed
    assert f"physicOffset={LARGE}, physicSize=100," in printed


def test_a_day_of_more_than_2_31_messages_is_counted(new_peer: Any, route_body: Any) -> None:
    peer = new_peer()

    def answer(request: RemotingCommand) -> RemotingCommand:
        match request.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return request.reply(body=route_body(broker_a=peer.addr))
            case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                return request.reply(body=b'{"topicList":["T"]}')
            case RequestCode.QUERY_TOPIC_CONSUME_BY_WHO:
                return request.reply(body=b'{"groupList":[]}')
        return request.reply(body=b'{"statsDay":{"sum":%d,"tps":1.5}}' % LARGE)

    peer.answer = answer
    assert str(LARGE) in run(peer.addr, "statsAll", "-t", "T")
