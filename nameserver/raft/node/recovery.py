"""Recovery of a member's state from its disk at the start, and the record of a clean stop."""

from __future__ import annotations

import logging
from dataclasses import replace

from routekeeper.nameserver.disk.files import Files
from routekeeper.nameserver.raft.consensus import log
from routekeeper.nameserver.raft.consensus.log import FIRST_INDEX, Recovered
from routekeeper.nameserver.raft.consensus.members import (
    NOBODY,
    decode_configuration,
    encode_configuration,
    founding,
)
from routekeeper.nameserver.raft.storage.identity import DataDirectory
from routekeeper.nameserver.raft.storage.images import SnapshotFile, Snapshots
from routekeeper.nameserver.raft.storage.journal import Journal, Replay
from routekeeper.nameserver.raft.types import (
    RaftConfig,
    RaftStartError,
    StateMachine,
    StopMember,
    needed_to_start,
)

logger = logging.getLogger(__name__)


class Storage:
    """Data directory, journal and snapshots of one member.

    Under durability ``memory`` there is no journal, and a snapshot only if an operator asked for one.
    """

    def __init__(self, config: RaftConfig, machine: StateMachine, files: Files) -> None:
        self._config = config
        self._machine = machine
        self._files = files
        self.volatile = config.durability == "memory"
        self.journal: Journal | None = None
        self.image_date: float | None = None  # of the newest snapshot file
        self.directory = DataDirectory(config, files)
        self.snapshots = Snapshots(self.directory.raft, files)

    def recover(self) -> Recovered:
        """Return this member's state, all of it durable. From here on the member may acknowledge entries.

        Raises:
            RaftStartError: The data cannot be read, or are incomplete.
        """
        directory = self.directory
        with needed_to_start(directory.raft, OSError):
            term, vote = directory.load_vote()
            found = Recovered() if self.volatile else self._recover()
            last = found.base_index + len(found.entries)
            if last == FIRST_INDEX and not self.volatile:
                directory.correct_founders()
            newest = found.entries[-1][2] if found.entries else found.base_term
            if newest > term:  # the process was killed before it stored the term, so nobody was told of it
                term, vote = newest, None
            if found.configuration is NOBODY:
                found = replace(found, configuration=founding(directory.state.members))
            if directory.state.forcing:
                found = replace(found, entries=[*found.entries, *self._force(last, term)])
            directory.begin()
            if self.journal is not None:
                self.journal.keep_end()
        return replace(found, term=term, vote=vote)

    def _force(self, last: int, term: int) -> list[log.Entry]:
        """Return what the log gets so as to leave this member alone; all that it holds counts from then on.

        Without any data there is nothing to add it to: the engine founds a cluster of one.
        """
        if last == FIRST_INDEX or self.journal is None:
            self.directory.forced(voter=False)
            return []
        command = log.CONFIGURATION + encode_configuration(founding((self._config.me,)))
        self.journal.append([(log.OP_ENTRY, last + 1, term, command)])
        self.journal.rotate()  # synced, under any durability
        self.directory.forced(voter=True)
        return [(command, last + 1, term)]

    def _recover(self) -> Recovered:
        directory = self.directory
        self.journal = Journal(directory.raft, sync=self._config.durability == "fsync", files=self._files)
        found = self.snapshots.recover()
        replay, journal_bytes = self.journal.recover(doubted=directory.doubted)
        if self.journal.shortened:
            directory.doubt(self.journal.shortened)
        image, configuration = None, NOBODY
        if found is not None:
            image, data = found
            self.image_date = self._files.modified_at(image.path)
            with needed_to_start(image.path, StopMember):
                self._machine.prepare(data)()
                if image.configuration:
                    configuration = decode_configuration(image.configuration)
        recovered = join(image, replay)
        if recovered is None:
            raise RaftStartError(
                f"raft: {directory.raft}: the journal begins after the snapshot ends: a file is missing; "
                "restore it, or empty this member's data directory while the others are up"
            )
        last = recovered.base_index + len(recovered.entries)
        if replay.commit_index > last and not (directory.doubted or self.journal.shortened):
            raise RaftStartError(
                f"raft: {directory.raft}: entries up to {replay.commit_index} were committed, the journal "
                f"ends at {last}: what was acknowledged is lost here; empty this member's data directory "
                "while the others are up (it then catches up)"
            )
        if recovered.replaced:
            self.journal.append([(log.OP_RESET, recovered.base_index, recovered.base_term)])
        return replace(recovered, configuration=configuration, journal_bytes=journal_bytes)

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
        self.snapshots.close()
        try:
            if wrote_all:
                self.directory.end()
            self.directory.abandon()
        except OSError as error:
            logger.error("data directory close failed error=%s", error.strerror)
        self.directory.close()


def join(image: SnapshotFile | None, replay: Replay) -> Recovered | None:
    """Put what the journal holds behind the snapshot. Pure.

    The snapshot may be newer than the journal's first entries (a crash before the journal was trimmed), or
    newer than all of them; what follows it in the journal stays (D14). A journal that differs from the
    snapshot at the snapshot's index was replaced by it.

    Returns:
        None if entries between snapshot and journal are missing.
    """
    index, index_term = (image.index, image.term) if image is not None else (FIRST_INDEX, log.FIRST_TERM)
    entries, replaced = replay.entries, False
    if replay.base_index is not None:
        offset = index - replay.base_index
        if offset < 0:
            return None
        terms = [replay.base_term, *(term for _, _, term in entries)]  # that of the base may be unknown
        replaced = offset >= len(terms) or terms[offset] not in (None, index_term)
        entries = [] if replaced else entries[offset:]
    return Recovered(
        base_index=index,
        base_term=index_term,
        entries=list(entries),
        commit_index=min(max(replay.commit_index, index), index + len(entries)),
        replaced=replaced,
    )
