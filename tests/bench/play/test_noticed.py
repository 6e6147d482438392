"""Clients drop a stopped broker sooner if they watch than if they poll.

Clients also drop a killed broker sooner than a paused broker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from routekeeper.bench.arms.servers import java_missing
from routekeeper.bench.play.model import Design, Log, Order, State
from routekeeper.bench.play.picture import apply, copied_state
from tests.bench.play.sessions import Session, session

pytestmark = [
    pytest.mark.bench,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(java_missing() is not None, reason=f"needs {java_missing()}"),
]

DESIGNS = ("independent", "zookeeper")


@contextlib.contextmanager
def played(out: Path, *designs: str, divisor: int) -> Iterator[Session]:
    with session("--designs", ",".join(designs), "--divisor", str(divisor), out=out) as made:
        made.await_started()
        yield made


def first_ms(played: Session, name: str, test: Callable[[Design], bool]) -> int:
    """Return the time in ms from the start of the newest fault until a design first met a condition.

    Args:
        test: Function that returns True if the design's state meets the condition.
    """
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
    """Wait until each of these designs meets a condition; return each one's time in ms since the fault."""
    for name in names:
        played.shows(name, test, "all clients have noticed")
    return {name: first_ms(played, name, test) for name in names}


def keeps(brokers: list[str]) -> Callable[[Design], bool]:
    """Return a function that checks if every client of a design has cached exactly these brokers."""
    return lambda design: all([one.brokers for one in each.cached] == [brokers] for each in design.clients)


def leaves_out(broker: str) -> Callable[[Design], bool]:
    """Return a function that checks if the last answer to every client of a design lacks the broker."""
    return lambda design: all(
        each.last is not None and each.last.brokers is not None and broker not in each.last.brokers
        for each in design.clients
    )


def test_watching_clients_drop_a_broker_that_stops_sooner_than_polling_ones(tmp_path: Path) -> None:
    """Check that watching clients drop a stopped broker in less than half the time of polling clients.

    With RocketMQ's own timers, the last of four polling clients polls 17 to 30 s after the stop; the
    session's seed sets the exact instants. Watching clients learn of the stop at once, so they stay below
    half of this time even if a busy machine delays them by some seconds.
    """
    with played(tmp_path, *DESIGNS, divisor=1) as made:
        for name in DESIGNS:
            made.shows(name, keeps(["broker-0", "broker-1", "broker-2"]), "every client keeps a route")
        done = made.do(Order(do="stop", target="broker-2"))
        assert {each.result for each in done.outcomes} == {"applied"}
        found = noticed_ms(made, DESIGNS, keeps(["broker-0", "broker-1"]))
    assert found["zookeeper"] < found["independent"] / 2, found


def test_killed_broker_is_left_out_sooner_than_a_silent_one(tmp_path: Path) -> None:
    """Check with timers divided by 10: a lease lasts 12 s, and a broker registers again every 3 s."""
    lease_ms, period_ms = 12_000, 3_000
    with played(tmp_path, "independent", divisor=10) as made:
        made.do(Order(do="pause", target="broker-1"))
        silent = noticed_ms(made, ["independent"], leaves_out("broker-1"))
        made.do(Order(do="kill", target="broker-2"))
        killed = noticed_ms(made, ["independent"], leaves_out("broker-2"))
    assert killed["independent"] < silent["independent"], (killed, silent)
    assert killed["independent"] < lease_ms - period_ms, "no lease has run out so soon"
