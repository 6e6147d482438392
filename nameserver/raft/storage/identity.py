"""A member's data directory: locked, and bound to one mode, one identity and one cluster.

The files are:

- ``DATA/lock``: locked with flock.
- ``DATA/identity.json``: names the owner of the directory, and never changes.
- ``DATA/raft/standing``: has the member state. It is overwritten in place, so that it can change on a full
  disk.
- ``DATA/raft/vote``: has the term and the vote. This file is overwritten in place, too.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from routekeeper.nameserver.disk.directory import (
    IDENTITY,
    IDENTITY_SIZE_MAX,
    DirectoryError,
    check_mode,
    lock_directory,
)
from routekeeper.nameserver.disk.files import DISK, File, Files, make_directories, replace_file
from routekeeper.nameserver.raft.consensus.members import MemberState, cluster_id
from routekeeper.nameserver.raft.types import RaftConfig, RaftStartError
from routekeeper.remoting.lenient import UNREADABLE

from .end import END, JournalEnd
from .journal import Journal
from .slots import BLOCK, Damaged, Slots

logger = logging.getLogger(__name__)

FORMAT: Final = 1
VOTE_FORMAT: Final = 1
#: Names of all fields of a member state.
_STANDING: Final = tuple(field.name for field in fields(MemberState))
#: Names of the fields that stay valid when a member under durability ``memory`` has lost its log and votes.
_WITHOUT_DATA: Final = ("cluster", "removed")
#: Size in bytes of the stored member state: enough for the names and instances of some hundred members.
_STANDING_SIZE: Final = 64 * 1024


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of identity.json. Its ``durability`` is "memory", or "journal" for journal and fsync."""

    format: int
    mode: str
    me: str
    durability: str


@dataclass(frozen=True, slots=True, kw_only=True)
class State(MemberState):
    """The stored member state, and facts about the last run. The file is JSON with these field names.

    Attributes:
        members: The founders of the cluster, or the members of the cluster that this member was started to
            join. Under durability ``memory``: the newest members that this member knows.
        forced: True if the last start completed ``--force-new-cluster``. The next start must not force
            another new cluster if the operator has left this option in the command line.
        forcing: True if the work for ``--force-new-cluster`` has begun and is not complete.
        boot: The kernel's boot id at the last write to this directory.
        synced: True if every acknowledged entry is on the disk. This is always so under durability ``fsync``;
            under ``journal``, it is so after a clean stop.
        end_kept: True if the file ``DATA/raft/end`` has the position at which the journal ends. Older
            programs did not store this position.
    """

    members: tuple[str, ...]
    forced: bool = False
    forcing: bool = False
    boot: str = ""
    synced: bool = False
    end_kept: bool = False


_Value = TypeVar("_Value")
_read_state: Final = msgspec.json.Decoder(State).decode
_read_vote: Final = msgspec.msgpack.Decoder(tuple[int, int, str | None]).decode


def _encode_vote(term: int, vote: str | None) -> bytes:
    return msgspec.msgpack.encode((VOTE_FORMAT, term, vote))


def _load(slots: Slots, decode: Callable[[bytes], _Value], what: str) -> _Value:
    try:
        return decode(slots.load())
    except (Damaged, msgspec.MsgspecError) as error:
        raise RaftStartError(f"raft: {error}: {what}; empty its data directory") from error


