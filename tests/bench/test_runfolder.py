"""A run's manifest is read as it was written, and wrong manifests are refused.

Wrong manifests are of another arm or of a newer format. Runs are found from each level of the folders, but
void attempts are not found.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from routekeeper.bench.runfolder import (
    Machine,
    Manifest,
    ManifestError,
    find_run_folders,
    read_manifest,
    run_folder,
    void_folder,
    write_manifest,
)


def a_manifest(**changes: object) -> Manifest:
    manifest = Manifest(
        arm="raft",
        series="equal",
        scenario="quiet",
        block=2,
        order_in_block=0,
        session="s",
        profile="smoke",
        seed=7,
        durability="fsync",
        servers=3,
        brokers=3,
        sim_brokers=2,
        clients=4,
        divisor=40.0,
        timers={},
        workload={},
        machine=Machine(cpu="c", cores=2, memory_bytes=1, system="s"),
        versions={},
        commit="0",
        command=["mqbench"],
        started_at="2026-01-01T00:00:00+00:00",
        started_ns=0,
        measure_begin_ns=0,
        measure_end_ns=10,
    )
    return msgspec.structs.replace(manifest, **changes)


def stored(out: Path, manifest: Manifest) -> Path:
    folder = run_folder(
        out, series=manifest.series, scenario=manifest.scenario, block=manifest.block, arm=manifest.arm
    )
    folder.mkdir(parents=True)
    write_manifest(folder, manifest)
    return folder


def test_manifest_survives_being_written_and_read(tmp_path: Path) -> None:
    manifest = a_manifest(lost="nameserver-1 ended with -11")
    assert read_manifest(stored(tmp_path, manifest)) == manifest


def test_manifest_in_another_arms_folder_is_refused(tmp_path: Path) -> None:
    folder = stored(tmp_path, a_manifest())
    other = folder.with_name("arm=independent")
    folder.rename(other)
    with pytest.raises(ManifestError, match="arm=raft"):
        read_manifest(other)


def test_newer_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="format 3"):
        read_manifest(stored(tmp_path, a_manifest(format=3)))


def test_runs_are_found_from_any_level_and_void_attempts_are_not(tmp_path: Path) -> None:
    folder = stored(tmp_path, a_manifest())
    void = void_folder(tmp_path, a_manifest(void="disk full"))
    void.mkdir(parents=True)
    write_manifest(void, a_manifest(void="disk full"))
    for root in (tmp_path, tmp_path / "runs", folder.parent, folder):
        assert find_run_folders([root]) == [folder]
    assert read_manifest(void).void == "disk full"
