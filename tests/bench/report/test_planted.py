"""The whole report computes exactly the known results of invented events.

Each scenario has one run folder for each of its designs, and one Spark job reads all folders. Some tests
check statements that were wrong in the first report. The docstring of test_misled.py lists the tests of all
such statements.
"""

import csv
import dataclasses
import html
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from pyspark.sql import SparkSession

from routekeeper.bench.__main__ import report_roots
from routekeeper.bench.arms.interface import FOREIGN_FROM
from routekeeper.bench.play.model import DesignName
from routekeeper.bench.report import answers, job, measures, silver, words
from routekeeper.bench.report.gold import Gold, Recovery
from routekeeper.bench.report.job import write_values
from routekeeper.bench.report.measures import Place
from routekeeper.bench.report.page import page
from routekeeper.bench.report.silver import Source
from routekeeper.bench.runfolder import void_folder, write_manifest
from tests.bench import recompute
from tests.bench.play.recorded import with_a_kill_and_a_partition
from tests.bench.report import backwards, reachability
from tests.bench.report.planted import PlantedRun

pytestmark = [pytest.mark.spark, pytest.mark.computes]

EVERY = 0.02


def only(whole: Gold, is_wanted: Callable[[Source], bool]) -> Gold:
    """Return the report's tables, limited to some of the runs."""
    runs = {source.run for source in whole.sources if is_wanted(source)}
    tables = {field.name: getattr(whole, field.name) for field in dataclasses.fields(whole)}
    return Gold(**{name: [row for row in rows if row.run in runs] for name, rows in tables.items()})


@pytest.fixture(scope="module")
def gold(planted: tuple[Gold, list[str]]) -> Gold:
    """Return the report's tables of all runs of raft mode.

    Some planted runs are of independent nameservers. They are only in reports of their own.
    """
    return only(planted[0], lambda source: source.arm == "raft")


def report_of(gold: Gold, folder: Path) -> str:
    """Write all files of a report into ``folder``, and return its page.

    The tables are given, because the Spark job that computes them would need much CPU time.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "compute", lambda *given, **named: gold)
        return Path(job.build_report([str(folder)], str(folder), progress=print)).read_text()


def of(gold: Gold, name: str, op: str = "lookup", scope: str = "all") -> Recovery:
    (found,) = (
        row for row in gold.recoveries if f"/{name}/" in row.run and (row.op, row.scope) == (op, scope)
    )
    return found


def text_of_page(gold: Gold) -> str:
    whole = page(gold, measures.values(gold))
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", whole)))


def steps(begin: float, end: float, every: float = EVERY) -> list[float]:
    return [begin + every * i for i in range(round((end - begin) / every))]


def waited_for_an_election(root: Path) -> None:
    """Write the events of a run in which the leader dies at 5 s.

    Requests due from 5 to 7 s wait until 7 s and succeed.
    """
    with PlantedRun(root, scenario="waited") as run:
        run.fault(5.0, 12.0)
        for due in steps(0, 12):
            run.op("lookup", due, 7.0 - due if 5.0 <= due < 7.0 else 0.001)


def test_requests_that_waited_and_then_succeeded_are_the_outage(gold: Gold) -> None:
    found = of(gold, "waited")
    assert found.recovered_ns == pytest.approx(2.0e9, abs=1e6)
    assert found.slowest_ns == pytest.approx(2.0e9, abs=1e6)
    assert (found.failed, found.right) == (0, found.n)
    assert found.waited == sum(7.0 - due > 0.25 for due in steps(5, 7))


def waited_at_one_server(root: Path) -> None:
    """Write the events of a run in which nameserver 0 restarts and answers no new client from 5 to 6.5 s.

    Nameserver 1 always answers.
    """
    with PlantedRun(root, scenario="one-server") as run:
        run.fault(5.0, 12.0, case="one-empty", targets=["nameserver-0"], healed=5.3)
        for due in steps(0, 12, 0.25):
            run.op("newcomer", due, 6.5 - due if 5.0 <= due < 6.5 else 0.001, target=0)
            run.op("newcomer", due + 0.1, 0.001, target=1)


def test_one_server_is_not_right_again_because_another_one_answers(gold: Gold) -> None:
    assert of(gold, "one-server", "newcomer").recovered_ns == pytest.approx(1.5e9, abs=2e6)
    assert of(gold, "one-server", "newcomer", "others").recovered_ns == 0
    assert of(gold, "one-server", "newcomer").gap_ns == pytest.approx(
        0.25e9, abs=1e6
    )  # 0.25 s is the time between requests to nameserver 0. Requests to nameserver 1 do not count.


def failed_then_waited(root: Path) -> None:
    """Write the events of a run in which all servers die at 5 s.

    Requests that are due from 5 to 6.49 s are refused. Requests that are due from 6.49 to 7.15 s wait
    until 7.15 s.
    """
    with PlantedRun(root, scenario="failed") as run:
        run.fault(5.0, 12.0)
        for due in steps(0, 12):
            if 5.0 <= due < 6.49:
                run.op("lookup", due, 0.001, "refused")
            else:
                run.op("lookup", due, 7.15 - due if 6.49 <= due < 7.15 else 0.001)


def test_outage_lasts_until_an_answer_came_not_until_the_last_failed_request_was_due(gold: Gold) -> None:
    # 2.15 s: the first answer comes at 7.15 s. The first report wrongly said 1.49 s, because the last request
    # that failed was due then.
    assert of(gold, "failed").recovered_ns == pytest.approx(2.15e9, abs=1e6)


def frozen_two_seconds(root: Path) -> None:
    """Write the events of a run in which a server is frozen for 2 s.

    The request that is in flight when the freeze begins is answered at once. All later requests are answered
    when the freeze ends.
    """
    with PlantedRun(root, scenario="frozen") as run:
        run.fault(5.0, 12.0, case="freeze", healed=7.0)
        run.op("lookup", 4.9995, 0.0006)
        for due in steps(5.001, 12):
            run.op("lookup", due, max(7.0 - due, 0) + 0.002)


def test_freeze_of_two_seconds_is_two_seconds_and_that_maximum_latency(gold: Gold) -> None:
    found = of(gold, "frozen")
    assert found.recovered_ns == pytest.approx(2.0e9, abs=50e6)
    assert found.slowest_ns == pytest.approx(2.0e9, abs=50e6)
    assert found.first_ns is not None
    assert found.first_ns < 2e6


def relapsed(root: Path) -> None:
    """Write the events of a run in which answers become right, and then wrong once more.

    Answers become right 1 s after the fault, and are wrong again 3 s after the fault.

    The outage lasts until the second recovery, so the first right answer must not end it.
    """
    with PlantedRun(root, scenario="relapsed") as run:
        run.fault(5.0, 12.0)
        for due in steps(0, 12):
            wrong = 5.0 <= due < 6.0 or 8.0 <= due < 8.02
            run.op("lookup", due, 0.001, "absent" if wrong else "ok")


def test_recovery_ends_at_the_first_right_answer_that_stays_right(gold: Gold) -> None:
    found = of(gold, "relapsed")
    assert found.recovered_ns == pytest.approx(3.02e9, abs=25e6)
    assert found.missing == 51


def never_recovered(root: Path) -> None:
    with PlantedRun(root, scenario="never") as run:
        run.fault(5.0, 12.0)
        for due in steps(0, 12):
            run.op("lookup", due, 0.001, "error" if due >= 5.0 else "ok")


def test_what_never_became_right_has_no_end(gold: Gold) -> None:
    assert of(gold, "never").recovered_ns is None


def undisturbed(root: Path) -> None:
    with PlantedRun(root, scenario="undisturbed") as run:
        run.fault(5.0, 12.0)
        for due in steps(0, 12):
            run.op("lookup", due, 0.2)


def test_what_was_never_disturbed_needs_no_recovery(gold: Gold) -> None:
    found = of(gold, "undisturbed")
    assert (found.recovered_ns, found.waited, found.first_ns) == (0, 0, None)
    before = [row for row in gold.timelines if "/undisturbed/" in row.run and row.bin < 0]
    assert min(row.bin for row in before) == -20
    assert {row.failed for row in before} == {0}


def heartbeats_go_on(root: Path) -> None:
    """Write the events of a run in which a server answers only heartbeats for 500 ms.

    After that, the server also answers changes. A change is due every 100 ms, except for one gap of 400 ms.
    """
    with PlantedRun(root, scenario="heartbeats") as run:
        run.fault(5.0, 12.0)
        for due in steps(0, 12, 0.1):
            if not 8.05 < due < 8.35:
                run.op("announce", due, 5.5 - due if 4.99 < due < 5.5 else 0.001)
            run.op("announce", due + 0.03, 0.001, change=None)


def test_heartbeats_that_change_nothing_hide_no_outage_of_registrations(gold: Gold) -> None:
    found = of(gold, "heartbeats", "registration")
    # if heartbeats counted as registrations, the report would say 0.23 s
    assert found.recovered_ns == pytest.approx(0.5e9, abs=1e6)
    assert of(gold, "heartbeats", "heartbeat").recovered_ns == 0


def test_what_was_over_before_the_next_request_was_due_is_not_called_nought(gold: Gold) -> None:
    assert of(gold, "heartbeats", "registration").gap_ns == pytest.approx(0.4e9, abs=1e6)
    assert of(gold, "undisturbed").gap_ns == pytest.approx(EVERY * 1e9, abs=1e6)
    found = measures.floors(gold)
    assert found[Place("equal", "undisturbed", "kill", "right_again_s")] == {"raft": 0.25}
    shown = measures.values(gold)
    (row,) = (
        row
        for row in answers.rows(shown, found)
        if (row.place.scenario, row.place.measure) == ("undisturbed", "right_again_s")
    )
    assert words.middle_of(row.arms["raft"], "s") == "below 250 ms"


def sampled_in_part(root: Path) -> None:
    """Write the events of a run of 20 s that was sampled for only 10 s.

    In these 10 s the servers use 1 s of CPU, and 3 MiB pass over links. Two servers write 3 MiB to their
    files, with 15 syncs, by the servers' own counts.
    """
    with PlantedRun(root, scenario="quiet") as run:
        run.op("lookup", 1.0, 0.001)
        for at, cpu, written in ((4.0, 3.0, 0), (14.0, 4.0, 2 << 20)):
            run.used("nameserver", 0, at, cpu)
            run.link("broker-0", "nameserver-0", at, written, written // 2)
            for index in range(2):
                own = written // (1 + index)
                run.disk(index, at, written_bytes=7 + own, syncs=3 + own // 209_715)


def test_rates_hold_for_the_time_that_was_sampled(gold: Gold) -> None:
    found = {
        place.measure: arms["raft"][next(iter(arms["raft"]))]
        for place, arms in measures.values(gold).items()
        if place.scenario == "quiet"
    }
    assert found["cpu_s_per_min"] == pytest.approx(6.0)
    assert found["network_kib_per_s"] == pytest.approx(307.2)
    assert found["written_mib_per_min"] == pytest.approx(18.0)
    assert found["syncs_per_min"] == pytest.approx(90.0)


def cut_five_seconds(root: Path) -> None:
    """Write the events of a run in which nameserver 2 is cut off for 5 s.

    A topic changes during the cut, and nameserver 2 shows the topic's old state until the cut ends.

    The observer can read all three nameservers during the cut.
    """
    with PlantedRun(root, scenario="cut") as run:
        run.fault(5.0, 18.0, case="1-2", healed=10.0, targets=["nameserver-2"])
        for index in range(3):
            run.view(0.0, index=index, version=1)
        for index in range(2):
            run.view(5.01, index=index, unseen=4.99, version=2)
        run.view(10.01, index=2, unseen=9.99, version=2)
        for index in range(3):
            run.view(19.0, "end", index=index)


def test_cut_of_five_seconds_is_five_seconds_of_disagreement(gold: Gold) -> None:
    (found,) = (row for row in gold.disagreements if "/cut/" in row.run)
    assert found.disagree_ns == pytest.approx(5e9, abs=100e6)
    assert (found.about, found.topics) == ("queues", 1)
    assert found.agree_ns == pytest.approx(0, abs=100e6)


def agreed_or_not(root: Path) -> None:
    """Write the events of four runs with a fault from 5 to 10 s, whose window ends at 18 s.

    - ``changed-later``: two ordinary changes become visible at slightly different instants. The second change
      becomes visible when the window ends.
    - ``differs-on``: nameserver 2 omits a broker from 6 s on, for ever.
    - ``behind``: a topic changes ten times a second, and nameserver 1 shows no change until 13 s. Readings
      begin 20 ms after the end of the previous reading, and last 3 ms.
    - ``in-steps``: nameserver 2 lists other brokers than the others from 9 s on. At 12 s, one reading shows
      one list, and the next reading another list. Both are still different from the others' list.
    """
    with PlantedRun(root, scenario="changed-later") as run:
        _begin_to_agree(run)
        run.view(17.0, version=7, unseen=16.99)
        run.view(17.001, index=1, version=7, unseen=17.0005)
        run.view(17.95, version=8, unseen=17.94)
        run.view(18.05, index=1, version=8, unseen=18.04)
    with PlantedRun(root, scenario="differs-on") as run:
        _begin_to_agree(run)
        run.view(6.0, index=2, brokers=[0, 1], unseen=5.99)
    with PlantedRun(root, scenario="behind") as run:
        _begin_to_agree(run)
        for version in range(2, 90):
            run.view(5.0 + 0.1 * version, version=version, unseen=5.0 + 0.1 * version - 0.026)
        run.view(13.0, index=1, version=80, unseen=12.974)
        for version in range(81, 90):
            run.view(5.0 + 0.1 * version, index=1, version=version, unseen=5.0 + 0.1 * version - 0.026)
    with PlantedRun(root, scenario="in-steps") as run:
        _begin_to_agree(run)
        for index in range(2):
            run.view(9.0, index=index, brokers=[1, 2], unseen=8.974)
            run.view(12.056, index=index, unseen=12.03)
        run.view(9.0, index=2, brokers=[0], unseen=8.974)
        run.view(12.0, index=2, brokers=[0, 1], unseen=11.974)
        run.view(12.023, index=2, unseen=11.997)


def _begin_to_agree(run: PlantedRun) -> None:
    """Add a fault, and three nameservers that show the same route until the run's end."""
    run.fault(5.0, 18.0, case="1-2", healed=10.0, targets=["nameserver-2"])
    for index in range(3):
        run.view(0.0, index=index, version=None if index == 2 else 1)
        run.view(19.0, "end", index=index)


