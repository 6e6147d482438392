"""One member: the engine on the event loop, with its timers, its links and its journal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any, Final

from routekeeper.nameserver.disk.files import DISK
from routekeeper.nameserver.raft.consensus import effects
from routekeeper.nameserver.raft.consensus.effects import Apply, Changed, Effect, Send, Wake, WriteJournal
from routekeeper.nameserver.raft.consensus.engine import Engine
from routekeeper.nameserver.raft.consensus.members import majority
from routekeeper.nameserver.raft.consensus.messages import MessageError, encode
from routekeeper.nameserver.raft.consensus.part import Shared
from routekeeper.nameserver.raft.library import check_library
from routekeeper.nameserver.raft.links.auth import Credentials, LinkError
from routekeeper.nameserver.raft.links.tls import TlsContexts
from routekeeper.nameserver.raft.links.transport import (
    APPLICATION,
    APPLICATION_BUFFER_MAX,
    BUFFER_MAX,
    RAFT,
    Transport,
)
from routekeeper.nameserver.raft.storage.writer import Writer
from routekeeper.nameserver.raft.types import (
    ChangeRefused,
    ChangeUnknown,
    NotLeader,
    RaftConfig,
    Role,
    StateMachine,
    StopMember,
    needed_to_start,
)
from routekeeper.remoting.disk_threads import DiskThreads
from routekeeper.remoting.histogram import Histogram
from routekeeper.remoting.threads import LIMITS_HINT, NoFreeThread
from routekeeper.remoting.watched_files import WatchedFiles

from .applier import Applier
from .certificates import Certificates
from .changes import HANDOVER_S, HANDOVER_STEP_S, Changes
from .images import ImageFiles, NoThread
from .promises import Promises
from .recovery import Storage
from .secret_file import read_secrets

logger = logging.getLogger(__name__)

#: A clock in seconds that counts pauses and suspends in full (rule 8 of docs/raft-rules.md). Each batch of
#: reads calls the clock, so it is a ``functools.partial``, which is faster than a Python function.
boot_clock: Final = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
#: Largest number of bytes in a message besides the bytes of its entries.
FRAME_OVERHEAD: Final = 1024 * 1024
#: Shortest delay in seconds of a timer.
TIMER_MIN_S: Final = 0.001
#: Messages of the leader move the election deadline. The timer follows the deadline at most once in this
#: number of seconds.
MOVE_TIMER_S: Final = 0.02
#: Largest number of messages that wait while a vote or member state is being stored. If there are more, this
#: member closes the link to the next message's receiver.
HELD_MAX: Final = 4096
#: Longest time in seconds that a closing member waits for its disk.
CLOSE_S: Final = 5.0


class RaftMember:
    """One member of a Raft cluster on the running event loop.

    Args:
        machine: The replicated state.
        on_peer_message: Called with sender and content of each application message from another member.
        on_change: Called on the loop when role, term, leader, indexes, links or contact may have changed. It
            is called at most once in one iteration of the loop.
        on_fatal: Called with one line of text when the member has stopped because of an error, such as a
            broken disk or an unreadable entry. By default the process ends, because any later answer could be
            wrong.
        on_removed: Called with one line of text when the cluster has removed this member. The default is
            ``on_fatal``.

    Attributes:
        changes: Changes of the cluster, for operators.
        bound: The address to which the raft port is bound; empty before :meth:`start`.
        images, certificates, transport: The parts of the member; :meth:`start` sets these attributes.

    Raises:
        RaftStartError: The settings are wrong, or the installed PySyncObj is not the version that is needed.
    """

    def __init__(
        self,
        config: RaftConfig,
        machine: StateMachine,
        *,
        on_peer_message: Callable[[str, bytes], None],
        on_change: Callable[[], None],
        on_fatal: Callable[[str], None] | None = None,
        on_removed: Callable[[str], None] | None = None,
    ) -> None:
        config.validate()
        check_library()
        self.config = config
        self.bound = ""
        self.times: Final = {"fsync": Histogram(), "apply": Histogram()}
        self.changes = Changes(self, me=config.me)
        self.on_fatal = on_fatal or _end_process
        self.on_removed = on_removed or self.on_fatal
        self._on_peer_message = on_peer_message
        self._on_change = on_change
        self._machine = machine
        self._engine: Engine | None = None
        self.images: ImageFiles
        self.transport: Transport
        self.certificates: Certificates | None = None
        self._secret_file: WatchedFiles[tuple[bytes, ...]] | None = None
        self._secrets: tuple[bytes | None, ...] = (config.secret, *config.other_secrets)
        self._applier: Applier
        self._storage: Storage
        self._promises: Promises
        self._writer: Writer | None = None
        self._loop: asyncio.AbstractEventLoop
        # The messages (receiver, kind, content) that wait until votes and member states are stored, and the
        # number of their bytes for each receiver
        self._held: list[tuple[str, int, bytes]] = []
        self._held_bytes: Counter[str] = Counter()
        self._durable_to = 0  # the journal is durable up to this position
        self._dropping: set[str] = set()  # members whose link the next iteration of the loop closes
        self._performing = False
        self._step_due = self._change_due = self._durable_due = self._closed = False
        self._removal = ""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._timer_moved_from = -math.inf
        self._background: set[asyncio.Future[None]] = set()

    # ---- state. Before the start, the properties have the values of a member without data.

    @property
    def engine(self) -> Engine:
        """The engine, which makes this member's decisions.

        Raises:
            NotLeader: This member has not started yet.
        """
        if self._engine is None:
            raise NotLeader(None)
        return self._engine

    @property
    def started(self) -> bool:
        """True after this member has read its disk."""
        return self._engine is not None

    @property
    def promises_kept(self) -> bool:
        """True while the disk has all votes and member states of this member.

        While the result is False, no message leaves this member.
        """
        return self._engine is not None and self._promises.kept

    @property
    def role(self) -> Role:
        """The present role of this member."""
        return Role.LEARNER if self._engine is None else self._engine.role

    @property
    def term(self) -> int:
        """The newest term that this member knows."""
        return 0 if self._engine is None else self._engine.term

    @property
    def leader(self) -> str | None:
        """The leader of the present term; None if no leader is known."""
        return None if self._engine is None else self._engine.leader

    @property
    def leads(self) -> bool:
        """True if this member leads and an entry of its own term is committed."""
        return self._engine is not None and self._engine.leads

    @property
    def votes(self) -> bool:
        """True if this member is a voter by its own configuration and its member state."""
        return self._engine is not None and self._engine.shared.votes

    @property
    def commit_index(self) -> int:
        """The index of the last entry that this member knows to be committed."""
        return 0 if self._engine is None else self._engine.commit_index

    @property
    def applied_index(self) -> int:
        """The index of the last entry that the state machine has applied."""
        return 0 if self._engine is None else self._engine.applied_index

    @property
    def members(self) -> tuple[str, ...]:
        """Voters and learners of the stored configuration, which may differ from the setting ``peers``."""
        return () if self._engine is None else self._engine.members

    @property
    def voters(self) -> tuple[str, ...]:
        """Voters of the configuration in force."""
        return () if self._engine is None else self._engine.voters

    @property
    def linked(self) -> frozenset[str]:
        """Members to which an authenticated link is up."""
        return frozenset() if self._engine is None else self._engine.greetings.linked

    @property
    def contact_limit(self) -> float:
        """The smallest election timeout N that any member stated, in seconds."""
        return 0.0 if self._engine is None else self._engine.greetings.contact_limit

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """The members for which this member waits at its first start; empty if it waits for none."""
        return () if self._engine is None else self._engine.greetings.waiting_for

    @property
    def distrusted(self) -> tuple[str, ...]:
        """Voters that may lack acknowledged entries, if the remaining voters are no majority.

        If the result is not empty, no member can lead until an operator acts.
        """
        return () if self._engine is None else self._engine.greetings.distrusted

    @property
    def best(self) -> str:
        """The member with the newest last entry, among this member and the members linked to it."""
        return "" if self._engine is None else self._engine.greetings.best

    def link_number(self, peer: str) -> int:
        """Return the number of the present link to ``peer``; 0 if there is no link.

        A new link has a new number.
        """
        return 0 if self._engine is None else self._engine.greetings.link_number(peer)

    def read_index_in(self, term: int) -> int | None:
        """Return the index that must be applied before a linearizable read may be answered.

        Return None if this member does not lead in ``term``, or has not committed an entry of this term.
        """
        return None if self._engine is None else self._engine.leading.read_index_in(term)

    def read_index_with(self, member: str, term: int) -> int | None:
        """Return the index of :meth:`read_index_in` if this member and ``member`` are a majority of voters.

        ``member`` asks for the index, and its question proves that it follows this leader. So nobody else
        need be asked. Without a majority, return None.
        """
        enough = member in self.voters and majority(len(self.voters)) <= 2
        return self.read_index_in(term) if enough else None

    def contact_age(self) -> float:
        """Return the seconds since this member certainly belonged to the cluster; inf if it never did."""
        return math.inf if self._engine is None else self._engine.contact_age()

    def in_contact(self) -> bool:
        """Return True if :meth:`contact_age` is below :attr:`contact_limit`.

        This method is fast, because each batch of reads calls it. Most calls only read the clock.
        """
        return self._engine is not None and self._engine.in_contact()

    def in_contact_behind_entry(self) -> bool:
        """Return True if :meth:`in_contact` will be true once the partly applied entry is complete.

        Return False if no entry is partly applied.
        """
        engine = self._engine
        return engine is not None and self.within_entry and engine.in_contact_behind_entry()

    @property
    def within_entry(self) -> bool:
        """True if some, but not all, steps of an entry are applied.

        This member may then have newer proof of its contact with the cluster (see
        :mod:`..consensus.contact`). The proof becomes valid only when the entry is applied completely.
        """
        return self._applier.within

    def member_age(self, member: str) -> float:
        """Return the seconds since ``member`` certainly accepted this leader in this term; inf if never."""
        return math.inf if self._engine is None else self._engine.member_age(member)

    def status(self) -> dict[str, object]:
        """Return figures for operators and metrics, which include all keys of /v1/status."""
        engine, age = self.engine, self.images.age()
        left = {} if self.certificates is None else {"certificate_left_s": round(self.certificates.left_s, 3)}
        return (
            left
            | engine.status()
            | {
                "snapshot_age_s": None if age is None else round(age, 3),
                "durability": self.config.durability,
                "me": self.config.me,
                # Operators send a secret to these addresses. Report the addresses only if peers must prove
                # their identity. Otherwise a false peer could announce its own address, and get the secret.
                "http": engine.greetings.http_addresses if self.config.authenticated else {},
            }
        )

    # ---- entries and messages

    def append(self, payload: bytes, *, term: int) -> int | None:
        """Append one entry if this member leads in ``term`` now, and return its index; else return None.

        Raises:
            ValueError: The payload has more than ``entry_size_max`` bytes.
        """
        if self._engine is None:
            return None
        index = self._engine.append(payload, term=term)
        self.perform()
        return index

    def send(self, member: str, message: bytes) -> bool:
        """Send an application message. Return False if there is no link, or if the link's buffer is full.

        A link delivers application messages and the engine's messages in the order of their calls.
        """
        return (
            self._engine is not None
            and member in self._engine.greetings.said
            and self._send(member, APPLICATION, message)
        )

    # ---- start and close

    async def start(self) -> None:
        """Lock the directory, recover the state, bind the address and begin to take part in the cluster.

        The start does not wait for a majority. It applies the entries that the journal marks as committed,
        with ``machine.apply(live=False)``.

        Raises:
            RaftStartError: The member must not start. The text is one line for the operator.
            NoFreeThread: A thread cannot be started. The text is one line for the operator.
        """
        self._loop = asyncio.get_running_loop()
        self._storage = storage = Storage(self.config, self._machine, DISK)
        self._promises = Promises(storage.directory, self._in_background, self._keep_going, self.fatal)
        self.images = ImageFiles(storage, self._machine, self._in_background, self.wake)
        self._applier = Applier(self._machine, boot_clock, self.times["apply"])
        try:
            self._engine = self._open()
        except BaseException:
            self._close_files()
            raise
        try:
            self.bound = await self._take_part(self._engine)
        except BaseException:
            await self.close(handover=False)
            raise
        logger.info(
            "raft member started me=%s listen=%s durability=%s role=%s term=%d applied_index=%d",
            self.config.me,
            self.bound,
            self.config.durability,
            self.role,
            self.term,
            self.applied_index,
        )

    def _open(self) -> Engine:
        config, storage = self.config, self._storage
        recovered = storage.recover()
        shared = Shared(
            config,
            held_image=self.images,
            clock=boot_clock,
            rng=Random(os.urandom(16)),
            standing=storage.directory.standing,
            recovered=recovered,
        )
        engine = Engine(shared)
        if not shared.empty and set(engine.members) != set(config.peers):
            logger.warning(
                "stored members rule stored=%s peers=%s", ",".join(engine.members), ",".join(config.peers)
            )
        contexts = None
        if config.tls_cert is not None and config.tls_key is not None and config.tls_ca is not None:
            self.certificates = Certificates(config, self._take_contexts)
            contexts = self.certificates.value
        if (path := config.secret_file) is not None:
            self._secret_file = WatchedFiles(
                "raft secret", (path,), lambda: read_secrets(path), self._take_secrets
            )
            self._secrets = self._secret_file.value
        size_max = config.entry_size_max + FRAME_OVERHEAD
        self.transport = Transport(
            self._credentials(engine), owner=self, frame_size_max=size_max, tls=contexts
        )
        return engine

    def _take_contexts(self, contexts: TlsContexts) -> None:
        self.transport.tls = contexts  # Present links stay, because both ends have proved their identity.

    def _take_secrets(self, secrets: tuple[bytes, ...]) -> None:
        self._secrets = secrets
        self.transport.use_credentials(self._credentials(self.engine))

    @property
    def reloads(self) -> list[WatchedFiles[Any]]:
        """The files that this member reads again while it runs."""
        files: list[WatchedFiles[Any] | None] = [self._secret_file]
        if self.certificates is not None:
            files.append(self.certificates.files)
        return [one for one in files if one is not None]

    async def _take_part(self, engine: Engine) -> str:
        """Bind the address, replay the log, begin to take part, and return the bound address.

        Raises:
            RaftStartError: The address cannot be bound, or strangers could reach it without a secret.
            NoFreeThread: The thread that writes the journal cannot be started.
        """
        if self._storage.journal is not None:
            try:
                self._writer = Writer(
                    self._storage.journal,
                    done=partial(self._on_loop, self._durable),
                    failed=partial(self._on_loop, self.fatal),
                    times=self.times["fsync"],
                )
            except RuntimeError as error:
                raise NoFreeThread(
                    f"raft: the thread of the journal cannot be started: {error}; {LIMITS_HINT}"
                ) from error
        bound = await self.transport.listen(self.config.listen or self.config.me)
        self._storage.directory.fresh = False
        with needed_to_start(self.config.data_dir, StopMember):
            while entries := engine.replay():
                engine.replayed(self._applier.apply(entries), within=self._applier.within)
                if self._applier.failure:
                    raise StopMember(self._applier.failure)
            engine.start()
            self.perform()
        await self.transport.go()
        if self.certificates is not None:
            self.certificates.watch()
        if self._secret_file is not None:
            self._secret_file.watch()
        self._timer_fired()
        return bound

    async def close(self, *, handover: bool = True) -> None:
        """Close the member: stop, write queued entries, and close all files.

        With ``handover``, a leader first tries to hand leadership to another member. A second call does
        nothing.
        """
        engine = self._engine
        if engine is None:
            return
        self.changes.close()
        if handover:
            for _ in range(round(HANDOVER_S / HANDOVER_STEP_S)):
                if not engine.greetings.linked or not self.hand_over():
                    break
                await asyncio.sleep(HANDOVER_STEP_S)
        if self._closed:
            return
        engine.close()
        self.perform()
        self._closed = self._promises.closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self.certificates is not None:
            self.certificates.close()
        if self._secret_file is not None:
            self._secret_file.close()
        await self.transport.close()
        closing = DiskThreads("raft close")  # a new thread, because the other threads may hang for ever
        try:
            async with asyncio.timeout(CLOSE_S):
                while self._background:
                    await asyncio.wait(self._background)
                try:
                    closed = self._loop.run_in_executor(closing, self._close_files)
                except RuntimeError:
                    # No thread can be started, so close the files on the event loop. Without this, the next
                    # start would not know that the journal is complete.
                    self._close_files()
                else:
                    await closed
        except TimeoutError:
            logger.error("storage does not answer seconds=%g: this member ends without it", CLOSE_S)
        for thread in (self._promises.thread, self.images.thread, self.images.computing, closing):
            thread.shutdown()

    def _close_files(self) -> None:
        """Write queued entries and close all files. The call blocks."""
        if self._writer is not None:
            self._writer.close()
        self._storage.close(wrote_all=self._writer is None or self._writer.wrote_all)

    # ---- time

    def wake(self) -> None:
        """Schedule one step of the engine after all callbacks of this iteration of the loop.

        So all these callbacks need only one sync of the journal.
        """
        if not self._step_due and not self._closed:
            self._step_due = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        self._step_due = False
        engine = self.engine
        engine.step()
        self.perform()
        wake_at = engine.next_wake()
        if wake_at < self._timer_at:
            self._set_timer(wake_at)

    def perform(self) -> None:
        """Perform the engine's effects, in order.

        Call this method after each call of the engine that changes the engine's state. While effects are
        being performed, this class calls the engine only to report applied entries or a snapshot that failed.
        """
        if self._performing:
            return  # This call comes from inside perform(). The outer call performs the new effects, too.
        engine = self._engine
        assert engine is not None, "it has been called"
        self._performing = True
        due = engine.effects
        try:
            while due.wanted:
                for effect in due.take():
                    self._do(effect)
        finally:
            self._performing = False

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect.peer, RAFT, encode(effect.message))
            case Wake():
                self.wake()
            case WriteJournal():
                assert self._writer is not None
                self._writer.write(effect.position, effect.ops, silent=effect.silent)
            case Apply():
                self._apply(effect)
            case Changed():
                self.changed()
            case effects.StoreVote():
                self._promises.store_vote(effect.term, effect.vote)
            case effects.StoreStanding():
                self._promises.store_standing(effect.standing)
            case effects.MakeImage():
                self._begin_image(effect)
            case effects.InstallImage():
                self._in_background(self._install_image(effect))
            case effects.Trim():
                if self._writer is not None:
                    self._writer.trim(effect.index)
            case effects.KeepLinks():
                self._keep_links(effect.members)
            case effects.Leave():
                self._leave(effect.reason)
            case effects.Fail():
                self.fatal(effect.reason)

    def _apply(self, effect: Apply) -> None:
        """Apply entries until the loop must do other work. Report to the engine how many were applied."""
        began, applier, engine = boot_clock(), self._applier, self.engine
        done = applier.apply(effect.entries)
        if applier.failure:
            engine.apply_failed(done, applier.failure)
        else:
            engine.applied(done, within=applier.within, took=boot_clock() - began)

    def _set_timer(self, wake_at: float) -> None:
        if self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wake_at
        # Round up, because uvloop counts whole milliseconds, and a timer that fires too early is wasted work.
        delay = max(0.0, wake_at - boot_clock())  # wake_at is -inf if this member must stand for election now
        self._timer = self._loop.call_later(math.ceil(delay * 1000) / 1000, self._timer_fired)

    def _move_timer(self, engine: Engine) -> None:
        """Set a follower's timer later, after messages of the leader have moved the election deadline.

        This takes less time than a timer that fires too early. A busy leader sends many messages, so the
        timer is set at most once in MOVE_TIMER_S seconds.
        """
        now = boot_clock()
        if now >= self._timer_moved_from and self._timer is not None and not engine.leads:
            self._timer_moved_from = now + MOVE_TIMER_S
            wake_at = engine.next_wake()
            if wake_at > self._timer_at:
                self._set_timer(wake_at)

    def _timer_fired(self) -> None:
        """Call the engine's ``step`` if a deadline of the engine has passed, and set the timer again.

        The deadline must be checked, because messages may have moved it after the timer was set.
        """
        self._timer = None
        self._timer_at = math.inf
        self._ask_journal()
        if self.engine.next_wake() <= boot_clock():
            self.engine.step()
            self.perform()
        self._set_timer(max(self.engine.next_wake(), boot_clock() + TIMER_MIN_S))

    def changed(self) -> None:
        if not self._change_due and not self._closed:
            self._change_due = True
            self._loop.call_soon(self._tell_change)

    def _tell_change(self) -> None:
        self._change_due = False
        if not self._closed:
            self.transport.use_credentials(self._credentials(self.engine))
            self.changes.look_again()
            self._on_change()

    def _credentials(self, engine: Engine) -> Credentials:
        return Credentials(
            me=self.config.me,
            members=frozenset(engine.members),
            cluster=self._storage.directory.state.cluster,
            secret=self._secrets[0],
            other_secrets=tuple(secret for secret in self._secrets[1:] if secret is not None),
            open=engine.shared.empty,
        )

    def _keep_links(self, members: tuple[str, ...]) -> None:
        if self._storage.volatile:  # store the members, because no durable log names them
            self._storage.directory.remember_members(members)
            self._promises.save_standing()
        self.transport.use_credentials(self._credentials(self.engine))

    # ---- links (transport.LinkOwner)

    def link_up(self, peer: str) -> None:
        self.engine.link_up(peer)
        self.perform()
        self.changed()

    def link_down(self, peer: str) -> None:
        self._held = [message for message in self._held if message[0] != peer]
        del self._held_bytes[peer]  # a Counter raises no error if the peer is not in it
        self.engine.link_down(peer)
        self.perform()
        self.changed()

    def raft_message(self, peer: str, data: bytes | memoryview) -> None:
        engine = self._engine
        assert engine is not None, "links come after the start"
        self._ask_journal()
        try:
            engine.receive(peer, data)
        except MessageError as error:
            raise LinkError(str(error)) from error
        self.perform()
        self._move_timer(engine)

    def hand_over(self, to: str | None = None) -> bool:
        """Ask ``to``, or any follower that holds the whole log, to take over leadership.

        Return False if this member does not lead any more, or is the only voter.
        """
        asked = self.engine.membership.hand_over(to)
        self.perform()
        return asked

    def application_message(self, peer: str, data: bytes) -> None:
        if self._closed:
            return
        if peer not in self.engine.greetings.said:
            raise LinkError("application message before a greeting")
        try:
            self._on_peer_message(peer, data)
        except Exception:
            # Keep the link although the handler has a defect. If this member closed it, the peer would send
            # the same message over each new link.
            logger.exception("peer message handler failed peer=%s", peer)

    # ---- storage

    def _ask_journal(self) -> None:
        """Ask the writer up to which position the journal is durable, and report this to the engine."""
        if self._writer is not None and self._writer.handed != self._durable_to:
            position = self._writer.ask()
            if position > self._durable_to:
                self._durable(position)

    def _on_loop(self, callback: Callable[..., None], said: object) -> None:
        """Call ``callback`` with ``said`` on the event loop. The writer's thread calls this method."""
        with contextlib.suppress(RuntimeError):  # call_soon_threadsafe raises it if the loop is closed
            self._loop.call_soon_threadsafe(callback, said)

    def _durable(self, position: int) -> None:
        """Report to the engine that the journal is durable up to ``position``.

        If a vote or member state is being stored, the report waits for the end of this write.
        """
        self._durable_to = max(self._durable_to, position)
        # Without this wait, the engine of an only voter would commit entries before its vote is stored.
        self._durable_due = not self._promises.kept
        if not self._durable_due:
            self.engine.durable(self._durable_to)
            self.perform()

    def _keep_going(self) -> None:
        """Send the messages that waited until all votes and member states were stored."""
        held, self._held = self._held, []
        self._held_bytes.clear()
        for message in held:
            self.transport.send(*message)
        if self._durable_due:
            self._durable(self._durable_to)
        if self._removal:
            self.on_removed(self._removal)

    def _send(self, member: str, kind: int, message: bytes) -> bool:
        """Send a message, or let it wait in order while a vote or member state is being stored.

        A link must not skip a message. If too many messages or bytes wait already, the next iteration of the
        loop closes the link, and no further message is sent over the link. The waiting bytes have the same
        bounds as a link's buffer, because the link gets all these messages at once.
        """
        if member in self._dropping:
            return False
        if self._promises.kept:
            return self.transport.send(member, kind, message)
        held_bytes = self._held_bytes[member] + len(message)
        if held_bytes > APPLICATION_BUFFER_MAX and kind == APPLICATION:
            return False
        if len(self._held) >= HELD_MAX or held_bytes > BUFFER_MAX:
            self._dropping.add(member)
            self._loop.call_soon(self._drop, member)
            return False
        self._held.append((member, kind, message))
        self._held_bytes[member] = held_bytes
        return True

    def _drop(self, member: str) -> None:
        self.transport.drop(member)
        self._dropping.discard(member)

    def fatal(self, reason: str) -> None:
        if not self._closed:
            self.engine.stop()
            logger.critical("raft member stops me=%s reason=%s", self.config.me, reason)
            self.on_fatal(reason)

    def _leave(self, reason: str) -> None:
        if not self._closed:
            self.engine.stop()
            logger.warning("raft member removed me=%s reason=%s", self.config.me, reason)
            self._removal = f"raft: {reason}; it stops, and must not start on this data again"
            if self._promises.kept:
                self._keep_going()

    # ---- snapshots

    def _begin_image(self, wanted: effects.MakeImage) -> None:
        """Copy references to the state on the event loop. A thread encodes the state later.

        PySyncObj forks a child process instead, which keeps all sockets open (its defect D29).
        """
        try:
            encode_state = self._machine.snapshot()
        except Exception as error:
            logger.exception("snapshot raised index=%d", wanted.index)
            self.engine.images.failed(str(error))
            return
        if self._writer is not None:
            self._writer.rotate()
        self._in_background(self._make_image(wanted, encode_state))

    async def _make_image(self, wanted: effects.MakeImage, encode_state: Callable[[], bytes]) -> None:
        """Encode and store a snapshot.

        If this fails, the log keeps its entries, so nothing is lost (repairs PySyncObj defect D28).
        """
        try:
            await self.images.make(wanted, encode_state)
        except Exception as error:
            if not isinstance(error, OSError):
                logger.exception("snapshot failed index=%d", wanted.index)
            self.engine.images.failed(str(error))
        else:
            self.engine.images.made(wanted.index)
        self.perform()

    async def _install_image(self, wanted: effects.InstallImage) -> None:
        try:
            replace_state = await self.images.install(wanted)
        except StopMember as error:
            self.fatal(f"snapshot {wanted.index} from the leader: {error}")
        except Exception as error:
            if not isinstance(error, OSError):
                logger.exception("snapshot not installed index=%d", wanted.index)
            self.engine.images.install_failed(str(error))
        else:
            replace_state = self._replacing(replace_state)
            self.engine.images.installed(wanted.index, wanted.term, wanted.configuration, replace_state)
        self.perform()

    def _replacing(self, replace_state: Callable[[], None]) -> Callable[[], None]:
        """Return a function that replaces the state and forgets a partly applied entry.

        The snapshot contains the whole entry, so the remaining steps of the entry must not be applied.
        """

        def replace() -> None:
            self._applier.replaced()
            replace_state()

        return replace

    async def restore(self, raw: bytes) -> None:
        """Replace log and state by the content ``raw`` of a snapshot file.

        Raises:
            NotLeader, ChangeRefused: The snapshot was not restored.
            ChangeUnknown: The disk failed, and the next start may restore the snapshot. This member stops.
        """
        found, marked, replace_state = await self.images.read_file(raw)
        engine = self.engine
        images = engine.images
        images.may_restore()
        engine.shared.restoring = True
        try:
            while not images.settled:
                await asyncio.sleep(0.005)
                if self._closed:
                    raise ChangeRefused("this member stops")
                if not engine.leads:  # do not wait: this member cannot be elected while ``restoring`` is True
                    raise NotLeader(engine.leader)
            index, term, configuration = images.restore_at(found)
            try:
                await self.images.store(index, term, configuration, marked)
            except NoThread as error:  # no file was written, so there is no file to delete
                raise ChangeRefused(f"the snapshot cannot be stored: {error}; ask again") from error
            except OSError as error:
                await self._undo_restore(index)
                raise ChangeRefused(f"the snapshot cannot be stored: {error.strerror or error}") from error
            images.restored(index, term, configuration, self._replacing(replace_state))
            self.perform()
        finally:
            engine.shared.restoring = False
            self.changed()  # wake a save of a snapshot that waits for the end of the restore

    async def _undo_restore(self, index: int) -> None:
        """Delete the file of a snapshot that could not be stored, so that no start restores this snapshot.

        If the file cannot be deleted, stop this member. The next start may restore the snapshot, and would
        then lose all entries that this member accepts from now on.

        Raises:
            ChangeUnknown: The file cannot be deleted.
        """
        try:
            await self.images.discard(index)
        except OSError as error:
            what = error.strerror or error
            self.fatal(f"restore of snapshot {index}: outcome unknown: {what}")
            raise ChangeUnknown(
                f"the snapshot cannot be stored: {what}; this member stops, and its next start may restore it"
            ) from error

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, name="raft storage")
        task.add_done_callback(self._background_ended)
        self.keep(task)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        """Stop the member if a background task raised an error.

        The tasks handle disk faults themselves, so any other error is a defect of the program. Without this
        stop, the member would look healthy, but could no longer store votes or snapshots.
        """
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("raft storage failed", exc_info=error)
            self.fatal(f"storage failed: {error!r}")

    def keep(self, task: asyncio.Future[None]) -> None:
        """Make the member wait for the end of ``task`` before it closes its files."""
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _end_process(reason: str) -> None:
    """End the process, because its answers may be wrong after an error such as a failed sync.

    The caller has logged the reason. See rule 9 of docs/raft-rules.md.
    """
    logging.shutdown()
    os._exit(70)
