"""The loop that all modes share: decide, propose, decide again while it has moved; refusals by their tags."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import cast

import pytest

from routekeeper.nameserver.commands import Command, CommandTooLarge, PutKv
from routekeeper.nameserver.handlers import Renewal, SettingsChange
from routekeeper.nameserver.liveness import Liveness, Standing
from routekeeper.nameserver.modes.interface import (
    ConsistencyError,
    FreshnessNotOffered,
    NoQuorum,
    OutcomeUnknown,
)
from routekeeper.nameserver.modes.line import Line
from routekeeper.nameserver.modes.serving import Mode, serve
from routekeeper.nameserver.registration import Registration, decode_registration
from routekeeper.nameserver.replicated.proposals import Told
from routekeeper.nameserver.replicated.proposer import Writes
from routekeeper.nameserver.replicated.registrations import PROPOSED, Registering, Registrations
from routekeeper.nameserver.replicated.reporter import Reporter
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, BrokerAddr, BrokerKey, ClusterName, ConnectionId, Request
from routekeeper.nameserver.verdicts import Applied, Moved, Verdict
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.registration import RegisterBody, encode_register_body
from routekeeper.remoting.route import DataVersion, TopicConfig
from routekeeper.remoting.steps import Steps, finish

HEADER = {
    "brokerName": "a",
    "brokerAddr": "a:1",
    "clusterName": "c",
    "brokerId": "0",
    "haServerAddr": "",
}


class Delayed:
    """A mode in which something else may happen between a decision and its verdict."""

    def __init__(self, meanwhile: Callable[[RouteTable], None] = lambda table: None) -> None:
        self.table = RouteTable()
        self.settings = LiveSettings(NamesrvSettings())
        self.meanwhile = meanwhile
        self.vouches = True
        self.uptime_s = 0.0
        self.stands = Standing.OWNER
        self.proposed: list[Command] = []
        self.calls: list[str] = []
        self.failure: ConsistencyError | CommandTooLarge | None = None

    async def readable(self, request: Request, *, deadline: float) -> RouteView:
        if isinstance(self.failure, FreshnessNotOffered):
            raise self.failure
        return self.table.view

    def standing(self, broker: BrokerKey, origin: ConnectionId) -> Standing:
        return self.stands

    def renew(self, renewal: Renewal, origin: ConnectionId) -> Answer | Command:
        self.calls.append("renew")
        return renewal.answer if self.vouches else renewal.otherwise

    async def propose(self, command: Command, *, deadline: float) -> Verdict:
        self.proposed.append(command)
        if self.failure is not None:
            raise self.failure
        meanwhile, self.meanwhile = self.meanwhile, lambda table: None
        meanwhile(self.table)
        return self.table.apply(command)

    async def withdrawn(self, broker: BrokerKey, origin: ConnectionId) -> None:
        self.calls.append(f"part of {broker.broker_addr}")

    async def change_settings(self, change: SettingsChange) -> Answer:
        self.calls.append("change settings")
        return Answer()

    def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Answer:
        mode: Mode = self
        request = Request(code=code, ext_fields=ext, body=body)
        return asyncio.run(serve(mode, request, ConnectionId(1), deadline=0.0))


class DelayedLog(Registrations):
    """The same for registrations: the verdict on what is proposed comes when :meth:`tell` is called."""

    def __init__(self) -> None:
        self.table = self._table = RouteTable()
        self._settings = LiveSettings(NamesrvSettings())
        self._liveness = Liveness()
        self._reporter = Reporter(self._liveness, boot_id=1)  # nobody has said yet that it knows differences
        self._writes = cast(Writes, self)
        self._in_flight = Counter()
        self._line = Line(clock=lambda: 0.0, call_soon=lambda call: None)
        self.vouches = True
        self.proposed: list[Command] = []
        self.waiting: list[Told] = []
        self.answers: list[Answer] = []
        self.calls: list[str] = []
        self.failure: ConsistencyError | CommandTooLarge | None = None

    def renew(
        self, renewal: Renewal, origin: ConnectionId, *, registration: bool = False
    ) -> Answer | Command:
        assert registration
        self.calls.append("renew")
        return renewal.answer if self.vouches else renewal.otherwise

    def entering(
        self,
        command: Command,
        *,
        deadline: float,
        told: Told,
        registration: tuple[BrokerKey, ConnectionId],
    ) -> Steps[int]:
        yield
        if self.failure is not None:
            raise self.failure
        assert registration == (BrokerKey(ClusterName("c"), BrokerAddr("a:1")), ConnectionId(1))
        self.proposed.append(command)
        self.waiting.append(told)
        return len(self.proposed)

    def answered(self, answer: Answer) -> None:
        self.calls.append("answered")
        self.answers.append(answer)

    def say(self, counter: int = 1) -> Answer | None:
        """Return what is answered at once."""
        body = RegisterBody(
            data_version=DataVersion(counter=counter),
            topic_configs=(TopicConfig(topic_name="t1"), TopicConfig(topic_name="t2")),
        )
        request = Request(
            code=RequestCode.REGISTER_BROKER,
            ext_fields=HEADER,
            body=encode_register_body(body, compressed=False, version=479),
        )
        decoded = decode_registration(request)
        assert isinstance(decoded, Registration)
        on = Registering(request, ConnectionId(1), 0.0, self.answered, broker=decoded.broker)
        answer = finish(self._decide(on, decoded))
        self._in_flight[decoded.broker, ConnectionId(1)] += answer is PROPOSED
        return None if answer is PROPOSED else answer

    def tell(self) -> None:
        """Apply the oldest command without a verdict, and tell it."""
        told = self.waiting.pop(0)
        told(self.table.apply(self.proposed[-1]))


def put(table: RouteTable, value: str) -> None:
    base = table.view.base("key", ("n", "k"))
    assert isinstance(table.apply(PutKv(namespace="n", key="k", value=value, key_revision=base)), Applied)


def test_what_moved_is_decided_again_on_the_new_table() -> None:
    mode = Delayed(lambda table: put(table, "first"))
    answer = mode.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "second"})
    assert answer == Answer()
    assert len(mode.proposed) == 2
    assert mode.table.view.kv("n") == {"k": "second"}


def test_registration_that_did_not_move_is_proposed_once_and_answered_by_its_verdict() -> None:
    log = DelayedLog()
    assert log.say() is None
    assert (log.answers, log.calls) == ([], [])
    log.tell()
    assert log.answers == [Answer()]
    assert log.calls == ["answered"]
    assert len(log.proposed) == 1


def test_registration_that_another_member_brought_meanwhile_becomes_a_touch() -> None:
    log = DelayedLog()
    log.vouches = False
    assert log.say() is None
    log.table.apply(log.proposed[0])
    log.tell()
    assert log.answers == []
    log.tell()
    assert log.answers == [Answer()]
    assert [type(command).__name__ for command in log.proposed] == ["RegisterBroker", "Touch"]
    assert log.calls == ["renew", "answered"]


def test_renewal_that_the_mode_vouches_for_is_answered_at_once_and_proposes_nothing() -> None:
    log = DelayedLog()
    log.say()
    log.tell()
    assert log.say() == Answer()
    assert len(log.proposed) == 1
    assert log.answers == [Answer()]


@pytest.mark.parametrize(("error", "tag"), [(NoQuorum, "[NO_QUORUM]"), (OutcomeUnknown, "[OUTCOME_UNKNOWN]")])
def test_registration_that_moved_is_decided_again_and_says_what_came_of_that(
    error: type[ConsistencyError], tag: str
) -> None:
    log = DelayedLog()
    assert log.say() is None
    log.waiting.pop()(Moved(revision=0))
    assert len(log.proposed) == 2
    log.waiting.pop()(error("no leader"))
    assert log.answers == [Answer(code=1, remark=f"{tag} no leader")]
    assert log.calls == ["answered"]


def test_registration_that_cannot_be_proposed_is_refused_at_once() -> None:
    log = DelayedLog()
    log.failure = NoQuorum("too much")
    assert log.say() == Answer(code=1, remark="[NO_QUORUM] too much")
    assert (log.answers, log.calls) == ([], [])


def test_goodbyes_and_settings_go_to_the_mode() -> None:
    mode = Delayed()
    assert mode.ask(RequestCode.UNREGISTER_BROKER, HEADER) == Answer()
    assert mode.ask(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"enableTopicList=false") == Answer()
    assert mode.calls == ["part of a:1", "change settings"]


def test_regression_late_goodbye_of_a_former_process_is_ignored() -> None:
    mode = Delayed()
    mode.stands = Standing.OLDER
    assert mode.ask(RequestCode.UNREGISTER_BROKER, HEADER) == Answer()
    assert (mode.calls, mode.proposed) == ([], [])


def test_goodbye_by_a_stranger_is_proposed() -> None:
    mode = Delayed()
    mode.stands = Standing.STRANGER
    assert mode.ask(RequestCode.UNREGISTER_BROKER, HEADER) == Answer()
    assert [type(command).__name__ for command in mode.proposed] == ["UnregisterBroker"]


@pytest.mark.parametrize(
    ("failure", "remark"),
    [
        (NoQuorum("no leader"), "[NO_QUORUM] no leader"),
        (OutcomeUnknown("no verdict yet"), "[OUTCOME_UNKNOWN] no verdict yet"),
        (FreshnessNotOffered("not here"), "not here"),
        (
            CommandTooLarge(500, 400),
            "request of 0 bytes takes 500 bytes in the log, at most 400 are possible",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_mode_refuses_is_answered_1_and_told_apart(
    failure: ConsistencyError | CommandTooLarge, remark: str
) -> None:
    mode = Delayed()
    mode.failure = failure
    answer = mode.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"})
    assert answer == Answer(code=1, remark=remark)