def one_value(gold: Gold, scenario: str, case: str | None, measure: str, block: int = 1) -> float:
    of_raft = measures.values(gold)[Place("equal", scenario, case, measure)]["raft"]
    (found,) = (value for (_, number), value in of_raft.items() if number == block)
    return found


@pytest.mark.parametrize(
    ("scenario", "measure", "agreed_s"),
    [
        pytest.param("changed-later", "agree_queues_s", 0.0, id="ordinary changes end no recovery"),
        pytest.param("differs-on", "agree_s", math.inf, id="beyond the window is never"),
        pytest.param("behind", "agree_queues_s", 2.974, id="short pieces are one disagreement"),
        pytest.param("in-steps", "agree_s", 2.03, id="a list in only one reading ends no disagreement"),
    ],
)
def test_servers_agree_again_after_the_last_disagreement_that_is_no_ordinary_change(
    gold: Gold, scenario: str, measure: str, agreed_s: float
) -> None:
    assert one_value(gold, scenario, "1-2", measure) == pytest.approx(agreed_s, abs=1e-6)


def lost_by_itself(root: Path) -> None:
    """Write the events of a run in which a server ends by itself."""
    with PlantedRun(root, scenario="lost-run", lost="nameserver-1 died") as run:
        run.fault(5.0, 12.0)
        for due in steps(0, 12):
            run.op("lookup", due, 0.001)


@pytest.mark.parametrize(
    ("plant", "scenarios"),
    [(agreed_or_not, {"changed-later", "differs-on", "behind", "in-steps"}), (lost_by_itself, {"lost-run"})],
)
def test_independent_program_computes_the_same_of_planted_runs(
    gold: Gold, tmp_path: Path, spark: SparkSession, plant: Callable[[Path], None], scenarios: set[str]
) -> None:
    plant(tmp_path)
    values = {place: arms for place, arms in measures.values(gold).items() if place.scenario in scenarios}
    write_values(spark, str(tmp_path), values, {})
    compared, differ = recompute.differences(recompute.figures(tmp_path), tmp_path / "marts" / "values.csv")
    assert (differ, compared >= 3) == ([], True)


