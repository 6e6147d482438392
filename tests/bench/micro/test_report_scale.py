"""The generated run folders that test large reports have the same file format as real run folders."""

from pathlib import Path

import msgspec
import pytest

from routekeeper.bench.events import FILE_PREFIX
from routekeeper.bench.micro.report_scale import RUNS, parts, rows_wanted, write_run
from routekeeper.bench.runfolder import read_manifest


def test_generated_runs_hold_as_many_rows_as_wanted_and_each_is_an_event(tmp_path: Path) -> None:
    every = parts(tmp_path, RUNS * 1000 + 7)
    assert sum(part.rows for part in every) == RUNS * 1000 + 7
    assert len({(part.scenario, part.block, part.arm) for part in every}) == RUNS
    kinds = {prefix: kind for kind, prefix in FILE_PREFIX.items()}
    for part in every[:2]:
        assert write_run(part) == part.rows
    folders = sorted(tmp_path.rglob("arm=*"))
    assert len(folders) == 2
    for folder in folders:
        assert read_manifest(folder).arm == "independent"
        counted = {}
        for path in folder.glob("*.jsonl"):
            prefix = path.name.partition("-")[0]
            rows = [msgspec.json.decode(line, type=kinds[prefix]) for line in path.read_bytes().splitlines()]
            counted[prefix] = len(rows)
        assert sum(counted.values()) == 1000
        assert counted["truth"] == 20
        assert counted["views"] == 50


@pytest.mark.parametrize("text", ["0", "8999", "1000000001"])
def test_rows_out_of_range_are_refused(text: str) -> None:
    import argparse

    with pytest.raises(argparse.ArgumentTypeError, match="allowed are 9000 to 1000000000"):
        rows_wanted(text)
