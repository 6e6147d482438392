"""A resumed comparison makes the missing runs of a round, and no others."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import msgspec

from routekeeper.bench.compare import missing_turns
from routekeeper.bench.plan import load_plan
from routekeeper.bench.runfolder import Arm, read_manifest, write_manifest
from routekeeper.bench.schedule import Comparison, blocks_of
from tests.bench.report.planted import PlantedRun

ASKED: Final = Comparison(profile="smoke", plan=load_plan("smoke"), seed=4, command=["mqbench"])


def make(out: Path, arm: Arm, *, scenarios: int, seed: int) -> None:
    """Write one design's run folders of the first ``scenarios`` scenarios, all of them finished."""
    shutil.rmtree(out, ignore_errors=True)
    for scenario in ASKED.plan.scenarios[:scenarios]:
        with PlantedRun(out, scenario=scenario.name, arm=arm) as run:
            pass
        write_manifest(run.folder, msgspec.structs.replace(read_manifest(run.folder), seed=seed))


def test_t10_resumed_round_keeps_the_runs_that_it_has(tmp_path: Path) -> None:
    (turns,) = blocks_of(ASKED.plan, ASKED.seed)
    assert missing_turns(tmp_path, ASKED) == turns
    every = len(ASKED.plan.scenarios)
    make(tmp_path, turns[0].arm, scenarios=every, seed=turns[0].seed)
    assert missing_turns(tmp_path, ASKED) == turns[1:], "the first one is over"
    make(tmp_path, turns[1].arm, scenarios=every, seed=turns[1].seed)
    assert missing_turns(tmp_path, ASKED) == [turns[0], turns[2]]
    make(tmp_path, turns[1].arm, scenarios=every - 1, seed=turns[1].seed)
    assert missing_turns(tmp_path, ASKED) == turns, "it was interrupted in its last scenario"
    make(tmp_path, turns[1].arm, scenarios=every, seed=turns[1].seed + 1)
    assert missing_turns(tmp_path, ASKED) == turns, "another comparison's load and faults"
