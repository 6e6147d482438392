"""The loop that all modes share: decide, propose, decide again while it has moved; refusals by their tags."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from nameserver.commands import Command, CommandTooLarge, PutKv
from nameserver.config import LiveSettings, NamesrvSettings
from nameserver.consistency import (
    ConsistencyError,
    FreshnessNotOffered,
    Mode,
    NoQuorum,
    OutcomeUnknown,
    serve,
)
from nameserver.handlers import Farewell, Renewal, SettingsChange
from nameserver.liveness import Standing
from nameserver.route_table import RouteTable, RouteView
from nameserver.types import Answer, BrokerKey, ConnectionId, Request
from nameserver.verdicts import Applied, Verdict
from remoting.codes import RequestCode
from remoting.route import DataVersion, RegisterBody, TopicConfig, encode_register_body

HEADER = {
    "brokerName": "a",
    "brokerAddr": "a:1",
    "clusterName": "c",
    "brokerId": "0",
    "haServerAddr": "",
}


class Delayed:
    """A mode in which something else may happen between a decision and its verdict."""

    uptime_s = 0.0

    def __init__(self, meanwhile: Callable[[RouteTable], None] = lambda table: None) -> None:
        self.table = RouteTable()
        self.settings = LiveSettings(NamesrvSettings())
        self.meanwhile = meanwhile
        self.vouches = True
        self.proposed: list[Command] = []
        self.calls: list[str] = []
        self.failure: ConsistencyError | CommandTooLarge | None = None

    async def readable(self, request: Request, *, deadline: float) -> RouteView:
        if isinstance(self.failure, FreshnessNotOffered):
            raise self.failure
        return self.table.view

    def heard_over(self, origin: ConnectionId) -> Delayed:
        return self

    def standing(self, broker: BrokerKey) -> Standing:
        return Standing.OWNER

    def arriving(self, broker: BrokerKey, origin: ConnectionId, *, lease_ms: int) -> None:
        self.calls.append(f"arriving {lease_ms}")

    def registered(self, broker: BrokerKey, origin: ConnectionId, *, revision: int | None) -> None:
        self.calls.append(f"registered {revision}")

    async def renew(self, renewal: Renewal, origin: ConnectionId, *, deadline: float) -> Answer | Command:
        self.calls.append("renew")
        return renewal.answer if self.vouches else renewal.otherwise

    async def propose(self, command: Command, *, deadline: float) -> Verdict:
        self.proposed.append(command)
        if self.failure is not None:
            raise self.failure
        meanwhile, self.meanwhile = self.meanwhile, lambda table: None
        meanwhile(self.table)
        return self.table.apply(command)

    async def part(self, farewell: Farewell, origin: ConnectionId, *, deadline: float) -> Answer:
        self.calls.append(f"part late={farewell.late}")
        return farewell.answer

    async def change_settings(self, change: SettingsChange) -> Answer:
        self.calls.append("change settings")
        return change.answer

    def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Answer:
        mode: Mode = self
        request = Request(code=code, ext_fields=ext, body=body)
        return asyncio.run(serve(mode, request, ConnectionId(1), deadline=0.0))

    def register(self, counter: int = 1) -> Answer:
        body = RegisterBody(
            data_version=DataVersion(counter=counter),
            topic_configs=(TopicConfig(topic_name="t1"), TopicConfig(topic_name="t2")),
        )
        return self.ask(
            RequestCode.REGISTER_BROKER, HEADER, encode_register_body(body, compressed=False, version=479)
        )


def put(table: RouteTable, value: str) -> None:
    base = table.view.base("key", ("n", "k"))
    assert isinstance(table.apply(PutKv(namespace="n", key="k", value=value, key_revision=base)), Applied)


def test_what_moved_is_decided_again_on_the_new_table() -> None:
    mode = Delayed(lambda table: put(table, "first"))
    answer = mode.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "second"})
    assert answer == Answer()
    assert len(mode.proposed) == 2
    assert mode.table.view.kv("n") == {"k": "second"}


def test_what_did_not_move_is_proposed_once() -> None:
    mode = Delayed()
    assert mode.register() == Answer()
    assert len(mode.proposed) == 1
    assert mode.calls == ["arriving 120000", "registered 1"]


def test_registration_that_another_member_brought_meanwhile_becomes_a_touch() -> None:
    twin = Delayed()
    twin.register()

    def twin_arrives(table: RouteTable) -> None:
        table.apply(twin.proposed[0])

    mode = Delayed(twin_arrives)
    mode.vouches = False
    assert mode.register() == Answer()
    assert [type(command).__name__ for command in mode.proposed] == ["RegisterBroker", "Touch"]
    assert mode.calls == ["arriving 120000", "renew", "registered 2"]


def test_renewal_that_the_mode_vouches_for_proposes_nothing() -> None:
    mode = Delayed()
    mode.register()
    mode.proposed.clear()
    assert mode.register() == Answer()
    assert mode.proposed == []


def test_goodbyes_and_settings_go_to_the_mode() -> None:
    mode = Delayed()
    assert mode.ask(RequestCode.UNREGISTER_BROKER, HEADER) == Answer()
    assert mode.ask(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"enableTopicList=false") == Answer()
    assert mode.calls == ["part late=False", "change settings"]


def test_bad_registration_reaches_neither_liveness_nor_table() -> None:
    mode = Delayed()
    assert mode.ask(RequestCode.REGISTER_BROKER, HEADER, b"garbage").code == 1
    assert mode.calls == []
    assert mode.proposed == []


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
