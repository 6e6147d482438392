"""Files that somebody reads while they are written, or awaits."""

from collections.abc import Iterable
from pathlib import Path


def write_at_once(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file, replacing an older one: a reader finds all of the parts, or the old content."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.writelines(parts)
    new.replace(path)
