"""Runs one engine on the event loop: timers, links, the journal's writer, snapshots in threads."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, TypeVar

from nameserver.raft.consensus.applying import Stopped
from nameserver.raft.consensus.engine import Engine
from nameserver.raft.consensus.log import (
    CONFIGURATION,
    FIRST_INDEX,
    FIRST_TERM,
    OP_ENTRY,
    OP_RESET,
    Op,
    Recovered,
)
from nameserver.raft.consensus.members import Standing, decode_configuration, encode_configuration, founding
from nameserver.raft.consensus.messages import MessageError
from nameserver.raft.links import tls
from nameserver.raft.links.auth import Credentials
from nameserver.raft.links.transport import APPLICATION, RAFT, LinkError, Transport
from nameserver.raft.storage.identity import DataDirectory
from nameserver.raft.storage.images import Image, Snapshots, parse
from nameserver.raft.storage.journal import Journal, Replay, StorageFull
from nameserver.raft.storage.writer import Writer
from nameserver.raft.types import (
    ChangeRefused,
    RaftConfig,
    RaftStartError,
    SnapshotInfo,
    StateMachine,
    StopMember,
)

logger = logging.getLogger(__name__)

#: Room for a message around an entry or a batch of entries.
FRAME_OVERHEAD: Final = 1024 * 1024
#: A follower waits for its own write if the one before it ended so long ago: no other work is being held up.
QUIET_S: Final = 0.0003
#: And if the loop was through with all that was ready so soon: it is not busy with reads, say.
IDLE_S: Final = 0.0003
#: Once a write took longer than the loop waits, the loop waits for none for so long.
HASTE_S: Final = 0.25
#: Messages held while term and vote are stored; a disk that stands still for long costs those after these.
HELD_MAX: Final = 4096
#: Timers are not set closer than this.
TIMER_MIN_S: Final = 0.001
#: While a thread computes, the loop gets the interpreter after so long, instead of five times that.
TURN_S: Final = 0.001
_USUAL_TURN_S: Final = sys.getswitchinterval()
_Result = TypeVar("_Result")
#: How often a timer is set anew because messages have moved its deadline on.
PUT_OFF_S: Final = 0.02


#: Seconds that count pauses and suspends in full (rule 8). A partial, as each batch of reads asks.
boot_clock: Final = functools.partial(
    time.clock_gettime, time.CLOCK_BOOTTIME if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_MONOTONIC
)


async def _beside(work: Callable[[], _Result]) -> _Result:
    """Do what computes for long in a thread, in turns so short that the loop is not late.

    The turns are of the whole process; usual ones cost a thread that computes less, and there is none then.
    """
    sys.setswitchinterval(TURN_S)
    try:
        return await asyncio.to_thread(work)
    finally:
        sys.setswitchinterval(_USUAL_TURN_S)


class Driver:
    """The engine's ports and the transport's owner: all of one member that waits or touches the machine.

    Args:
        on_fatal: Called at most once, on the loop.
        on_removed: The cluster removed this member, which takes part no more; called at most once.
    """

    def __init__(
        self,
        config: RaftConfig,
        machine: StateMachine,
        *,
        on_peer_message: Callable[[str, bytes], None],
        on_change: Callable[[], None],
        on_fatal: Callable[[str], None],
        on_removed: Callable[[str], None],
    ) -> None:
        self._config = config
        self._machine = machine
        self._on_peer_message = on_peer_message
        self._on_change = on_change
        self._on_fatal = on_fatal
        self._on_removed = on_removed
        self._volatile = config.durability == "memory"
        self._directory: DataDirectory | None = None
        self._journal: Journal | None = None
        self._snapshots: Snapshots | None = None
        self._writer: Writer | None = None
        self._handed = self._told = 0  # positions of writes: the last one, and up to which they are durable
        self._told_at = self._wait_from = -math.inf
        self._image_date: tuple[int, float] | None = None
        self._memory_image: tuple[int, int, bytes, bytes | bytearray] | None = (
            None  # index, term, configuration, image
        )
        self._step_due = self._change_due = self._closed = False
        self._vote_due: tuple[int, str | None] | None = None
        self._saving_vote = False
        self._held: list[tuple[str, int, bytes]] = []  # member, kind, message: sent once the vote is durable
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._put_off_from = -math.inf
        self._background: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()
        try:
            self.engine, self.transport = self._open()
        except BaseException:
            self._close_files()
            raise

    # ---- life

    def _open(self) -> tuple[Engine, Transport]:
        config = self._config
        directory = self._directory = DataDirectory(config)
        identity = directory.identity
        term, vote = directory.load_vote()
        recovered = (
            Recovered(term=term, vote=vote, configuration=founding(identity.members))
            if self._volatile
            else self._recover(directory, term, vote)
        )
        newest = recovered.entries[-1][2] if recovered.entries else recovered.base_term
        if newest > recovered.term:  # killed before the term was stored: nobody was told of it
            recovered = replace(recovered, term=newest, vote=None)
        if identity.forcing:
            recovered = self._force(directory, recovered)
        engine = Engine(
            me=config.me,
            machine=self._machine,
            ports=self,
            clock=boot_clock,
            rng=Random(os.urandom(16)),
            standing=directory.standing,
            recovered=recovered,
            election_timeout_ms=config.election_timeout_ms,
            volatile=self._volatile,
            compact_bytes=config.compact_bytes,
            entry_size_max=config.entry_size_max,
            http=config.http,
        )
        if not engine.empty and set(engine.members) != set(config.peers):
            logger.warning(
                "stored members rule stored=%s peers=%s", ",".join(engine.members), ",".join(config.peers)
            )
        credentials = Credentials(
            me=config.me,
            members=frozenset(engine.members),
            cluster=directory.identity.cluster,
            secret=config.secret,
            open=engine.empty,
        )
        contexts = None
        if config.tls_cert is not None and config.tls_key is not None and config.tls_ca is not None:
            contexts = tls.load(me=config.me, cert=config.tls_cert, key=config.tls_key, ca=config.tls_ca)
        frame_size_max = config.entry_size_max + FRAME_OVERHEAD
        return engine, Transport(credentials, owner=self, frame_size_max=frame_size_max, tls=contexts)

    def _force(self, directory: DataDirectory, recovered: Recovered) -> Recovered:
        """The log gets an entry that leaves this member alone; all that it holds counts from then on.

        Without any data there is nothing to add it to: the engine founds a cluster of one.
        """
        last = recovered.base_index + len(recovered.entries)
        if last == FIRST_INDEX or self._journal is None:
            directory.forced(voter=False)
            return replace(recovered, configuration=founding((self._config.me,)))
        command = CONFIGURATION + encode_configuration(founding((self._config.me,)))
        try:
            self._journal.append([(OP_ENTRY, last + 1, recovered.term, command)])
            self._journal.rotate()  # synced, whatever the durability
        except (OSError, StorageFull) as error:
            raise RaftStartError(f"raft: {directory.raft}: {error}") from error
        directory.forced(voter=True)
        return replace(recovered, entries=[*recovered.entries, (command, last + 1, recovered.term)])

    def _recover(self, directory: DataDirectory, term: int, vote: str | None) -> Recovered:
        self._snapshots = Snapshots(directory.raft)
        self._journal = Journal(directory.raft, sync=self._config.durability == "fsync")
        try:
            found = self._snapshots.recover()
            replay, journal_bytes = self._journal.recover()
        except (OSError, StorageFull) as error:
            raise RaftStartError(f"raft: {directory.raft}: {error}") from error
        image, configuration = None, founding(directory.identity.members)
        if found is not None:
            image, data = found
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
        recovered = replace(joined.recovered, configuration=configuration)
        if joined.replaced:
            self._journal.append([(OP_RESET, recovered.base_index, recovered.base_term)])
        return recovered

    async def start(self) -> str:
        """Replay, bind, take part; return the bound address.

        Raises:
            RaftStartError: The address cannot be bound, or needs a secret.
        """
        if self._journal is not None:
            self._writer = Writer(self._journal, done=self._written, failed=self._write_failed)
            self._writer.start()
        bound = await self.transport.listen(self._config.listen or self._config.me)
        assert self._directory is not None
        self._directory.fresh = False
        try:
            self.engine.start()
        except (Stopped, StopMember) as error:
            raise RaftStartError(f"raft: {self._config.data_dir}: {error}") from error
        await self.transport.go()
        self._timer_fired()
        return bound

    async def close(self) -> None:
        """Stop taking part; write what is queued; close everything. Idempotent."""
        if self._closed:
            return
        try:
            self.engine.close()
        except StopMember:
            pass  # term or vote could not be stored; nothing depends on it any more
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self.transport.close()
        if self._background:
            await asyncio.wait(self._background)
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close)
        self._close_files()

    def _close_files(self) -> None:
        if self._journal is not None:
            try:
                self._journal.close()
            except OSError as error:
                logger.error("journal close failed error=%s", error.strerror)
        if self._snapshots is not None:
            self._snapshots.close()
        if self._directory is not None:
            self._directory.abandon()
            self._directory.close()

    # ---- time

    def wake(self) -> None:
        """Step once after everything that is ready in this turn of the loop (group commit)."""
        if not self._step_due and not self._closed:
            self._step_due = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        self._step_due = False
        if self._closed:
            return
        self._run_engine()
        wake_at = self.engine.next_wake()
        if wake_at < self._timer_at:
            self._set_timer(wake_at)

    def _run_engine(self) -> None:
        try:
            self.engine.step()
        except StopMember:
            pass  # a promise could not be stored: fatal() has been called

    def _set_timer(self, wake_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wake_at
        # uvloop counts in whole milliseconds, and a timer that fires a moment too early is set once more.
        delay = max(0.0, wake_at - boot_clock())  # a member that is to stand now has a deadline of -inf
        self._timer = self._loop.call_later(math.ceil(delay * 1000) / 1000, self._timer_fired)

    def _put_off(self) -> None:
        """Heartbeats move a follower's deadlines on: to set its timer anew costs less than an early look.

        Not after each message of a busy leader.
        """
        now = boot_clock()
        if now >= self._put_off_from and self._timer is not None and not self.engine.leads:
            self._put_off_from = now + PUT_OFF_S
            wake_at = self.engine.next_wake()
            if wake_at > self._timer_at:
                self._set_timer(wake_at)

    def _timer_fired(self) -> None:
        """The timer is lazy: deadlines that moved on in the meantime only cost an early look."""
        self._timer = None
        self._timer_at = math.inf
        if self._closed:
            return
        self._ask_writer()
        if self.engine.next_wake() <= boot_clock():
            self._run_engine()
        self._set_timer(max(self.engine.next_wake(), boot_clock() + TIMER_MIN_S))

    def changed(self) -> None:
        if not self._change_due and not self._closed:
            self._change_due = True
            self._loop.call_soon(self._tell_change)

    def _tell_change(self) -> None:
        self._change_due = False
        if not self._closed:
            self._renew_credentials()
            self._on_change()

    def _renew_credentials(self) -> None:
        assert self._directory is not None
        credentials = replace(
            self.transport.credentials,
            members=frozenset(self.engine.members),
            cluster=self._directory.identity.cluster,
            open=self.engine.empty,
        )
        if credentials != self.transport.credentials:
            self.transport.follow(credentials)

    def follow(self, members: tuple[str, ...]) -> None:
        if self._volatile:  # a member that starts empty again waits for those that take part now
            self._saved(lambda directory: directory.save_members(members))
        self._renew_credentials()

    # ---- links (transport.Owner, ports.Ports)

    def link_up(self, peer: str) -> None:
        self.engine.link_up(peer)
        self.changed()

    def link_down(self, peer: str) -> None:
        self._held = [message for message in self._held if message[0] != peer]
        self.engine.link_down(peer)
        self.changed()

    def raft_message(self, peer: str, data: memoryview) -> None:
        self._ask_writer()
        try:
            self.engine.receive(peer, data)
        except MessageError as error:
            raise LinkError(str(error)) from error
        except StopMember as error:
            raise LinkError(f"this member stops: {error}") from error
        self._put_off()

    def application_message(self, peer: str, data: bytes) -> None:
        if self._closed:
            return
        if not self.engine.linked_to(peer):
            raise LinkError("application message before a hello")
        try:
            self._on_peer_message(peer, data)
        except Exception:
            # A handler's defect must not close the link: the peer would send the same again for ever.
            logger.exception("peer message handler failed peer=%s", peer)

    def send(self, member: str, message: bytes) -> bool:
        return self._send(member, RAFT, message)

    def send_application(self, member: str, message: bytes) -> bool:
        if not self.engine.linked_to(member):
            return False
        if self._saving_vote:
            return self._send(member, APPLICATION, message)
        return self.transport.send(member, APPLICATION, message)

    # ---- storage (ports.Ports)

    def write(self, position: int, ops: list[Op]) -> None:
        assert self._writer is not None
        leads = self.engine.leads
        # A leader hears from others before it can commit, and looks then.
        self._writer.write(position, ops, silent=leads and len(self.engine.voters) > 1)
        if self._handed == self._told and not leads:
            now = boot_clock()
            if now > self._wait_from and now > self._told_at + QUIET_S:
                # all that is ready goes first
                self._loop.call_soon(self._loop.call_soon, self._await_write, now + IDLE_S)
        self._handed = position

    def _ask_writer(self) -> None:
        """Take what is durable by now before something else is done with it."""
        if self._handed != self._told and self._writer is not None:
            position = self._writer.ask()
            if position > self._told:
                self._durable(position)

    def _await_write(self, deadline: float) -> None:
        """The answer to the leader is all that is waited for, most likely: the disk is waited for with it."""
        if self._closed or self._writer is None or self._handed == self._told or boot_clock() > deadline:
            return
        position = self._writer.wait(self._handed)
        if position is None:
            self._wait_from = boot_clock() + HASTE_S
        elif position:
            self._durable(position)

    def _written(self, position: int) -> None:
        """On the writer's thread."""
        try:
            self._loop.call_soon_threadsafe(self._durable, position)
        except RuntimeError:
            pass  # the loop is closed: nobody is left to be told

    def _durable(self, position: int) -> None:
        self._told, self._told_at = max(self._told, position), boot_clock()
        if not self._closed:
            try:
                self.engine.durable(position)
            except StopMember:
                pass  # a promise could not be stored: fatal() has been called

    def _write_failed(self, reason: str) -> None:
        """On the writer's thread."""
        try:
            self._loop.call_soon_threadsafe(self.fatal, reason)
        except RuntimeError:
            pass  # as above

    def save_vote(self, term: int, vote: str | None, *, at_once: bool) -> None:
        if at_once:
            self._vote_due = None
            self._saved(lambda directory: directory.save_vote(term, vote))
            return
        self._vote_due = (term, vote)
        if not self._saving_vote:
            self._saving_vote = True
            self._in_background(self._save_votes())

    async def _save_votes(self) -> None:
        """A disk that stands still must not hold the loop: stale reads and refusals go on meanwhile."""
        assert self._directory is not None
        while self._vote_due is not None:
            write = self._directory.vote_to_save(*self._vote_due)
            self._vote_due = None
            try:
                await asyncio.to_thread(write)
            except OSError as error:
                self.fatal(f"cannot store term or vote: {error.strerror}")  # what is held never leaves
                return
        self._saving_vote = False
        held, self._held = self._held, []
        for member, kind, message in held:
            self.transport.send(member, kind, message)

    def _send(self, member: str, kind: int, message: bytes) -> bool:
        """Send, in order; nothing leaves while a promise is on its way to the disk."""
        if not self._saving_vote:
            return self.transport.send(member, kind, message)
        if len(self._held) >= HELD_MAX:
            self.transport.drop(member)  # a link that stays must not miss a message
            return False
        self._held.append((member, kind, message))
        return True

    def save_standing(self, standing: Standing) -> None:
        self._saved(lambda directory: directory.save_standing(standing))

    def _saved(self, save: Callable[[DataDirectory], None]) -> None:
        """A promise that is not on the disk must not leave: stop instead."""
        assert self._directory is not None
        try:
            save(self._directory)
        except OSError as error:
            reason = f"cannot store term, vote or standing: {error.strerror}"
            self.fatal(reason)
            raise StopMember(reason) from error

    def fatal(self, reason: str) -> None:
        if not self._closed:
            self.engine.stop()
            logger.critical("raft member stops me=%s reason=%s", self._config.me, reason)
            self._on_fatal(reason)

    def removed(self, reason: str) -> None:
        if not self._closed:
            self.engine.stop()
            logger.warning("raft member removed me=%s reason=%s", self._config.me, reason)
            self._on_removed(f"raft: {reason}; it stops, and must not start on this data again")

    # ---- state images (ports.Ports)

    def image(self) -> tuple[int, int, int, bytes] | None:
        if self._volatile:
            held = self._memory_image
            return None if held is None else (held[0], held[1], len(held[3]), held[2])
        newest = self._snapshots.newest if self._snapshots is not None else None
        return None if newest is None else (newest.index, newest.term, newest.size, newest.configuration)

    def read_image(self, index: int, offset: int, size: int) -> bytes | None:
        if self._volatile:
            held = self._memory_image
            return bytes(held[3][offset : offset + size]) if held is not None and held[0] == index else None
        return self._snapshots.read(index, offset, size) if self._snapshots is not None else None

    def make_image(self, index: int, term: int, configuration: bytes, encode: Callable[[], bytes]) -> None:
        if self._writer is not None:
            self._writer.call(self._rotate)
        self._in_background(self._make_image(index, term, configuration, encode))

    async def _make_image(
        self, index: int, term: int, configuration: bytes, encode: Callable[[], bytes]
    ) -> None:
        """A failure costs nothing but room (D28)."""
        try:
            await self._store(index, term, configuration, await _beside(encode))
        except Exception as error:
            if not isinstance(error, OSError):
                logger.exception("snapshot failed index=%d", index)
            self.engine.images.failed(str(error))
        else:
            self.engine.images.made(index)

    def install_image(self, index: int, term: int, configuration: bytes, image: bytearray) -> None:
        self._in_background(self._install_image(index, term, configuration, image))

    async def _install_image(self, index: int, term: int, configuration: bytes, image: bytearray) -> None:
        """All of it that takes long is done in threads; then the state is replaced on the loop.

        The image is not copied: a thread that copies so much holds up all others.
        """
        try:
            install = await _beside(lambda: self._machine.prepare(image))
            await self._store(index, term, configuration, image)
        except StopMember as error:
            self.fatal(f"snapshot {index} from the leader: {error}")
        except Exception as error:
            if not isinstance(error, OSError):
                logger.exception("snapshot not installed index=%d", index)
            self.engine.images.install_failed(str(error))
        else:
            if not self._closed:
                self.engine.images.installed(index, term, configuration, install)

    def image_age(self) -> float | None:
        """Seconds since the newest image was stored, by the file's date; None if there is no file.

        The date is read once an image: a disk that hangs must not hang whoever asks for figures.
        """
        newest = self._snapshots.newest if self._snapshots is not None else None
        if newest is None:
            return None
        if self._image_date is None or self._image_date[0] != newest.index:
            try:
                self._image_date = (newest.index, newest.path.stat().st_mtime)
            except OSError:
                return None
        return max(0.0, time.time() - self._image_date[1])

    def image_file(self, index: int) -> SnapshotInfo | None:
        """The newest image as a file, if it covers ``index`` and is one."""
        newest = self._snapshots.newest if self._snapshots is not None else None
        if newest is None or newest.index < index:
            return None
        return SnapshotInfo(
            path=newest.path, index=newest.index, term=newest.term, size=newest.path.stat().st_size
        )

    async def write_image_file(self, index: int) -> None:
        """A member that keeps its image in memory writes it for once."""
        held = self._memory_image
        if self._volatile and held is not None and held[0] >= index:
            assert self._directory is not None
            snapshots = self._snapshots = self._snapshots or Snapshots(self._directory.raft)
            at, term, configuration, data = held
            snapshots.publish(await asyncio.to_thread(snapshots.store, at, term, configuration, data))

    async def restore(self, raw: bytes) -> None:
        """Make the snapshot file ``raw`` log and state.

        Raises:
            NotLeader, ChangeRefused: Nothing was done.
        """
        try:
            image, data = await asyncio.to_thread(parse, raw, self._config.data_dir)
            install = await _beside(lambda: self._machine.prepare(data))
        except (ValueError, StopMember) as error:
            raise ChangeRefused(f"this is no snapshot that can be restored: {error}") from error
        images = self.engine.images
        images.begin_restore()
        try:
            while not images.settled:
                await asyncio.sleep(0.005)
                if self._closed:
                    raise ChangeRefused("this member stops")
            index, term, configuration = images.restore_at(image.index)
            await self._store(index, term, configuration, data)
        except OSError as error:
            raise ChangeRefused(f"the snapshot cannot be stored: {error.strerror or error}") from error
        else:
            images.restored(index, term, configuration, install)
        finally:
            images.restore_ended()

    def trim(self, index: int) -> None:
        if self._writer is not None and self._journal is not None:
            journal = self._journal
            self._writer.call(lambda: journal.trim(index))

    def _rotate(self) -> None:
        """On the writer's thread."""
        assert self._journal is not None
        try:
            self._journal.rotate()
        except StorageFull as error:
            logger.error("journal full: %s; the segment goes on", error)

    async def _store(self, index: int, term: int, configuration: bytes, data: bytes | bytearray) -> None:
        """Store one image durably, in a thread."""
        if self._volatile:
            self._memory_image = (index, term, configuration, data)
            return
        snapshots = self._snapshots
        assert snapshots is not None
        snapshots.publish(await asyncio.to_thread(snapshots.store, index, term, configuration, data))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self.keep(self._loop.create_task(work, name="raft snapshot"))

    def keep(self, task: asyncio.Future[None]) -> None:
        """Wait for it before the files are closed."""
        self._background.add(task)
        task.add_done_callback(self._background.discard)


@dataclass(frozen=True, slots=True)
class Joined:
    """The log that image and journal make; ``replaced`` if the journal does not continue the image."""

    recovered: Recovered
    replaced: bool


def join(image: Image | None, replay: Replay, *, term: int, vote: str | None, size: int) -> Joined | None:
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
    recovered = Recovered(
        base_index=index,
        base_term=index_term,
        entries=list(entries),
        commit_index=min(max(replay.commit_index, index), last),
        term=term,
        vote=vote,
        journal_bytes=size,
    )
    return Joined(recovered, replaced)