def stale_200_ms(root: Path) -> None:
    """Write the events of a run with 50 changes, which are acknowledged at once.

    A change is visible 200 ms after it was sent. The last change is visible just before the run's end.
    """
    with PlantedRun(root, scenario="stale") as run:
        for index in range(3):
            run.view(0.0, index=index, version=0)
        for version in range(1, 51):
            at = 0.4 * version - 0.001
            run.change("t", version, at, at + 0.001)
            for index in range(3):
                phase = 0.003 + 0.006 * index  # the observer reads the three servers one after another
                run.view(at + 0.2 + phase, index=index, unseen=at + 0.2 + phase - 0.02, version=version)
            for lag in (0.05, 0.15, 0.25):
                run.op("lookup", at + lag, 0.001, version=version if lag > 0.2 else version - 1)
        for index in range(3):
            run.view(21.0, "end", index=index)


def test_answers_that_are_200_ms_stale_are_measured_so(gold: Gold) -> None:
    rows = [row for row in gold.visible if "/stale/" in row.run and row.measure == "visible"]
    # 50 and not 49, because the last change before the end counts, too
    assert sum(row.n for row in rows) == 50
    for row in rows:
        assert row.value_ns == pytest.approx(200e6, abs=10e6)
    bins = {row.bin: (row.n, row.current) for row in gold.staleness if "/stale/" in row.run}
    stale = sum(n - current for n, current in bins.values())
    # 49 and not 50, because look-ups of the last change would be due after the run's end
    assert stale == 2 * 49
    assert sum(n for n, _ in bins.values()) == 3 * 49


def known_after_a_while(root: Path) -> None:
    """Write the events of a run with 40 changes, 400 ms apart.

    Nameservers show each change after 30 ms, client 0 after 300 ms, and client 1 never.
    """
    with PlantedRun(root, scenario="staleness") as run:
        run.op("lookup", 1.0, 0.001)
        observers = [("nameserver", 0), ("nameserver", 1), ("client", 0), ("client", 1)]
        for observer, index in observers:
            run.view(0.0, index=index, observer=observer, version=0)
        for version in range(1, 41):
            at = 0.4 * version
            run.change("t", version, at, at + 0.001)
            for index in range(2):
                run.view(at + 0.03, index=index, unseen=at + 0.03, version=version)
            run.view(at + 0.3, index=0, unseen=at + 0.3, observer="client", version=version)
        for observer, index in observers:
            run.view(19.9, "end", index=index, observer=observer)


def test_who_knows_a_change_is_told_by_its_age_as_long_as_it_is_the_last_one(gold: Gold) -> None:
    found = {
        (row.observer, row.age_ms): (row.n, row.current) for row in gold.currency if "/staleness/" in row.run
    }
    assert found["nameserver", 20] == (80, 0)
    assert found["nameserver", 50] == (80, 80)
    assert found["client", 200] == (80, 0)
    # A newer change comes after 400 ms, so only the last of the 40 changes becomes 500 ms old. (2, 1) means
    # that one of the two clients shows the last change at this age.
    assert found["client", 500] == (2, 1)
    assert ("client", 5000) not in found  # the run ends before the last change is 5 s old
    shown = measures.values(gold)
    share = shown[Place("equal", "staleness", None, "stale_nameservers")]["raft"]
    assert list(share.values()) == [0.0]
    # Two values (the last change, seen by two clients) are too few for a figure.
    assert Place("equal", "staleness", None, "stale_clients") not in shown


def reported_without_changes(root: Path) -> None:
    """Write the events of a run in which no topic changes.

    Brokers send only heartbeats. A nameserver restarts, and then gets its old data again.
    """
    with PlantedRun(root, scenario="no-changes") as run:
        run.fault(5.0, 12.0, case="one-empty", healed=5.5)
        for index in range(3):
            run.view(0.0, index=index, version=1)
        for at in range(20):
            run.op("announce", at, 0.001, change=None, version=1)
        run.view(5.6, "absent", index=0, unseen=5.1)
        run.view(6.0, index=0, unseen=5.98, version=1)
        for index in range(3):
            run.view(19.9, "end", index=index)


def test_reports_that_change_nothing_are_no_changes_around_a_fault(gold: Gold) -> None:
    """Check that heartbeats and repeated registrations do not count as changes.

    In the first report, they counted.
    """
    assert [row for row in gold.visible if "/no-changes/" in row.run] == []
    assert [row for row in gold.currency if "/no-changes/" in row.run] == []
    assert of(gold, "no-changes", "heartbeat").n == 7
    assert [row for row in gold.recoveries if "/no-changes/" in row.run and row.op == "registration"] == []


def broken_folders(root: Path) -> None:
    """Write run folders that are broken in different ways.

    All folders have look-ups, so they would yield figures if the report used them.
    """

    def looked(scenario: str, **how: Any) -> Path:
        with PlantedRun(root, scenario=scenario, **how) as run:
            run.fault(5.0, 12.0)
            for due in steps(4, 12, 0.1):
                run.op("lookup", due, 0.001)
        return run.folder

    cut = looked("cut-line")
    with next(cut.glob("ops-*")).open("a") as ops:
        ops.write('{"op":"lookup","due_ns":50')  # a killed process may leave an incomplete line
    damaged = looked("damaged-lines")
    with next(damaged.glob("ops-*")).open("ab") as ops_bytes:
        ops_bytes.write(b"\x00\x00\n" * 2 + b'{"op":"lookup","due_ns":"soon"}\n')
    looked("void-run", void="the proxy is gone")
    looked("unfinished", ended=False)
    (looked("no-manifest") / "manifest.json").unlink()
    half = looked("half-a-manifest") / "manifest.json"
    half.write_bytes(half.read_bytes()[:200])
    newer = looked("newer-format") / "manifest.json"
    newer.write_text(newer.read_text().replace('"format": 2', '"format": 3'))
    other = looked("another-run") / "manifest.json"
    other.write_text(other.read_text().replace('"another-run"', '"somebody-elses"'))
    for path in looked("no-events").glob("*.jsonl"):
        path.unlink()


@pytest.mark.parametrize(
    ("scenario", "why"),
    [
        ("cut-line", None),
        ("damaged-lines", "3 of 83 lines of ops-planted.jsonl are damaged, 1 may be"),
        ("void-run", "the harness failed: the proxy is gone"),
        ("unfinished", "it was never completed"),
        ("no-manifest", "it has no manifest.json"),
        ("half-a-manifest", "its manifest.json cannot be read: "),
        ("newer-format", "its manifest has format 3, this program knows up to 2"),
        ("another-run", "its manifest names another run than its folder"),
        ("no-events", "it holds no events"),
    ],
)
def test_broken_run_is_told_with_its_reason_and_is_in_no_figure(
    gold: Gold, scenario: str, why: str | None
) -> None:
    (source,) = (source for source in gold.sources if source.scenario == scenario)
    figures = [row for row in gold.recoveries if f"/{scenario}/" in row.run]
    places = [place for place in measures.values(gold) if place.scenario == scenario]
    if why is None:
        assert (source.left_out, of(gold, scenario).n) == (None, 70)
    else:
        assert source.left_out is not None
        assert source.left_out.startswith(why)
        assert (figures, places) == ([], [])


def broker_died(root: Path) -> None:
    """Write the events of a run in which broker 1 dies at 5 s.

    Nameserver 0 stops listing the broker after 1 s, nameserver 1 after 2 s, and nameserver 2 after 3 s.
    Client 0 stops listing the broker after 4 s, and client 1 never does.
    """
    with PlantedRun(root, scenario="died") as run:
        run.broker(1, "down", 5.0)
        run.broker(1, "up", 12.0)
        run.fault(5.0, 16.0, case="kill", targets=["broker-1"], healed=11.9)
        for index in range(3):
            run.view(0.0, index=index)
            gone = 6.0 + index
            run.view(gone + 0.01, index=index, unseen=gone - 0.01, brokers=[0, 2])
            run.view(12.5 + 0.1 * index, index=index, unseen=12.5 + 0.1 * index)
            run.view(19.0, "end", index=index)
        run.view(0.0, "absent", index=0, topic="made later")
        run.view(17.0, index=0, topic="made later")
        run.view(19.0, "end", index=0, topic="made later")
        for index in range(2):
            run.view(0.0, index=index, observer="client")
        run.view(9.0, index=0, observer="client", unseen=9.0, brokers=[0, 2])
        for index in range(2):
            run.view(19.0, "end", index=index, observer="client")
        for due in steps(0, 16):
            run.op("lookup", due, 0.001, brokers=[0, 1, 2] if due < 8 or due > 13 else [0, 2])
            run.op("send", due, 0.001, "error" if 5 <= due < 5.2 else "ok", target=1)
        run.op("lookup", 4.999, 0.002, brokers=[0, 2])


