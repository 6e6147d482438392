"""One member as a state machine: events (link, message, append, timer, durable) in, effects out.

The engine opens no file and no socket, and the clock that it reads is passed in. Its effects
(:mod:`.effects`) are values that the caller takes after each call, so the simulator runs this very code on
virtual time. Entry points are called on one thread and never from within each other. The engine does not call
the state machine: committed entries are an effect (:class:`.effects.Apply`). While they are applied,
:meth:`Engine.append` may be called.

This file has the order of events: everything that a message, an append, the journal or the clock triggers.
The entry points of :mod:`.greetings`, :mod:`.membership` and :mod:`.images` follow the same rules.

The library elects, votes and advances the commit index (:mod:`routekeeper.nameserver.raft.library`). The
parts repair its defects: docs/pysyncobj-defects.md lists each (D1 to D38) with its place.
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

#: Interval of two checks: for a commit index to write to the journal, and for stalled writes.
HOUSEKEEPING_S: Final = 0.25
#: A journal write that takes longer makes the leader step down (rule 9).
STALL_S: Final = 1.0
#: The roles of voters, by the library's state.
_ROLES: Final = {FOLLOWER: Role.FOLLOWER, CANDIDATE: Role.CANDIDATE, LEADER: Role.LEADER}
#: Messages that nearly always make something due at once.
_REPLICATION: Final = Append, AppendReply
#: Bounds of the entries that go to the state machine at once: their number, and their bytes. A single entry
#: may have more bytes.
APPLY_ENTRIES: Final = 512
APPLY_BYTES: Final = 1024 * 1024


class Engine(EnginePart):
    """The Raft member without IO: its parts, and the rules that the library asks for.

    Attributes:
        effects: Holds the effects to perform after each call of another method.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.effects: Final = shared.effects
        self._next_housekeeping = -math.inf
        self._in_apply = False
        self._sent_up_to = 0  # the last index of the log when the last apply began
        self._given: list[Committed] = []  # entries that were handed out and are not applied yet
        self._goes_on = False  # more entries are applied in the next turn of the loop
        self._replay_end: Final = self._log.last_index  # the last entry that was in the log at the start
        self._stalls = 0  # number of journal writes that took too long
        self._passed = 0  # number of committed entries that are not for the state machine
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
        """The leader of the term, None if it is not known."""
        return self._library.leader

    @property
    def commit_index(self) -> int:
        """The last index that is known to be committed."""
        return self._library.commit_index

    @property
    def applied_index(self) -> int:
        """The last index that is applied."""
        return self._library.applied_index

    @property
    def leads(self) -> bool:
        """Return whether this member leads, and an entry of its own term is committed."""
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
        """Return the seconds since this member certainly belonged to the cluster (rule 8); inf if it never
        did.
        """
        now = self._clock()
        self._date_leader(now)
        return self._contact.age(now)

    def in_contact(self) -> bool:
        """Return ``contact_age() < contact_limit``; cheap, because each batch of reads asks."""
        now = self._clock()
        limit = self.greetings.contact_limit
        if self._contact.in_time(now, limit):
            return True
        self._date_leader(now)
        return self._contact.younger(now, limit)

    def in_contact_behind_entry(self) -> bool:
        """Return whether contact will be young enough as soon as the next entry is applied."""
        now = self._clock()
        self._date_leader(now)
        date = self._contact.date_behind(self._library.applied_index + 1)
        return now - date < self.greetings.contact_limit

    def _date_leader(self, now: float) -> None:
        if self._library.leads:
            # A follower may have applied entries, and answered from them, that this leader has not applied.
            self._contact.led(now, self._library.commit_index, self._library.applied_index)

    def member_age(self, member: str) -> float:
        """Return the seconds since ``member`` certainly accepted this leader; inf if never in this term."""
        if member == self._me:
            return 0.0
        return max(0.0, self._clock() - self._contact.accepted_date(member))

    def next_wake(self) -> float:
        """Return the time, on the engine's clock, by which :meth:`step` must be called."""
        library = self._library
        if library.state == LEADER:
            return min([self._next_housekeeping, *(p.beat_at for p in self.leading.progress.values())])
        watched = self.shared.watch.due if self.shared.other_voters else math.inf
        return min(self._next_housekeeping, library.election_deadline, watched)

    def status(self) -> dict[str, object]:
        """Return figures for people and metrics."""
        age = self.contact_age()
        image = self.shared.held_image.image()
        return {
            "role": str(self.role),
            "term": self.term,
            "commit_index": self.commit_index,
            "applied_index": self.applied_index,
            "last_index": self._log.last_index,
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
        """Return committed entries to apply before :meth:`start`; an empty list when all are applied.

        Raises:
            StopMember: An entry cannot be read; nothing has left this member.
        """
        return self._committed()

    def replayed(self, count: int, *, within: bool) -> None:
        """Record that ``count`` entries of :meth:`replay` are applied."""
        self._move_applied(count, within=within)

    def start(self) -> None:
        """Take part in the cluster."""
        self.shared.look()
        self.greetings.consider_founding()
        self.greetings.look_for_trust()
        if self.shared.may_stand and not self.shared.other_voters:
            self.shared.stand_now()
        self.shared.watch.restart(self._clock())  # a long replay is no pause
        self.step()

    # ---- links and messages

    def link_up(self, peer: str) -> None:
        """Greet ``peer`` over a new authenticated link; the peer's greeting is the first message on it."""
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
        """Take one message.

        Raises:
            MessageError: The link must be closed: the peer speaks another format, or is broken.
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
            # Raise our term by the largest step and close the link. Each new link brings our term closer to
            # the peer's.
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
        """Do now everything that a message or the journal made due; waiting for the next turn would cost
        time.

        Journal writes leave first, so that the disk works meanwhile.

        Args:
            changed: The caller may have changed more of the public state than contact.
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
        # Look at the log first, which is cheap: only an empty member has an empty log.
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

        D10: only peers that have sent their greeting take part. They may be more than the members known here:
        the leader can be a member that was added while this one was away. The configuration decides who
        counts in a majority. D6: a sender that leads or stands in an older term gets :class:`Stale`, and
        nothing else happens.
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
        """Append one entry if this member leads in ``term``.

        Raises:
            ValueError: The payload is above ``entry_size_max``.
        """
        size_max = self.shared.config.entry_size_max
        if len(payload) > size_max:
            raise ValueError(f"entry of {len(payload)} bytes, at most {size_max} are allowed")
        if self._effects.stopped or self.images.restoring or self._clock() < self.leading.handing_over_until:
            return None
        self.shared.look()
        if self._library.state != LEADER or self._library.term != term:  # D27
            return None
        index = self.leading.add(REGULAR + payload)
        if self._in_apply:
            self._effects.wake()
        else:  # send at once; answers and the commit come later
            self.leading.replicate()
            self._flush()
        return index

    # ---- the journal

    def _flush(self, *, commit_too: bool = False) -> None:
        """Hand changes to the journal; without a journal they are durable at once."""
        if self._log.vote_dirty:  # nearly never
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
                self._effects.wake()  # the entry is committed now
        else:
            silent = self._library.leads and bool(self.shared.other_voters)
            self._effects.add(WriteJournal(position, ops, silent))

    def durable(self, position: int) -> None:
        """Count everything written up to ``position`` as durable."""
        if not self._begins():
            return
        self._log.durable(position)
        if self.shared.stalled and self._write_takes(self._clock()) <= STALL_S:
            self.shared.stalled = False
            logger.info("journal works again me=%s durable_index=%d", self._me, self._log.durable_index)
        self.following.on_durable()
        self._go_on()

    def _look_for_stalls(self, now: float) -> None:
        """Rule 9: step down if the journal cannot write."""
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

    # ---- the step

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
        """Do everything that time or a message made due: stand, commit, replicate."""
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
        """Ask for entries to be applied after the messages of the step; :meth:`applied` ends the step."""
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
            StopMember: The first of these entries is of an unknown kind (D31).
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
            elif kind in (NO_OP, CONFIGURATION):  # a configuration is in force since it was appended
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
        """Record that ``count`` entries are applied; ``within``: the next one is half applied."""
        done, self._given = self._given[:count], self._given[count:]
        for entry in done:
            if entry.payload is None:
                self._passed += 1
        self._library.applied_index += count
        self.shared.within_entry = within

    def applied(self, count: int, *, within: bool, took: float) -> None:
        """Record that ``count`` entries of :class:`.effects.Apply` are applied (D7); the rest follows soon.

        By now the leader has sent the commit index to its followers, whose clients wait for it. So a slow
        entry is slow on all members at the same time, shortly after each has received a message from the
        leader.

        Args:
            within: The next entry is half applied.
            took: Time in seconds that applying them took.
        """
        self._in_apply = False
        if self._effects.stopped:
            return
        self._move_applied(count, within=within)
        if took > self.shared.period:
            self.shared.expect_silence(took)
        if self._library.state == LEADER and self._log.last_index > self._sent_up_to:
            self.leading.replicate()  # send entries that an applied entry appended
        self._goes_on = False  # more entries are applied in the next turn of the loop
        self._end_step()

    def apply_failed(self, count: int, reason: str) -> None:
        """Stop: the entry behind the first ``count`` of :class:`.effects.Apply` cannot be applied (D11)."""
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
        # Compare only indexes of entries that the state machine does not see; its apply wakes requests
        # itself.
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
        """Stop taking part, at once."""
        self._effects.stopped = True

    def close(self) -> None:
        """Stop taking part; write everything known to the journal, so that the next start replays it."""
        if self._begins():
            self._flush(commit_too=True)
            self._effects.stopped = True

    # ---- rules that the library calls

    def replicate(self) -> None:
        self.leading.replicate()

    def leadership_begins(self) -> None:
        self.leading.leadership_begins()

    def send_vote_request(self, peer: str, term: int, last_index: int, last_term: int) -> None:
        self._effects.send(peer, RequestVote(term, last_index, last_term, self._library.transferring))

    def send_vote(self, peer: str, term: int) -> None:
        self._effects.send(peer, messages.VoteReply(term))

    def term_begins(self, term: int) -> None:
        """D3, D5: forget the messages of the former term; a leader of it leads no more."""
        if self._library.state == LEADER:  # the library would step down a moment later
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
