"""The command line of ``mqbench scale`` refuses an impossible request with one line."""

from __future__ import annotations

import pytest

from routekeeper.bench.__main__ import main


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--part", "size", "--resume", "x"], "give one of --part, --resume and --report"),
        (["--resume", "nowhere"], "--resume nowhere: it holds no series of mqbench scale"),
        (["--report", "nowhere"], "--report nowhere: there is no series of mqbench scale with rows"),
        (["--part", "size", "--designs", "raft,etcd"], "--designs: 'etcd', allowed are independent, raft, "),
        (["--part", "size", "--links", "kernel"], "--links beside --part size: only the part distance "),
        (["--resume", "x", "--seed", "3"], "--seed beside --resume x: that series keeps its settings"),
        (["--report", "x", "--seed", "0"], "--seed beside --report x: that series keeps its settings"),
        (["--resume", "x", "--small"], "--small beside --resume x: that series keeps its settings"),
        (["--resume", "x", "--out", "y"], "--out beside --resume x: that series keeps its folder"),
        (["--report", "x", "--out", "y"], "--out beside --report x: that series keeps its folder"),
    ],
    ids=[
        "two orders",
        "nothing to go on with",
        "nothing to show",
        "unknown design",
        "no links",
        "seed of another",
        "seed 0",
        "size of another",
        "other folder for measurements",
        "other folder for the page",
    ],
)
def test_bad_command_line_is_refused_in_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scale", *words]) == 2
    assert capsys.readouterr().err.startswith(f"mqbench: {line}")