def broker_died_under_a_slow_reading(root: Path) -> None:
    """Write the events of a run in which a broker dies while the observer waits for an answer.

    The observer sends the query 0.8 s before the death. The answer comes 0.1 s after the death and lacks the
    broker.
    """
    with PlantedRun(root, scenario="slowly-read") as run:
        run.broker(1, "down", 5.0)
        run.fault(5.0, 10.0, case="kill", targets=["broker-1"])
        run.view(0.0, index=0)
        run.view(5.1, index=0, unseen=4.2, brokers=[0, 2])
        run.view(9.5, "end", index=0)
        run.op("lookup", 1.0, 0.001)


def cable_was_mended_within_a_reading(root: Path) -> None:
    """Write the events of a run in which broker 1 is cut off from 5 to 8 s.

    The observer sends a query 15 ms before the cut ends. The answer comes 5 ms after the cut ends, and is the
    first answer that lists the broker again.
    """
    with PlantedRun(root, scenario="mended") as run:
        run.fault(5.0, 10.0, case="cable", targets=["broker-1"], healed=8.0)
        run.view(0.0, index=0)
        run.view(6.0, index=0, unseen=6.0, brokers=[0, 2])
        run.view(8.005, index=0, unseen=7.985)
        run.view(9.5, "end", index=0)
        run.op("lookup", 1.0, 0.001)


def broker_started_slowly(root: Path) -> None:
    """Write the events of a run in which broker 1 starts slowly.

    The broker's process starts at 9 s, and nameservers list the broker from 10 s on. The harness sees the
    broker serve only at 12 s.
    """
    with PlantedRun(root, scenario="slow-start") as run:
        run.used("broker", 1, 0.0, 0.0, pid=1, event="start")
        run.broker(1, "down", 5.0)
        run.used("broker", 1, 9.0, 0.0, pid=2, event="start")
        run.broker(1, "up", 12.0)
        run.fault(5.0, 16.0, case="kill", targets=["broker-1"], healed=8.9)
        for due in steps(0, 16):
            run.op("lookup", due, 0.001, brokers=[0, 1, 2] if due < 6 or due > 10 else [0, 2])
        run.op("lookup", 8.5, 0.001, brokers=[0, 1, 2])


def test_broker_that_is_listed_while_it_starts_is_not_called_dead(gold: Gold) -> None:
    """Check that answers that list a starting broker are wrong only before the start of the broker's process.

    A broker may serve before the harness sees it serve.
    """
    found = of(gold, "slow-start")
    assert found.ghost == 51
    assert found.missing == 0
    assert found.recovered_ns == pytest.approx(3.5e9, abs=25e6)


def test_broker_that_is_left_out_at_once_is_not_left_out_of_the_figures(gold: Gold) -> None:
    (row,) = (row for row in gold.left_out if "/slowly-read/" in row.run)
    assert row.left_out_ns == 0


def test_broker_that_returns_with_the_end_of_its_fault_had_been_left_out(gold: Gold) -> None:
    (row,) = (row for row in gold.left_out if "/mended/" in row.run)
    assert row.left_out_ns == pytest.approx(1e9, abs=1e6)


def test_dead_broker_is_followed_at_each_nameserver_and_client(gold: Gold) -> None:
    found = {(row.observer, row.index): row.left_out_ns for row in gold.left_out if "/died/" in row.run}
    for index in range(3):
        assert found["nameserver", index] == pytest.approx((1 + index) * 1e9, abs=20e6)
    assert found["client", 0] == pytest.approx(4e9, abs=20e6)
    assert found["client", 1] is None


def test_returned_broker_is_another_question_than_the_dead_one(gold: Gold) -> None:
    back = {(row.observer, row.index): row.back_ns for row in gold.back if "/died/" in row.run}
    for index in range(3):
        assert back["nameserver", index] == pytest.approx((0.5 + 0.1 * index) * 1e9, abs=20e6)
    assert back["client", 0] is None
    found = of(gold, "died")
    # The 51 answers due from 12 to 13 s lack the broker that has just returned. They are neither right nor
    # wrong.
    assert found.n - found.right - found.ghost == 51


def test_answer_that_lists_a_dead_broker_is_wrong_and_one_that_overlaps_its_death_is_not(gold: Gold) -> None:
    found = of(gold, "died")
    assert found.ghost == 150
    assert found.missing == 0
    assert found.recovered_ns == pytest.approx(3e9, abs=25e6)
    assert of(gold, "died", "send").failed == 10


def test_topic_that_is_made_after_a_fault_lacks_no_broker_during_it(gold: Gold) -> None:
    """Check that a topic without a route yet does not count as a topic that lost a broker.

    Observers query the topics of later scenarios before these topics exist, so the first answers have no
    route.
    """
    assert [row for row in gold.given_up if "/died/" in row.run] == []


def given_up_by_mistake(root: Path) -> None:
    """Write the events of a run in which broker 1 is frozen.

    Nameserver 2 wrongly drops broker 2 as well, for 1 s.
    """
    with PlantedRun(root, scenario="mistake") as run:
        run.broker(1, "down", 5.0)
        run.fault(5.0, 16.0, case="freeze", targets=["broker-1"])
        for index in range(3):
            run.view(0.0, index=index)
        run.view(6.0, index=2, unseen=6.0, brokers=[0])
        run.view(7.0, index=2, unseen=7.0, brokers=[0, 2])
        run.view(6.0, "silent", index=0, unseen=6.0)
        for index in range(3):
            run.view(19.0, "end", index=index)


def test_living_broker_that_was_given_up_is_counted_and_a_silent_server_gives_up_nobody(gold: Gold) -> None:
    (found,) = (row for row in gold.given_up if "/mistake/" in row.run)
    assert (found.observer, found.brokers) == ("nameserver", 1)
    assert found.given_up_ns == pytest.approx(1e9, abs=1e6)


def given_up_twice(root: Path) -> None:
    """Write the events of a run in which nameserver 0 wrongly drops broker 2 twice, for 1 s each time."""
    with PlantedRun(root, scenario="mistakes") as run:
        run.fault(5.0, 16.0, case="freeze", targets=["broker-1"])
        run.view(0.0)
        for at in (6.0, 10.0):
            run.view(at, unseen=at, brokers=[0, 1])
            run.view(at + 1, unseen=at + 1)
        run.view(19.0, "end")


def test_times_without_a_living_broker_are_added_up_and_the_page_says_so(gold: Gold) -> None:
    assert one_value(gold, "mistakes", "freeze", "given_up_s") == pytest.approx(2.0, abs=1e-6)
    assert measures.MEASURES["given_up_s"].meaning.startswith("The time in all for which")


def late_inside_the_window(root: Path) -> None:
    """Write the events of a run in which the first requests after the fault are sent late.

    Requests that are due in the first second of the fault are sent 807 ms late.

    These requests wait because all simulated users of the load generator are busy.
    """
    with PlantedRun(root, scenario="late") as run:
        run.fault(5.0, 12.0)
        for due in steps(0, 12):
            late = 0.807 if 5.0 <= due < 6.0 else 0.001
            run.op("lookup", due, late + 0.001, late=late, queued=late > 0.1)


def test_lateness_inside_the_fault_window_is_told_and_how_many_waited_for_a_user(gold: Gold) -> None:
    found = of(gold, "late")
    assert found.lateness_ns == pytest.approx(807e6, abs=1e6)
    assert found.queued == 50
    inside = [row for row in gold.lateness if "/late/" in row.run]
    assert max(row.value_ns for row in inside if row.phase == "reference") < 2e6


