"""Series of mqbench scale are published part by part, with one page for all parts."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from routekeeper.bench.publish import PublishError, make_again, publish_scale
from routekeeper.bench.scale.order import add_row, begin
from routekeeper.bench.scale.points import Part, Row, points_of
from routekeeper.bench.scale.report import FILES
from routekeeper.bench.scale.series import order_of


def series(folder: Path, part: Part, *, rows: int = 1) -> Path:
    """Make a series with some rows, and with one event for each row."""
    begin(folder, order_of(part, designs=["independent", "raft"], links="none", seed=1, command=["mqbench"]))
    point = points_of(part, links="none")[0]
    for number in range(1, rows + 1):
        add_row(
            folder,
            Row(
                point=point,
                design="raft",
                round=number,
                links="none",
                seconds=1.0,
                load=0.0,
                figures={"restart_right_s": 1.5, "change_leader_ms": 2.0},
            ),
        )
        events = folder / "events" / "point=x" / f"round={number}" / "arm=raft"
        events.mkdir(parents=True)
        (events / "notes.jsonl").write_text('{"kind":"term"}\n')
    return folder


def test_a_part_that_is_published_later_joins_the_page(tmp_path: Path) -> None:
    to = tmp_path / "published"
    archives = publish_scale(series(tmp_path / "one", "size"), to)
    assert archives == [to / "size" / "events-raft.tar.xz"]
    with tarfile.open(archives[0]) as archive:
        assert archive.getnames() == ["events/point=x/round=1/arm=raft/notes.jsonl"]
    publish_scale(series(tmp_path / "other", "number"), to)
    page = (to / FILES[0]).read_text()
    assert 'id="size"' in page
    assert 'id="number"' in page
    before = [(to / name).read_bytes() for name in FILES]
    assert make_again(to, to) == [to / FILES[0]]
    assert [(to / name).read_bytes() for name in FILES] == before


@pytest.mark.parametrize(
    ("second", "rows", "line"), [("size", 1, "two series of the part size"), ("number", 0, "no rows")]
)
def test_what_cannot_be_published_leaves_nothing(second: Part, rows: int, line: str, tmp_path: Path) -> None:
    series(tmp_path / "found" / "a", "size")
    series(tmp_path / "found" / "b", second, rows=rows)
    with pytest.raises(PublishError, match=line):
        publish_scale(tmp_path / "found", tmp_path / "published")
    assert not (tmp_path / "published").exists()
