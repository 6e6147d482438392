"""A member's data directory: locked, and bound to one mode, one identity and one cluster.

``DATA/lock`` is held with flock. ``DATA/identity.json`` says whose directory it is. Term and vote are in
``DATA/raft/vote``: two slots written in turn, each with a checksum, so that a torn write leaves the former
one, and no write needs new space.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from nameserver.raft.consensus.members import Standing, cluster_id
from nameserver.raft.types import RaftConfig, RaftStartError

from .journal import Journal, sync_directory

logger = logging.getLogger(__name__)

FORMAT: Final = 1
_SLOT_SIZE: Final = 512
_SLOT: Final = struct.Struct(">IQH")  # crc of the rest, sequence, bytes of payload


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of identity.json.

    Attributes:
        members: The founders, or those whom this member was started to join; the log knows who takes part.
        forcing: A new cluster is being made of this member's data (``--force-new-cluster``): incomplete.
        forced: That was done by the last start. The flag left in place must not do it again and again.
    """

    format: int
    mode: str
    me: str
    members: tuple[str, ...]
    cluster: str
    durability: str
    instance: str
    voter: bool
    founders: dict[str, str]
    formats: dict[str, int] = {}
    removed: bool = False
    forced: bool = False
    forcing: bool = False


class DataDirectory:
    """Opened at start, held until :meth:`close`. Blocking.

    Raises:
        RaftStartError: Somebody else holds it, or it belongs to another mode, member or way of storing.
    """

    def __init__(self, config: RaftConfig) -> None:
        self._root = config.data_dir
        self.raft = self._root / "raft"
        self._config = config
        self._lock = -1
        self._vote = -1
        self._sequence = 0
        self.fresh = False  # the directory was empty until now
        try:
            self.raft.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            self.identity = self._claim()
        except OSError as error:
            self.close()
            raise RaftStartError(f"raft: data directory {self._root}: {error.strerror}") from error
        except RaftStartError:
            self.close()
            raise

    def _force(self, identity: Identity) -> Identity:
        """Begin a new cluster of this member alone, under another name, so that no former member links to it.

        The log follows, see :meth:`forced`; a start in between begins again here.
        """
        config = self._config
        if not config.force_new_cluster and not identity.forcing:
            if identity.forced:
                identity = msgspec.structs.replace(identity, forced=False)
                self._store(identity)
            return identity
        if identity.forced and not identity.forcing:
            logger.warning(
                "force-new-cluster ignored cluster=%s: done by the last start; start once without it to "
                "be able to do it again",
                identity.cluster,
            )
            return identity
        identity = msgspec.structs.replace(
            identity,
            members=(config.me,),
            cluster=secrets.token_hex(16),
            founders={},
            formats={},
            removed=False,
            forcing=True,
        )
        self._store(identity)
        return identity

    def forced(self, *, voter: bool) -> None:
        """The log names this member alone, durably; without ``voter`` it is empty and will found itself."""
        self.identity = msgspec.structs.replace(self.identity, voter=voter, forcing=False, forced=True)
        self._store(self.identity)
        logger.warning("new cluster forced me=%s cluster=%s", self._config.me, self.identity.cluster)

    def _take_lock(self) -> None:
        self._lock = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RaftStartError(f"raft: data directory {self._root} is in use by another process") from error

    def _claim(self) -> Identity:
        """Read whose directory this is, or make it ours."""
        config, path = self._config, self._root / "identity.json"
        volatile = config.durability == "memory"
        segments = bool(Journal.segment_paths(self.raft))
        if not path.exists():
            if segments:
                raise RaftStartError(
                    f"raft: data directory {self._root} holds a journal but no identity.json"
                )
            identity = Identity(
                format=FORMAT,
                mode="raft",
                me=config.me,
                members=tuple(sorted(config.peers)),
                cluster=cluster_id(config.peers),
                durability="memory" if volatile else "journal",
                instance=secrets.token_hex(16),
                voter=False,
                founders={},
            )
            self._create_vote()
            self._store(identity)
            self.fresh = True
            return self._force(identity)
        identity = self._load(path)
        if identity.mode != "raft":
            raise RaftStartError(
                f"raft: data directory {self._root} belongs to mode {identity.mode}, not raft"
            )
        if identity.me != config.me:
            raise RaftStartError(
                f"raft: data directory {self._root} belongs to member {identity.me}, not {config.me}"
            )
        if (identity.durability == "memory") != volatile:
            raise RaftStartError(
                f"raft: data directory {self._root} was made with durability {identity.durability}, not "
                f"{config.durability}; use an empty one (the member then catches up from the others)"
            )
        if identity.removed and not config.force_new_cluster:
            raise RaftStartError(
                f"raft: data directory {self._root}: {config.me} was removed from its cluster; empty it to "
                "have the member added again"
            )
        if volatile:  # whatever it promised lived in memory only: a new life (rule 10)
            identity = msgspec.structs.replace(
                identity, instance=secrets.token_hex(16), voter=False, founders={}
            )
            self._store(identity)
            return self._force(identity)
        if identity.voter and not segments:
            raise RaftStartError(
                f"raft: data directory {self._root} has lost its journal; empty it (it then catches up)"
            )
        return self._force(identity)

    @staticmethod
    def _load(path: Path) -> Identity:
        raw = path.read_bytes()
        try:
            known = msgspec.json.decode(raw)
            mode = known.get("mode") if isinstance(known, dict) else None
            if isinstance(mode, str) and mode != "raft":
                raise RaftStartError(f"raft: data directory {path.parent} belongs to mode {mode}, not raft")
            identity = msgspec.json.decode(raw, type=Identity)
        except msgspec.MsgspecError as error:
            raise RaftStartError(f"raft: {path} is damaged: {error}") from error
        if identity.format != FORMAT:
            raise RaftStartError(f"raft: {path} has format {identity.format}, this program knows {FORMAT}")
        return identity

    def _store(self, identity: Identity) -> None:
        path = self._root / "identity.json"
        temporary = path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(identity)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        sync_directory(self._root)

    @property
    def standing(self) -> Standing:
        return Standing(
            instance=self.identity.instance,
            voter=self.identity.voter,
            founders=dict(self.identity.founders),
            cluster=self.identity.cluster,
            formats=dict(self.identity.formats),
            removed=self.identity.removed,
        )

    def save_standing(self, standing: Standing) -> None:
        """Durable on return; of a member without durable data only what concerns it in another life, too."""
        self.identity = msgspec.structs.replace(
            self.identity,
            cluster=standing.cluster,
            formats=dict(standing.formats),
            removed=standing.removed,
        )
        if self._config.durability != "memory":
            self.identity = msgspec.structs.replace(
                self.identity, voter=standing.voter, founders=dict(standing.founders)
            )
        self._store(self.identity)

    def save_members(self, members: tuple[str, ...]) -> None:
        """Remember who takes part, for a member that has no log to tell it after a restart."""
        self.identity = msgspec.structs.replace(self.identity, members=members)
        self._store(self.identity)

    def abandon(self) -> None:
        """A first start that came to nothing, before anything was promised, leaves nothing behind."""
        if self.fresh:
            for path in (self._root / "identity.json", *self.raft.iterdir()):
                path.unlink(missing_ok=True)
            sync_directory(self._root)
            self.fresh = False

    # ---- term and vote

    def _create_vote(self) -> None:
        """Before the identity is stored: from then on a missing vote is damage."""
        self._vote = os.open(self.raft / "vote", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._vote, bytes(2 * _SLOT_SIZE), 0)
        self.save_vote(0, None)
        self.save_vote(0, None)
        os.fsync(self._vote)
        os.close(self._vote)
        self._vote = -1
        sync_directory(self.raft)

    def load_vote(self) -> tuple[int, str | None]:
        """Open the vote file and return the newest term and vote.

        Raises:
            RaftStartError: The file is missing, or neither slot is readable.
        """
        path = self.raft / "vote"
        try:
            self._vote = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise RaftStartError(
                f"raft: {path} is missing: what this member promised is unknown; empty its data directory"
            ) from error
        raw = os.pread(self._vote, 2 * _SLOT_SIZE, 0)
        slots = [slot for i in (0, 1) if (slot := _parse_slot(raw[i * _SLOT_SIZE : (i + 1) * _SLOT_SIZE]))]
        if not slots:
            raise RaftStartError(
                f"raft: {path} is damaged: what this member promised is unknown; empty its data directory"
            )
        self._sequence, term, vote = max(slots, key=lambda slot: slot[0])
        return term, vote

    def save_vote(self, term: int, vote: str | None) -> None:
        """Durable on return, whatever the durability of the log."""
        self.vote_to_save(term, vote)()

    def vote_to_save(self, term: int, vote: str | None) -> Callable[[], None]:
        """Return what makes term and vote durable, for a thread; the newest one asked for here rules.

        Two may run at a time, for there are two slots.
        """
        self._sequence += 1
        payload = msgspec.msgpack.encode((FORMAT, term, vote))
        body = _SLOT.pack(0, self._sequence, len(payload))[4:] + payload
        slot = zlib.crc32(body).to_bytes(4, "big") + body
        assert len(slot) <= _SLOT_SIZE
        descriptor, offset = self._vote, (self._sequence % 2) * _SLOT_SIZE

        def write() -> None:
            os.pwrite(descriptor, slot, offset)
            os.fdatasync(descriptor)

        return write

    def close(self) -> None:
        """Give the directory back."""
        for descriptor in (self._vote, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._vote = self._lock = -1


def _parse_slot(raw: bytes) -> tuple[int, int, str | None] | None:
    if len(raw) < _SLOT.size:
        return None
    checksum, sequence, size = _SLOT.unpack_from(raw)
    end = _SLOT.size + size
    if end > len(raw) or zlib.crc32(raw[4:end]) != checksum:
        return None
    try:
        _, term, vote = msgspec.msgpack.decode(raw[_SLOT.size : end], type=tuple[int, int, str | None])
    except msgspec.MsgspecError:
        return None
    return sequence, term, vote
