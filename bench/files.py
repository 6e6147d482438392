"""Files that another process reads while they are written, or waits for."""

from collections.abc import Iterable
from pathlib import Path


def write_at_once(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file, or replace one: a reader finds all of the new content, or all of the old one."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.writelines(parts)
    new.replace(path)
