"""The raft protocol of one member, which takes events from its caller and returns effects.

An event is, for example, a received message or a timer. An effect (:mod:`.effects`) is a value that names a
message, a disk write or another action that the caller must perform.

The engine opens no file and no socket, and reads the clock that the caller passes in. So the simulator can
run this code on virtual time.

The caller makes all its calls on one thread, and also calls methods of :mod:`.greetings`, :mod:`.membership`
and :mod:`.images`. The engine does not apply entries itself. It returns committed entries in an effect
(:class:`.effects.Apply`), and the caller applies them to the replicated state. Meanwhile the caller may call
:meth:`Engine.append`.

This module defines the order of the work that a message, an append, the journal or the clock triggers.

The library (PySyncObj, :mod:`routekeeper.nameserver.raft.library`) elects, votes and advances the commit
index. The parts of the engine repair the library's defects. docs/pysyncobj-defects.md lists each defect (D1
to D38) and the code that repairs it.
"""

from __future__ import annotations

import logging
import math
from typing import Final, assert_never

from routekeeper.nameserver.raft.library import CANDIDATE, FOLLOWER, LEADER
from routekeeper.nameserver.raft.types import Role, StopMember

from . import messages
from .effects import Apply, Committed, WriteJournal
from .elections import Elections
from .following import Following
from .greetings import Greetings
from .images import Images
from .leading import Leading
from .log import CONFIGURATION, FIRST_INDEX, NO_OP, REGULAR
from .membership import Membership
from .messages import TERM_STEP_MAX, Append, AppendReply, Message, MessageError, RequestVote, SnapshotPart
from .part import EnginePart, Shared

logger = logging.getLogger(__name__)

#: Seconds between two checks for stalled writes, and between two writes that hold only the commit index.
HOUSEKEEPING_S: Final = 0.25
#: A journal write that takes longer than this number of seconds makes the leader step down (rule 9 of
#: docs/raft-rules.md).
STALL_S: Final = 1.0
#: The role of a voter for each state of the library (PySyncObj).
_ROLES: Final = {FOLLOWER: Role.FOLLOWER, CANDIDATE: Role.CANDIDATE, LEADER: Role.LEADER}
#: Messages after which the engine nearly always has work to do at once.
_REPLICATION: Final = Append, AppendReply
#: Largest number of entries in one :class:`.effects.Apply`.
APPLY_ENTRIES: Final = 512
#: Largest number of bytes of the entries in one :class:`.effects.Apply`, unless a single entry is larger.
APPLY_BYTES: Final = 1024 * 1024