def two_slots(root: Path) -> None:
    """Write two scenarios of one cluster. A broker dies in the first scenario, and stays dead in the second.

    Route lists that observers saw in the first scenario are still valid in the second scenario.
    """
    with PlantedRun(root, scenario="slot-1", session="one", seconds=10) as run:
        run.broker(2, "down", 8.0)
        for index in range(3):
            run.view(1.0, index=index, version=5)
        run.op("lookup", 1.0, 0.001)
        run.change("t", 6, 9.95, 9.96)
    with PlantedRun(root, scenario="slot-2", session="one", begin_s=10, seconds=10) as run:
        run.fault(12.0, 18.0, case="one-empty", since=10.0, targets=["nameserver-0"])
        for index in range(3):
            run.view(10.15, index=index, unseen=10.15, version=6)
        run.view(13.0, "absent", index=0, unseen=13.0)
        run.view(14.0, index=0, unseen=14.0, version=6)
        for due in steps(10, 18):
            run.op("lookup", due, 0.001, brokers=[0, 1, 2] if due < 11 else [0, 1])
        for index in range(3):
            run.view(19.9, "end", index=index)


def test_what_was_true_in_one_slot_holds_on_in_the_next(gold: Gold) -> None:
    assert of(gold, "slot-2").ghost == 0
    counted = [row for row in gold.timelines if "/slot-2/" in row.run and row.bin < -10]
    # The 50 failed look-ups come from one second. From 10 to 11 s they list broker 2, which died in the first
    # scenario.
    assert sum(row.failed for row in counted) == 50
    (found,) = (row for row in gold.disagreements if "/slot-2/" in row.run)
    assert found.disagree_ns == pytest.approx(1e9, abs=1e6)
    (seen,) = (row for row in gold.visible if "/slot-1/" in row.run and row.measure == "visible")
    # The topic changed in the first scenario, and the observer saw the change in the second scenario.
    assert seen.value_ns == pytest.approx(200e6, abs=10e6)


def messages_counted(root: Path) -> None:
    """Write the events of a run with 100 messages, some of which fail, get lost, arrive late or arrive twice.

    - One send fails. Two sends have an unknown outcome, and one of these two messages is delivered.
    - One message is sent successfully but never delivered (lost).
    - One message is delivered twice.
    - Two messages are delivered late. One of these two is delivered after the next scenario of the cluster
      has begun.
    """
    of_group: Any = {"session": "read", "consumers": 1}
    with PlantedRun(root, scenario="after-messages", begin_s=15.5, seconds=4, **of_group) as later:
        later.delivered(98, 16.4)
        later.op("lookup", 16.0, 0.001)
    with PlantedRun(root, scenario="messages", seconds=15.5, **of_group) as run:
        run.fault(5.0, 15.0)
        for number in range(100):
            outcome = "refused" if number == 50 else "unknown" if number in (51, 52) else "ok"
            due = 5.0 + 0.1 * number
            run.op(
                "send",
                due,
                3.0 if outcome == "unknown" else 1.5 if number == 60 else 0.01,
                outcome,
                message=number,
            )
            if number not in (50, 51, 53, 98):
                run.delivered(number, due + (1.2 if number == 40 else 0.02))
        run.delivered(7, 9.0)


def test_messages_are_counted_as_failed_late_repeated_and_lost(gold: Gold) -> None:
    (found,) = (row for row in gold.messages if "/messages/" in row.run)
    assert (found.sent, found.failed, found.unknown, found.lost, found.repeated) == (100, 1, 2, 1, 1)
    assert found.late == 2
    assert of(gold, "messages", "send").late == 1


def nothing_was_read(root: Path) -> None:
    """Write the events of a run whose consumer group gets none of 50 acknowledged messages."""
    with PlantedRun(root, scenario="unread", consumers=1) as run:
        run.fault(5.0, 15.0)
        for number in range(50):
            run.op("send", 5.0 + 0.1 * number, 0.01, message=number)


def test_messages_of_a_group_that_gets_nothing_are_lost(gold: Gold) -> None:
    assert one_value(gold, "unread", "kill", "lost_messages") == 50


def topics_came_to_be(root: Path) -> None:
    """Write the events of a run with two new topics, of which clients can use only the first.

    Both clients can send to the first topic after 0.6 s, and a message of the topic is read after 0.9 s. Only
    one of three brokers has the first topic. The second client can never send to the second topic. No message
    of the second topic is read.
    """
    with PlantedRun(root, scenario="new-topic", consumers=1) as run:
        for n, case in enumerate(("first-send", "update-topic")):
            begin = 5.0 + 6 * n
            run.fault(begin, begin + 5, n=n, case=case, targets=[])
            topic = f"new-by-{case}"
            for client, until in ((0, 0.2), (1, 0.6 if n == 0 else 9.9)):
                for number, due in enumerate(steps(begin, begin + min(until, 5.0), 0.1)):
                    fields = {"user": client, "topic": topic, "message": 1000 * n + 100 * client + number}
                    last = due + 0.1 >= begin + until - 1e-6
                    run.op("first_send", due, 0.1, "ok" if last else "error", **fields)
            for index in range(3):
                run.view(0.0, "absent", index=index, topic=topic)
                run.view(begin + 0.3, index=index, topic=topic, unseen=begin + 0.3, brokers=[2])
            # the brokers restart when the time span of the fault ends, so the servers drop the topic
            run.view(begin + 4.99, "absent", index=0, topic=topic, unseen=begin + 4.97)
            run.view(begin + 5.01, "absent", index=1, topic=topic, unseen=begin + 4.98)
            run.view(begin + 5.02, "absent", index=2, topic=topic, unseen=begin + 4.97)
        run.delivered(105, 5.9)
        run.delivered(1, 6.5)
        for index in range(3):
            for case in ("first-send", "update-topic"):
                run.view(19.0, "end", index=index, topic=f"new-by-{case}")


def test_new_topic_is_of_use_when_the_last_client_can_send_and_the_group_reads(gold: Gold) -> None:
    used, never = sorted((row for row in gold.new_topics if "/new-topic/" in row.run), key=lambda r: r.fault)
    assert used.sent_ns == pytest.approx(0.6e9, abs=1e6)
    assert used.read_ns == pytest.approx(0.9e9, abs=1e6)
    assert (never.sent_ns, never.read_ns) == (None, None)
    assert (used.brokers, never.brokers) == (1, 1)
    values = measures.values(gold)
    found = {
        place.measure: next(iter(arms["raft"].values()))
        for place, arms in values.items()
        if (place.scenario, place.case) == ("new-topic", "first-send")
    }
    assert found.keys() == {"all_send_s", "group_reads_s", "brokers_without", "lost_messages"} | {
        *("repeated_messages", "late_messages")
    }
    # Two of three brokers lack the topic. The fault hits no server, so there are no figures of servers.
    assert found["brokers_without"] == 2


def processes_counted(root: Path) -> None:
    """Write the events of a run in which a server is killed and started again.

    The 0.9 s of CPU that the new process uses must count, too.
    """
    with PlantedRun(root, scenario="processes") as run:
        run.op("lookup", 1.0, 0.001)
        run.used("nameserver", 0, 0.1, 10.0)
        run.used("nameserver", 0, 5.0, 10.4, event="exit", wanted=True, code=-9)
        run.used("nameserver", 0, 6.0, 0.0, pid=900, event="start")
        run.used("nameserver", 0, 19.0, 0.9, pid=900, rss_bytes=60 << 20)
        run.used("nameserver", 1, 0.1, 1.0)
        run.used("nameserver", 1, 19.0, 2.0, event="exit", wanted=False, code=1)
        run.link("broker-0", "nameserver-0", 1.0, 100, 200)
        run.link("broker-0", "nameserver-0", 19.0, 1100, 2200)


def test_process_starts_are_part_of_the_cost_and_a_death_by_itself_is_noticed(gold: Gold) -> None:
    (found,) = (row for row in gold.costs if "/processes/" in row.run)
    assert found.cpu_ns == pytest.approx((0.4 + 0.9 + 1.0) * 1e9)
    assert (found.processes, found.pids, found.died) == (2, 3, 1)
    assert found.rss_bytes == 110 << 20
    (link,) = (row for row in gold.links if "/processes/" in row.run)
    assert link.bytes == 3000


