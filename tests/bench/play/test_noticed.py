"""Clients notice a killed broker sooner than a silent one, and sooner by watching than by polling."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest

from routekeeper.bench.arms.servers import java_missing
from routekeeper.bench.play.model import Design, Log, Order, State
from routekeeper.bench.play.picture import apply, copied_state
from tests.bench.play.sessions import Session, session
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.bench,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(java_missing() is not None, reason=f"needs {java_missing()}"),
]

DESIGNS = ("independent", "zookeeper")
STOPS = 3
"""Stops one after the other: polling has a phase, so one stop may be noticed early by luck."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """RocketMQ's timers divided by 10: clients poll every 3 s, and a silent broker is dropped after 12 s."""
    out = tmp_path_factory.mktemp("out")
    with session("--designs", ",".join(DESIGNS), "--divisor", "10", out=out) as made:
        made.await_started()
        yield made


def first_ms(played: Session, name: str, test: Callable[[Design], bool]) -> int:
    """Return how long after the begin of the newest fault a test first held in a design."""
    status, body = played.ask("GET", "/v1/log")
    assert status == 200
    log = msgspec.json.decode(body, type=Log)
    begun_ms = max(each.mark.at_ms for each in log.changes if each.mark is not None)
    state: State = copied_state(log.base)
    for change in log.changes:
        apply(state, change)
        design = next(each for each in state.designs if each.name == name)
        if change.at_ms >= begun_ms and test(design):
            return change.at_ms - begun_ms
    raise AssertionError("it never held")


def noticed_ms(played: Session, names: Sequence[str], test: Callable[[Design], bool]) -> dict[str, int]:
    """Wait until a test holds in each of these designs; return how long after the fault it first did."""
    wait_until(lambda: all(test(played.design(name)) for name in names), "all clients have noticed")
    return {name: first_ms(played, name, test) for name in names}


def keeps(brokers: list[str]) -> Callable[[Design], bool]:
    """Return whether every client of a design keeps a route over just these brokers."""
    return lambda design: all([one.brokers for one in each.cached] == [brokers] for each in design.clients)


def leaves_out(broker: str) -> Callable[[Design], bool]:
    """Return whether no client of a design is answered with a broker."""
    return lambda design: all(
        each.last is not None and each.last.brokers is not None and broker not in each.last.brokers
        for each in design.clients
    )


def test_watching_clients_drop_a_broker_that_stops_sooner_than_polling_ones(played: Session) -> None:
    found = []
    for _ in range(STOPS):
        done = played.do(Order(do="stop", target="broker-2"))
        assert {each.result for each in done.outcomes} == {"applied"}
        found.append(noticed_ms(played, DESIGNS, keeps(["broker-0", "broker-1"])))
        played.do(Order(do="start", target="broker-2"))
        noticed_ms(played, DESIGNS, keeps(["broker-0", "broker-1", "broker-2"]))
    polled = statistics.median(each["independent"] for each in found)
    watched = statistics.median(each["zookeeper"] for each in found)
    assert watched < polled / 2, found


def test_killed_broker_is_left_out_sooner_than_a_silent_one(played: Session) -> None:
    played.do(Order(do="pause", target="broker-1", designs=["independent"]))
    silent = noticed_ms(played, ["independent"], leaves_out("broker-1"))
    played.do(Order(do="kill", target="broker-2", designs=["independent"]))
    killed = noticed_ms(played, ["independent"], leaves_out("broker-2"))
    assert killed["independent"] < silent["independent"] / 2, (killed, silent)
