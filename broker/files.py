"""Small files replaced as a whole: written aside, synced, renamed; the previous version kept as ``.bak``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def write_atomic(path: Path, text: str, *, backup: bool = True) -> None:
    """Replace ``path`` by ``text``; after a crash at any instant the old or the new content is there.

    Raises:
        OSError: If it cannot be written; the old content is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    try:
        with scratch.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if backup and path.exists():
            saved = path.with_name(path.name + ".bak")
            link = path.with_name(path.name + ".bak.tmp")
            link.unlink(missing_ok=True)
            os.link(path, link)
            link.replace(saved)
        scratch.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def load_or_backup(path: Path, parse: Callable[[str], T]) -> T | None:
    """Parse ``path``, or its ``.bak`` when it is missing, empty or broken; None if neither exists.

    Raises:
        ValueError: If a file exists but neither it nor its backup can be parsed.
    """
    failure: ValueError | None = None
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            text = candidate.read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        if not text.strip():
            continue
        try:
            return parse(text)
        except ValueError as error:
            failure = failure or ValueError(f"{candidate}: {error}")
    if failure is not None:
        raise failure
    return None
