"""The benchmark of disk syncs measures syncs of each kind of file, and refuses invalid arguments."""

from pathlib import Path

import pytest

from routekeeper.bench.micro.sync import BLOCK, KINDS, main, prepared


def test_each_kind_of_file_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--folder", str(tmp_path), "--rounds", "1", "--blocks", "2"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("Python 3.")
    lines = [line for line in lines if not line.startswith("WARNING: ")]
    assert [line[:12].strip() for line in lines] == list(KINDS)
    assert all(" us (" in line for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_a_file_holds_before_what_its_kind_says(tmp_path: Path) -> None:
    found = {}
    for kind in KINDS:
        path = tmp_path / kind
        with open(prepared(path, kind, BLOCK), "rb"):
            found[kind] = path.read_bytes()
    assert found["grows"] == b""
    assert found["allocated"] == found["zeros"] == bytes(BLOCK)
    assert found["used before"].count(0) < BLOCK // 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rounds", "0"], "--rounds must be 1 to 1000"),
        (["--blocks", "100001"], "--blocks 1 to 100000"),
        (["--folder", "/no such folder"], "/no such folder is no folder"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert said in capsys.readouterr().err
