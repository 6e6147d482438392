"""A small comparison of three arms (designs) works, from the first run to the finished report.

It has real clusters, load and faults.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from routekeeper.bench import compare
from routekeeper.bench.chance import stream
from routekeeper.bench.plan import quiet_seconds
from routekeeper.bench.publish import PublishError, publish
from routekeeper.bench.schedule import blocks_of
from tests.bench import recompute

pytestmark = [pytest.mark.bench, pytest.mark.alone, pytest.mark.timeout(600)]

ARMS = ("independent", "raft", "zookeeper")
SCENARIOS = ("quiet", "broker-dies", "leader-fails")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run ``mqbench compare --open``, and return the path of the report page and the program's output."""
    out = tmp_path_factory.mktemp("compare")
    command = [
        sys.executable,
        "-m",
        "routekeeper.bench",
        "compare",
        "--profile",
        "smoke",
        "--seed",
        "7",
        "--open",
    ]
    browser = out / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" >> {out}/opened\n')
    browser.chmod(0o755)
    done = subprocess.run(
        [*command, "--out", str(out)],
        env={**os.environ, "BROWSER": str(browser)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Path(done.stdout.splitlines()[-1]), done.stderr


def folder(page: Path, arm: str, scenario: str) -> Path:
    return page.parent / "runs" / "series=equal" / f"scenario={scenario}" / "block=1" / f"arm={arm}"


def rows(page: Path, arm: str, scenario: str, prefix: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(folder(page, arm, scenario).glob(f"{prefix}-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def test_compare_writes_one_self_contained_page_opens_it_and_says_when_it_will_end(
    comparison: tuple[Path, str],
) -> None:
    page, said = comparison
    text = page.read_text()
    assert text.lower().startswith("<!doctype html>")
    assert "src=" not in text.replace('src="data:', "")
    opened = page.parents[1] / "opened"
    assert opened.read_text() == f"{page.as_uri()}\n"
    for word in ("run 1 of 3", "run 3 of 3", "broker-dies: kill", "leader-fails: kill", "ends about "):
        assert word in said


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_was_really_run_and_served_every_kind(comparison: tuple[Path, str], arm: str) -> None:
    page, _ = comparison
    for scenario in SCENARIOS:
        manifest = json.loads((folder(page, arm, scenario) / "manifest.json").read_text())
        assert (manifest["void"], manifest["lost"]) == (None, None)
        assert "--out" not in manifest["command"]
        assert manifest["durability"] == (None if arm == "independent" else "fsync")
        served = {row["op"] for row in rows(page, arm, scenario, "ops") if row["outcome"] == "ok"}
        assert served == {"lookup", "newcomer", "announce", "send", "send_once"}
    (fault,) = rows(page, arm, "leader-fails", "faults")
    assert fault["role"] == ("independent" if arm == "independent" else "leader")
    (struck,) = fault["targets"]
    told = [
        row
        for row in rows(page, arm, "leader-fails", "ops")
        if row["op"] == "announce"
        and row.get("change") is not None
        and row["outcome"] == "ok"
        and f"nameserver-{row.get('target')}" != struck
        and fault["begin_ns"] < row["due_ns"] < fault["healed_ns"]
    ]
    assert told, "a change was taken while the leader was away"


def test_report_has_the_figures_of_an_independent_recomputation(comparison: tuple[Path, str]) -> None:
    """Compare the figures for newly recorded events. recompute.py imports no code of the report."""
    page, _ = comparison
    found = recompute.figures(page.parent)
    assert {measure for _, _, measure, _, _ in found} >= {
        *("right_again_s", "slowest_lookup_s", "announce_again_s", "newcomer_right_s"),
        *("left_by_nameservers_s", "left_by_clients_s", "disagree_s", "unanswering_s", "cpu_s_per_min"),
    }
    compared, differ = recompute.differences(found, page.parent / "marts" / "values.csv")
    assert differ == []
    assert compared >= 25


@pytest.mark.parametrize("arm", ARMS)
def test_every_server_and_every_client_leaves_a_dead_broker_out_and_takes_it_back(
    comparison: tuple[Path, str], arm: str
) -> None:
    page, _ = comparison
    (fault,) = rows(page, arm, "broker-dies", "faults")
    dead = int(fault["targets"][0].removeprefix("broker-"))
    shown: dict[tuple[str, int], list[list[int]]] = {}
    # On a busy machine, the last observer may list the broker again only after the next scenario has begun.
    # So read the route lists of two scenarios.
    views = [row for name in ("broker-dies", "leader-fails") for row in rows(page, arm, name, "views")]
    for row in sorted(views, key=lambda row: row["seen_ns"]):
        if row["topic"] == "bench-0" and row["state"] == "routed" and row["seen_ns"] > fault["begin_ns"]:
            shown.setdefault((row["observer"], row["index"]), []).append(row["brokers"])
    assert len([key for key in shown if key[0] == "nameserver"]) == 3
    assert len([key for key in shown if key[0] == "client"]) == 4
    for key, brokers in shown.items():
        left_out = [place for place, listed in enumerate(brokers) if dead not in listed]
        assert left_out, key
        assert dead in brokers[-1], key


def test_arms_of_a_block_get_the_same_load(comparison: tuple[Path, str]) -> None:
    """Check that all designs get the same operations and topics at the same times after their start."""
    page, _ = comparison
    loads: dict[str, dict[str, list[Any]]] = {}
    for arm in ARMS:
        began = json.loads((folder(page, arm, "quiet") / "manifest.json").read_text())["started_ns"]
        kinds = loads[arm] = {}
        for row in sorted(rows(page, arm, "quiet", "ops"), key=lambda row: row["due_ns"]):
            due_ns = row["due_ns"] - began
            match row["op"]:
                case "lookup" | "send" | "send_once":
                    kinds.setdefault(row["op"], []).append((due_ns, row["topic"], row.get("message")))
                case "newcomer":
                    kinds.setdefault("newcomer", []).append((due_ns, row["topic"], row["target"]))
                case "announce" if row.get("change") is not None and row["version"] > 2:
                    # Remove duplicates below, because some designs acknowledge a change once, and other
                    # designs once from each server. A broker's first change is its start and does not belong
                    # to the load.
                    kinds.setdefault(f"change of {row['topic']}", []).append((due_ns, row["version"]))
    for kind in ("lookup", "send", "send_once", "newcomer", *(k for k in loads["raft"] if "change" in k)):
        distinct = [list(dict.fromkeys(loads[arm][kind])) for arm in ARMS]
        alike = min(map(len, distinct))
        assert alike > 5, kind
        assert distinct[0][:alike] == distinct[1][:alike] == distinct[2][:alike], kind
    assert len({topic for _, topic, _ in loads["raft"]["lookup"]}) > 1
    asked = [target for _, _, target in loads["raft"]["newcomer"]]
    assert all(after == (before + 1) % 3 for before, after in itertools.pairwise(asked)), (
        "new clients, in turn"
    )


def test_arms_of_a_block_get_the_same_faults(comparison: tuple[Path, str]) -> None:
    """Check that in each arm (design) the same broker is hit, after the same time without faults.

    The server that is hit may differ between arms, because each arm has its own leader.
    """
    page, _ = comparison
    asked = compare.load(page.parent)
    (series,) = asked.plan.series
    seed = json.loads((folder(page, "raft", "quiet") / "manifest.json").read_text())["seed"]
    jitter = stream(seed, "jitter of faults")
    planned_ns = [
        round(quiet_seconds(fault, series, jitter.random()) * 1e9)
        for scenario in asked.plan.scenarios
        for fault in scenario.faults
    ]
    assert all(600_000_000 <= each <= 700_000_000 for each in planned_ns)
    struck = []
    late_ns: list[list[int]] = []
    for arm in ARMS:
        (broker_dies,) = rows(page, arm, "broker-dies", "faults")
        (leader_fails,) = rows(page, arm, "leader-fails", "faults")
        quiet_ns = [fault["begin_ns"] - fault["from_ns"] for fault in (broker_dies, leader_fails)]
        late_ns.append([quiet - planned for quiet, planned in zip(quiet_ns, planned_ns, strict=True)])
        struck.append(broker_dies["targets"])
    assert struck[0] == struck[1] == struck[2]
    # On a busy machine a fault may come late, but it never comes early. If each arm drew its own times
    # without faults, some faults would come early. At least in one arm, the fault must come less than 50 ms
    # late.
    for late in zip(*late_ns, strict=True):
        assert 0 <= min(late) < 50_000_000, late_ns


def test_comparison_that_is_whole_is_not_made_again(comparison: tuple[Path, str]) -> None:
    page, _ = comparison
    made = (folder(page, "raft", "quiet") / "manifest.json").read_bytes()
    assert compare.make_runs(page.parent, compare.load(page.parent)) == []
    assert (folder(page, "raft", "quiet") / "manifest.json").read_bytes() == made


def test_turn_with_a_run_missing_is_not_made_and_the_others_of_its_round_are(
    comparison: tuple[Path, str],
) -> None:
    page, _ = comparison
    asked = compare.load(page.parent)
    (block,) = blocks_of(asked.plan, asked.seed)
    manifest = folder(page, "zookeeper", "quiet") / "manifest.json"
    aside = manifest.rename(manifest.with_name("aside"))
    made = {turn.arm: compare.is_made(page.parent, asked, turn) for turn in block}
    aside.rename(manifest)
    assert made == {arm: arm != "zookeeper" for arm in ARMS}


def test_published_raw_events_make_the_same_page_again(comparison: tuple[Path, str], tmp_path: Path) -> None:
    page, _ = comparison
    to = tmp_path / "published"
    to.mkdir()
    (to / "runs-gone.tar.xz").write_bytes(b"of a series that an earlier publication had")
    (archive,) = publish(page.parent, to)
    assert [path.name for path in to.glob("*.tar.xz")] == ["runs-equal.tar.xz"]
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    assert not list((tmp_path / "unpacked").rglob("*.log*")), "event files and manifests alone are published"
    roots = [str(folder) for folder in sorted((tmp_path / "unpacked").iterdir())]
    again = [sys.executable, "-m", "routekeeper.bench", "report", *roots, "--out", str(tmp_path / "again")]
    done = subprocess.run(again, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    published = (tmp_path / "published" / "report.html").read_bytes()
    assert (tmp_path / "again" / "report.html").read_bytes() == published == page.read_bytes()


def test_result_with_a_damaged_event_file_is_not_published(
    comparison: tuple[Path, str], tmp_path: Path
) -> None:
    page, _ = comparison
    result = tmp_path / "result"
    shutil.copytree(page.parent, result, ignore=shutil.ignore_patterns("work", "silver"))
    ops = next(folder(result / page.name, "raft", "quiet").glob("ops-*.jsonl"))
    with ops.open("r+b") as file:
        file.truncate(ops.stat().st_size // 2)
    with pytest.raises(PublishError, match=f"{re.escape(ops.name)} is not as recorded"):
        publish(result, tmp_path / "published")
    assert not (tmp_path / "published").exists()


def test_publication_for_which_the_disk_is_too_small_leaves_what_was_published_before(
    comparison: tuple[Path, str], tmp_path: Path
) -> None:
    page, _ = comparison
    to = tmp_path / "published"
    command = [sys.executable, "-m", "routekeeper.bench.publish", str(page.parent), str(to)]
    subprocess.run(command, check=True)
    before = {path.name: path.read_bytes() for path in to.iterdir()}
    small = (resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    done = subprocess.run(
        command, preexec_fn=partial(resource.setrlimit, *small), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "publish: [Errno 27] File too large\n")
    assert {path.name: path.read_bytes() for path in to.iterdir()} == before