def one_side_of_a_partition(root: Path) -> None:
    with PlantedRun(root, scenario="sides") as run:
        run.fault(5.0, 15.0, case="1-2", healed=10.0, targets=["nameserver-2"])
        for due in steps(4, 15):
            for side in ("side-a", "side-b"):
                away_side = side == "side-b"
                away = away_side and 5.0 <= due < 10.0
                run.op("lookup", due, 0.001, "refused" if away else "ok", client_side=side)
                run.op("newcomer", due, 0.001, "refused" if away else "ok", target=2 if away_side else 0)
                run.op("announce", due, 0.001, "unknown" if away else "ok", target=2 if away_side else 0)


def test_clients_are_told_apart_by_side_and_servers_by_whether_they_were_struck(gold: Gold) -> None:
    assert of(gold, "sides", scope="side-a").recovered_ns == 0
    assert of(gold, "sides", scope="side-b").recovered_ns == pytest.approx(5e9, abs=25e6)
    assert of(gold, "sides", "newcomer", "struck").refused == 250
    assert of(gold, "sides", "newcomer", "struck").failed == 0
    assert of(gold, "sides", "newcomer", "others").refused == 0
    # The benchmark joins a broker's registrations at all servers at one instant into one operation. This
    # operation ends when the first server accepts the registration.
    assert of(gold, "sides", "registration").recovered_ns == 0
    assert of(gold, "sides", "announce", "struck").recovered_ns == pytest.approx(5e9, abs=25e6)


def old_on_one_side(root: Path) -> None:
    """Write the events of a run in which a partition cuts off side b from 5 to 10 s.

    Topic t changes during the partition.

    - Look-ups of side a return the new route at once. Look-ups of side b return it from 0.1 s after the end
      of the partition on.
    - One look-up of side a returns the old route 2 ms after the change. 2 ms are too short to count as a
      disturbance.
    - One look-up of side a is in flight while topic t changes, so the old route is a right answer.
    - Topic u gets version 2 and version 3. Version 2 is never acknowledged, so an answer with version 1 is
      right until version 3 is acknowledged.
    - For 1 s, queries of new clients are refused.
    """
    with PlantedRun(root, scenario="old", seconds=20) as run:
        run.fault(5.0, 15.0, case="1-2", healed=10.0, targets=["nameserver-2"])
        run.change("t", 2, 5.5, 5.501)
        run.change("u", 2, 11.0)
        run.change("u", 3, 12.0, 12.001)
        for due in steps(3, 15):
            run.op("lookup", due, 0.001, version=2 if due > 5.5 else 1, client_side="side-a")
            run.op("lookup", due, 0.001, version=2 if due > 10.09 else 1, client_side="side-b")
            refused = 6.0 - 1e-6 <= due < 7.0 - 1e-6
            outcome = "refused" if refused else "ok"
            run.op("newcomer", due, 0.001, outcome, version=None if refused else 2, client_side="side-b")
        run.op("lookup", 5.503, 0.0005, version=1, client_side="side-a")
        run.op("lookup", 5.4995, 0.001, version=1, client_side="side-a")
        run.op("lookup", 11.5, 0.001, version=1, client_side="side-a", topic="u")
        run.op("lookup", 12.101, 0.001, version=1, client_side="side-a", topic="u")


def test_answer_behind_its_time_is_stale_and_neither_right_nor_wrong(gold: Gold) -> None:
    counted = {(row.op, row.side, row.stage): row for row in gold.outcomes if "/old/" in row.run and row.n}
    away = counted["lookup", "side-b", "during"]
    assert (away.n, away.right, away.stale) == (250, 26, 224)
    assert (away.wrong, away.refused, away.failed) == (0, 0, 0)
    healed = counted["lookup", "side-b", "after"]
    assert (healed.n, healed.right, healed.stale) == (250, 245, 5)
    assert counted["lookup", "side-b", "before"].right == 100
    there = counted["lookup", "side-a", "during"]
    assert (there.n, there.right, there.stale) == (252, 251, 1)
    later = counted["lookup", "side-a", "after"]
    assert (later.n - later.right, later.stale) == (1, 1)
    asked = counted["newcomer", "side-b", "during"]
    assert (asked.refused, asked.failed, asked.right) == (50, 0, 200)


def test_old_answers_disturb_as_waiting_does_and_their_age_is_told(gold: Gold) -> None:
    away = of(gold, "old", scope="side-b")
    assert away.stale == 224 + 5
    assert away.behind_ns == pytest.approx((10.08 - 5.501) * 1e9, abs=1e6)
    assert away.recovered_ns == pytest.approx(5.101e9, abs=1e6)
    there = of(gold, "old", scope="side-a")
    # Two answers to side a were old, by 2 ms and by 100 ms. Both times are too short to count as a
    # disturbance.
    assert (there.stale, there.recovered_ns) == (2, 0)
    values = measures.values(gold)
    found = {
        place.measure: next(iter(arms["raft"].values()))
        for place, arms in values.items()
        if place.scenario == "old"
    }
    assert found["stale_lookups"] == 224 + 5 + 2
    assert found["oldest_answer_s"] == pytest.approx(10.08 - 5.501)
    assert {found[f"{how}_lookups"] for how in ("failed", "missing", "unreachable", "refused")} == {0}


def test_how_old_answers_are_is_told_by_fault_side_and_phase(gold: Gold) -> None:
    rows = [row for row in gold.staleness if "/old/" in row.run and row.op == "lookup"]
    assert {row.fault for row in rows} == {0}
    old = {
        side: sum(row.n - row.current for row in rows if row.side == side) for side in ("side-a", "side-b")
    }
    assert old == {"side-a": 2, "side-b": 229}
    said = text_of_page(gold)
    assert "Route look-ups, side b, during the fault 10 % right, 90 % old" in said
    assert "Route look-ups, side b, after the fault 98 % right, 2 % old" in said
    assert "Route look-ups, side a, during the fault above 99 % right, below 1 % old" in said
    assert "New clients, side b, during the fault 80 % right, 20 % refused" in said


def old_in_quiet_times(root: Path) -> None:
    """Write the events of a run in which every fourth look-up gets an old version.

    This version had been replaced 50 ms before.
    """
    with PlantedRun(root, scenario="idle-300") as run:
        for version in range(2, 40):
            run.change("t", version, 0.5 * version - 0.001, 0.5 * version)
        for version in range(2, 39):
            for lag in (0.05, 0.1, 0.2, 0.3):
                shown = version - 1 if lag < 0.1 else version
                run.op("lookup", 0.5 * version + lag, 0.001, version=shown)


def test_share_of_old_answers_in_quiet_times_is_a_figure(gold: Gold) -> None:
    values = measures.values(gold)
    found = values[Place("equal", "idle-300", None, "stale_answers")]["raft"]
    assert list(found.values()) == [pytest.approx(25.0)]


def failed_in_quiet_times(root: Path) -> None:
    """Write the events of a quiet run. Of 2,000 look-ups 100 have no answer, and all registrations fail."""
    with PlantedRun(root, scenario="idle-300", block=2) as run:
        for number in range(2000):
            times_out = number % 20 == 0
            due = 0.005 * number
            run.op("lookup", due, 2.0 if times_out else 0.001, "unknown" if times_out else "ok")
        for number in range(100):
            run.op("announce", 0.1 * number, 0.001, "error", user=number)


@pytest.mark.parametrize(
    ("measure", "ms"),
    [("lookup_ms_p50", 1.0), ("lookup_ms_p99", math.inf), ("announce_ms_p50", math.inf)],
)
def test_failed_requests_of_quiet_times_count_as_endless(gold: Gold, measure: str, ms: float) -> None:
    assert one_value(gold, "idle-300", None, measure, block=2) == pytest.approx(ms, rel=0.01)


def files_replaced(root: Path) -> None:
    """Write the events of a run in which a server's file is replaced.

    The count of written bytes decreases at the replacement.

    The number of bytes that this server has written is then unknown.
    """
    with PlantedRun(root, scenario="rest") as run:
        run.op("lookup", 1.0, 0.001)
        for at, written in ((0.0, 900), (10.0, 400)):
            run.disk(0, at, written_bytes=written, syncs=int(at))
            run.disk(1, at, written_bytes=int(at), syncs=int(at))


