"""Recovery of a member's state from its disk at the start.

At a clean stop, this module also records in the data directory that the journal on the disk is complete.
"""

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

    Under durability ``memory`` there is no journal, and a snapshot file exists only if an operator asked for
    a snapshot.
    """

    def __init__(self, config: RaftConfig, machine: StateMachine, files: Files) -> None:
        self._config = config
        self._machine = machine
        self._files = files
        self.volatile = config.durability == "memory"
        self.journal: Journal | None = None
        self.image_date: float | None = None  # Unix time in seconds at which the newest snapshot was stored
        self.directory = DataDirectory(config, files)
        self.snapshots = Snapshots(self.directory.raft, files)

    def recover(self) -> Recovered:
        """Return this member's durable state. After this call, the member may acknowledge entries.

        Raises:
            RaftStartError: The data cannot be read or is incomplete.
        """
        directory = self.directory
        with needed_to_start(directory.raft, OSError):
            term, vote = directory.load_vote()
            found = Recovered() if self.volatile else self._recover()
            last = found.base_index + len(found.entries)
            if last == FIRST_INDEX and not self.volatile:
                directory.correct_founders()
            newest = found.entries[-1][2] if found.entries else found.base_term
            # If the log's newest term is above the stored term, this member was killed before it stored the
            # newest term. A member stores a term before it votes in it. So this member has not voted in it.
            if newest > term:
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
        """Complete ``--force-new-cluster``, and return the entry that makes this member the only member.

        From now on, all entries in the log count as committed. If this member has no data, the result is
        empty, and the engine then forms a cluster of one member.
        """
        if last == FIRST_INDEX or self.journal is None:
            self.directory.forced(voter=False)
            return []
        command = log.CONFIGURATION + encode_configuration(founding((self._config.me,)))
        self.journal.append([(log.OP_ENTRY, last + 1, term, command)])
        self.journal.rotate()  # begin a new segment, because this syncs the journal under every durability
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
        """Close journal, snapshots and data directory, and record a clean stop. The call blocks.

        Args:
            wrote_all: True if the journal has all entries that this member acknowledged.
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
    """Join the snapshot and the journal's entries after the snapshot, without I/O.

    The snapshot may be newer than the journal's first entries, if a crash came before these entries were
    deleted. It may also be newer than all entries. Entries of the journal after the snapshot are used
    (repairs PySyncObj defect D14). If the journal has another term at the snapshot's index, the snapshot has
    replaced the whole log. In this case no entry of the journal is used.

    Returns:
        None if entries between snapshot and journal are missing.
    """
    index, index_term = (image.index, image.term) if image is not None else (FIRST_INDEX, log.FIRST_TERM)
    entries, replaced = replay.entries, False
    if replay.base_index is not None:
        offset = index - replay.base_index
        if offset < 0:
            return None
        # The term of each index from base_index on. The first term is None if the journal does not have it.
        terms = [replay.base_term, *(term for _, _, term in entries)]
        replaced = offset >= len(terms) or terms[offset] not in (None, index_term)
        entries = [] if replaced else entries[offset:]
    return Recovered(
        base_index=index,
        base_term=index_term,
        entries=list(entries),
        commit_index=min(max(replay.commit_index, index), index + len(entries)),
        replaced=replaced,
    )
