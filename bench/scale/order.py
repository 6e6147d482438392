"""The files in the folder of a series: the order (the settings of the series), and the rows (its results)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from routekeeper.bench.files import write_at_once
from routekeeper.bench.runfolder import Arm, Machine
from routekeeper.bench.scale.points import SERIES_S, LinkKind, Part, Row

ORDER_NAME: Final = "order.json"
ROWS_NAME: Final = "rows.jsonl"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one series. They are stored in its folder, so that the series can be resumed."""

    part: Part
    designs: list[Arm]
    rounds: int
    links: LinkKind
    small: bool
    seed: int
    command: list[str]
    machine: Machine
    versions: dict[str, str]
    commit: str
    started_at: str
    limit_s: float = SERIES_S


def commits(order: Order, rows: Sequence[Row]) -> list[str]:
    """Return the commits with which a series was measured, in the order of the measurements."""
    return list(dict.fromkeys(row.commit or order.commit for row in rows)) or [order.commit]


def begin(folder: Path, order: Order) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_at_once(folder / ORDER_NAME, [msgspec.json.encode(order), b"\n"])


def read_order(folder: Path) -> Order:
    """Read the order (the settings) of a series.

    Raises:
        ValueError: If the folder has no readable order.
    """
    try:
        return msgspec.json.decode((folder / ORDER_NAME).read_bytes(), type=Order)
    except (OSError, msgspec.MsgspecError):
        raise ValueError(f"{folder}: it holds no series of mqbench scale") from None


def read_rows(folder: Path) -> list[Row]:
    """Return the rows of a series. If a kill has cut off the last line, leave this line out."""
    path = folder / ROWS_NAME
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    return [msgspec.json.decode(line, type=Row) for line in lines if line.endswith(b"\n")]


def add_row(folder: Path, row: Row) -> None:
    """Add a row. If a kill has cut off the last line, overwrite this line."""
    path = folder / ROWS_NAME
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(msgspec.json.encode(row) + b"\n")


def series_below(folder: Path) -> list[Path]:
    """Return the folders of series at or below a folder, sorted."""
    return sorted(path.parent for path in folder.rglob(ORDER_NAME))