class DataDirectory:
    """A member's data directory, locked until :meth:`close`. The methods block.

    Attributes:
        fresh: True if the directory was empty before this start.
        doubted: True if data may be lost because it was not synced before the machine stopped. Then
            acknowledged entries may be missing, and any unsynced page of the journal may be lost.

    Raises:
        RaftStartError: Another process uses the directory, or it belongs to another mode, member or
            durability.
    """

    def __init__(self, config: RaftConfig, files: Files = DISK) -> None:
        self._root = config.data_dir
        self.raft = self._root / "raft"
        self._config = config
        self._files = files
        self._lock: File | None = None
        self.state: State
        self.fresh = self._begun = self.doubted = False
        self._vote = Slots(files, self.raft / "vote", size=BLOCK)
        self._slots = Slots(files, self.raft / "standing", size=_STANDING_SIZE)
        try:
            make_directories(files, self.raft)
            self._lock = lock_directory(files, self._root)
            self._claim()
            self._consider_forcing()
            # Sync the directories, because an earlier process may have been killed between a rename and the
            # sync of the directory.
            for directory in (self.raft, self._root):
                files.sync_directory(directory)
            with contextlib.suppress(PermissionError):  # another user may own the parent directory
                files.sync_directory(self._root.parent)
        except (DirectoryError, OSError, RaftStartError) as error:
            self.close()
            if isinstance(error, RaftStartError):
                raise
            why = f"data directory {self._root}: {error.strerror}" if isinstance(error, OSError) else error
            raise RaftStartError(f"raft: {why}") from error

    def _refused(self, what: str) -> DirectoryError:
        return DirectoryError(f"data directory {self._root} {what}")

    def _change(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)

    def _store(self, **changes: Any) -> None:
        """Change the state and store it durably."""
        self._change(**changes)
        self._slots.save(msgspec.json.encode(self.state))

    def _consider_forcing(self) -> None:
        """Begin a new cluster of this member alone, if ``--force-new-cluster`` asks for it.

        The new cluster gets another name, so that no former member links to this member. Later in the start,
        the caller changes the log and then calls :meth:`forced`. If the start fails before this call, the
        next start begins the new cluster again.
        """
        config, state = self._config, self.state
        if not config.force_new_cluster and not state.forcing:
            self._change(forced=False)
        elif state.forced and not state.forcing:
            logger.warning(
                "force-new-cluster ignored cluster=%s: done by the last start; start once without it to "
                "be able to do it again",
                state.cluster,
            )
        else:
            cluster = secrets.token_hex(16)
            self._store(members=(config.me,), cluster=cluster, founders={}, removed=False, forcing=True)

    def forced(self, *, voter: bool) -> None:
        """Record durably that ``--force-new-cluster`` is complete.

        Args:
            voter: True if the log names this member as the only member. False if the log is empty, so that
                the engine must form a cluster.
        """
        if self.state.doubtful:
            logger.warning("new cluster of doubtful data: changes that were acknowledged may be missing")
        self._store(voter=voter, doubtful=False, forcing=False, forced=True)
        logger.warning("new cluster forced me=%s cluster=%s", self._config.me, self.state.cluster)

    def _claim(self) -> None:
        """Check that the directory belongs to this member, or claim an empty directory for this member."""
        config = self._config
        volatile = config.durability == "memory"
        segments = bool(Journal.segments_in(self._files, self.raft))
        if IDENTITY not in self._files.names(self._root):
            if segments:
                raise self._refused("holds a journal but no identity.json")
            self._make(durability="memory" if volatile else "journal")
            return
        identity = self._load_identity()
        if identity.me != config.me:
            raise self._refused(f"belongs to member {identity.me}, not {config.me}")
        if (identity.durability == "memory") != volatile:
            raise self._refused(
                f"was made with durability {identity.durability}, not {config.durability}; use an empty one "
                "(the member then catches up from the others)"
            )
        self.state = state = _load(self._slots, _read_state, "what this member is in its cluster is unknown")
        if state.removed and not config.force_new_cluster:
            raise RaftStartError(
                f"raft: data directory {self._root}: {config.me} was removed from its cluster; empty it to "
                "have the member added again"
            )
        if volatile:
            # Votes and entries were in memory and are lost, so start as a new instance (rule 10 of
            # docs/raft-rules.md).
            self._change(instance=secrets.token_hex(16), voter=False, founders={})
            return
        if state.voter and not segments:
            raise self._refused("has lost its journal; empty it (it then catches up)")
        boot = self._files.boot_id()
        self.doubted = not state.synced and (not boot or state.boot != boot)
        if self.doubted and state.voter:
            self._change(voter=False, doubtful=True)
            logger.warning(
                "the machine restarted without a clean stop of this member me=%s durability=journal: what it "
                "acknowledged last may be missing; it returns as a learner",
                config.me,
            )
        if state.end_kept and END not in self._files.names(self.raft):
            self.doubt(f"{self.raft / END} is missing: where the journal ended is unknown")

    def doubt(self, why: str) -> None:
        """Make a voter a learner until it has caught up, because it may lack acknowledged entries."""
        if self.state.voter:
            self._change(voter=False, doubtful=True)
            logger.error(
                "journal shortened me=%s: %s; what this member acknowledged may be missing; "
                "it returns as a learner",
                self._config.me,
                why,
            )

    def _make(self, *, durability: str) -> None:
        """Create the files of the directory, ``identity.json`` last.

        So a later start that finds ``identity.json``, but not all other files, knows that the directory is
        damaged.
        """
        config = self._config
        self.state = State(
            members=tuple(sorted(config.peers)),
            cluster=cluster_id(config.peers),
            instance=secrets.token_hex(16),
            boot=self._files.boot_id(),
            end_kept=durability != "memory",
        )
        self._vote.create(_encode_vote(0, None))
        if self.state.end_kept:
            JournalEnd(self._files, self.raft).create()
        self._slots.create(msgspec.json.encode(self.state))
        self._slots.load()
        identity = Identity(format=FORMAT, mode="raft", me=config.me, durability=durability)
        text = msgspec.json.format(msgspec.json.encode(identity)) + b"\n"
        replace_file(self._files, self._root / IDENTITY, [text])
        self.fresh = True

    def _load_identity(self) -> Identity:
        path = self._root / IDENTITY
        raw = self._files.read(path, size_max=IDENTITY_SIZE_MAX)
        try:
            known = msgspec.json.decode(raw, type=dict[str, object])
            check_mode(self._root, known.get("mode", "raft"), "raft")
            version = known.get("format")
            if isinstance(version, int) and version != FORMAT:
                raise RaftStartError(
                    f"raft: {path} has format {version}, this program knows {FORMAT}: go on with the program "
                    "that wrote it, or empty the data directory while the others are up (it then catches up)"
                )
            return msgspec.json.decode(raw, type=Identity)
        except UNREADABLE as error:
            raise RaftStartError(f"raft: {path} is damaged: {error}") from error

    # ---- votes, which are stored under every durability

    def load_vote(self) -> tuple[int, str | None]:
        """Return the newest term, and the member that got this member's vote in this term, or None.

        Raises:
            RaftStartError: The file cannot be read.
        """
        version, term, vote = _load(self._vote, _read_vote, "what this member promised is unknown")
        if version != VOTE_FORMAT:
            raise RaftStartError(
                f"raft: {self.raft / 'vote'} has format {version}, this program knows {VOTE_FORMAT}: go on "
                "with the program that wrote it"
            )
        return term, vote

    def save_vote(self, term: int, vote: str | None) -> None:
        """Store term and vote durably. Only one call may run at a time."""
        self._vote.save(_encode_vote(term, vote))

    # ---- start and stop

    def begin(self) -> None:
        """Record durably that the start is complete.

        The recovered data must be on the disk before this call, because afterwards this member acknowledges
        entries.
        """
        kept = END in self._files.names(self.raft)
        self._store(boot=self._files.boot_id(), synced=self._config.durability == "fsync", end_kept=kept)
        self._begun = True

    def end(self) -> None:
        """Record a clean stop durably.

        Every acknowledged entry must be on the disk before this call, because the next start relies on this.
        """
        if self._begun and self._config.durability == "journal":
            self._store(synced=True)

    # ---- member state

    @property
    def standing(self) -> MemberState:
        return MemberState(**{name: getattr(self.state, name) for name in _STANDING})

    def correct_founders(self) -> None:
        """Correct the founders to the present setting ``peers``. :meth:`begin` stores them later.

        Do nothing if this member ever took part in a cluster. The caller ensures that the log is empty.
        """
        state, members = self.state, tuple(sorted(self._config.peers))
        took_part = state.voter or state.founders or state.doubtful or state.forcing or state.forced
        if members != state.members and state.cluster == cluster_id(state.members) and not took_part:
            former, peers = ",".join(state.members), ",".join(members)
            logger.warning("peers corrected before the first start former=%s peers=%s", former, peers)
            self._change(members=members, cluster=cluster_id(members))

    def become(self, standing: MemberState) -> bool:
        """Change the member state. The function from :meth:`standing_to_save` later makes it durable.

        Under durability ``memory``, a restart loses the member's log and votes. Such a member stores only the
        fields that are still true after this loss.

        Returns:
            True if a stored field has changed, so that messages must wait until the new state is durable.
        """
        before = self.state
        outlives = _WITHOUT_DATA if self._config.durability == "memory" else _STANDING
        self._change(**{name: getattr(standing, name) for name in outlives})
        return self.state != before

    def remember_members(self, members: tuple[str, ...]) -> None:
        """Remember the members, because this member has no durable log that names them after a restart."""
        self._change(members=members)

    def standing_to_save(self) -> Callable[[], None]:
        """Return a function that stores the member state. A thread calls it, with one call at a time."""
        return partial(self._slots.save, msgspec.json.encode(self.state))

    def abandon(self) -> None:
        """Delete the files of a failed first start, so that the next start may have other settings.

        This member has not given a vote or stored an entry yet, so nothing is lost.
        """
        if self.fresh:
            self._files.unlink(self._root / IDENTITY)
            for name in self._files.names(self.raft):
                self._files.unlink(self.raft / name)
            self._files.sync_directory(self._root)
            self.fresh = False

    def close(self) -> None:
        """Close the files and release the lock."""
        self._vote.close()
        self._slots.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
