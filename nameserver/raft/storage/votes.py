"""What a member promised in elections: its term, and whom it voted for in it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from nameserver.disk.files import Files
from nameserver.raft.types import RaftStartError

from .slots import BLOCK, Damaged, Slots

FORMAT: Final = 2


class Votes:
    """``DATA/raft/vote``. Blocking; one call at a time."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._slots = Slots(files, directory / "vote", size=BLOCK)

    def create(self) -> None:
        """A member that has promised nothing."""
        self._slots.create(_encode(0, None))

    def load(self) -> tuple[int, str | None]:
        """Return the newest term and vote.

        Raises:
            RaftStartError: Nobody knows them.
        """
        try:
            _, term, vote = msgspec.msgpack.decode(self._slots.load(), type=tuple[int, int, str | None])
        except (Damaged, msgspec.MsgspecError) as error:
            raise RaftStartError(
                f"raft: {error}: what this member promised is unknown; empty its data directory"
            ) from error
        return term, vote

    def save(self, term: int, vote: str | None) -> None:
        """Durable on return, whatever the durability of the log."""
        self._slots.save(_encode(term, vote))

    def close(self) -> None:
        self._slots.close()


def _encode(term: int, vote: str | None) -> bytes:
    return msgspec.msgpack.encode((FORMAT, term, vote))
