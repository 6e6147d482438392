"""If a broker does not answer, mqadmin prints the other answers and an error, and ends with code 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import StoredMessage, encode_message, encode_properties
from routekeeper.remoting.route import (
    BrokerData,
    QueueData,
    RouteDialect,
    TopicRouteData,
    encode_route,
)
from tests.client.mqadmin import mqadmin

NAMES: Final = ("broker-a", "broker-b", "broker-c")
MESSAGE: Final = encode_message(
    StoredMessage(
        topic="T", queue_id=0, body=b"x", properties=encode_properties({"KEYS": "K", "UNIQ_KEY": "U"})
    )
)
#: Scripted answers by request. The first value is the body that a broker with data answers. The second and
#: third values are the code and the remark that a broker without data answers.
ANSWERS: Final = {
    RequestCode.QUERY_MESSAGE: (MESSAGE, ResponseCode.QUERY_NOT_FOUND, "can not find message"),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: (
        b'{"connectionSet":[{"clientAddr":"192.0.2.1:5","clientId":"U","language":"JAVA","version":479}]}',
        ResponseCode.SYSTEM_ERROR,
        "the producer group[P] not exist",
    ),
    RequestCode.VIEW_BROKER_STATS_DATA: (
        b'{"statsMinute":{"sum":7,"tps":1.5}}',
        ResponseCode.SYSTEM_ERROR,
        "The stats <TOPIC_PUT_NUMS> <T> not exist",
    ),
}
#: Subcommands that ask every broker, by name. The values are the subcommand's options and the code of its
#: request to each broker. The third value is a text in the output if one broker answers with data.
ASKING: Final = {
    "queryMsgByKey": (("-t", "T", "-k", "K"), RequestCode.QUERY_MESSAGE, "U "),
    "queryMsgByUniqueKey": (("-t", "T", "-i", "U"), RequestCode.QUERY_MESSAGE, "Message Body:"),
    "queryMsgById": (("-t", "T", "-i", "U"), RequestCode.QUERY_MESSAGE, "Message Body:"),
    "producerConnection": (
        ("-g", "P", "-t", "T"),
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        "192.0.2.1:5",
    ),
    "statsAll": (("-t", "T"), RequestCode.VIEW_BROKER_STATS_DATA, "1.50"),
}


class Brokers:
    """Three scripted brokers of topic T. The first broker is the nameserver, too.

    Attributes:
        failing: Name of the broker that refuses the requests of :data:`ANSWERS`.
        masterless: Name of the broker that has only a slave.
        holders: Names of the brokers with data.
    """

    def __init__(self, new_peer: Callable[[], Any]) -> None:
        self.peers = {name: new_peer() for name in NAMES}
        self.failing = ""
        self.masterless = ""
        self.holders: tuple[str, ...] = ("broker-a",)
        for name, peer in self.peers.items():
            peer.answer = lambda request, name=name: self.answer(name, request)

    def route(self) -> bytes:
        return encode_route(
            TopicRouteData(
                queue_datas=tuple(
                    QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6)
                    for name in NAMES
                ),
                broker_datas=tuple(
                    BrokerData(
                        cluster="C",
                        broker_name=name,
                        broker_addrs={int(name == self.masterless): peer.addr},
                    )
                    for name, peer in self.peers.items()
                ),
            ),
            RouteDialect.UNQUOTED,
        )

    def answer(self, name: str, request: RemotingCommand) -> RemotingCommand:
        match request.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC if request.ext_fields["topic"] in ("T", "%RETRY%G"):
                return request.reply(body=self.route())
            case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                return request.reply(body=b'{"topicList":["T"]}')
            case RequestCode.GET_TOPIC_STATS_INFO:
                return request.reply(body=b'{"offsetTable":{}}')
            case RequestCode.QUERY_TOPIC_CONSUME_BY_WHO:
                return request.reply(body=b'{"groupList":[]}')
            case RequestCode.GET_CONSUME_STATS:
                return request.reply(body=b'{"consumeTps":0.0,"offsetTable":{}}')
            case code if code in ANSWERS and name != self.failing:
                body, absent, remark = ANSWERS[RequestCode(code)]
                if name in self.holders:
                    return request.reply(body=body)
                return request.reply(absent, remark=remark)
        return request.reply(ResponseCode.NO_PERMISSION, remark="not today")

    def run(self, *argv: str) -> tuple[int, str, str]:
        return mqadmin(*argv, namesrv=self.peers["broker-a"].addr)


@pytest.fixture
def brokers(new_peer: Any) -> Brokers:
    return Brokers(new_peer)


def lines_about_brokers(err: str) -> list[str]:
    return [line for line in err.splitlines() if "the groups of message" not in line]


@pytest.mark.parametrize("command", ASKING)
def test_answers_of_the_other_brokers_are_printed_and_the_exit_code_is_1(
    command: str, brokers: Brokers
) -> None:
    words, _, shown = ASKING[command]
    code, out, err = brokers.run(command, *words)
    assert (code, err) == (0, "")
    assert shown in out
    brokers.failing = "broker-b"
    code, same, err = brokers.run(command, *words)
    assert (code, same) == (1, out)
    (line,) = lines_about_brokers(err)
    assert f"broker {brokers.peers['broker-b'].addr}: CODE: 16 DESC: not today" in line


@pytest.mark.parametrize("command", ASKING)
def test_answer_of_none_is_no_answer_that_there_is_nothing(command: str, brokers: Brokers) -> None:
    words, _, _ = ASKING[command]
    brokers.failing, brokers.holders = "broker-b", ()
    code, _, err = brokers.run(command, *words)
    assert code == 1
    assert f"broker {brokers.peers['broker-b'].addr}: CODE: 16 DESC: not today" in err
    # queryMsgById prints a second line on stderr, because it found no message.
    if command != "queryMsgById":
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("queryMsgByKey", "-t", "T", "-k", "K"),
        ("statsAll", "-t", "T"),
        ("topicStatus", "-t", "T"),
        ("consumerProgress", "-g", "G"),
    ],
    ids=lambda words: words[0],
)
def test_broker_without_a_master_is_missed(words: tuple[str, ...], brokers: Brokers) -> None:
    assert brokers.run(*words)[0] == 0
    brokers.masterless = "broker-c"
    code, out, err = brokers.run(*words)
    assert (code, bool(out)) == (1, True)
    (line,) = err.splitlines()
    assert "broker broker-c has no master" in line


@pytest.mark.parametrize("names", [NAMES, ()])
def test_without_any_master_nothing_is_done_and_the_exit_code_is_1(
    names: tuple[str, ...], new_peer: Callable[[], Any]
) -> None:
    slaves = (BrokerData(cluster="C", broker_name=name, broker_addrs={1: "192.0.2.1:1"}) for name in names)
    route = encode_route(TopicRouteData(broker_datas=tuple(slaves)), RouteDialect.UNQUOTED)
    peer = new_peer()
    peer.answer = lambda request: request.reply(body=route)
    missing = [f"broker {name} has no master and is left out" for name in names]
    for argv, more in (
        (("cloneGroupOffset", "-s", "G", "-d", "H", "-t", "T"), []),
        (("producerConnection", "-g", "P", "-t", "T"), ["no member of producer group 'P' is online"]),
    ):
        code, out, err = mqadmin(*argv, namesrv=peer.addr)
        assert (code, out) == (1, "")
        assert err.splitlines() == [f"mqadmin {argv[0]}: {line}" for line in [*missing, *more]]
