"""A broker without sockets that handles all request codes of a broker. Its store is on a real disk."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, assert_never

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.requests.forwarding import AskAll, Forward
from routekeeper.broker.requests.handlers import HANDLERS, Outcome, serve
from routekeeper.broker.requests.pulling import Park, time_over
from routekeeper.broker.server.loading import load_broker
from routekeeper.broker.store.files import DISK
from routekeeper.broker.tables.state import BrokerState, Call, Effects, Later, Stepwise, Work
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import Host
from tests.fuzz import arguments

CODES: Final = tuple(sorted(map(int, HANDLERS)))
#: Number of requests after which the broker starts again with an empty store. So the cost of a request
#: depends little on earlier requests.
_REQUESTS_MAX: Final = 200
_NOW_MS: Final = 1_700_000_000_000
_HOST: Final = Host("127.0.0.1", 10911)


class Broker:
    """A broker without sockets, and without the tasks that write its tables to the disk."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="fuzz-broker-"))
        self._asked = _REQUESTS_MAX
        self._state: BrokerState | None = None
        atexit.register(self.close)

    def close(self) -> None:
        if self._state is not None:
            self._state.store.close()
            self._state = None
        shutil.rmtree(self._directory, ignore_errors=True)

    def prepare(self) -> None:
        """Start the broker with an empty store, at first and again after each _REQUESTS_MAX requests.

        The time of this method does not count as a cost of a request.
        """
        if self._state is not None and self._asked < _REQUESTS_MAX:
            return
        self.close()
        self._asked = 0
        self._directory.mkdir(mode=0o700)
        config = BrokerConfig(listen_port=0, log_file_size=8 * 1024 * 1024, queue_file_size=20 * 1000)
        self._state, _ = load_broker(DISK, self._directory, config, store_host=_HOST, boot="", now_ms=_NOW_MS)
        for request in _START:
            self._serve(self._state, *request)

    def ask(self, code: int, data: bytes) -> object:
        """Serve one request and encode its answer, without the pauses that a real broker would make."""
        assert self._state is not None, "not prepared"
        self._asked += 1
        return self._serve(self._state, code, data)

    def _serve(self, state: BrokerState, code: int, data: bytes) -> object:
        ext, body = arguments.read(data)
        request = RemotingCommand(code=code, opaque=1, version=479, ext_fields=ext, body=body)
        call = Call(request=request, connection=1, peer=_HOST, now_ms=_NOW_MS, now=1.0)
        try:
            outcome = serve(state, call)
        finally:
            state.effects = Effects()
        while not isinstance(outcome, RemotingCommand):
            match outcome:
                case Later():
                    outcome = outcome.reply
                case Park():
                    outcome = time_over(state, outcome.pull)
                case Stepwise():
                    outcome = _worked(outcome.work)
                case Forward() | AskAll():
                    outcome = outcome.request
                case _:
                    assert_never(outcome)
        return outcome.encode()


def _worked(work: Work) -> Outcome:
    try:
        step = next(work)
        while True:
            step = work.send(step())
    except StopIteration as end:
        answer: Outcome = end.value
        return answer


_START: Final = (
    (17, arguments.with_all(b"")),  # request 17 creates topic T
    (34, arguments.with_all(b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}],"producerDataSet":[]}')),
    (10, arguments.with_all(b"a body")),
)
_BROKER: Final = Broker()
prepare: Final = _BROKER.prepare


def served(code: int) -> Callable[[bytes], object]:
    return lambda data: _BROKER.ask(code, data)
