"""One member as a state machine: link, message, append, timer, durable in; send, write, apply, snapshot out.

The engine opens no file, no socket and reads no clock of its own: all of that is behind :class:`.ports.Ports`
and the two functions it is given, so that the simulator runs this very code on virtual time. Entry points are
called on one thread and never from within each other, except :meth:`Engine.append` from ``apply``.

This file is the order of things: what a message, an append, the journal or the clock makes due. Whom this
member has met is in :mod:`.greetings`, who takes part and who leads in :mod:`.membership`, state images in
:mod:`.images`; their entry points are called as these are.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from nameserver.raft.types import RaftStartError, Role, StateMachine, StopMember

from .applying import Stopped
from .contact import Contact
from .core import CANDIDATE, LEADER, Surroundings
from .greetings import Hellos
from .hardening import RaftCore
from .images import Images
from .log import FIRST_INDEX, RaftLog, Recovered
from .members import Standing
from .membership import Membership
from .messages import (
    Append,
    AppendReply,
    Hello,
    Message,
    MessageError,
    Removed,
    SnapshotPart,
    decode,
    encode,
)
from .ports import Ports

if TYPE_CHECKING:
    import random

logger = logging.getLogger(__name__)

#: A journal write that takes longer makes the leader step down (rule 9).
STALL_S: Final = 1.0
#: How often a commit index that nothing else writes goes to the journal, and how often stalls are looked for.
HOUSEKEEPING_S: Final = 0.25


class Engine:
    """The Raft member without IO."""

    def __init__(
        self,
        *,
        me: str,
        machine: StateMachine,
        ports: Ports,
        clock: Callable[[], float],
        rng: random.Random,
        standing: Standing,
        recovered: Recovered,
        election_timeout_ms: int,
        volatile: bool,
        compact_bytes: int,
        entry_size_max: int,
        http: str = "",
    ) -> None:
        self.me = me
        self._machine = machine
        self._ports = ports
        self._clock = clock
        self._volatile = volatile
        self._entry_size_max = entry_size_max
        try:
            self._log = RaftLog(recovered)
        except StopMember as error:
            raise RaftStartError(f"raft: {error}") from error
        self._replay_end = self._log.last_index
        self._contact = Contact(1)
        self._writes: deque[tuple[int, float]] = deque()  # position, when it was handed over, in own time
        self._stalled = False
        self._stalls = 0
        self._next_housekeeping = -math.inf
        self._states_durable = volatile
        self.stopped = False
        self._stepping = False
        self._seen: tuple[object, ...] = ()
        given = Surroundings(
            me=me,
            log=self._log,
            host=self,
            contact=self._contact,
            clock=clock,
            rng=rng,
            election_timeout_ms=election_timeout_ms,
        )
        self._core = core = RaftCore(given)
        self._hellos = hellos = Hellos(given, self, ports, core, http=http, standing=standing)
        self.membership = membership = Membership(given, self, ports, core, hellos=hellos)
        self.images = Images(
            given,
            self,
            ports,
            core,
            hellos=hellos,
            membership=membership,
            machine=machine,
            compact_bytes=compact_bytes,
        )

    # ---- public state

    @property
    def role(self) -> Role:
        if not self._hellos.standing.voter or self.me not in self.voters:
            return Role.LEARNER
        state = self._core.state
        return Role.LEADER if state == LEADER else Role.CANDIDATE if state == CANDIDATE else Role.FOLLOWER

    @property
    def term(self) -> int:
        return self._core.term

    @property
    def leader(self) -> str | None:
        return self._core.leader_id

    @property
    def commit_index(self) -> int:
        return self._core.commit_index

    @property
    def applied_index(self) -> int:
        return self._core.applied_index

    @property
    def read_index(self) -> int:
        """Leader: no member has applied anything beyond this; so whoever has applied this misses nothing."""
        return self._core.read_index

    @property
    def leads(self) -> bool:
        return self._core.leads

    @property
    def members(self) -> tuple[str, ...]:
        """Voters and learners of the configuration in force."""
        return self._core.configuration.members

    @property
    def voters(self) -> tuple[str, ...]:
        return self._core.configuration.voters

    @property
    def learners(self) -> tuple[str, ...]:
        return self._core.configuration.learners

    @property
    def linked(self) -> frozenset[str]:
        """Members to which a link is up; and the leader, which may be one that is not known here yet."""
        return self._hellos.linked

    def link_number(self, peer: str) -> int:
        """Tell links to ``peer`` apart, also if one took the place of another at once; 0 is none."""
        return self._hellos.link_number(peer)

    @property
    def empty(self) -> bool:
        """Nothing was ever promised or stored here."""
        return self._hellos.empty

    @property
    def waiting_for(self) -> tuple[str, ...]:
        return self._hellos.waiting_for

    @property
    def contact_limit(self) -> float:
        """The smallest election timeout that any member ever stated to this one, in seconds."""
        return self._hellos.contact_limit

    def contact_age(self) -> float:
        """Seconds since this member certainly belonged to the cluster (rule 8); inf if it never did."""
        now = self._clock()
        self._date_leader(now)
        return self._contact.age(now)

    def in_contact(self) -> bool:
        """``contact_age() < contact_limit``; cheap, as each batch of reads asks."""
        now = self._clock()
        limit = self._hellos.contact_limit
        if self._contact.in_time(now, limit):
            return True
        self._date_leader(now)
        return self._contact.younger(now, limit)

    def _date_leader(self, now: float) -> None:
        core = self._core
        if core.leads:
            if core.applied_index >= core.read_index:
                self._contact.led(now)
            else:  # a follower may have applied, and answered, what this leader has not
                self._contact.leading(now, core.read_index)

    def member_age(self, member: str) -> float:
        """Leader: seconds since ``member`` certainly accepted it; inf if never in this term."""
        if member == self.me:
            return 0.0
        return max(0.0, self._clock() - self._contact.accepted_date(member))

    def leads_with(self, members: Collection[str]) -> bool:
        """Whether this member leads, an entry of its own committed, and ``members`` make it a majority."""
        if not self._core.leads:
            return False
        voters = self._core.configuration.voters
        count = 1
        for member in members:  # no generator: asked for each barrier
            if member in voters:
                count += 1
        return 2 * count > len(voters)

    @property
    def votes(self) -> bool:
        """Whether this member votes; a learner does not."""
        return self._hellos.standing.voter and self.me in self._core.configuration.voters

    @property
    def core(self) -> RaftCore:
        """What :class:`RaftMember` asks for each message: one layer less."""
        return self._core

    def next_wake(self) -> float:
        """The instant, on the engine's clock, by which :meth:`step` must be called."""
        return min(self._core.next_wake(), self._next_housekeeping)

    def status(self) -> dict[str, object]:
        """Figures for people and metrics."""
        age = self.contact_age()
        image = self._ports.image()
        return {
            "role": str(self.role),
            "term": self.term,
            "commit_index": self.commit_index,
            "applied_index": self.applied_index,
            "last_index": self._log.last_index,
            "durable_index": self._log.durable_index,
            "leader": self.leader,
            "last_contact_ms": None if age == math.inf else round(age * 1000, 3),
            "contact_limit_ms": round(self.contact_limit * 1000),
            "members": list(self.members),
            "voters": list(self.voters),
            "learners": list(self.learners),
            "configuration_index": self._log.configuration_index,
            "cluster": self._hellos.standing.cluster,
            "linked": sorted(self.linked),
            "waiting_for": list(self.waiting_for),
            "peer_format": self._hellos.read_by_all,
            "journal_bytes": self._log.journal_bytes,
            "log_bytes": self._log.retained_bytes,
            "snapshot_index": image[0] if image else 0,
            "snapshot_bytes": image[2] if image else 0,
            "snapshot_failures": self.images.failures,
            "storage_stalled": self._stalled,
            "storage_stalls": self._stalls,
            "leader_changes": self._core.leader_changes,
            "elections": self._core.elections,
            "refused_truncations": self._core.refused_truncations,
            "apply_errors": self._core.apply_errors,
        }

    @property
    def http_addresses(self) -> dict[str, str]:
        """Where operators reach the members that have said so, this one included."""
        return self._hellos.http_addresses

    # ---- start

    def start(self) -> None:
        """Apply what is known to be committed, and take part.

        Raises:
            Stopped: An entry cannot be read; nothing has left this member.
        """
        self._core.enter()
        self._core.apply_committed()
        self._hellos.consider_founding()
        if self.may_stand and not self._core.other_voters:
            self._core.stand_now()
        self._core.restart_watch()
        self.step()

    # ---- links and messages

    def link_up(self, peer: str) -> None:
        """An authenticated link to ``peer`` is up; the peer's hello is the first message on it."""
        if self.stopped or peer == self.me:
            return
        self._core.enter()
        if peer in self._hellos.links:
            self.link_down(peer)
        self._hellos.links.add(peer)
        self._hellos.say(peer)

    def link_down(self, peer: str) -> None:
        if self.stopped or peer not in self._hellos.links:
            return
        self._core.enter()
        self._hellos.links.discard(peer)
        self.membership.link_down(peer)
        if self._hellos.said.pop(peer, None) is not None:
            self._core.link_down(peer)
        self.images.link_down(peer)
        self._ports.wake()

    def receive(self, peer: str, data: bytes | memoryview) -> None:
        """Take one message.

        Raises:
            MessageError: The link must be closed: the peer speaks another format, or is broken.
        """
        hellos = self._hellos
        if self.stopped or peer not in hellos.links:
            return
        message = decode(data)
        self._core.enter()
        if isinstance(message, Hello):
            hellos.receive(peer, message)
        elif peer not in hellos.said:
            raise MessageError(f"{type(message).__name__} before a hello")
        elif isinstance(message, Removed):
            self.membership.on_removed(peer, message)
        else:
            try:
                self._on_message(peer, message)
            except StopMember as error:
                if not self.stopped:
                    self.fail(str(error))
                return
            if isinstance(message, Append | AppendReply) and not self._core.configuration.learners:
                self._go_on()  # most heartbeats and answers leave nothing to do
                return
        self._ports.wake()

    def _go_on(self) -> None:
        """Do what a message or the journal has made due, now: a turn of the loop is a delay.

        What is to be written first: the disk works while this member goes on.
        """
        if self.stopped:
            return
        if self._log.has_ops or self._log.vote_dirty:
            self._flush(self._clock(), commit_too=False)
        if self._core.due:
            self.step()
        else:
            self._contact.applied(self._core.applied_index)
            self._tell_changes()

    def _on_message(self, peer: str, message: Message) -> None:
        hellos = self._hellos
        was_empty = hellos.empty
        if was_empty and isinstance(message, Append | SnapshotPart):
            for stranger in hellos.join(peer):
                self.link_down(stranger)
        if isinstance(message, SnapshotPart):
            self.images.on_part(peer, message)
        elif self.images.installing and isinstance(message, Append) and message.term >= self.term:
            self.images.put_off(peer, message)
        else:
            self._core.receive(peer, message)
            self.membership.follow()
            if isinstance(message, Append) and not hellos.standing.voter:
                hellos.leave_learning(peer, message)
            if was_empty and not hellos.empty:
                hellos.say_to_all()

    # ---- entries

    def append(self, payload: bytes, *, term: int) -> int | None:
        """Append one entry if this member leads in ``term``.

        Raises:
            ValueError: The payload is above ``entry_size_max``.
        """
        if len(payload) > self._entry_size_max:
            raise ValueError(f"entry of {len(payload)} bytes, at most {self._entry_size_max} are allowed")
        if self.stopped or self.images.restoring or self._clock() < self.membership.handing_over_until:
            return None
        self._core.enter()
        index = self._core.append(payload, term)
        if index is None:
            return None
        if self._stepping:
            self._ports.wake()
        else:  # on its way at once; what it leads to (an answer, a commit) comes later
            if self._volatile:  # then the message says already that it is durable here
                self._flush(self._clock(), commit_too=False)
            self._core.replicate()
            self._flush(self._clock(), commit_too=False)
        return index

    def durable(self, position: int) -> None:
        """The journal holds everything written up to ``position``."""
        if self.stopped:
            return
        self._core.enter()
        while self._writes and self._writes[0][0] <= position:
            self._writes.popleft()
        self._log.durable(position)
        if self._stalled and self._waits_for_disk(self._clock()) <= STALL_S:
            self._stalled = False
            logger.info("journal works again me=%s durable_index=%d", self.me, self._log.durable_index)
        self._core.on_durable()
        self._go_on()

    # ---- the step

    def step(self) -> None:
        """Do what is due: elections, heartbeats, replication, commit, apply, writes."""
        if self.stopped:
            return
        self._core.enter()
        now = self._clock()
        self._stepping = True
        try:
            self._core.tick()
        except Stopped as error:
            self.fail(str(error))
            return
        finally:
            self._stepping = False
        self._contact.applied(self._core.applied_index)
        housekeeping = now >= self._next_housekeeping
        if housekeeping:
            self._next_housekeeping = now + HOUSEKEEPING_S
            self._look_for_stalls(now)
            self.images.ask_again(now)
        if self._core.leads:
            self.membership.consider_promotion()
            self.membership.tell_removed()
        self._flush(now, commit_too=housekeeping)
        if self._core.applied_index < self._core.commit_index:
            self._ports.wake()
        self.images.consider(now)
        self._tell_changes()

    def _tell_changes(self) -> None:
        # Of the indexes only what the state machine does not see: whoever waits for an entry has its apply.
        commit, configured = self._core.commit_index, self._log.configuration_index
        seen: tuple[object, ...] = (
            *self._core.seen(self._replay_end),
            self.in_contact(),
            len(self._hellos.said),
            configured,
            configured <= commit,
            self._hellos.standing,
            self._log.last_index == FIRST_INDEX,
        )
        if seen != self._seen:
            self._seen = seen
            self._ports.changed()

    def _flush_vote(self, *, at_once: bool = False) -> None:
        if self._log.vote_dirty or at_once:
            self._log.vote_dirty = False
            self._ports.save_vote(self._log.term, self._log.vote, at_once=at_once)

    def _flush(self, now: float, *, commit_too: bool) -> None:
        """Hand to the journal what changed; memory-only members have it durable at once."""
        self._flush_vote()
        if not (self._log.has_ops or commit_too):
            return
        taken = self._log.take_ops()
        if taken is None:
            return
        position, ops = taken
        if self._volatile:
            self._log.durable(position)
            self._core.on_durable()
            if not self._core.other_voters:
                self._ports.wake()  # the entry is committed now
        else:
            self._writes.append((position, now - self._core.lost))
            self._ports.write(position, ops)

    def _look_for_stalls(self, now: float) -> None:
        """Rule 9: whoever cannot write must not lead."""
        waits = self._waits_for_disk(now)
        if waits > STALL_S and not self._stalled:
            self._stalled = True
            self._stalls += 1
            logger.warning("journal stalls me=%s seconds=%.1f", self.me, waits)
            if self._core.state == LEADER:
                self._core.hand_over()
                self._core.step_down("journal stalls")

    def _waits_for_disk(self, now: float) -> float:
        """How long the oldest write is under way; while this member stood still it could not hear of it."""
        return now - self._core.lost - self._writes[0][1] if self._writes else 0.0

    def fail(self, reason: str) -> None:
        """Stop, and say why: going on would break a promise."""
        self.stopped = True
        logger.critical("member stops me=%s reason=%s", self.me, reason)
        self._ports.fatal(reason)

    def stop(self) -> None:
        """Take part no more, at once."""
        self.stopped = True

    def close(self) -> None:
        """Take part no more; the journal gets all that is known, so that the next start replays it."""
        if not self.stopped:
            self._core.enter()
            self._flush(self._clock(), commit_too=True)
            self.stopped = True

    # ---- sending

    def transmit(self, peer: str, message: Message) -> bool:
        """Send over a link that is up, whether its hello has come or not."""
        self._flush_vote()  # durable before anything that depends on it leaves
        return peer in self._hellos.links and self._ports.send(peer, encode(message))

    def store_vote(self) -> None:
        """Make term and vote durable before returning."""
        self._flush_vote(at_once=True)

    # ---- what the core asks (core.Host)

    @property
    def may_vote(self) -> bool:
        return self._hellos.standing.voter

    @property
    def may_stand(self) -> bool:
        return self._hellos.standing.voter and not self._stalled and self.me in self.voters

    def send(self, peer: str, message: Message) -> bool:
        return peer in self._hellos.said and self.transmit(peer, message)

    def apply(self, payload: bytes, index: int, term: int) -> None:
        self._machine.apply(payload, index=index, term=term, live=index > self._replay_end)

    def image(self) -> tuple[int, int, int, bytes] | None:
        return self._ports.image()

    def read_image(self, index: int, offset: int, size: int) -> bytes | None:
        return self._ports.read_image(index, offset, size)

    def role_changed(self) -> None:
        self.membership.role_changed()
        self._ports.wake()

    @property
    def all_read_durable(self) -> bool:
        return self._hellos.all_read_durable

    @property
    def states_durable(self) -> bool:
        return self._states_durable and self._hellos.all_read_durable

    def linked_to(self, peer: str) -> bool:
        return peer in self._hellos.said
