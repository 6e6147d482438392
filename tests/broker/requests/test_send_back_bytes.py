"""Messages that consumers send back: the broker copies a bounded number of bytes in a second for one host."""

from __future__ import annotations

import pytest

from routekeeper.broker.errors import Refused
from routekeeper.broker.requests.handlers import serve
from routekeeper.broker.tables.state import BrokerState, Call, Later
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import Host
from tests.broker.requests.test_sending import arguments
from tests.broker.states import NOW

ONE, OTHER, LOOPBACK = "192.0.2.7", "192.0.2.8", "127.0.0.1"
BODY = b"x" * 600


def ask(
    state: BrokerState,
    code: int,
    ext: dict[str, str],
    *,
    body: bytes = b"",
    host: str = ONE,
    now: float = 0.0,
) -> RemotingCommand:
    request = RemotingCommand.request(code, ext, body)
    outcome = serve(state, Call(request=request, connection=1, peer=Host(host, 5), now_ms=NOW, now=now))
    answer = outcome.reply if isinstance(outcome, Later) else outcome
    assert isinstance(answer, RemotingCommand)
    return answer


def send_back(state: BrokerState, offset: int, *, host: str = ONE, now: float = 0.0) -> RemotingCommand:
    ext = {"offset": str(offset), "group": "G", "delayLevel": "0", "maxReconsumeTimes": "16"}
    return ask(state, 36, ext, host=host, now=now)


def sent(state: BrokerState) -> int:
    """Send a message, and return its offset in the log."""
    offset = state.store.log.max_offset
    assert ask(state, 310, arguments(e="0"), body=BODY).code == 0
    return offset


@pytest.mark.parametrize("host", [ONE, LOOPBACK])
def test_host_that_sends_back_too_many_bytes_has_to_wait(
    state: BrokerState, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr("routekeeper.broker.tables.send_backs.COPIED_MAX", 1000)
    offset = sent(state)
    assert [send_back(state, offset, host=host, now=7.1).code for _ in range(2)] == [0, 0]
    end = state.store.log.max_offset
    refused = send_back(state, offset, host=host, now=7.9)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    remark = refused.remark or ""
    assert remark.startswith("[REJECTREQUEST]system busy, start flow control for a while")
    assert host in remark
    assert state.store.log.max_offset == end, "nothing was stored"
    assert state.stats.refused[Refused.OVERLOAD] == 1
    assert send_back(state, offset, host=OTHER, now=7.9).code == 0, "other hosts have bounds of their own"
    assert send_back(state, offset, host=host, now=8.0).code == 0, "the next second has a new bound"


def test_refused_message_can_be_sent_to_the_retry_topic(
    state: BrokerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("routekeeper.broker.tables.send_backs.COPIED_MAX", 500)
    offset = sent(state)
    assert [send_back(state, offset).code for _ in range(2)] == [0, ResponseCode.SYSTEM_BUSY]
    again = arguments(b="%RETRY%G", e="0", j="1", i="DELAY\x013\x02RETRY_TOPIC\x01T\x02")
    assert ask(state, 310, again, body=BODY).code == 0


def test_offset_without_a_message_copies_nothing(state: BrokerState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routekeeper.broker.tables.send_backs.COPIED_MAX", 1)
    offset = sent(state)
    assert send_back(state, offset + 1).code == ResponseCode.SYSTEM_ERROR
    assert send_back(state, offset).code == 0
