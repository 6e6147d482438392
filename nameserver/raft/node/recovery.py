"""What a member finds on its disk at its start, and what it leaves there at its end."""

from __future__ import annotations

import logging
from dataclasses import replace

from nameserver.disk.files import Files, StorageFull
from nameserver.raft.consensus.log import (
    CONFIGURATION,
    FIRST_INDEX,
    FIRST_TERM,
    OP_ENTRY,
    OP_RESET,
    Recovered,
)
from nameserver.raft.consensus.members import decode_configuration, encode_configuration, founding
from nameserver.raft.storage.identity import DataDirectory
from nameserver.raft.storage.images import Image, Snapshots
from nameserver.raft.storage.journal import Journal, Replay
from nameserver.raft.types import RaftConfig, RaftStartError, StateMachine, StopMember

logger = logging.getLogger(__name__)


class Storage:
    """Data directory, journal and state images of one member.

    Under durability ``memory`` there is no journal, and an image only if an operator asked for one.
    """

    def __init__(self, config: RaftConfig, machine: StateMachine, files: Files) -> None:
        self._config = config
        self._machine = machine
        self._files = files
        self.volatile = config.durability == "memory"
        self.journal: Journal | None = None
        self.image_date: float | None = None  # of the newest image file
        self.directory = DataDirectory(config, files)
        self.snapshots = Snapshots(self.directory.raft, files)

    def recover(self) -> Recovered:
        """What this member knows, all of it durable; from here on something may be acknowledged.

        Raises:
            RaftStartError: What is there cannot be read, or is not all of it.
        """
        try:
            return self._recover_all()
        except (OSError, StorageFull) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise RaftStartError(f"raft: {self.directory.raft}: {reason or error}") from error

    def _recover_all(self) -> Recovered:
        directory = self.directory
        term, vote = directory.load_vote()
        recovered = (
            Recovered(term=term, vote=vote, configuration=founding(directory.state.members))
            if self.volatile
            else self._recover(term, vote)
        )
        nothing_yet = not recovered.entries and recovered.base_index == FIRST_INDEX
        if nothing_yet and not self.volatile and directory.found_with(self._config.peers):
            recovered = replace(recovered, configuration=founding(directory.state.members))
        newest = recovered.entries[-1][2] if recovered.entries else recovered.base_term
        if newest > recovered.term:  # killed before the term was stored: nobody was told of it
            recovered = replace(recovered, term=newest, vote=None)
        if directory.state.forcing:
            recovered = self._force(recovered)
        directory.begin()
        return recovered

    def _force(self, recovered: Recovered) -> Recovered:
        """The log gets an entry that leaves this member alone; all that it holds counts from then on.

        Without any data there is nothing to add it to: the engine founds a cluster of one.
        """
        last = recovered.base_index + len(recovered.entries)
        if last == FIRST_INDEX or self.journal is None:
            self.directory.forced(voter=False)
            return replace(recovered, configuration=founding((self._config.me,)))
        command = CONFIGURATION + encode_configuration(founding((self._config.me,)))
        self.journal.append([(OP_ENTRY, last + 1, recovered.term, command)])
        self.journal.rotate()  # synced, whatever the durability
        self.directory.forced(voter=True)
        return replace(recovered, entries=[*recovered.entries, (command, last + 1, recovered.term)])

    def _recover(self, term: int, vote: str | None) -> Recovered:
        directory = self.directory
        self.journal = Journal(directory.raft, sync=self._config.durability == "fsync", files=self._files)
        found = self.snapshots.recover()
        replay, journal_bytes = self.journal.recover(doubted=directory.doubted)
        image, configuration = None, founding(directory.state.members)
        if found is not None:
            image, data = found
            self.image_date = self._files.modified_at(image.path)
            try:
                self._machine.prepare(data)()
                if image.configuration:
                    configuration = decode_configuration(image.configuration)
            except StopMember as error:
                raise RaftStartError(f"raft: {image.path}: {error}") from error
        joined = join(image, replay, term=term, vote=vote, size=journal_bytes)
        if joined is None:
            raise RaftStartError(
                f"raft: {directory.raft}: the journal begins after the snapshot ends: a file is missing; "
                "restore it, or empty this member's data directory while the others are up"
            )
        recovered = replace(joined, configuration=configuration)
        last = recovered.base_index + len(recovered.entries)
        if replay.commit_index > last and not directory.doubted:
            raise RaftStartError(
                f"raft: {directory.raft}: entries up to {replay.commit_index} were committed, the journal "
                f"ends at {last}: what was acknowledged is lost here; empty this member's data directory "
                "while the others are up (it then catches up)"
            )
        if joined.replaced:
            self.journal.append([(OP_RESET, recovered.base_index, recovered.base_term)])
        return recovered

    def close(self, *, wrote_all: bool) -> None:
        """Give everything back; blocking.

        Args:
            wrote_all: The journal holds all that this member acknowledged.
        """
        if self.journal is not None:
            try:
                self.journal.close()
            except OSError as error:
                wrote_all = False
                logger.error("journal close failed error=%s", error.strerror)
        else:
            wrote_all = False
        self.snapshots.close()
        try:
            if wrote_all:
                self.directory.end()
            self.directory.abandon()
        except OSError as error:
            logger.error("data directory close failed error=%s", error.strerror)
        self.directory.close()


def join(image: Image | None, replay: Replay, *, term: int, vote: str | None, size: int) -> Recovered | None:
    """Put what the journal holds behind the image. Pure.

    The image may be newer than the journal's first entries (a crash before the journal was trimmed), or newer
    than all of them; what follows it in the journal stays (D14). A journal that differs from the image at the
    image's index was replaced by it.

    Returns:
        None if entries between image and journal are missing.
    """
    index, index_term = (image.index, image.term) if image is not None else (FIRST_INDEX, FIRST_TERM)
    entries, replaced = replay.entries, False
    if replay.base_index is not None:
        offset = index - replay.base_index
        if offset < 0:
            return None
        same = offset <= len(entries)
        if 0 < offset <= len(entries):
            same = entries[offset - 1][2] == index_term
        elif offset == 0 and replay.base_term is not None:
            same = replay.base_term == index_term
        entries, replaced = (entries[offset:], False) if same else ([], True)
    last = index + len(entries)
    return Recovered(
        base_index=index,
        base_term=index_term,
        entries=list(entries),
        commit_index=min(max(replay.commit_index, index), last),
        term=term,
        vote=vote,
        journal_bytes=size,
        replaced=replaced,
    )
