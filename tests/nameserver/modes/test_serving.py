"""Tests of the code that answers requests in both modes.

This code computes a command from the route table and proposes it. If another change is applied first, it
computes the command again. If it refuses a request, the answer's remark begins with a tag like [NO_QUORUM].
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from routekeeper.nameserver.commands import Command, CommandTooLarge, PutKv
from routekeeper.nameserver.handlers import Renewal, SettingsChange
from routekeeper.nameserver.liveness import Ownership
from routekeeper.nameserver.modes.interface import (
    ConsistencyError,
    FreshnessNotOffered,
    NoQuorum,
    OutcomeUnknown,
)
from routekeeper.nameserver.modes.serving import Mode, serve
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, BrokerKey, ConnectionId, Request
from routekeeper.nameserver.verdicts import Applied, Verdict
from routekeeper.remoting.codes import RequestCode

HEADER = {
    "brokerName": "a",
    "brokerAddr": "a:1",
    "clusterName": "c",
    "brokerId": "0",
    "haServerAddr": "",
}


class Delayed:
    """A mode that can apply another change between the computation of a command and its application."""

    def __init__(self, meanwhile: Callable[[RouteTable], None] = lambda table: None) -> None:
        self.table = RouteTable()
        self.settings = LiveSettings(NamesrvSettings())
        self.meanwhile = meanwhile
        self.vouches = True
        self.uptime_s = 0.0
        self.stands = Ownership.OWNER
        self.proposed: list[Command] = []
        self.calls: list[str] = []
        self.failure: ConsistencyError | CommandTooLarge | None = None

    async def readable(self, request: Request, *, deadline: float) -> RouteView:
        if isinstance(self.failure, FreshnessNotOffered):
            raise self.failure
        return self.table.view

    def ownership(self, broker: BrokerKey, origin: ConnectionId) -> Ownership:
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


def put(table: RouteTable, value: str) -> None:
    base = table.view.base("key", ("n", "k"))
    assert isinstance(table.apply(PutKv(namespace="n", key="k", value=value, key_revision=base)), Applied)


def test_what_moved_is_decided_again_on_the_new_table() -> None:
    mode = Delayed(lambda table: put(table, "first"))
    answer = mode.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "second"})
    assert answer == Answer()
    assert len(mode.proposed) == 2
    assert mode.table.view.kv("n") == {"k": "second"}


def test_goodbyes_and_settings_go_to_the_mode() -> None:
    mode = Delayed()
    assert mode.ask(RequestCode.UNREGISTER_BROKER, HEADER) == Answer()
    assert mode.ask(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"enableTopicList=false") == Answer()
    assert mode.calls == ["part of a:1", "change settings"]


def test_regression_late_goodbye_of_a_former_process_is_ignored() -> None:
    mode = Delayed()
    mode.stands = Ownership.OLDER
    assert mode.ask(RequestCode.UNREGISTER_BROKER, HEADER) == Answer()
    assert (mode.calls, mode.proposed) == ([], [])


def test_goodbye_by_a_stranger_is_proposed() -> None:
    mode = Delayed()
    mode.stands = Ownership.STRANGER
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