def test_t3_bytes_are_unknown_where_a_file_was_replaced(gold: Gold) -> None:
    found = {place.measure for place in measures.values(gold) if place.scenario == "rest"}
    assert "syncs_per_min" in found
    assert "written_mib_per_min" not in found


def server_started_again(root: Path) -> None:
    """Write the events of a run in which a server is killed at 5 s and starts again at 6 s.

    The new process uses 0.9 s of CPU until 11.9 s. The other server uses 0.1 s of CPU per second.
    """
    with PlantedRun(root, scenario="nameserver-restarts") as run:
        run.fault(5.0, 12.0, case="one-empty", healed=5.9)
        run.op("lookup", 6.0, 0.001)
        run.used("nameserver", 0, 4.9, 10.0)
        run.used("nameserver", 0, 5.0, 10.0, event="exit", wanted=True, code=-9)
        run.used("nameserver", 0, 6.0, 0.0, pid=900, event="start")
        run.used("nameserver", 0, 6.5, 0.8, pid=900)
        run.used("nameserver", 0, 11.9, 0.9, pid=900)
        run.used("nameserver", 0, 19.0, 3.9, pid=900)
        for at in (1.0, 4.9, 11.9, 19.0):
            run.used("nameserver", 1, at, 20.0 + 0.1 * at)


def test_what_a_restart_costs_is_a_figure(gold: Gold) -> None:
    (found,) = (row for row in gold.fault_costs if "/nameserver-restarts/" in row.run)
    assert found.cpu_ns == pytest.approx((0.9 + 0.7) * 1e9)
    assert (found.role, found.started) == ("nameserver", 1)
    values = measures.values(gold)
    cost = values[Place("equal", "nameserver-restarts", "one-empty", "restart_cpu_s")]["raft"]
    assert list(cost.values()) == [pytest.approx(1.6)]
    (row,) = (row for row in answers.rows(values) if row.place.measure == "restart_cpu_s")
    assert words.middle_of(row.arms["raft"], "CPU s") == "1.60 s"
    assert "CPU of all servers after the fault, starts included 1.60 s" in text_of_page(gold)


def test_page_tells_how_many_operations_waited_for_a_free_user_inside_fault_windows(gold: Gold) -> None:
    """Check that the page says how late the load was during a fault: in this run 807 ms.

    The first report said 5.8 ms for such a load.
    """
    inside = [row for row in gold.recoveries if row.scope == "all"]
    total = sum(row.n for row in inside)
    assert (
        f"Inside fault windows 50 of {total:,} operations had to wait for a free user of the generator; the "
        "latest was sent 807 ms after it was due (route look-ups, equal late 1 raft)."
    ) in text_of_page(gold)


def test_void_attempts_of_a_comparison_stand_on_its_page_with_their_reasons(
    tmp_path: Path, spark: SparkSession
) -> None:
    with PlantedRun(tmp_path, scenario="quiet", attempt=2) as run:
        run.op("lookup", 1.0, 0.001)
    assert report_roots(tmp_path) == [str(tmp_path / "runs")]
    first = msgspec.structs.replace(run.manifest, attempt=1, void="the proxy is gone")
    aside = void_folder(tmp_path, first)
    aside.mkdir(parents=True)
    write_manifest(aside, first)
    sources = silver.find(spark, report_roots(tmp_path))
    used, void = sorted(sources, key=lambda source: source.left_out or "")
    assert (used.left_out, void.left_out) == (None, "the harness failed: the proxy is gone")
    said = text_of_page(Gold(sources=sources))
    assert "/quiet/1/raft/attempt=1 the harness failed: the proxy is gone" in said


