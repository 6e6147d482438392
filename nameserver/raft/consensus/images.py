"""The snapshots of one member: how it makes, receives and restores a snapshot.

A snapshot covers the log up to its index. Once the snapshot is durable, the log before that index may be
deleted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from routekeeper.nameserver.raft.library import FOLLOWER
from routekeeper.nameserver.raft.types import ChangeRefused, NotLeader

from .effects import InstallImage, MakeImage, Trim
from .following import Following
from .greetings import Greetings
from .leading import Leading
from .log import FIRST_INDEX
from .members import decode_configuration, encode_configuration
from .membership import Membership
from .messages import SnapshotPart, SnapshotReply
from .part import EnginePart, Shared

logger = logging.getLogger(__name__)

#: Shortest and longest pause in seconds after a failed snapshot. The pause doubles with each failure (repairs
#: PySyncObj defect D28).
SNAPSHOT_RETRY_S: Final = (5.0, 300.0)
#: Shortest and longest wait in seconds before this member asks the leader again for a snapshot that it could
#: not store. The wait doubles with each failure.
INSTALL_RETRY_S: Final = (1.0, 30.0)
#: Largest size in bytes of a snapshot that is accepted from a leader.
IMAGE_SIZE_MAX: Final = 1 << 31
#: Bytes of log entries that stay in memory although the snapshot covers them. With these entries, a peer that
#: lags a little can catch up without the snapshot.
TAIL_BYTES: Final = 1024 * 1024


class Images(EnginePart):
    """The part of the engine that makes, receives and restores snapshots, one snapshot at a time.

    Attributes:
        failures: Number of snapshots that could not be stored.
        error: The reason why this member's last own snapshot could not be stored.
        installing: Index of the leader's snapshot that is being stored; 0 if no snapshot is being stored.
    """

    def __init__(
        self,
        shared: Shared,
        following: Following,
        leading: Leading,
        greetings: Greetings,
        membership: Membership,
    ) -> None:
        super().__init__(shared)
        self._following = following
        self._leading = leading
        self._greetings = greetings
        self._membership = membership
        self.failures = 0
        self.error = ""
        self._making = False
        self._wanted = False  # True if an operator has asked for a snapshot
        self._begun_bytes = 0  # bytes of the journal when the present snapshot began
        self._retry_at = -math.inf  # time of the next attempt after a failure; -inf after a success
        self._retry_s = SNAPSHOT_RETRY_S[0]
        self._replace_at = -math.inf  # time from which an unreadable snapshot may be replaced again
        self._replace_s = SNAPSHOT_RETRY_S[0]
        # the leader, the index and the bytes of a partial snapshot
        self._incoming: tuple[str, int, bytearray] | None = None
        self.installing = 0
        self._refused = 0  # index of the leader's snapshot that is too large
        self._install_failed: tuple[int, float] | None = None  # index, time of the next request
        self._install_retry_s = INSTALL_RETRY_S[0]

    # ---- snapshots made here

    def consider(self, now: float) -> None:
        """Begin a snapshot if the journal is large, or if the pause after a failure is over.

        Also begin a snapshot if this member cannot read its newest snapshot. The event loop only copies
        references to the state. A thread encodes and stores the snapshot.

        PySyncObj makes no pause after a failure (its defect D28), and forks a child process for each snapshot
        (its defect D29).
        """
        if self._making or self.installing or self.shared.restoring or self.shared.within_entry:
            return
        if self._wanted and self._library.applied_index > FIRST_INDEX:
            self._begin()
            return
        compact_bytes, journal_bytes = self.shared.config.compact_bytes, self._log.journal_bytes
        failed, unreadable = self._retry_at > -math.inf, self._leading.unreadable_image
        if now < self._retry_at or not (failed or unreadable or journal_bytes >= compact_bytes):
            return
        image = self.shared.held_image.image()
        covered, size = (image[0], image[2]) if image else (FIRST_INDEX, 0)
        if unreadable == covered and now >= self._replace_at:
            self._pause_replacing(now)
            self._begin()
        elif self._library.applied_index > covered and (
            failed or journal_bytes >= max(compact_bytes, 2 * size)
        ):
            self._begin()

    def _pause_replacing(self, now: float) -> None:
        """Set the earliest time at which an unreadable snapshot may be replaced again.

        The pause doubles with each replacement, because on a broken disk each new snapshot may be unreadable.
        After a long time without a replacement, the pause is short again.
        """
        shortest, longest = SNAPSHOT_RETRY_S
        long_ago = now - self._replace_at > longest
        self._replace_s = shortest if long_ago else min(2 * self._replace_s, longest)
        self._replace_at = now + self._replace_s

    def save(self) -> None:
        """Begin a snapshot of the present state, unless a snapshot is already under way.

        If only some steps of an entry are applied, the snapshot begins after the entry's last step.

        Raises:
            ChangeRefused: This member has no state yet, or it stops.
        """
        if not self._begins():
            raise ChangeRefused("this member stops: it stores no snapshot any more; ask another member")
        if self._library.applied_index <= FIRST_INDEX:
            raise ChangeRefused("nothing was written yet: there is no state to store")
        if not (self._making or self.installing or self.shared.restoring):
            self._wanted = True
            self.consider(self._clock())

    def _begin(self) -> None:
        index = self._library.applied_index
        term = self._log.term_at(index)
        assert term is not None
        self._begun_bytes, self._log.journal_bytes = self._log.journal_bytes, 0
        self._wanted = False
        self._making = True
        configuration = encode_configuration(self._log.committed_configuration(index)[1])
        self._log.repeat_commit()
        self._effects.add(MakeImage(index, term, configuration))

    def made(self, index: int) -> None:
        """Record that the snapshot at ``index`` is durable, and trim the log before it."""
        if not self._begins():
            return
        self._making = False
        self._retry_at, self._retry_s = -math.inf, SNAPSHOT_RETRY_S[0]
        self._leading.image_replaced()
        if index > self._log.base_index:
            self._log.trim(self._log.tail_from(index, TAIL_BYTES))
            self._effects.add(Trim(index))
        self._effects.changed()
        self._effects.wake()

    def failed(self, error: str) -> None:
        """Record that this member could not store its own snapshot (repairs PySyncObj defect D28).

        Nothing is lost, because the log keeps its entries until an attempt succeeds.
        """
        if not self._begins():
            return
        self._making = False
        self.failures += 1
        self.error = error
        self._effects.changed()
        self._retry_at = self._clock() + self._retry_s
        logger.warning("snapshot failed me=%s error=%s retry_s=%.0f", self._me, error, self._retry_s)
        self._retry_s = min(2 * self._retry_s, SNAPSHOT_RETRY_S[1])
        # Count the bytes before this attempt again, because the journal still has all its entries.
        self._log.journal_bytes += self._begun_bytes

    # ---- snapshots from a leader

    def on_part(self, peer: str, m: SnapshotPart) -> None:
        """Receive a piece of a snapshot, which the leader sends in place of entries that it has deleted."""
        self._following.accept_leader(peer, m.term)
        self._contact.stated_by_leader(peer, clock=m.clock, echo=m.echo, age=None, commit=0)
        if not self.shared.standing.voter:
            self._greetings.came_at(m.term, m.last)
        if m.index <= self._library.applied_index:
            # Never replace the state by an older state (repairs PySyncObj defect D16). The leader's log has
            # this member's committed entries, too, so the leader can continue with the entries after the
            # commit index.
            self._incoming = None
            self._following.acknowledge_committed()
            return
        if m.size > IMAGE_SIZE_MAX:
            self._refuse(m)
        elif m.offset == 0 and not self.installing:
            self._incoming = (peer, m.index, bytearray())
            self._install_failed = None
        incoming = self._incoming
        if incoming is None or incoming[:2] != (peer, m.index) or m.offset != len(incoming[2]):
            self._following.say_alive(peer)
            return
        buffer = incoming[2]
        buffer += m.data
        complete = len(buffer) >= m.size
        self._reply(peer, m.index, len(buffer))
        if complete:
            self._incoming = None
            self.installing = m.index
            self._effects.add(InstallImage(m.index, m.index_term, m.configuration, buffer))

    def _refuse(self, m: SnapshotPart) -> None:
        """Log once that this member cannot catch up, because the snapshot is too large."""
        self._incoming = None
        if self._refused != m.index:
            self._refused = m.index
            self.failures += 1
            logger.error(
                "snapshot refused me=%s index=%d bytes=%d allowed=%d: this member cannot catch up",
                self._me,
                m.index,
                m.size,
                IMAGE_SIZE_MAX,
            )

    def _reply(self, leader: str, index: int, offset: int) -> None:
        learner, echo = not self.shared.standing.voter, self._contact.echo_for(leader)
        reply = SnapshotReply(self._library.term, index, offset, learner, self._clock(), echo)
        self._effects.send(leader, reply)

    def link_down(self, peer: str) -> None:
        """Discard the partial snapshot received from ``peer``."""
        if self._incoming is not None and self._incoming[0] == peer:
            self._incoming = None

    def install_failed(self, error: str) -> None:
        """Record that a received snapshot could not be stored. :meth:`ask_again` asks for it again later."""
        if not self._effects.stopped:
            self._install_failed = self.installing, self._clock() + self._install_retry_s
            self.installing = 0
            self.failures += 1
            logger.warning(
                "snapshot not installed me=%s error=%s retry_s=%.0f", self._me, error, self._install_retry_s
            )
            self._install_retry_s = min(2 * self._install_retry_s, INSTALL_RETRY_S[1])

    def ask_again(self, now: float) -> None:
        """Ask the leader again for a snapshot that could not be stored, once the waiting time is over.

        Without this request, the leader would begin again only after :data:`.replication.TRANSFER_TIMEOUT_S`.
        """
        if self._install_failed is None or now < self._install_failed[1]:
            return
        index, _ = self._install_failed
        self._install_failed = None
        leader = self._library.leader
        if leader is not None and self._library.state == FOLLOWER:
            self._reply(leader, index, 0)

    def installed(self, index: int, term: int, configuration: bytes, install: Callable[[], None]) -> None:
        """Replace the state by a received snapshot, which is durable now (repairs PySyncObj defect D16).

        If this member has applied entries beyond the snapshot meanwhile, the snapshot is not used.

        Args:
            configuration: The encoded configuration that is in force at ``index``.
            install: Function that replaces the state machine's state.
        """
        if not self._begins():
            return
        self.installing = 0
        self._install_retry_s = INSTALL_RETRY_S[0]
        if index > self._library.applied_index:
            was_empty = self.shared.empty
            logger.info("snapshot installed me=%s index=%d", self._me, index)
            if not self._replace_state(index, term, configuration, install):
                return
            if was_empty:
                self._greetings.say_to_all()
        self._following.acknowledge_committed()
        self._effects.wake()

    def _replace_state(
        self, index: int, term: int, configuration: bytes, install: Callable[[], None]
    ) -> bool:
        """Replace log and state by a durable snapshot at ``index``.

        Return False if this fails; the member must then stop. The arguments are as in :meth:`installed`.
        """
        try:
            held = decode_configuration(configuration) if configuration else self._log.configuration
            # The snapshot replaces the whole state, so no entry is partly applied from now on.
            self.shared.within_entry = False
            install()
        except Exception as error:  # stop after any error, because the state may be replaced only in part
            logger.exception("restore raised index=%d", index)
            self._effects.fail(f"snapshot {index} cannot be restored: {error}")
            return False
        self._log.reset(index, term, held)
        self._library.restored(index)
        self._membership.adopt_configuration()
        self._effects.add(Trim(index))
        return True

    # ---- snapshots from an operator

    def may_restore(self) -> None:
        """Check that this member leads a cluster of one member and is not busy with another snapshot.

        Raises:
            NotLeader, ChangeRefused: The snapshot cannot be restored now; nothing was changed.
        """
        if not self._begins() or not self._library.leads:
            raise NotLeader(self._library.leader)
        members = self.shared.configuration.members
        if members != (self._me,):
            raise ChangeRefused(
                f"a snapshot is restored in a cluster of one member only, this has {','.join(members)}: "
                "start one member with --force-new-cluster, restore there, empty the disks of the others, "
                "and add them again with addMember"
            )
        if self.shared.restoring or self._making:
            raise ChangeRefused("a snapshot is being made or restored; ask again")

    @property
    def settled(self) -> bool:
        """True if every appended entry is durable and applied."""
        return self._library.applied_index == self._log.last_index == self._log.durable_index

    def restore_at(self, image_index: int) -> tuple[int, int, bytes]:
        """Return index, term and configuration under which an operator's snapshot is stored.

        The index is higher than the snapshot's own index and all indexes of the log, so that no index ever
        stands for two states.
        """
        index = max(image_index, self._log.last_index) + 1
        return index, self._library.term, encode_configuration(self.shared.configuration)

    def restored(self, index: int, term: int, configuration: bytes, install: Callable[[], None]) -> None:
        """Replace log and state by the operator's snapshot, and begin a new term.

        The snapshot is already durable under ``index``. Code that waits for a result of the former state sees
        the new term, and then ignores the result.

        Args:
            configuration: The encoded configuration that is in force at ``index``.
            install: Function that replaces the state machine's state.
        """
        if not self._begins():
            return
        if self._log.last_index >= index:
            # Stop, because the log has new entries. These entries were made for the former state, and must
            # not be applied to the restored state.
            last = self._log.last_index
            self._effects.fail(f"snapshot {index} cannot be restored: the log grew to {last} meanwhile")
            return
        logger.warning("snapshot restored me=%s index=%d", self._me, index)
        if self._replace_state(index, term, configuration, install):
            self._leading.step_down("a snapshot was restored")
            self.shared.stand_now()
            self._effects.changed()
            self._effects.wake()
