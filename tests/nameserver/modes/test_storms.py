"""Tests of very large registrations, and of the eviction of many brokers at once.

While the nameserver applies such a change in steps, it must serve other requests. No read may see a change
that is only partly applied.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from routekeeper.nameserver.commands import (
    Batch,
    Proposal,
    RegisterBroker,
    decode_command,
    encode_batch,
    encode_command,
)
from routekeeper.nameserver.handlers import decide_registration
from routekeeper.nameserver.modes.independent import GONE, Independent
from routekeeper.nameserver.modes.interface import Freshness
from routekeeper.nameserver.registration import Registration, decode_registration
from routekeeper.nameserver.replicated import Replicated
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, ConnectionId, Request
from routekeeper.remoting.codes import RequestCode, ResponseCode
from tests.nameserver.modes.test_independent import Recorder
from tests.nameserver.replicated.group import group_of
from tests.registrations import body_of, fields_of

TOPICS = 40_000
"""Number of topics in one registration, so large that the work takes several time slices on any machine."""


def registration(number: int, topics: int, *, first: int = 0) -> Request:
    names = (f"orders-{first + at:07d}" for at in range(topics))
    body = body_of(names, compressed=True, version=401)
    fields = fields_of(body, f"b{number}", f"10.0.0.{number}:10911", compressed="true")
    return Request(code=RequestCode.REGISTER_BROKER, ext_fields=fields, body=body, version=401)


class Answers:
    """A sender of registrations.

    `waiting` is the number of registrations that the nameserver has not applied yet, and has not dropped
    because of a closed connection.
    """

    def __init__(self, mode: Independent | Replicated) -> None:
        self._mode = mode
        self.waiting = 0

    def register(self, request: Request, *, over: int) -> None:
        self.waiting += 1
        self._register(request, over)

    def _register(self, request: Request, over: int) -> None:
        def take(answer: Answer) -> None:
            if answer.code == ResponseCode.SUCCESS or answer is GONE:
                self.waiting -= 1
            else:  # not applied in time on a busy machine, so repeat it as a broker does
                asyncio.get_running_loop().call_soon(self._register, request, over)

        deadline = asyncio.get_running_loop().time() + 30.0
        answer = self._mode.register(request, ConnectionId(over), deadline=deadline, answered=take)
        if answer is not None:
            take(answer)


async def rounds_until(condition: Callable[[], bool], look: Callable[[], None] = lambda: None) -> int:
    """Check a condition in each turn of the event loop; return the number of turns until it was true."""
    rounds = 0
    async with asyncio.timeout(60):
        while not condition():
            look()
            rounds += 1
            await asyncio.sleep(0)
    return rounds


def independent(folder: Path) -> Independent:
    server = Independent(LiveSettings(NamesrvSettings(data_dir=str(folder))), Recorder(), boot_id=7)
    server.tick(0.0)
    return server


async def test_large_registration_lets_others_be_served_and_is_seen_all_at_once(tmp_path: Path) -> None:
    server = independent(tmp_path)
    answers = Answers(server)
    seen: set[tuple[int, int]] = set()

    def look() -> None:
        view = server.view(Freshness.STALE)
        seen.add((view.topic_count, len(view.names())))

    answers.register(registration(1, TOPICS), over=1)
    assert await rounds_until(lambda: not answers.waiting, look) >= 3
    assert seen == {(0, 0)}, "nothing of it is seen before its answer"
    assert server.view(Freshness.STALE).topic_count == TOPICS


async def test_brokers_that_leave_at_once_let_others_be_served(tmp_path: Path) -> None:
    brokers, topics = 8, TOPICS // 4
    server = independent(tmp_path)
    answers = Answers(server)
    for number in range(brokers):
        answers.register(registration(number, topics, first=number * topics), over=number)
    await rounds_until(lambda: not answers.waiting)
    seen: set[int] = set()
    for number in range(brokers):
        server.closed(ConnectionId(number), by_us=False)
    view = server.view(Freshness.STALE)
    rounds = await rounds_until(lambda: not view.names(), lambda: seen.add(view.topic_count % topics))
    assert rounds >= 3
    assert seen == {0}, "a broker goes with all of its topics"
    assert view.topic_count == 0


async def test_connection_that_closes_while_its_registration_waits_leaves_no_broker(tmp_path: Path) -> None:
    server = independent(tmp_path)
    answers = Answers(server)
    answers.register(registration(1, TOPICS), over=1)
    answers.register(registration(2, 2), over=2)
    server.closed(ConnectionId(2), by_us=False)
    await rounds_until(lambda: not answers.waiting)
    view = server.view(Freshness.STALE)
    await rounds_until(lambda: [name for name, _ in view.names()] == ["b1"])
    assert not server.carries_broker(ConnectionId(2))


async def test_entry_of_many_registrations_is_applied_in_parts(tmp_path: Path) -> None:
    brokers, topics = 5, 8_000
    async with group_of(tmp_path, size=1) as group:
        member = group.at(0)
        view = member.view(Freshness.STALE)
        answers = Answers(member)
        pairs = [0]
        states: dict[int, set[str]] = {}

        def look() -> None:
            if view.held.pairs != pairs[-1]:
                pairs.append(view.held.pairs)
                status = member.status()
                states.setdefault(status.applied_index, set()).add(status.state_digest)

        requests = [registration(number, topics) for number in range(brokers)]
        for number, request in enumerate(requests):
            answers.register(request, over=number)
        await rounds_until(lambda: not answers.waiting, look)
        look()
        assert pairs[-1] == brokers * topics
        parts = {after - before for before, after in pairwise(pairs)}
        assert {part % topics for part in parts} == {0}, "a registration is there wholly or not at all"
        assert max(parts) <= 2 * topics, "there is time for others within an entry"
        assert all(len(digests) == 1 for digests in states.values()), "an index has one state"


async def test_status_within_an_entry_is_that_of_the_applied_index(tmp_path: Path) -> None:
    brokers, topics = 2, 3_000

    def proposed(number: int) -> Proposal:
        decoded = decode_registration(registration(number, topics))
        assert isinstance(decoded, Registration)
        command = decide_registration(RouteTable().view, decoded, NamesrvSettings())
        assert isinstance(command, RegisterBroker)
        return Proposal(boot_id=1, sequence=number, command=encode_command(command))

    async with group_of(tmp_path, size=1) as group:
        member = group.at(0)
        entry = encode_batch(Batch(proposals=tuple(proposed(number) for number in range(brokers))))
        before = member.status()
        seen = set()
        for _ in member.apply(entry, index=before.applied_index + 1, term=1, live=True):
            status = member.status()
            assert (status.revision, status.state_digest) == (before.revision, before.state_digest)
            seen.add(member.view(Freshness.STALE).held.pairs)
        assert seen == {0, topics}, "each registration is there wholly or not at all"
        assert member.status().state_digest != before.state_digest


def test_brokers_with_the_same_topics_keep_their_names_once() -> None:
    table, topics, size = RouteTable(), 5_000, 0

    def apply(number: int) -> None:
        decoded = decode_registration(registration(number, topics))
        assert isinstance(decoded, Registration)
        command = decide_registration(table.view, decoded, NamesrvSettings())
        assert not isinstance(command, Answer)
        table.apply(decode_command(encode_command(command)))  # type: ignore[arg-type]

    apply(1)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(2, 6):
            apply(number)
        size = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert size / (4 * topics) < 80, "bytes for each further topic of a broker; a name alone has 63"
