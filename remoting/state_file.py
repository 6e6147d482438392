"""Small state files, each with a checksum and its previous version, so that damage is detected.

Each state consists of three files:

- ``NAME`` has the content, in the format of its owner.
- ``NAME.bak`` has the previous content.
- ``NAME.sha256`` lists the digests of both files, in the format of sha256sum.

An example of the list::

    9f86...  topics.json
    60303...  topics.json.bak

A write makes the list durable before the new content gets the file's name. The list then has the digests of
the new and of the old content. So a crash of the process or the machine at any step is harmless. Afterwards,
the file has one of these two contents. The word ``none`` instead of the second digest means that there was no
file before.

This module opens no file itself. Broker, nameserver and client pass an object that accesses the disk.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)

BACKUP: Final = ".bak"
CHECKSUM: Final = ".sha256"
#: Suffix of a damaged file that was renamed because new content replaced it.
DAMAGED: Final = ".damaged"
_NONE: Final = "none"
_LINE: Final = re.compile(r"([0-9a-f]{64}|none)  .+")
_EMPTY: Final = "empty"
#: Longest description of a fault in a log line or error text, in characters.
_DAMAGE_LENGTH_MAX: Final = 200

T = TypeVar("T")


class StateFileError(ValueError):
    """A state file cannot be used; the message is one line that tells the operator what to do."""


class Storage(Protocol):
    """File operations that state files need. Each operation raises OSError if it fails."""

    def content(self, path: Path) -> bytes:
        """Return the whole content of a file.

        Raises:
            FileNotFoundError: If the file does not exist.
            ValueError: If the file is larger than its owner allows.
        """

    def write_new(self, path: Path, data: bytes) -> None:
        """Create or replace a file and make its content durable; its name may not be durable yet."""

    def link(self, path: Path, new: Path) -> None:
        """Give a file a second name; fail if a file with this name exists."""

    def rename(self, path: Path, new: Path) -> None:
        """Rename a file within its directory; replace the file that has the new name, if any."""

    def discard(self, path: Path) -> None:
        """Remove a file; do nothing if it does not exist."""

    def sync_directory(self, path: Path) -> None:
        """Make the names of all files in a directory durable."""


class Trust(Enum):
    """Reason for which the content of a file was accepted."""

    CHECKED = "its checksum was right"
    BACKUP = "the previous version, whose checksum was right"
    UNCHECKED = "it had no checksum"
    ABSENT = "there is none"


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """Content of a file, and the reason to trust it; ``value`` is None if there is no file."""

    value: T | None
    trust: Trust


def beside(path: Path, suffix: str) -> Path:
    """Return ``path`` with a suffix added to its name."""
    return path.with_name(path.name + suffix)


def load(storage: Storage, path: Path, parse: Callable[[bytes], T], *, adopt: bool = True) -> Loaded[T]:
    """Return the content of a state file; log its faults.

    - If the file cannot be read or parsed, its backup is used, and an ERROR is logged.
    - If the file can be parsed but its checksum differs, the file was edited or damaged. Only the operator
      can know the cause, so StateFileError is raised.
    - If the file has no checksum, its content is used, and a WARNING is logged. The file then gets a
      checksum.

    Args:
        parse: Converts the content. If the content is invalid, it must raise ValueError and change nothing.
        adopt: True to write a missing checksum now. False if the owner must check the content first. Until
            then, the file must have no checksum, so that a restarted program checks the content, too.

    Raises:
        StateFileError: If an operator must decide, or if neither the file nor its backup can be used.
        OSError: If the disk fails.
    """
    sums = beside(path, CHECKSUM)
    known = _listed(storage, sums)
    content, damage = _content(storage, path)
    if content is None and not damage:
        if known is not None and known[1] is None:
            return Loaded(None, Trust.ABSENT)  # the first write ended before the file got its name
        damage = "missing"
        if known is None and _content(storage, beside(path, BACKUP)) == (None, ""):
            return Loaded(None, Trust.ABSENT)
    elif content is not None:
        if known is not None and _digest(content) in known:
            try:
                return Loaded(parse(content), Trust.CHECKED)
            except ValueError as error:
                raise StateFileError(f"{path} is as it was written, but cannot be read: {error}") from error
        value, damage = _parsed(content, parse)
        if not damage:
            if known is not None:
                raise StateFileError(
                    f"{path} is not what was written, its checksum differs: if you edited it, remove "
                    f"{sums.name}; if not, it is damaged: restore it, or move it away to use "
                    f"{path.name}{BACKUP}"
                )
            logger.warning("state file without checksum taken file=%s", path)
            if adopt:
                _adopt(storage, path, content)
            return Loaded(value, Trust.UNCHECKED)
    return _load_backup(storage, path, parse, known, damage)


def _load_backup(
    storage: Storage,
    path: Path,
    parse: Callable[[bytes], T],
    known: tuple[str | None, str | None] | None,
    damage: str,
) -> Loaded[T]:
    backup = beside(path, BACKUP)
    content, why = _content(storage, backup)
    if content is not None:
        if known is not None and _digest(content) not in known:
            why = "not what was written"
        else:
            value, why = _parsed(content, parse)
            if not why:
                logger.error("state file damaged file=%s damage=%s used=%s", path, damage, backup)
                if known is not None:
                    return Loaded(value, Trust.BACKUP)
                # Store the checksum of the backup. Otherwise the next write would take the damaged file for a
                # good file, and would replace the backup by it.
                _adopt(storage, path, content)
                return Loaded(value, Trust.UNCHECKED)
    if known is None and damage == _EMPTY and content is None and not why:
        logger.warning("state file without checksum taken file=%s holds=nothing", path)
        return Loaded(None, Trust.UNCHECKED)
    raise StateFileError(
        f"{path} cannot be used ({damage}), nor {backup.name} ({why or 'missing'}): restore one of them, or "
        f"remove both and {path.name}{CHECKSUM} to start without what they held"
    )


def replace(storage: Storage, path: Path, data: bytes, *, backup_too: bool = False) -> None:
    """Write ``data`` durably into a file; the former content becomes the backup.

    Args:
        backup_too: True to write ``data`` also into the backup, before it is written into the file. The
            backup is then never older than the file's new content.

    Raises:
        OSError: If the disk fails. The file then keeps its old content. There is one exception: after a
            failure that follows the rename, the file has the new content, and its name may not be durable.
    """
    sums, backup, scratch = beside(path, CHECKSUM), beside(path, BACKUP), beside(path, ".tmp")
    try:
        known = _listed(storage, sums)
    except StateFileError:
        known = (None, None)  # the list of digests is damaged, so no digest in it can be trusted
    content, why = _content(storage, path)
    before = None if content is None else _digest(content)
    is_good = content is not None and (known is None or before in known)
    if not is_good:
        # A damaged file must not replace the good backup.
        other, _ = _content(storage, backup)
        before = None if other is None else _digest(other)
    try:
        storage.write_new(scratch, data)
        _write_sums(storage, path, _digest(data), before)
        if not is_good and (content is not None or why):
            _keep_as(storage, path, beside(path, DAMAGED))
        if backup_too:
            other_scratch = beside(backup, ".tmp")
            # Write a second copy. A hard link would share its bytes on the disk with the file, so damage
            # would hit the file and the backup.
            storage.write_new(other_scratch, data)
            storage.rename(other_scratch, backup)
            storage.sync_directory(path.parent)
        elif is_good:
            _keep_as(storage, path, backup)
        storage.rename(scratch, path)
    except OSError:
        with suppress(OSError):
            storage.discard(scratch)
        raise
    storage.sync_directory(path.parent)
    if backup_too:
        _write_sums(storage, path, _digest(data), _digest(data))


def _write_sums(storage: Storage, path: Path, digest: str, before: str | None) -> None:
    """Write the digests of the new and the old content durably.

    After a crash, the file may have either content.
    """
    sums = beside(path, CHECKSUM)
    aside = beside(sums, ".tmp")
    storage.write_new(aside, f"{digest}  {path.name}\n{before or _NONE}  {path.name}{BACKUP}\n".encode())
    storage.rename(aside, sums)
    storage.sync_directory(path.parent)


def _adopt(storage: Storage, path: Path, content: bytes) -> None:
    """Write the digests of a file's ``content`` and of its backup to the file of digests.

    Do nothing if the file of digests exists, or if the disk fails.
    """
    sums = beside(path, CHECKSUM)
    aside = beside(sums, ".new")
    backup, _ = _content(storage, beside(path, BACKUP))
    before = _NONE if backup is None else _digest(backup)
    with suppress(OSError):
        storage.write_new(aside, f"{_digest(content)}  {path.name}\n{before}  {path.name}{BACKUP}\n".encode())
        with suppress(FileExistsError):
            storage.link(aside, sums)
        storage.discard(aside)


def _keep_as(storage: Storage, path: Path, other: Path) -> None:
    """Make ``other`` a second name of the file ``path``.

    The name ``path`` exists at every moment, so that a crash cannot lose the file.
    """
    spare = beside(other, ".tmp")
    storage.discard(spare)
    storage.link(path, spare)
    storage.rename(spare, other)


def _content(storage: Storage, path: Path) -> tuple[bytes | None, str]:
    """Return a file's content and its fault.

    If the file cannot be read, the content is None. If the file does not exist, the content is None and the
    fault is empty.
    """
    try:
        return storage.content(path), ""
    except FileNotFoundError:
        return None, ""
    except ValueError as error:
        return None, str(error)


def _parsed(content: bytes, parse: Callable[[bytes], T]) -> tuple[T | None, str]:
    """Return the parsed content and an empty text, or None and the reason why parsing failed."""
    if not content.strip(b" \t\r\n\0"):
        return None, _EMPTY if not content.strip() else "nothing but zeros"
    try:
        return parse(content), ""
    except ValueError as error:
        return None, " ".join(str(error).split())[:_DAMAGE_LENGTH_MAX]


def _listed(storage: Storage, sums: Path) -> tuple[str | None, str | None] | None:
    """Return the digests of a file and of its backup; None if the file of digests (``sums``) does not exist.

    Raises:
        StateFileError: If the file of digests cannot be read.
    """
    content, damage = _content(storage, sums)
    if content is None and not damage:
        return None
    found = [_LINE.fullmatch(line) for line in (content or b"").decode("latin-1").splitlines()]
    if len(found) != 2 or found[0] is None or found[1] is None:
        file = sums.name.removesuffix(CHECKSUM)
        raise StateFileError(f"{sums} is damaged: check {file}, then remove {sums.name} to take it as it is")
    digests = [None if match[1] == _NONE else match[1] for match in found if match is not None]
    return digests[0], digests[1]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