class Engine(EnginePart):
    """One Raft member without I/O, which makes some decisions in place of the library (PySyncObj).

    Attributes:
        effects: The effects that the caller must perform after each call of a method.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.effects: Final = shared.effects
        self._next_housekeeping = -math.inf
        self._in_apply = False
        self._sent_up_to = 0  # last index of the log when the last Apply effect began
        self._given: list[Committed] = []  # entries of the last Apply effect that are not applied yet
        self._goes_on = False  # True if the next step must apply more entries
        self._replay_end: Final = self._log.last_index  # index of the last entry in the log at the start
        self._stalls = 0  # number of journal writes that took too long
        self._passed = 0  # number of applied entries that the state machine does not receive
        self._seen: tuple[object, ...] = ()
        self.elections = Elections(shared)
        self.following = following = Following(shared)
        self.leading = leading = Leading(shared)
        self.greetings = greetings = Greetings(shared, leading)
        self.membership = membership = Membership(shared, leading)
        self.images = Images(shared, following, leading, greetings, membership)
        self._library.rules = self

    # ---- public state

    @property
    def term(self) -> int:
        """The newest term that this member knows."""
        return self._library.term

    @property
    def leader(self) -> str | None:
        """The leader of the present term; None if no leader is known."""
        return self._library.leader

    @property
    def commit_index(self) -> int:
        """The index of the last entry that this member knows to be committed."""
        return self._library.commit_index

    @property
    def applied_index(self) -> int:
        """The index of the last applied entry."""
        return self._library.applied_index

    @property
    def leads(self) -> bool:
        """True if this member leads and an entry of its own term is committed."""
        return self._library.leads

    @property
    def members(self) -> tuple[str, ...]:
        """Voters and learners of the configuration in force."""
        return self.shared.configuration.members

    @property
    def voters(self) -> tuple[str, ...]:
        """Voters of the configuration in force."""
        return self.shared.configuration.voters

    @property
    def role(self) -> Role:
        return _ROLES[self._library.state] if self.shared.votes else Role.LEARNER

    def contact_age(self) -> float:
        """Return the seconds since this member certainly belonged to the cluster.

        The result is inf if this member never belonged to the cluster. Rule 8 of docs/raft-rules.md explains
        the use of this age.
        """
        now = self._clock()
        self._date_leader(now)
        return self._contact.age(now)

    def in_contact(self) -> bool:
        """Return True if :meth:`contact_age` is below the contact limit.

        This method must be fast, because each batch of reads calls it.
        """
        now = self._clock()
        limit = self.greetings.contact_limit
        if self._contact.in_time(now, limit):
            return True
        self._date_leader(now)
        return self._contact.younger(now, limit)

    def in_contact_behind_entry(self) -> bool:
        """Return True if this member will be in contact as soon as the next entry is applied."""
        now = self._clock()
        self._date_leader(now)
        date = self._contact.date_behind(self._library.applied_index + 1)
        return now - date < self.greetings.contact_limit

    def _date_leader(self, now: float) -> None:
        if self._library.leads:
            # Pass the commit index, so that the new contact date becomes valid only when this leader has
            # applied all committed entries. A follower may have applied these entries earlier, and may have
            # answered reads with them.
            self._contact.led(now, self._library.commit_index, self._library.applied_index)

    def member_age(self, member: str) -> float:
        """Return the seconds since ``member`` certainly accepted this leader in this term; inf if never."""
        if member == self._me:
            return 0.0
        return max(0.0, self._clock() - self._contact.accepted_date(member))

    def next_wake(self) -> float:
        """Return the latest time, on the engine's clock, at which :meth:`step` must be called again."""
        library, due = self._library, self.shared.watch.due
        if library.state == LEADER:
            beats = [p.beat_at for p in self.leading.progress.values()]
            return min(self._next_housekeeping, *beats or (due,))
        return min(self._next_housekeeping, library.election_deadline, due)

    def status(self) -> dict[str, object]:
        """Return figures for operators and metrics."""
        age = self.contact_age()
        image = self.shared.held_image.image()
        return {
            "role": str(self.role),
            "term": self.term,
            "commit_index": self.commit_index,
            "applied_index": self.applied_index,
            "last_index": self._log.last_index,
            "last_term": self._log.last_term,
            "durable_index": self._log.durable_index,
            "leader": self.leader,
            "last_contact_ms": None if age == math.inf else round(age * 1000, 3),
            "contact_limit_ms": round(self.greetings.contact_limit * 1000),
            "members": list(self.members),
            "voters": list(self.voters),
            "learners": list(self.shared.configuration.learners),
            "configuration_index": self._log.configuration_index,
            "cluster": self.shared.standing.cluster,
            "linked": sorted(self.greetings.linked),
            "waiting_for": list(self.greetings.waiting_for),
            "peer_format": messages.FORMAT,
            "journal_bytes": self._log.journal_bytes,
            "log_bytes": self._log.retained_bytes,
            "snapshot_index": image[0] if image else 0,
            "snapshot_bytes": image[2] if image else 0,
            "snapshot_failures": self.images.failures,
            "storage_stalled": self.shared.stalled,
            "storage_stalls": self._stalls,
            "leader_changes": self.following.leader_changes + self.leading.elected,
            "elections": self.elections.count,
            "refused_truncations": self.following.refused_truncations,
        }

    # ---- start

    def replay(self) -> list[Committed]:
        """Return the next committed entries to apply before :meth:`start`; empty when all are applied.

        Raises:
            StopMember: An entry cannot be read.
        """
        return self._committed()

    def replayed(self, count: int, *, within: bool) -> None:
        """Record that ``count`` entries of :meth:`replay` are applied.

        Args:
            within: True if some, but not all, steps of the next entry are applied.
        """
        self._move_applied(count, within=within)

    def start(self) -> None:
        """Begin to take part in the cluster."""
        self.shared.look()
        self.greetings.consider_founding()
        self.greetings.look_for_trust()
        if self.shared.may_stand and not self.shared.other_voters:
            self.shared.stand_now()
        self.shared.watch.restart(self._clock())  # the time of a long replay must not count as a pause
        self.step()

    # ---- links and messages

    def link_up(self, peer: str) -> None:
        """Send a greeting to ``peer`` over a new authenticated link. The peer does the same."""
        if peer == self._me or not self._begins():
            return
        if peer in self._effects.links:
            self.link_down(peer)
        self._effects.links.add(peer)
        self.greetings.say(peer)

    def link_down(self, peer: str) -> None:
        if peer not in self._effects.links or not self._begins():
            return
        self._effects.links.discard(peer)
        if self._effects.greeted.pop(peer, None) is not None:
            self.leading.link_changed(peer)
            self.shared.link_down(peer)
        self.images.link_down(peer)
        self._effects.wake()

    def receive(self, peer: str, data: bytes | memoryview) -> None:
        """Handle one received message.

        Raises:
            MessageError: The peer is broken, or uses another message format. The caller must close the link.
        """
        if self._effects.stopped or peer not in self._effects.links:
            return
        message = messages.decode(data)
        self.shared.look()
        if isinstance(message, messages.Greeting):
            self.greetings.receive(peer, message)
        elif peer not in self._effects.greeted:
            raise MessageError(f"{type(message).__name__} before a greeting")
        elif message.term - (mine := self._library.term) > TERM_STEP_MAX:
            # Raise this member's term by the largest allowed number, and close the link. The peer connects
            # again, and with each new link this member's term comes closer to the peer's term.
            self._library.become_follower(mine + TERM_STEP_MAX)
            self._effects.wake()
            raise MessageError(f"term {message.term} is more than {TERM_STEP_MAX} beyond {mine}")
        else:
            try:
                self._on_message(peer, message)
            except StopMember as error:
                if not self._effects.stopped:
                    self._effects.fail(str(error))
                return
            if isinstance(message, _REPLICATION) and not self.shared.configuration.learners:
                self._go_on(changed=True)
                return
        self._effects.wake()

    def _go_on(self, *, changed: bool = False) -> None:
        """Do the work that a message or a finished journal write made due, without waiting for the next step.

        Begin journal writes first, so that the disk works while this member does the other work.

        Args:
            changed: True if the caller may have changed public state other than contact.
        """
        if self._effects.stopped:
            return
        log, library = self._log, self._library
        if log.ops or log.vote_dirty:
            self._flush()
        commit = library.commit_index
        if library.applied_index < commit and not self._goes_on:
            due = True
        elif library.state != LEADER:
            due = self.elections.elected_if_standing or library.election_deadline <= self.shared.now
        else:
            due = self.leading.due or (commit < log.last_index and self.leading.quorum_index() > commit)
        if due:
            self._advance(applies=not self._goes_on)
            return
        if self._contact.pending:
            self._contact.applied(library.applied_index)
        if changed or self._seen[:1] != (self.in_contact(),):
            self._tell_changes()

    def _on_message(self, peer: str, message: Message) -> None:
        greetings, shared = self.greetings, self.shared
        # Check the log first, because this is fast. A member with log entries is never an empty member.
        was_empty = self._log.last_index == FIRST_INDEX and shared.empty
        if was_empty and isinstance(message, Append | SnapshotPart):
            for stranger in greetings.join(peer):
                self.link_down(stranger)
        if self.images.installing and isinstance(message, Append) and message.term >= self.term:
            self.following.while_installing(peer, message)
        else:
            self.take(peer, message)
            if self._log.configuration is not shared.configuration:
                self.membership.adopt_configuration()
            if isinstance(message, Append) and not shared.standing.voter:
                greetings.leave_learning(peer, message)
            if was_empty and not shared.empty:
                greetings.say_to_all()

    def take(self, peer: str, message: Message) -> None:
        """Handle one message from an authenticated peer.

        Messages count only from peers that have sent their greeting (repairs PySyncObj defect D10). This
        member's configuration need not name the peer, because the leader may have been added while this
        member was away. In a majority, only members that the configuration names count.

        If the sender leads or stands for election in an older term, this member only answers with the newer
        term (:class:`Stale`). This repairs PySyncObj defect D6.
        """
        if peer not in self._effects.greeted:
            return
        term = self._library.term
        if message.term < term and isinstance(message, Append | SnapshotPart | RequestVote):
            self._effects.send(peer, messages.Stale(term))
            return
        if self._library.state == LEADER:
            self.leading.doing = f"{type(message).__name__} from {peer}"
        match message:
            case Append():
                self.following.on_append(peer, message)
            case AppendReply():
                self.leading.on_append_reply(peer, message)
            case SnapshotPart():
                self.images.on_part(peer, message)
            case messages.SnapshotReply():
                self.leading.on_snapshot_reply(peer, message)
            case messages.PreVote():
                self.elections.on_pre_vote(peer, message)
            case messages.PreVoteReply():
                self.elections.on_pre_vote_reply(peer, message)
            case RequestVote():
                self.elections.on_request_vote(peer, message)
            case messages.VoteReply():
                self.elections.on_vote_reply(peer, message)
            case messages.Stale():
                self.elections.on_stale(peer, message)
            case messages.TimeoutNow():
                self.elections.on_timeout_now(peer, message)
            case messages.Removed():
                self.membership.on_removed(peer, message)
            case messages.Greeting():
                raise AssertionError("a greeting is taken before this")
            case _:
                assert_never(message)

    # ---- entries

    def append(self, payload: bytes, *, term: int) -> int | None:
        """Append one entry if this member leads in ``term``, and return its index; else return None.

        Raises:
            ValueError: The payload has more than ``entry_size_max`` bytes.
        """
        size_max = self.shared.config.entry_size_max
        if len(payload) > size_max:
            raise ValueError(f"entry of {len(payload)} bytes, at most {size_max} are allowed")
        if self._effects.stopped or self.shared.restoring or self._clock() < self.leading.handing_over_until:
            return None
        self.shared.look()
        # Never keep or forward an entry, because it could be applied later over newer state (repairs
        # PySyncObj defect D27).
        if self._library.state != LEADER or self._library.term != term:
            return None
        index = self.leading.add(REGULAR + payload)
        if self._in_apply:
            self._effects.wake()
        else:  # Send the entry at once. Later calls handle the answers and the commit.
            self.leading.replicate()
            self._flush()
        return index

    # ---- the journal

    def _flush(self, *, commit_too: bool = False) -> None:
        """Write the log's changes to the journal. Without a journal, they count as durable at once.

        Args:
            commit_too: True to write even if only the commit index has changed.
        """
        if self._log.vote_dirty:  # This test is faster than the call, and the flag is rarely set.
            self._effects.store_vote()
        if not (self._log.ops or commit_too):
            return
        taken = self._log.take_ops(self._clock() - self.shared.watch.lost)
        if taken is None:
            return
        position, ops = taken
        if self.shared.volatile:
            self._log.durable(position)
            self.following.on_durable()
            if not self.shared.other_voters:
                self._effects.wake()  # this member is the only voter, so the entry is committed now
        else:
            silent = self._library.leads and bool(self.shared.other_voters)
            self._effects.add(WriteJournal(position, ops, silent))

    def durable(self, position: int) -> None:
        """Record that all writes up to ``position`` are durable."""
        if not self._begins():
            return
        self._log.durable(position)
        if self.shared.stalled and self._write_takes(self._clock()) <= STALL_S:
            self.shared.stalled = False
            logger.info("journal works again me=%s durable_index=%d", self._me, self._log.durable_index)
        self.following.on_durable()
        self._go_on()

    def _look_for_stalls(self, now: float) -> None:
        """Step down if a journal write takes longer than :data:`STALL_S` (rule 9 of docs/raft-rules.md)."""
        took = self._write_takes(now)
        if took > STALL_S and not self.shared.stalled:
            self.shared.stalled = True
            self._stalls += 1
            logger.warning("journal stalls me=%s seconds=%.1f", self._me, took)
            self.leading.hand_over()
            self.leading.step_down("journal stalls")

    def _write_takes(self, now: float) -> float:
        """Return the age in seconds of the oldest unfinished write, without the pauses of this member."""
        return now - self.shared.watch.lost - self._log.written_since

    # ---- the periodic step

    def step(self) -> None:
        """Do everything that is due: elections, heartbeats, replication, commit, apply, writes."""
        if self._begins():
            self._advance(applies=True)

    def _advance(self, *, applies: bool) -> None:
        self._tick()
        if applies and self._library.applied_index < self._library.commit_index:
            self._begin_apply()
        else:
            self._end_step()

    def _tick(self) -> None:
        """Let the library (PySyncObj) do its due work: stand for election, commit, replicate."""
        now, library = self.shared.now, self._library
        led, limit = library.state == LEADER, None
        if led:
            limit = self.leading.quorum_index()
            self.leading.doing = "no majority answered in time"
        else:
            self.elections.ask_before_standing(now)
        try:
            library.tick(now, commit_limit=limit)
            if library.state == CANDIDATE and library.election_deadline > now + self.shared.timeout:
                self.shared.ask_again_soon(now, syncs=True)
            if led and library.state != LEADER:
                self.leading.ask_successor()
        finally:
            self.elections.elected_if_standing = False

    def _begin_apply(self) -> None:
        """Request the application of committed entries, as the last effect of the step.

        :meth:`applied` then ends the step.
        """
        try:
            entries = self._committed()
        except StopMember as error:
            self._effects.fail(str(error))
            return
        self._in_apply = True
        self._sent_up_to = self._log.last_index
        self._effects.add(Apply(entries))

    def _committed(self) -> list[Committed]:
        """Return the next committed entries that are not applied, at most :data:`APPLY_ENTRIES`.

        Raises:
            StopMember: The first of these entries is of a kind that this program does not know (repairs
                PySyncObj defect D31).
        """
        first, commit = self._library.applied_index + 1, self._library.commit_index
        found: list[Committed] = []
        size = 0
        if self._given and self._given[0].index == first:
            found = self._given
            size = sum(len(entry.payload or b"") for entry in found)
        for index in range(first + len(found), min(commit, first + APPLY_ENTRIES - 1) + 1):
            term, command = self._log.read(index, bytes_max=0)[0]
            size += len(command)
            if found and size > APPLY_BYTES:
                break
            kind = command[:1]
            if kind == REGULAR:
                found.append(Committed(index, term, command[1:], index > self._replay_end))
            elif kind in (NO_OP, CONFIGURATION):  # the state machine does not receive these kinds
                found.append(Committed(index, term, None, index > self._replay_end))
            elif found:
                break
            else:
                raise StopMember(
                    f"entry {index} is of kind {kind.hex() or 'none'}, which this program does not know"
                )
        self._given = found
        return found

    def _move_applied(self, count: int, *, within: bool) -> None:
        """Record that ``count`` entries are applied.

        Args:
            within: True if some, but not all, steps of the next entry are applied, too.
        """
        done, self._given = self._given[:count], self._given[count:]
        for entry in done:
            if entry.payload is None:
                self._passed += 1
        self._library.applied_index += count
        self.shared.within_entry = within

    def applied(self, count: int, *, within: bool, took: float) -> None:
        """Record that ``count`` entries of :class:`.effects.Apply` are applied (repairs PySyncObj defect D7).

        A later step returns the other entries of the effect again.

        The leader sends the commit index to its followers before it applies the entries itself, because
        requests at the followers also wait for these entries. So all members apply a slow entry at about the
        same time, and send no messages meanwhile. This silence must not count as a failure.

        Args:
            within: True if some, but not all, steps of the next entry are applied.
            took: Time in seconds for which the entries were being applied.
        """
        self._in_apply = False
        if self._effects.stopped:
            return
        self._move_applied(count, within=within)
        if took > self.shared.period:
            self.shared.expect_silence(took)
        if self._library.state == LEADER and self._log.last_index > self._sent_up_to:
            self.leading.replicate()  # send the entries that were appended meanwhile
        self._goes_on = False  # _end_step sets this flag again if more entries must be applied
        self._end_step()

    def apply_failed(self, count: int, reason: str) -> None:
        """Record ``count`` applied entries, and stop this member, because the next entry failed.

        A member that skipped the entry would differ from the other members (repairs PySyncObj defect D11).
        """
        self._in_apply = False
        if not self._effects.stopped:
            self._move_applied(count, within=False)
            self._effects.fail(reason)

    def _end_step(self) -> None:
        now = self._clock()
        self._contact.applied(self._library.applied_index)
        housekeeping = now >= self._next_housekeeping
        if housekeeping:
            self._next_housekeeping = now + HOUSEKEEPING_S
            self.shared.peer_log.tell_suppressed()
            self._look_for_stalls(now)
            self.images.ask_again(now)
        if self._library.leads:
            self.membership.consider_promotion()
            self.membership.notify_removed()
        self._flush(commit_too=housekeeping)
        self._goes_on = self._library.applied_index < self._library.commit_index
        if self._goes_on:
            self._effects.wake()
        self.images.consider(now)
        self._tell_changes()

    def _tell_changes(self) -> None:
        # Report a new applied index only for entries that were in the log at the start, and for entries that
        # the state machine does not receive. For all other entries, the state machine's ``apply`` wakes the
        # waiting requests.
        library, log = self._library, self._log
        seen: tuple[object, ...] = (
            self.in_contact(),
            *library.seen,
            self._passed,
            min(library.applied_index, self._replay_end),
            len(self._effects.greeted),
            log.configuration_index,
            log.configuration_index <= library.commit_index,
            self.shared.standing,
            log.last_index == FIRST_INDEX,
        )
        if seen != self._seen:
            self._seen = seen
            self._effects.changed()

    def stop(self) -> None:
        """Stop taking part in the cluster."""
        self._effects.stopped = True

    def close(self) -> None:
        """Stop taking part in the cluster, and write all changes to the journal for the next start."""
        if self._begins():
            self._flush(commit_too=True)
            self._effects.stopped = True

    # ---- methods that the library calls (see library.Rules)

    def replicate(self) -> None:
        self.leading.replicate()

    def leadership_begins(self) -> None:
        self.leading.leadership_begins()

    def send_vote_request(self, peer: str, term: int, last_index: int, last_term: int) -> None:
        self._effects.send(peer, RequestVote(term, last_index, last_term, self._library.transferring))

    def send_vote(self, peer: str, term: int) -> None:
        self._effects.send(peer, messages.VoteReply(term))

    def term_begins(self, term: int) -> None:
        """Forget the messages of the former term, and stop leading if this member was the leader.

        Otherwise answers and votes of the former term could count in the new term (PySyncObj's defects D3 and
        D5).
        """
        # Stop leading now. The library (PySyncObj) would stop only after the term has changed.
        if self._library.state == LEADER:
            self.leading.doing += f", of term {term}"
            self._library.stop_leading()
        self.elections.term_begins()
        self.following.term_begins()
        self._contact.new_term()

    def state_changed(self, before: int, state: int) -> None:
        if before == LEADER:
            self.leading.leadership_ends()
        elif state == CANDIDATE:
            self.elections.say_standing()
        self._effects.wake()
