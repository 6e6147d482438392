"""Tests of the order of tasks: all senders take turns, so a busy sender delays only itself."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

from routekeeper.nameserver.modes.independent import GONE, Independent
from routekeeper.nameserver.modes.interface import Freshness
from routekeeper.nameserver.modes.repeats import Repeat
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, ConnectionId, Request
from routekeeper.remoting.codes import RequestCode, ResponseCode
from tests.nameserver.modes.test_independent import Recorder
from tests.nameserver.modes.test_storms import registration, rounds_until

STRANGER, BROKER, OTHER = ConnectionId(1), ConnectionId(2), ConnectionId(3)


class Clock:
    """A clock that advances 1 ms at each reading.

    So a time slice ends after five readings, however fast the machine is.
    """

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


class Server:
    """A server that records the order of its answers.

    The clock is :class:`Clock`, so a task takes the same number of turns of the event loop on any machine.
    """

    def __init__(self, folder: Path) -> None:
        settings = LiveSettings(NamesrvSettings(data_dir=str(folder)))
        self.mode = Independent(settings, Recorder(), boot_id=7, clock=Clock())
        self.mode.tick(0.0)
        self.answered: list[ConnectionId] = []
        self.dropped: list[ConnectionId] = []

    def register(self, request: Request, over: ConnectionId, *, host: str = "") -> None:
        def take(answer: Answer) -> None:
            assert answer.code == ResponseCode.SUCCESS or answer is GONE, answer.remark
            (self.dropped if answer is GONE else self.answered).append(over)

        deadline = asyncio.get_running_loop().time() + 60.0
        answer = self.mode.register(request, over, deadline=deadline, answered=take, host=host)
        if answer is not None:
            take(answer)


async def test_one_who_sends_many_large_registrations_holds_nobody_up_for_more_than_one(
    tmp_path: Path,
) -> None:
    server = Server(tmp_path)
    for first in range(5):
        server.register(registration(1, 8_000, first=first), over=STRANGER)
    for number, over in (2, BROKER), (3, OTHER):
        server.register(registration(number, 3), over=over)
    await rounds_until(lambda: len(server.answered) == 7)
    assert server.answered.index(BROKER) <= 1
    assert server.answered.index(OTHER) <= 2


async def test_host_with_many_connections_holds_other_hosts_up_for_one_registration(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.register(registration(1, 3), over=BROKER, host="10.0.0.2")
    for number in range(10):
        request = registration(11 + number, 4_000)
        server.register(request, over=ConnectionId(11 + number), host="10.0.0.9")
    # The next registration repeats an earlier one of the same broker and changes nothing. The one after it is
    # the first of its broker, and changes the table.
    server.register(registration(1, 3), over=BROKER, host="10.0.0.2")
    server.register(registration(3, 3), over=OTHER, host="10.0.0.3")
    await rounds_until(lambda: len(server.answered) == 13)
    assert server.answered[0] == BROKER
    assert server.answered[2:4] == [BROKER, OTHER], "both wait for the one that was under way"


async def test_connection_that_closes_takes_its_waiting_registrations_along(tmp_path: Path) -> None:
    """If a connection closes while its registration is being applied, its broker must not stay listed.

    The server must either answer or drop each request of the connection, and must do so only once.
    """
    server = Server(tmp_path)
    view = server.mode.view(Freshness.STALE)
    server.register(registration(1, 8_000), over=STRANGER)
    for number in 2, 3, 4:
        server.register(registration(number, 3), over=STRANGER)
    server.register(registration(5, 3), over=BROKER)
    server.mode.closed(STRANGER, by_us=False)
    await rounds_until(lambda: len(server.answered) == 2)
    await rounds_until(lambda: [name for name, _ in view.names()] == ["b5"])
    assert server.answered == [STRANGER, BROKER]
    assert server.dropped == [STRANGER] * 3
    assert not server.mode.carries_broker(STRANGER)


async def test_broker_that_unregisters_and_closes_at_once_is_unregistered(tmp_path: Path) -> None:
    """A broker is unregistered even if the connection of this request closes before the answer.

    In this test, the broker registered over another connection, which stays open.
    """
    server = Server(tmp_path)
    view = server.mode.view(Freshness.STALE)
    server.register(registration(1, 3), over=BROKER)
    assert [name for name, _ in view.names()] == ["b1"]
    server.register(registration(2, 8_000), over=STRANGER)
    fields = registration(1, 3).ext_fields
    request = Request(code=RequestCode.UNREGISTER_BROKER, ext_fields=fields)
    deadline = asyncio.get_running_loop().time() + 60.0
    answer = asyncio.ensure_future(server.mode.execute(request, OTHER, deadline=deadline))
    await asyncio.sleep(0)
    server.mode.closed(OTHER, by_us=False)
    assert (await answer).code == ResponseCode.SUCCESS
    await rounds_until(lambda: [name for name, _ in view.names()] == ["b2"])


async def test_many_brokers_of_a_closed_connection_leave_in_several_turns(tmp_path: Path) -> None:
    server = Server(tmp_path)
    view = server.mode.view(Freshness.STALE)
    for number in range(400):
        server.register(registration(number, 20), over=STRANGER)
    await rounds_until(lambda: len(server.answered) == 400)
    server.mode.closed(STRANGER, by_us=False)
    await asyncio.sleep(0)
    assert list(view.names()), "all left in one turn of the loop"
    await rounds_until(lambda: not list(view.names()))


async def test_repeat_is_not_remembered_for_a_connection_that_has_closed(tmp_path: Path) -> None:
    """The server must not store a registration for recognising repeats after its connection has closed.

    No further request can arrive over such a connection, so the server would never free this memory. In this
    test, a connection closes while the server compares a registration that changes nothing.
    """

    def remembered() -> int:
        gc.collect()
        return sum(type(each) is Repeat for each in gc.get_objects())

    before = remembered()
    server = Server(tmp_path)
    for count in 1, 2:
        server.register(registration(1, 8_000), over=STRANGER)
        await rounds_until(lambda count=count: len(server.answered) == count)  # type: ignore[misc]
    assert remembered() == before + 1, "the second one changed nothing"
    server.register(registration(1, 8_000), over=OTHER)
    await asyncio.sleep(0)  # now the task has begun; it takes several turns of the event loop
    assert len(server.answered) == 2
    server.mode.closed(OTHER, by_us=False)
    await rounds_until(lambda: len(server.answered) == 3)
    server.mode.closed(STRANGER, by_us=False)
    await rounds_until(lambda: not list(server.mode.view(Freshness.STALE).names()))
    await rounds_until(lambda: remembered() == before)


async def test_closings_do_not_wait_for_one_registration_of_a_busy_host_each(tmp_path: Path) -> None:
    """A broker whose connection closes is removed soon, even if another host keeps the server busy.

    In this test, 51 connections close at once, and the last of them is the broker's. The server may handle at
    most two of the other host's ten requests before it removes the broker.
    """
    server = Server(tmp_path)
    view = server.mode.view(Freshness.STALE)
    server.register(registration(1, 3), over=BROKER, host="10.0.0.2")
    for number in range(10):
        request = registration(11 + number, 4_000)
        server.register(request, over=ConnectionId(11 + number), host="10.0.0.9")
    for number in range(50):
        server.mode.closed(ConnectionId(100 + number), by_us=False)
    server.mode.closed(BROKER, by_us=False)
    await rounds_until(lambda: "b1" not in [name for name, _ in view.names()])
    assert len(server.answered) <= 1 + 2, "the broker's own, and two of the busy host"


async def test_broker_of_many_topics_that_leaves_lets_others_be_served_meanwhile(tmp_path: Path) -> None:
    server = Server(tmp_path)
    view = server.mode.view(Freshness.STALE)
    server.register(registration(1, 20_000), over=BROKER)
    await rounds_until(lambda: len(server.answered) == 1)
    server.mode.closed(BROKER, by_us=False)
    assert await rounds_until(lambda: not view.names()) >= 20_000 / 1_000 / 5
