"""Files for which another process waits, or which it reads while they are written."""

from collections.abc import Iterable
from pathlib import Path


def write_at_once(path: Path, parts: Iterable[bytes]) -> None:
    """Write or replace a file: a reader finds the complete new content, or the complete old one."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.writelines(parts)
    new.replace(path)
