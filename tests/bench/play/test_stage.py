"""A design's processes start and end with its session, also while the design executes a command.

The servers, brokers and clients of these tests are processes that only sleep.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from routekeeper.bench.links import Passes
from routekeeper.bench.network import Network
from routekeeper.bench.play import play
from routekeeper.bench.play.model import DesignName, Order
from routekeeper.bench.play.orders import TOPICS_MAX
from routekeeper.bench.play.play import Playground, saved_in
from routekeeper.bench.play.stage import FIRST_TOPIC, Post, Stage, plan_of
from routekeeper.bench.schedule import SessionPlan
from tests.bench.lives import a_turn
from tests.waiting import WITHIN_S, in_thread, until

pytestmark = pytest.mark.bench


class Held(Network):
    """A network without links, which answers only while :attr:`answers` is set.

    Attributes:
        asked: Set when somebody has asked for the states of the links.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.answers = threading.Event()
        self.answers.set()

    def look(self, timeout_s: float = WITHIN_S) -> list[Passes]:
        self.asked.set()
        assert self.answers.wait(WITHIN_S)
        return []


class Asleep(Stage):
    """A design whose processes only sleep. Its network is a :class:`Held`."""

    network: Held

    def start(self) -> None:
        self.network = Held()
        cluster = self.cluster
        cluster.build()
        cluster.network = self.network
        for process in [*cluster.processes, cluster.clients]:
            process.command = ["sleep", "600"]
            process.launch()

    @property
    def alive(self) -> list[str]:
        return [each.name for each in [*self.cluster.processes, self.cluster.clients] if each.alive]


@pytest.fixture
def asleep(tmp_path: Path) -> Iterator[Asleep]:
    """Yield a design whose processes run."""
    given = a_turn(tmp_path, plan_of(60.0), "independent", profile="play", seed=1)
    stage = Asleep("independent", given, lambda take: None)
    stage.start()
    yield stage
    stage.end()


@pytest.mark.parametrize(
    ("do", "target"), [("start", "broker-1"), ("restart-empty", "nameserver-1")], ids=["start", "empty"]
)
def test_an_order_that_is_under_way_when_its_design_ends_starts_no_process(
    asleep: Asleep, do: str, target: str
) -> None:
    if do == "start":
        asleep.cluster.brokers[1].kill()
    asleep.network.answers.clear()
    order = Order(do=do, target=target)  # type: ignore[arg-type]
    done = in_thread(lambda: asleep.carry_out(order, target, ""))
    assert asleep.network.asked.wait(WITHIN_S)
    asleep.end()
    asleep.network.answers.set()
    outcome = done.result(WITHIN_S)
    try:
        assert asleep.alive == []
        assert (outcome.result, outcome.reason) == ("unknown", f"{target} is not started: its design ends")
    finally:
        asleep.cluster.kill()


class Unwatched(Asleep):
    """A design that no thread observes, so that only a command asks its network for the states of links."""

    def watch(self) -> None:
        pass


class Played(Playground):
    """A playground of one design whose processes only sleep.

    Attributes:
        stage: The design.
    """

    stage: Asleep

    def __init__(self, folder: Path, kind: type[Asleep], patch: pytest.MonkeyPatch) -> None:
        def make(name: DesignName, given: SessionPlan, post: Post) -> Stage:
            self.stage = kind(name, given, post)
            return self.stage

        patch.setattr(play, "Stage", make)
        super().__init__(["independent"], missing=[], divisor=60.0, work=folder, out=folder)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.end()


def test_orders_that_wait_or_come_when_the_session_ends_are_not_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with Played(tmp_path, Unwatched, monkeypatch) as playground:
            network, heal = playground.stage.network, Order(do="heal")
            network.answers.clear()
            under_way = asyncio.create_task(playground.order(heal))
            await until(network.asked.is_set, "the first order is under way")
            waiting = asyncio.create_task(playground.order(heal))
            await asyncio.sleep(0)  # let the second order begin to wait for the first one
        network.answers.set()
        await under_way
        for done in (await waiting, await playground.order(heal)):
            assert [(each.result, each.reason) for each in done.outcomes] == [
                ("not applied", "independent is ending")
            ]

    asyncio.run(run())


def test_an_order_to_designs_that_new_timers_replace_marks_no_fault_of_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with Played(tmp_path, Unwatched, monkeypatch) as playground:
            network = playground.stage.network
            network.answers.clear()
            empty = asyncio.create_task(playground.order(Order(do="restart-empty", target="nameserver-1")))
            await until(network.asked.is_set, "the order is under way")
            await playground.order(Order(do="timers", divisor=30.0))
            network.answers.set()
            assert [each.result for each in (await empty).outcomes] == ["unknown"]
            assert playground.state.mark is None

    asyncio.run(run())


def test_clients_whose_process_has_ended_make_their_design_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with Played(tmp_path, Asleep, monkeypatch) as playground:
            playground.stage.cluster.clients.kill()
            await until(lambda: playground.state.designs[0].phase != "running", "it does not run any more")
            (design,) = playground.state.designs
            assert design.phase == "failed"
            assert design.reason.startswith("the thread that should listen to the clients has ended: Cluster")

    asyncio.run(run())


def test_an_order_to_clients_whose_process_has_ended_has_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with Played(tmp_path, Unwatched, monkeypatch) as playground:
            playground.stage.cluster.clients.kill()
            order = Order(do="reconnect", target="client-1", to="nameserver-1")
            done = await playground.order(order)
            assert [(each.result, each.reason) for each in done.outcomes] == [
                ("unknown", "the clients have ended")
            ]
            assert [each.done for each in playground.log.log().changes if each.done] == [done]

    asyncio.run(run())


def test_a_design_with_the_highest_number_of_topics_makes_no_further_one(asleep: Asleep) -> None:
    asleep.topics = [FIRST_TOPIC, *(f"{FIRST_TOPIC}-{number}" for number in range(1, TOPICS_MAX))]
    outcome = asleep.carry_out(Order(do="make-topic", topic="Payments"), "", "")
    assert (outcome.result, outcome.reason) == ("not applied", "there are 8 topics, allowed are 8")
    again = asleep.carry_out(Order(do="make-topic", topic=FIRST_TOPIC), "", "")
    assert again.reason == "no broker runs", "a topic that exists already may be made again"


def test_the_commands_of_a_saved_session_quote_a_folder_with_spaces() -> None:
    saved = saved_in(Path("/my runs/play-1"))
    assert saved.folder == "/my runs/play-1"
    assert saved.report == "mqbench report '/my runs/play-1' --out '/my runs/play-1'"
    assert saved.replay == "mqbench play --replay '/my runs/play-1'"