def few_and_many(root: Path) -> None:
    """Write the events of two runs with the same faults. The second run has ten times as many operations."""
    for scenario, times in (("few", 1), ("many", 10)):
        with PlantedRun(root, scenario=scenario, consumers=1) as run:
            run.fault(5.0, 15.0, case="1-2", healed=10.0, targets=["nameserver-2"])
            run.broker(1, "down", 5.0)
            for index in range(2):
                run.view(0.0, index=index, version=1)
                run.view(19.0, "end", index=index)
            for number in range(200 * times):
                due = 0.1 * (number // times)
                outcome = "error" if 6.0 < due < 7.0 else "ok"
                run.op(
                    "lookup", due, 0.001, outcome, version=1, client_side="side-a", remark=f"port {number}"
                )
                run.op("send", due, 0.002, message=number)
                run.op("announce", due, 0.003, user=number % 40, change=number)
                run.delivered(number, due + 0.01)
            for at in range(20 * times):
                run.used("nameserver", 0, at / times, 0.01 * at / times)
                run.link("broker-0", "nameserver-0", at / times, at, at)


def test_no_table_that_comes_to_the_driver_grows_with_the_load(gold: Gold) -> None:
    def rows(scenario: str) -> dict[str, int]:
        tables = {field.name: getattr(gold, field.name) for field in dataclasses.fields(gold)}
        return {name: sum(f"/{scenario}/" in row.run for row in table) for name, table in tables.items()}

    few, many = rows("few"), rows("many")
    assert many == few
    filled = {name for name, number in few.items() if number}
    assert {"recoveries", "outcomes", "timelines", "latency", "lateness", "messages"} <= filled
    assert {"reasons", "costs", "links", "files"} <= filled


def counted_backwards(gold: Gold, scenario: str) -> backwards.Counted:
    rows = [row for row in gold.backward if f"/{scenario}/" in row.run]
    assert rows, f"nobody looked at {scenario}"
    return sum(row.fell + row.relisted for row in rows), max(row.longest_ns for row in rows) / 1e9


@pytest.mark.parametrize("scenario", backwards.COUNTED)
def test_answers_that_go_backwards_are_counted_with_their_longest_time(gold: Gold, scenario: str) -> None:
    times, longest_s = counted_backwards(gold, scenario)
    assert times == backwards.COUNTED[scenario][0]
    assert longest_s == pytest.approx(backwards.COUNTED[scenario][1])


@pytest.mark.parametrize("scenario", backwards.COUNTED)
def test_count_by_hand_of_answers_that_go_backwards_is_the_same(gold: Gold, scenario: str) -> None:
    life = {source.life for source in gold.sources if source.scenario == scenario}
    folders = [Path(source.uri.removeprefix("file:")) for source in gold.sources if source.life in life]
    by_hand, counted = backwards.by_hand(folders), counted_backwards(gold, scenario)
    assert by_hand[0] == counted[0]
    assert by_hand[1] == pytest.approx(counted[1])


def test_answers_that_go_backwards_stand_at_the_fault_before_them_on_the_page_and_in_its_tables(
    gold: Gold, tmp_path: Path, spark: SparkSession
) -> None:
    values = measures.values(gold)

    def value(scenario: str, case: str | None, measure: str) -> list[float]:
        return list(values[Place("equal", scenario, case, measure)]["raft"].values())

    assert value("backwards", "1-2", "backward_answers") == [2.0]
    assert value("backwards", "1-2", "backward_s") == [pytest.approx(0.38)]
    assert value("restarted", "1-2", "backward_answers") == [0.0]
    # This answer goes backwards before the scenario's fault, so the report must not count it for any case.
    assert value("goes-on", None, "backward_answers") == [1.0]
    assert value("goes-on", "1-2", "backward_answers") == [0.0]
    assert not [place for place in values if place.scenario == "foreign" and "backward" in place.measure]
    said = text_of_page(gold)
    assert "Answers that went backwards" in said
    assert re.search(
        "Answers of servers went backwards 6 times in 4 of [0-9]+ runs; this must never happen: raft 6 "
        "times, for 2.48 s at the longest.",
        said,
    )
    write_values(spark, str(tmp_path), values, {})
    with (tmp_path / "marts" / "values.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["measure"] == "backward_answers"]
    assert {(row["scenario"], row["value"]) for row in rows} >= {("backwards", "2.0"), ("set-back", "0.0")}


def figures_of(gold: Gold, scenario: str) -> dict[str, float]:
    """Return the figures of a scenario that has only one run and only one fault."""
    return {
        place.measure: next(iter(arms["raft"].values()))
        for place, arms in measures.values(gold).items()
        if place.scenario == scenario and place.case is not None
    }


def test_t5_answer_is_right_that_leaves_out_a_broker_out_of_the_clients_reach(gold: Gold) -> None:
    found = figures_of(gold, "parted")
    # 20: wrong answers to side a. 30: wrong answers to side b. 10: answers to side a that list simulated
    # broker 101.
    assert found["unreachable_lookups"] == 20 + 30 + 10
    assert found["missing_lookups"] == 10 + 1
    side_a, side_b = (of(gold, "parted", scope=f"side-{side}") for side in "ab")
    assert (side_a.unreachable, side_a.missing) == (30, 0)
    assert (side_b.unreachable, side_b.missing) == (30, 11)
    assert side_a.recovered_ns == pytest.approx(2.051e9, abs=1e6)
    assert side_b.recovered_ns == pytest.approx(4.051e9, abs=1e6)
    counted = {(row.side, row.stage): row for row in gold.outcomes if "/parted/" in row.run}
    assert counted["side-a", "after"].returning == 5
    assert counted["side-a", "after"].wrong == 0


def test_broker_that_came_back_from_an_earlier_fault_is_missed_like_any_other(gold: Gold) -> None:
    """Check that an answer in a later fault is wrong if it lacks a broker that only an earlier fault hit.

    An earlier version of the report excused such answers until the end of the scenario.
    """
    counted = {row.fault: row for row in gold.outcomes if "/lost-again/" in row.run and row.stage == "after"}
    found = {
        place.case: next(iter(arms["raft"].values()))
        for place, arms in measures.values(gold).items()
        if place.scenario == "lost-again" and place.measure == "missing_lookups"
    }
    assert found == {"1-2": 0, "1-1-1": 20}
    assert counted[0].returning == 10


def test_t5_broker_lists_and_queue_counts_are_two_disagreements(gold: Gold) -> None:
    found = figures_of(gold, "two-kinds")
    assert found["disagree_s"] == pytest.approx(1.5, abs=0.01)
    assert found["disagree_topics"] == 1
    assert found["agree_s"] == 0
    assert found["disagree_queues_s"] == pytest.approx(3.0, abs=0.01)
    assert found["agree_queues_s"] == pytest.approx(0, abs=0.01)


def test_time_without_an_answer_of_some_server_is_no_disagreement_and_is_told(gold: Gold) -> None:
    """A silent server contradicts no other server, so its silence is a separate figure."""
    found = figures_of(gold, "no-answer")
    assert found["unanswering_s"] == pytest.approx(3.5, abs=1e-6)
    assert found["disagree_s"] == pytest.approx(2.0, abs=1e-6), "an absent topic is an answer"
    assert figures_of(gold, "two-kinds")["unanswering_s"] == 0


def test_time_between_two_readings_is_measured(gold: Gold) -> None:
    """Check the median time from the last query before a change to the first query after it.

    This time is 30 ms at four changes. At four other changes the events say 0 ms, which means that the time
    is not known. So these changes do not count.
    """
    (found,) = (row for row in gold.observed if "/no-answer/" in row.run)
    assert found.apart_ns == 30_000_000


def test_t4_recoveries_of_a_partition_are_told_for_each_side_and_not_pooled(gold: Gold) -> None:
    found = figures_of(gold, "parted")
    assert found["announce_again_side_a_s"] == pytest.approx(5.0, abs=0.06)
    assert found["announce_again_side_b_s"] == pytest.approx(0.7, abs=0.06)
    assert {"announce_again_s", "right_again_s"}.isdisjoint(found)


PLAYED: Final[tuple[DesignName, ...]] = ("independent", "raft")


def played(root: Path) -> None:
    """Write the folder of a saved session of the playground, which has a run of each design."""
    for arm in PLAYED:
        with_a_kill_and_a_partition(root, arm)


@pytest.mark.parametrize("arms", [PLAYED, PLAYED[1:]], ids="-".join)
def test_faults_of_a_saved_session_of_the_playground_stand_on_a_page_of_its_own(
    planted: tuple[Gold, list[str]], arms: tuple[DesignName, ...], tmp_path: Path
) -> None:
    """Check that the report of a saved session needs no other runs, as docs/playground.md says.

    A saved session has no costs, no headline measures and no other scenarios.
    """
    session = only(planted[0], lambda source: source.scenario == "played" and source.arm in arms)
    assert [(source.arm, source.left_out) for source in session.sources] == [(arm, None) for arm in arms]
    text = report_of(session, tmp_path)
    assert "kill broker-1" in text
    assert "part nameserver-0" in text
    with (tmp_path / "marts" / "values.csv").open() as file:
        assert {row["arm"] for row in csv.DictReader(file)} == set(arms)


#: Numbers of brokers whose names the benchmark did not choose.
FOREIGN: Final = [FOREIGN_FROM + 7, FOREIGN_FROM + 999_999_999]


def attached(root: Path) -> None:
    """Write the events of a run on a cluster that other people run.

    The kinds of events are the same as in test_attached.py.

    The harness then sees no server process, and counts no bytes of links and disks. Look-ups take 4 ms.
    """
    with PlantedRun(
        root, scenario="quiet", arm="independent", servers=2, brokers=2, links="none", divisor=1.0
    ) as run:
        for broker in FOREIGN:
            run.broker(broker, "up", 0.0)
        for observer in ("nameserver", "client"):
            for index in range(2):
                run.view(0.0, index=index, observer=observer, brokers=FOREIGN)
                run.view(19.9, "end", index=index, observer=observer)
        for number in range(40):
            due, server = 0.4 * number, number % 2
            run.op("lookup", due, 0.004, brokers=FOREIGN, target=server)
            run.op("newcomer", due, 0.006, brokers=FOREIGN, target=server)
            run.op("announce", due, 0.003, target=server)
            run.op("send", due, 0.002, target=FOREIGN[server], message=2 * number)
            run.op("send_once", due, 0.002, target=FOREIGN[server], message=2 * number + 1)
        for role, cpu in (("generator", 0.5), ("prober", 0.2), ("harness", 0.3), ("machine", 1.5)):
            for at in (0.0, 20.0):
                run.used(role, 0, at, cpu * at / 20.0)


def test_run_on_a_given_cluster_has_a_page_of_its_own(
    planted: tuple[Gold, list[str]], tmp_path: Path
) -> None:
    given = only(planted[0], lambda source: (source.scenario, source.arm) == ("quiet", "independent"))
    assert [source.left_out for source in given.sources] == [None]
    values = measures.values(given)
    typical = values[Place("equal", "quiet", None, "lookup_ms_p50")]["independent"]
    assert list(typical.values()) == [pytest.approx(4.0, rel=0.01)]
    assert {place.measure for place in values}.isdisjoint({"cpu_s_per_min", "rss_mib", "network_kib_per_s"})
    text = report_of(given, tmp_path)
    assert "Independent nameservers under load</h1>" in text
    assert "Nameservers: 2, brokers: 2." in text
    assert "Route look-up, typical" in text
    for of_two_arms in ("Does RocketMQ need", "What to choose", "Ten questions", "Difference", "claims"):
        assert of_two_arms not in text.partition("<body>")[2], of_two_arms


PLANTS: Final[tuple[Callable[[Path], None], ...]] = (
    played,
    attached,
    waited_for_an_election,
    waited_at_one_server,
    failed_then_waited,
    frozen_two_seconds,
    relapsed,
    never_recovered,
    cut_five_seconds,
    agreed_or_not,
    lost_by_itself,
    stale_200_ms,
    broker_died,
    broker_died_under_a_slow_reading,
    cable_was_mended_within_a_reading,
    broker_started_slowly,
    given_up_by_mistake,
    given_up_twice,
    late_inside_the_window,
    two_slots,
    messages_counted,
    nothing_was_read,
    topics_came_to_be,
    processes_counted,
    one_side_of_a_partition,
    old_on_one_side,
    old_in_quiet_times,
    failed_in_quiet_times,
    server_started_again,
    few_and_many,
    undisturbed,
    heartbeats_go_on,
    sampled_in_part,
    files_replaced,
    known_after_a_while,
    *backwards.PLANTS,
    *reachability.PLANTS,
    reported_without_changes,
    broken_folders,
)
"""Functions that write run folders with planted events. One run of the report reads all these folders."""
