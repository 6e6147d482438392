"""A request that fails after its first time slice is answered with the error, in both modes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from routekeeper.nameserver.commands import PutKv
from routekeeper.nameserver.modes import independent
from routekeeper.nameserver.modes.independent import Independent
from routekeeper.nameserver.modes.line import SLICE_S
from routekeeper.nameserver.replicated import proposer
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, ConnectionId
from routekeeper.remoting.codes import ResponseCode
from tests.nameserver.modes.test_independent import Recorder
from tests.nameserver.modes.test_line import Loop
from tests.nameserver.modes.test_line_order import Clock
from tests.nameserver.modes.test_storms import registration, rounds_until
from tests.nameserver.replicated.group import group_of
from tests.waiting import until

OVER = ConnectionId(1)
FAULT = "ZeroDivisionError: the planted fault"


def failing(*_: object, **__: object) -> Iterator[None]:
    """Return the steps of a task that runs for several time slices in real time, and then raises an error."""
    for _step in range(5):
        time.sleep(2 * SLICE_S)
        yield
    raise ZeroDivisionError("the planted fault")


def broken(loop: Loop) -> Any:
    """Return the steps of a task that takes two time slices of the test's clock, and then raises an error."""
    loop.now += 2 * SLICE_S
    yield
    raise ZeroDivisionError


def test_line_passes_on_what_is_made_of_a_later_error_and_goes_on() -> None:
    loop = Loop()
    failed = loop.line.run(broken(loop), loop.results.append, failed=lambda error: type(error).__name__)
    assert failed is None
    loop.add("next")
    assert loop.all_done() == ["ZeroDivisionError", "next"]


def test_task_whose_result_nobody_awaits_may_raise() -> None:
    loop = Loop()
    assert loop.line.run(broken(loop), loop.results.append) is None
    loop.add("next")
    assert loop.all_done() == ["next"]


def independent_mode(folder: Path) -> Independent:
    mode = Independent(
        LiveSettings(NamesrvSettings(data_dir=str(folder))), Recorder(), boot_id=7, clock=Clock()
    )
    mode.tick(0.0)
    return mode


async def test_registration_that_fails_later_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(independent, "decoding_registration", failing)
    mode, answers = independent_mode(tmp_path), list[Answer]()
    deadline = asyncio.get_running_loop().time() + 60.0
    assert mode.register(registration(1, 3), OVER, deadline=deadline, answered=answers.append) is None
    await rounds_until(lambda: bool(answers))
    assert (answers[0].code, answers[0].remark) == (ResponseCode.SYSTEM_ERROR, FAULT)


async def test_change_by_an_operator_that_fails_later_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = independent_mode(tmp_path)
    monkeypatch.setattr(RouteTable, "apply_at_once", lambda *_: None)
    monkeypatch.setattr(RouteTable, "applying", failing)
    command = PutKv(namespace="n", key="k", value="v", key_revision=0)
    deadline = asyncio.get_running_loop().time() + 60.0
    with pytest.raises(ZeroDivisionError, match="the planted fault"):
        await asyncio.wait_for(mode.propose(command, deadline=deadline), 30.0)


async def test_registration_that_fails_later_is_answered_in_raft_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path, size=1) as group:
        monkeypatch.setattr(proposer, "decoding_registration", failing)
        answers = list[Answer]()
        deadline = asyncio.get_running_loop().time() + 60.0
        answer = group.at(0).register(registration(1, 3), OVER, deadline=deadline, answered=answers.append)
        assert answer is None
        await until(lambda: bool(answers), "the registration is answered")
        assert (answers[0].code, answers[0].remark) == (ResponseCode.SYSTEM_ERROR, FAULT)
