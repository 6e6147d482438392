"""Writing of files that another process waits for, or reads at any time."""

from collections.abc import Iterable
from pathlib import Path


def write_at_once(path: Path, parts: Iterable[bytes]) -> None:
    """Write or replace a file in one step, so that a reader never finds a half-written file."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.writelines(parts)
    new.replace(path)
