"""Tests of a state file whose writer may crash at any step, and of the content that remains."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Final

import pytest

from routekeeper.broker.store.files import StateStorage
from routekeeper.remoting.state_file import Storage, Trust, load, replace
from tests.broker.sim.disk import PowerCut, SimulatedDisk

PATH: Final = Path("/data/topics.json")


def read(content: bytes) -> int:
    return int(content)


def disk(seed: int = 0) -> SimulatedDisk:
    made = SimulatedDisk(seed)
    made.make_directory(PATH.parent)
    made.sync_directory(PATH.parent.parent)
    return made


def storage(made: SimulatedDisk) -> Storage:
    return StateStorage(made)


@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.parametrize("power", [False, True], ids=["process killed", "power cut"])
def test_writer_that_ends_at_any_step_leaves_the_old_or_the_new_content(
    before: int, power: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The file has the old or the new content, even if the next writer crashes, too."""
    for first, second, seed in itertools.product(range(1, 20), (1, 4, 7, 9, 11), range(4 if power else 1)):
        made, random_seed = disk(seed), random.Random(seed)
        for number in range(1, before + 1):
            replace(storage(made), PATH, b"%d" % number)
        allowed = {before or None}
        for number, step in ((10, first), (11, second)):
            made.cut_at = made.calls + step
            try:
                replace(storage(made), PATH, b"%d" % number)
                allowed = {number}
            except PowerCut:
                allowed.add(number)
            made.lose_power() if power and random_seed.random() < 0.8 else made.end_process()
            made.cut_at = None
            found = load(storage(made), PATH, read)
            assert found.value in allowed
            assert found.trust in (Trust.CHECKED, Trust.ABSENT)
            allowed = {found.value}
    assert caplog.records == []


def test_backup_is_good_whenever_a_file_of_two_versions_is_damaged() -> None:
    for step in range(1, 20):
        made = disk()
        for number in (1, 2):
            replace(storage(made), PATH, b"%d" % number)
        made.cut_at = made.calls + step
        try:
            replace(storage(made), PATH, b"3")
        except PowerCut:
            pass
        made.end_process()
        replace(storage(made), PATH, b"4")
        fd = made.open(PATH)
        made.cut(fd, 0)
        made.close(fd)
        found = load(storage(made), PATH, read)
        assert found.trust is Trust.BACKUP
        assert found.value in (2, 3)


def test_damaged_file_does_not_become_the_backup_of_the_next_version() -> None:
    made = disk()
    for number in (1, 2):
        replace(storage(made), PATH, b"%d" % number)
    for _ in range(2):
        fd = made.open(PATH)
        made.cut(fd, 0)
        made.close(fd)
        assert load(storage(made), PATH, read).value == 1
        replace(storage(made), PATH, b"3")
        assert storage(made).content(PATH.with_name("topics.json.bak")) == b"1"
        assert storage(made).content(PATH.with_name("topics.json.damaged")) == b""
        assert load(storage(made), PATH, read).value == 3


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    import subprocess

    from routekeeper.nameserver.settings.files import save_settings_file

    for value in ("1", "2"):
        save_settings_file(tmp_path / "a.properties", {"key": value})
    checked = subprocess.run(
        ["sha256sum", "-c", "a.properties.sha256"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert checked.stdout == "a.properties: OK\na.properties.bak: OK\n", checked.stderr
