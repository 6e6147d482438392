"""Tests of daily commands: Apache's ``mqadmin`` at our broker, and our ``mqadmin`` at Apache's broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.golden.words import lost

from .apache import RELEASES, AdminResult, Apache
from .daily import (
    IN_WORDS_OF_5,
    OFFLINE,
    ONLINE,
    RESETS,
    RESETTING,
    TABLES,
    Stage,
    Tool,
    apaches_tool,
    comparable,
    names_in,
    our_tool,
    stage,
)
from .ours import ApacheDeployment, Fleet, in_parallel, our_servers

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

Results = Mapping[str, AdminResult]

#: Names that must also be in the tables of our broker. The keys are runs in :data:`TABLES`. The other names
#: in Apache's output belong to parts or settings that our broker does not have.
TOLD: Final = {
    "brokerStatus-b": {
        *("bootTimestamp", "brokerVersion", "brokerVersionDesc", "commitLogMaxOffset", "commitLogMinOffset"),
        *("dispatchBehindBytes", "getFoundTps", "getMissTps", "getTotalTps", "msgGetTotalTodayNow"),
        *("msgPutTotalTodayNow", "putTps", "runtime"),
    },
    "getBrokerConfig": {"brokerName", "brokerClusterName", "brokerId", "flushDiskType", "listenPort"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """Output of both tools for one release of Apache's programs.

    Attributes:
        theirs: Output of Apache's tool at Apache's broker.
        by_ours: Output of our tool at Apache's broker.
        of_ours: Output of Apache's tool at our broker.
    """

    theirs: Results
    by_ours: Results
    of_ours: Results


@pytest.fixture(scope="module")
def printed(
    fleet: Fleet, apaches: dict[str, Apache], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Printed]:
    """Return the outputs by release.

    Run both releases and both brokers in parallel, because Apache's tool often waits for 3 s before it ends.
    """
    found = {}

    def ask(release: str) -> None:
        deployment, folder = fleet.apache(release), tmp_path_factory.mktemp(f"operators-{release[0]}")
        found[release] = ask_all(deployment, apaches[release], folder)

    in_parallel(*(partial(ask, release) for release in RELEASES))
    return found


def ask_all(deployment: ApacheDeployment, apache: Apache, folder: Path) -> Printed:
    theirs: dict[str, AdminResult] = {}
    by_ours: dict[str, AdminResult] = {}
    of_ours: dict[str, AdminResult] = {}

    def at_apaches() -> None:
        namesrv = deployment.namesrv.addr
        tool, our = apaches_tool(apache, namesrv, "all"), our_tool(namesrv)
        with stage(apache, namesrv, deployment.broker.addr, folder / "theirs") as (scene, end):
            for text in (ONLINE, RESETTING):
                theirs.update(run_all(scene, tool, text))
                by_ours.update(run_all(scene, our, text))
            end()
            theirs.update(run_all(scene, tool, OFFLINE))
            by_ours.update(run_all(scene, our, OFFLINE))

    def at_ours() -> None:
        with our_servers(folder) as (namesrv, broker):
            # Use another session, because a session runs only one command at a time.
            tool = apaches_tool(apache, namesrv.addr, "daily commands")
            with stage(apache, namesrv.addr, broker.addr, folder / "ours") as (scene, end):
                of_ours.update(run_all(scene, tool, ONLINE + RESETTING))
                end()
                of_ours.update(run_all(scene, tool, OFFLINE))

    in_parallel(at_apaches, at_ours)
    return Printed(theirs=theirs, by_ours=by_ours, of_ours=of_ours)


def run_all(scene: Stage, tool: Tool, text: str) -> dict[str, AdminResult]:
    found = {}
    for name, args in scene.script(text):
        result = tool(*args)
        if "RemotingTimeoutException" in result.stdout + result.stderr:  # a busy machine; Java waits 3 or 5 s
            result = tool(*args)
        found[name] = result
    return found


def check(printed: Results, wanted: Results, *, but: tuple[str, ...] = ()) -> None:
    """Fail with all differences between two sets of outputs.

    Skip runs whose names begin with one of the texts in ``but``, and the runs of :data:`TABLES`.
    """
    found = []
    for name, result in printed.items():
        if name in TABLES or name.startswith(but):
            continue
        have, want = comparable(name, result.stdout), comparable(name, wanted[name].stdout)
        if have != want:
            found.append(
                f"== {name} {result.args}\n" + "\n".join((*want, "-- but", *have, result.stderr[:600]))
            )
    if found:
        pytest.fail("\n".join(found), pytrace=False)


@pytest.mark.parametrize("release", RELEASES)
def test_apaches_mqadmin_prints_of_our_broker_what_it_prints_of_apaches(
    release: str, printed: Mapping[str, Printed]
) -> None:
    found = printed[release]
    check(found.of_ours, found.theirs, but=RESETS if release.startswith("4.") else ())
    for name, told in TOLD.items():
        assert told <= names_in(found.theirs[name].stdout) & names_in(found.of_ours[name].stdout), name


@pytest.mark.parametrize("release", RELEASES)
def test_our_mqadmin_prints_of_apaches_broker_what_apaches_does(
    release: str, printed: Mapping[str, Printed]
) -> None:
    found = printed[release]
    in_words_of_5 = IN_WORDS_OF_5 if release.startswith("4.") else ()
    check(found.by_ours, found.theirs, but=in_words_of_5)
    for name, result in found.by_ours.items():
        if name.startswith(in_words_of_5):
            theirs, ours = ("\n".join(comparable(name, one.stdout)) for one in (found.theirs[name], result))
            assert lost(name, theirs, ours) == [], name
    for name in TABLES:
        assert names_in(found.by_ours[name].stdout) == names_in(found.theirs[name].stdout)
    # If Apache's tool fails, it prints an error, but exits with 0. In the same cases, our tool must not exit
    # with 0.
    failed = {name: result.returncode != 0 for name, result in found.by_ours.items()}
    assert failed == {name: bool(result.stderr) for name, result in found.theirs.items()}
