"""A member remembers only a limited number of brokers that registered but are not in the table.

Otherwise, a client could fill the member's memory with invented broker names.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from routekeeper.nameserver import liveness
from routekeeper.nameserver.liveness import Ownership
from routekeeper.nameserver.modes.interface import NO_QUORUM_TAG
from routekeeper.nameserver.replicated import ANSWER_MARGIN_S
from routekeeper.nameserver.types import BrokerAddr, BrokerKey, ClusterName
from tests.nameserver.replicated.group import ONE, ask, group_of, register

NAMES, REMEMBERED = 200, 50


def address(number: int) -> str:
    return f"10.1.0.{number}:10911"


@pytest.mark.slow
async def test_a_member_without_a_leader_remembers_the_newest_names_of_a_connection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "SPARE_MAX", REMEMBERED)  # limit for names with a connection
    monkeypatch.setattr(liveness, "CLOSED_MAX", REMEMBERED)  # limit for names without a connection
    async with group_of(tmp_path, started=1) as group:
        (member,) = group.running
        # Long enough to read all requests, so that the member then refuses them.
        within = ANSWER_MARGIN_S + 1.0
        requests = (register(addr=address(number)) for number in range(NAMES))
        answers = await asyncio.gather(*(ask(member, request, within=within) for request in requests))
        assert all((answer.remark or "").startswith(NO_QUORUM_TAG) for answer in answers)
        names = [BrokerKey(ClusterName("C"), BrokerAddr(address(number))) for number in range(NAMES)]
        remembered = [name for name in names if member.ownership(name, ONE) is not Ownership.STRANGER]
        assert remembered == names[-2 * REMEMBERED :]
