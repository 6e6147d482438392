"""Tests of delayed registrations, and of brokers whose data version becomes lower."""

from __future__ import annotations

from pathlib import Path

from routekeeper.nameserver.modes.independent import Independent
from routekeeper.nameserver.modes.interface import Freshness
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, ConnectionId, Request
from tests.nameserver.modes.test_independent import Recorder, never
from tests.nameserver.replicated.group import BROKER, query_version, register

FIRST, SECOND = register(counter=1, queues=4), register(counter=2, queues=8)


class OneNameserver:
    """A nameserver with a clock that the test advances."""

    def __init__(self, folder: Path) -> None:
        settings = LiveSettings(NamesrvSettings(data_dir=str(folder)))
        self.server = Independent(settings, Recorder(), boot_id=7, clock=lambda: 0.0)
        self.now = 0.0
        self.server.tick(self.now)

    def wait(self, seconds: float) -> None:
        """Advance the clock by `seconds` in steps of 0.25 s, like the real nameserver."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.25
            self.server.tick(self.now)

    def take(self, *requests: Request, over: int = 1) -> None:
        """Apply registrations over the connection number ``over``, and check that each of them succeeds."""
        for request in requests:
            answer = self.server.register(request, ConnectionId(over), deadline=9.0, answered=never)
            assert answer == Answer()

    @property
    def queues(self) -> int:
        """Return the number of write queues that the nameserver lists for the broker's topics."""
        view = self.server.view(Freshness.DEFAULT)
        (found,) = {view.topic(topic).queues["broker-a"].write_queue_nums for topic in ("T", "U")}  # type: ignore[union-attr]
        return found


async def at_the_second_version(folder: Path) -> OneNameserver:
    one = OneNameserver(folder)
    one.take(FIRST, SECOND)
    assert one.queues == 8
    return one


async def test_a_late_copy_takes_nothing_back(tmp_path: Path) -> None:
    one = await at_the_second_version(tmp_path)
    one.take(FIRST)
    assert one.queues == 8


async def test_a_late_copy_of_another_id_or_name_changes_no_address(tmp_path: Path) -> None:
    one = await at_the_second_version(tmp_path)
    one.take(register(counter=1, broker_id=1), register(counter=1, brokerName="broker-b"))
    data = one.server.view(Freshness.DEFAULT).broker_data("broker-a")
    assert data is not None
    assert data.broker_addrs == {0: BROKER.broker_addr}


async def test_a_late_copy_renews_the_lease(tmp_path: Path) -> None:
    one = await at_the_second_version(tmp_path)
    one.wait(100.0)
    one.take(FIRST)
    one.wait(100.0)
    assert one.server.view(Freshness.DEFAULT).record(BROKER) is not None


async def test_a_broker_whose_store_was_restored_is_shown_with_its_second_heartbeat(tmp_path: Path) -> None:
    one = await at_the_second_version(tmp_path)
    one.take(FIRST, over=2)
    one.wait(30.0)
    assert one.queues == 8
    one.take(FIRST, over=2)
    assert one.queues == 4


async def test_a_restored_broker_whose_connection_closed_is_shown_at_once(tmp_path: Path) -> None:
    one = await at_the_second_version(tmp_path)
    one.server.closed(ConnectionId(1), by_us=False)
    one.take(FIRST, over=2)
    assert one.queues == 4


async def test_the_current_version_makes_the_next_repeat_a_first_one(tmp_path: Path) -> None:
    one = await at_the_second_version(tmp_path)
    one.take(FIRST)
    one.wait(20.0)
    one.take(SECOND)
    one.wait(20.0)
    one.take(FIRST)
    assert one.queues == 8
    one.wait(20.0)
    answer = await one.server.execute(query_version(counter=2), ConnectionId(1), deadline=9.0)
    assert answer.ext_fields["changed"] == "false"
    one.wait(20.0)
    one.take(FIRST)
    assert one.queues == 8
    one.wait(20.0)
    one.take(FIRST)
    assert one.queues == 4


async def test_a_question_with_an_older_version_is_answered_changed(tmp_path: Path) -> None:
    """The answer to a broker's question about its data version is "changed" if the listed version is newer.

    This answer makes the broker register, so the nameserver gets the broker's current topics.
    """
    one = await at_the_second_version(tmp_path)
    answer = await one.server.execute(query_version(counter=1), ConnectionId(1), deadline=9.0)
    assert answer.ext_fields["changed"] == "true"
