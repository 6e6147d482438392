"""Tests of registrations that go through the log, and of registrations that a member answers without it."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest

from routekeeper.nameserver.commands import COMMAND_BYTES_MAX
from routekeeper.nameserver.modes.interface import Freshness
from routekeeper.nameserver.registration import Registration, decoding_registration
from routekeeper.nameserver.replicated import proposer
from routekeeper.nameserver.types import Answer, ConnectionId, Request
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.steps import Steps
from tests.nameserver.replicated.group import (
    BROKER,
    ONE,
    TWO,
    ask,
    codes,
    group_of,
    put_kv,
    query_version,
    register,
)


async def test_registration_that_changes_nothing_needs_no_log(tmp_path: Path) -> None:
    async with group_of(tmp_path) as group:
        await group.everywhere(register())
        members = group.running

        async def unchanged() -> bool:
            before = members[0].status().commit_index
            assert codes(await group.everywhere(register())) == [0, 0, 0]
            await group.equal()
            return members[0].status().commit_index == before

        # A member answers without the log only after the leader has acknowledged its report about the
        # broker. Members report once a second, so repeat the registration.
        for _ in range(300):
            if await unchanged():
                break
            await asyncio.sleep(0.02)
        assert await unchanged()


async def test_registration_over_a_new_connection_goes_through_the_log(tmp_path: Path) -> None:
    async with group_of(tmp_path) as group:
        await group.everywhere(register())
        await group.equal()
        before = group.running[0].view(Freshness.STALE).revision
        assert before == 3, "one body and two touches"
        assert codes(await group.everywhere(register(), TWO)) == [0, 0, 0]
        await group.equal()
        assert group.running[0].view(Freshness.STALE).revision == before + 3


@pytest.mark.slow
async def test_registration_above_the_limit_names_both_sizes(tmp_path: Path) -> None:
    async with group_of(tmp_path, size=1) as group:
        # Random names do not compress, so the command stays larger than the limit of the log.
        topics = tuple(secrets.token_hex(60) for _ in range(80_000))
        answer = await ask(group.running[0], register(topics=topics))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert str(COMMAND_BYTES_MAX) in answer.remark
        assert group.running[0].view(Freshness.STALE).topics() == []


async def test_data_version_question_is_vouched_for_like_a_registration(tmp_path: Path) -> None:
    async with group_of(tmp_path) as group:
        await group.everywhere(register(counter=4))
        (stranger,) = {
            answer.ext_fields["changed"] for answer in await group.everywhere(query_version(counter=4), TWO)
        }
        assert stranger == "true", "no registration succeeded over that connection"

        async def known() -> set[str]:
            answers = await group.everywhere(query_version(counter=4))
            return {answer.ext_fields["changed"] for answer in answers}

        for _ in range(300):
            if await known() == {"false"}:
                break
            await asyncio.sleep(0.02)
        assert await known() == {"false"}
        other = await group.everywhere(query_version(counter=5))
        assert {answer.ext_fields["changed"] for answer in other} == {"true"}


def decoded_from_now_on(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Return a list to which each registration is added when it is decoded."""
    decoded: list[Request] = []

    def counted(request: Request) -> Steps[Registration | Answer]:
        decoded.append(request)
        return decoding_registration(request)

    monkeypatch.setattr(proposer, "decoding_registration", counted)
    return decoded


async def test_the_same_registration_is_decoded_once_for_each_state_of_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = decoded_from_now_on(monkeypatch)
    async with group_of(tmp_path, size=1) as group:
        member = group.at(0)
        revision = member.view(Freshness.STALE).revision

        async def registered(request: Request, origin: ConnectionId = ONE) -> int:
            before = len(decoded)
            assert (await ask(member, request, origin)).code == ResponseCode.SUCCESS
            return len(decoded) - before

        async def answered_without_the_log(request: Request) -> None:
            nonlocal revision
            while True:  # repeat until the leader has acknowledged this member's report
                revision = member.view(Freshness.STALE).revision
                await registered(request)
                if member.view(Freshness.STALE).revision == revision:
                    return

        await answered_without_the_log(register())
        heard_at = member.liveness.contact(BROKER)
        assert await registered(register()) == 0
        assert member.liveness.contact(BROKER) is not heard_at  # the lease was renewed
        assert member.view(Freshness.STALE).revision == revision

        assert await registered(register(counter=2)) == 1  # the member must decode a body with other bytes
        await answered_without_the_log(register(counter=2))
        assert await registered(register(counter=2)) == 0
        assert await registered(register(counter=2, zoneName="z")) == 1  # the header has changed
        await answered_without_the_log(register(counter=2))
        await ask(member, put_kv("k", "v"), TWO)  # this changes the table, but not the broker's record
        assert await registered(register(counter=2)) == 0
        member.closed(ONE, by_us=True)
        assert await registered(register(counter=2)) == 1, "nothing is kept of a connection that closed"


async def test_a_large_registration_is_decoded_once_although_others_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = decoded_from_now_on(monkeypatch)
    large = register(topics=tuple(f"topic-{number}" for number in range(2_000)))
    assert len(large.body) > 64 * 1024
    async with group_of(tmp_path, size=1) as group:
        member = group.at(0)
        while True:  # repeat until the leader has acknowledged this member's report
            revision = member.view(Freshness.STALE).revision
            assert (await ask(member, large)).code == ResponseCode.SUCCESS
            if member.view(Freshness.STALE).revision == revision:
                break
        decoded.clear()
        await ask(member, put_kv("k", "v"), TWO)
        assert (await ask(member, large)).code == ResponseCode.SUCCESS
        assert decoded == []
