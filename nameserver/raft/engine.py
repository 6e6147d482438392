"""One member as a state machine: link, message, append, timer, durable in; send, write, apply, snapshot out.

The engine opens no file, no socket and reads no clock of its own: all of that is behind :class:`Ports` and
the two functions it is given, so that the simulator runs this very code on virtual time. Entry points are
called on one thread and never from within each other, except :meth:`Engine.append` and
:meth:`Engine.send_application` from ``apply``.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from . import members as membership
from .applying import Stopped
from .contact import Contact
from .core import CANDIDATE, FOLLOWER, LEADER, Surroundings
from .hardening import RaftCore
from .log import FIRST_INDEX, Op, RaftLog, Recovered
from .members import Configuration, Standing, decode_configuration, encode_configuration
from .messages import (
    FORMAT,
    FORMAT_CONFIGURATION,
    FORMAT_DURABLE,
    FORMAT_MAX,
    Append,
    AppendReply,
    Hello,
    Message,
    MessageError,
    Removed,
    SnapshotPart,
    SnapshotReply,
    Stale,
    decode,
    encode,
)
from .types import (
    ChangeNotYet,
    ChangeRefused,
    NotLeader,
    RaftStartError,
    Role,
    StateMachine,
    StopMember,
    split_address,
)

if TYPE_CHECKING:
    import random

logger = logging.getLogger(__name__)

#: A journal write that takes longer makes the leader step down (rule 9).
STALL_S: Final = 1.0
#: How often a commit index that nothing else writes goes to the journal, and how often stalls are looked for.
HOUSEKEEPING_S: Final = 0.25
#: Wait after a failed snapshot, doubled up to the second value (D28).
SNAPSHOT_RETRY_S: Final = (5.0, 300.0)
#: Wait before a received image that could not be stored is asked for again, doubled up to the second value.
INSTALL_RETRY_S: Final = (1.0, 30.0)
#: Largest state image that is taken from a leader.
IMAGE_SIZE_MAX: Final = 1 << 31
#: A learner that lacks fewer entries than this has caught up: they are on their way.
CAUGHT_UP_ENTRIES: Final = 128
#: A member that answered within so many election timeouts is there: a pause of it is no absence.
ALIVE_TIMEOUTS: Final = 4
#: Bytes of entries kept in memory behind the snapshot for peers that lag a little.
TAIL_BYTES: Final = 1024 * 1024


class Ports(Protocol):
    """The engine's way out. Nothing here may call back into the engine before returning."""

    def send(self, member: str, message: bytes) -> bool:
        """Hand a message to the link, in order; False if there is none."""

    def write(self, position: int, ops: list[Op]) -> None:
        """Write to the journal; :meth:`Engine.durable` follows, in order of position."""

    def save_vote(self, term: int, vote: str | None, *, at_once: bool) -> None:
        """Make term and vote durable before any message leaves that is sent from now on.

        The disk may take its time: nothing else waits for it, unless this is to be done ``at_once``.
        """

    def save_standing(self, standing: Standing) -> None:
        """Make the standing durable before returning."""

    def make_image(self, index: int, term: int, configuration: bytes, encode: Callable[[], bytes]) -> None:
        """Encode and store in the background; ``Engine.image_made`` or ``image_failed`` follows."""

    def install_image(self, index: int, term: int, configuration: bytes, image: bytearray) -> None:
        """Prepare and store an image from a leader in the background; ``Engine.image_installed`` or
        ``install_failed`` follows.
        """

    def image(self) -> tuple[int, int, int, bytes] | None:
        """Index, term, size and encoded configuration of the newest durable image."""

    def read_image(self, index: int, offset: int, size: int) -> bytes | None:
        """A piece of the image at ``index``; None if it is there no more."""

    def trim(self, index: int) -> None:
        """The journal needs nothing up to ``index`` any more."""

    def follow(self, members: tuple[str, ...]) -> None:
        """Keep links to these from now on; a link to another stays as long as it does by itself."""

    def removed(self, reason: str) -> None:
        """The cluster has removed this member: it must stop, and not start again."""

    def wake(self) -> None:
        """Call :meth:`Engine.step` soon."""

    def changed(self) -> None:
        """Something in the public state may have changed."""

    def fatal(self, reason: str) -> None:
        """This member must stop."""


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
        self._http = http
        self._machine = machine
        self._ports = ports
        self._clock = clock
        self._standing = standing
        self._volatile = volatile
        self._compact_bytes = compact_bytes
        self._entry_size_max = entry_size_max
        self._election_timeout_ms = election_timeout_ms
        try:
            self._log = RaftLog(recovered)
        except StopMember as error:
            raise RaftStartError(f"raft: {error}") from error
        self._replay_end = self._log.last_index
        self._contact = Contact(1)
        self._hellos: dict[str, Hello] = {}
        self._contact_limit = election_timeout_ms / 1000
        self._links: set[str] = set()
        self._writes: deque[tuple[int, float]] = deque()  # position, when it was handed over, in own time
        self._stalled = False
        self._stalls = 0
        self._next_housekeeping = -math.inf
        self._making_image = False
        self._image_retry_at = -math.inf
        self._image_retry_s = SNAPSHOT_RETRY_S[0]
        self._image_failures = 0
        self._image_error = ""
        self._restoring = False
        self._told: set[str] = set()  # whom this leader told that they are removed
        self._incoming: tuple[str, int, bytearray] | None = None  # leader, index, what has arrived
        self._installing = 0
        self._install_failed: tuple[int, float] | None = None  # index, when to ask for it again
        self._install_retry_s = INSTALL_RETRY_S[0]
        self._learner_base: tuple[int, int] | None = None  # term, the leader's last index when we came
        self._handing_over_until = -math.inf
        self._states_durable = volatile
        self._durable_read: tuple[Standing, Configuration, bool] | None = None  # what it was found for, found
        self._stopped = False
        self._stepping = False
        self._seen: tuple[object, ...] = ()
        self._said_waiting_for: tuple[str, ...] = ()
        self._core = RaftCore(
            Surroundings(
                me=me,
                log=self._log,
                host=self,
                contact=self._contact,
                clock=clock,
                rng=rng,
                election_timeout_s=election_timeout_ms / 1000,
            )
        )
        self._followed = self._core.configuration

    # ---- public state

    @property
    def role(self) -> Role:
        if not self._standing.voter or self.me not in self.voters:
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
        return frozenset(self._hellos.keys() & {*self.members, self.leader})

    @property
    def _read_by_all(self) -> int:
        """Rule 7: the highest format that every member said it reads."""
        others = [name for name in self.members if name != self.me]
        return min([FORMAT_MAX, *(self._standing.formats.get(name, FORMAT) for name in others)])

    @property
    def empty(self) -> bool:
        """Nothing was ever promised or stored here."""
        return not self._standing.voter and self._log.last_index == FIRST_INDEX

    @property
    def waiting_for(self) -> tuple[str, ...]:
        return membership.waiting_for(self.me, self.members, self._hellos) if self.empty else ()

    @property
    def contact_limit(self) -> float:
        """The smallest election timeout that any member ever stated to this one, in seconds."""
        return self._contact_limit

    def contact_age(self) -> float:
        """Seconds since this member certainly belonged to the cluster (rule 8); inf if it never did."""
        now = self._clock()
        self._date_leader(now)
        return self._contact.age(now)

    def in_contact(self) -> bool:
        """``contact_age() < contact_limit``; cheap, as each batch of reads asks."""
        now = self._clock()
        limit = self._contact_limit
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
        return max(0.0, self._clock() - self._contact.member_date(member))

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
        return self._standing.voter and self.me in self._core.configuration.voters

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
            "cluster": self._standing.cluster,
            "linked": sorted(self.linked),
            "waiting_for": list(self.waiting_for),
            "peer_format": self._read_by_all,
            "journal_bytes": self._log.journal_bytes,
            "log_bytes": self._log.retained_bytes,
            "snapshot_index": image[0] if image else 0,
            "snapshot_bytes": image[2] if image else 0,
            "snapshot_failures": self._image_failures,
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
        said = {peer: hello.http for peer, hello in self._hellos.items()} | {self.me: self._http}
        return {member: said[member] for member in self.members if said.get(member)}

    # ---- start

    def start(self) -> None:
        """Apply what is known to be committed, and take part.

        Raises:
            Stopped: An entry cannot be read; nothing has left this member.
        """
        self._core.enter()
        self._core.apply_committed()
        self._consider_founding()
        if self.may_stand and not self._core.other_voters:
            self._core.stand_now()
        self._core.restart_watch()
        self.step()

    # ---- links and messages

    def link_up(self, peer: str) -> None:
        """An authenticated link to ``peer`` is up; the peer's hello is the first message on it."""
        if self._stopped or peer == self.me:
            return
        self._core.enter()
        if peer in self._links:
            self.link_down(peer)
        self._links.add(peer)
        self._say_hello(peer)

    def link_down(self, peer: str) -> None:
        if self._stopped or peer not in self._links:
            return
        self._core.enter()
        self._links.discard(peer)
        self._told.discard(peer)
        if self._hellos.pop(peer, None) is not None:
            self._core.link_down(peer)
        if self._incoming is not None and self._incoming[0] == peer:
            self._incoming = None
        self._ports.wake()

    def receive(self, peer: str, data: bytes | memoryview) -> None:
        """Take one message.

        Raises:
            MessageError: The link must be closed: the peer speaks another format, or is broken.
        """
        if self._stopped or peer not in self._links:
            return
        message = decode(data)
        self._core.enter()
        if isinstance(message, Hello):
            self._on_hello(peer, message)
        elif peer not in self._hellos:
            raise MessageError(f"{type(message).__name__} before a hello")
        elif isinstance(message, Removed):
            self._on_removed(peer, message)
        else:
            try:
                self._on_message(peer, message)
            except StopMember as error:
                if not self._stopped:
                    self._stop(str(error))
                return
            if isinstance(message, Append | AppendReply) and not self._core.configuration.learners:
                self._go_on()  # most heartbeats and answers leave nothing to do
                return
        self._ports.wake()

    def _go_on(self) -> None:
        """Do what a message or the journal has made due, now: a turn of the loop is a delay.

        What is to be written first: the disk works while this member goes on.
        """
        if self._stopped:
            return
        if self._log.has_ops or self._log.vote_dirty:
            self._flush(self._clock(), commit_too=False)
        if self._core.due:
            self.step()
        else:
            self._contact.applied(self._core.applied_index)
            self._tell_changes()

    def _on_message(self, peer: str, message: Message) -> None:
        was_empty = self.empty
        if was_empty and isinstance(message, Append | SnapshotPart):
            self._join(peer)
        if isinstance(message, SnapshotPart):
            self._on_snapshot_part(peer, message)
        elif self._installing and isinstance(message, Append) and message.term >= self.term:
            # The log is about to be replaced; keep the leader, and let it know that we live.
            self._core.follow(self._core.node(peer), message.term)
            self._heard(peer, message)
            self._core.say_alive(peer)
        else:
            self._core.receive(peer, message)
            self._follow_configuration()
            if isinstance(message, Append) and not self._standing.voter:
                self._leave_learning(peer, message)
            if was_empty and not self.empty:
                self._say_hello_to_all()

    def _join(self, leader: str) -> None:
        """An empty member belongs to the cluster whose leader sends it a log, whatever it was to found."""
        cluster = self._hellos[leader].cluster
        if cluster and cluster != self._standing.cluster:
            logger.info("cluster joined me=%s cluster=%s leader=%s", self.me, cluster, leader)
            self._set_standing(replace(self._standing, cluster=cluster))
            for peer, hello in list(self._hellos.items()):
                if hello.cluster != cluster and not hello.empty:
                    self.link_down(peer)

    def _heard(self, peer: str, m: Append | SnapshotPart) -> None:
        age, commit = (m.age, max(m.commit, m.durable)) if isinstance(m, Append) else (None, 0)
        self._contact.stated_by_leader(peer, clock=m.clock, echo=m.echo, age=age, commit=commit)

    def _on_hello(self, peer: str, hello: Hello) -> None:
        self._check_cluster(peer, hello)
        first = peer not in self._hellos
        self._hellos[peer] = hello
        self._contact_limit = min(self._contact_limit, hello.election_timeout_ms / 1000)
        formats = self._standing.formats
        if formats.get(peer) != hello.format_max:
            self._set_standing(replace(self._standing, formats={**formats, peer: hello.format_max}))
        if first:
            logger.info("member linked peer=%s voter=%s empty=%s", peer, hello.voter, hello.empty)
            self._core.link_up(peer)
        self._consider_founding()

    def _check_cluster(self, peer: str, hello: Hello) -> None:
        """D10: two members of different clusters are strangers; an empty one is of none yet.

        Whoever is not in the configuration here may have been added while this member was away, or removed
        while it was away itself. Both belong to the cluster; neither counts.
        """
        mine, theirs = self._standing.cluster, hello.cluster
        if theirs and mine != theirs and self.empty == hello.empty:
            raise MessageError(f"{peer} is of another cluster: {theirs}, this is {mine}")
        if peer not in self.members and not self.empty and (hello.empty or mine != theirs):
            raise MessageError(f"{peer} is no member")

    def _say_hello(self, peer: str) -> None:
        standing = self._standing
        self._send(
            peer,
            Hello(
                standing.instance,
                standing.voter,
                self.empty,
                self._election_timeout_ms,
                dict(standing.founders),
                self.term,
                FORMAT_MAX,
                standing.cluster,
                self._http,
            ),
        )

    def _say_hello_to_all(self) -> None:
        for peer in sorted(self._links):
            self._say_hello(peer)

    def _consider_founding(self) -> None:
        if not self.empty:
            return
        founded = membership.found(self._standing, self.me, self.members, self._hellos)
        if founded is None:
            if (waiting := self.waiting_for) != self._said_waiting_for:
                self._said_waiting_for = waiting
                logger.info("first start waits for members=%s", ",".join(waiting) or "none: a cluster exists")
            return
        self._set_standing(founded)
        logger.info("cluster founded me=%s members=%s", self.me, ",".join(self.members))
        self._say_hello_to_all()

    def _set_standing(self, standing: Standing) -> None:
        self._ports.save_standing(standing)
        self._standing = standing

    def _leave_learning(self, leader: str, m: Append) -> None:
        """D25: a learner is a voter again once an entry appended after it came back is committed without its
        help.
        """
        if m.term != self.term or leader != self.leader:
            return
        if self._learner_base is None or self._learner_base[0] != m.term:
            self._learner_base = (m.term, m.last)
        done = (
            m.commit > self._learner_base[1]
            and self._log.term_at(m.commit) == m.term
            and min(self.commit_index, self._log.durable_index) >= m.commit
        )
        if done:
            # It may have voted in this very term in its former life: only for this leader could that have
            # mattered.
            self._log.setCurrentTerm(self.term, leader)
            self._core.remember_vote(leader)
            self._flush_vote(at_once=True)
            self._set_standing(replace(self._standing, voter=True))
            logger.info("learner caught up me=%s index=%d term=%d", self.me, m.commit, m.term)
            self._say_hello_to_all()

    # ---- who takes part

    def _follow_configuration(self) -> None:
        """Tell everyone concerned that another configuration is in force."""
        configuration = self._core.configuration
        if configuration != self._followed:
            self._followed = configuration
            logger.info(
                "members changed me=%s index=%d voters=%s learners=%s",
                self.me,
                self._log.configuration_index,
                ",".join(configuration.voters),
                ",".join(configuration.learners) or "none",
            )
            self._ports.follow(configuration.members)
            self._ports.wake()

    def _change(self, configuration: Configuration) -> int:
        found = self._core.change(configuration)
        if isinstance(found, str):
            raise ChangeNotYet(found)
        self._follow_configuration()
        return found

    def _may_change(self, *, besides: str | None = None) -> None:
        """Rule 7: configurations travel in entries that older programs cannot read.

        Raises:
            NotLeader, ChangeRefused: Nothing was done.
        """
        self._core.enter()
        if self._stopped or self._core.state != LEADER:
            raise NotLeader(self.leader)
        if self._clock() < self._handing_over_until:
            raise ChangeNotYet("leadership is being handed over; ask again")
        stated = self._standing.formats
        old = [
            name
            for name in self._core.other_voters  # a learner is no loss, and may not have come yet
            if name != besides and stated.get(name, FORMAT) < FORMAT_CONFIGURATION
        ]
        if old:
            raise ChangeRefused(
                f"{','.join(old)} has not said that it can read a change of the members: upgrade it, or "
                "start it so that it can say so"
            )

    def add_member(self, member: str) -> int | None:
        """Append the configuration with ``member`` as a learner; None if it is a learner or voter already.

        The leader makes it a voter by another entry as soon as it has caught up.

        Raises:
            NotLeader, ChangeRefused: Nothing was done.
        """
        self._may_change()
        if member in self.members:
            return None
        try:
            split_address(member)
        except RaftStartError as error:
            raise ChangeRefused(str(error)) from error
        return self._change(self._core.configuration.with_learner(member))

    def _consider_promotion(self) -> None:
        """A learner that is no longer empty and has nearly everything becomes a voter."""
        configuration = self._core.configuration
        if not configuration.learners or not self.configuration_committed:
            return
        for name in configuration.learners:
            progress = self._core.progress.get(name)
            if (
                progress is not None
                and name in self._hellos
                and not progress.learner
                and progress.transfer is None
                and progress.match >= self._log.configuration_index
                and progress.match + CAUGHT_UP_ENTRIES > self._log.last_index
                and self._standing.formats.get(name, FORMAT) >= FORMAT_CONFIGURATION
            ):
                logger.info("learner becomes a voter member=%s match=%d", name, progress.match)
                if isinstance(self._core.change(configuration.promoting(name)), int):
                    self._follow_configuration()
                return

    def remove_member(self, member: str) -> int | None:
        """Append the configuration without ``member``; None if it is not in the one in force.

        Raises:
            NotLeader, ChangeRefused: Nothing was done. This member itself must hand over first (D37).
        """
        self._may_change(besides=member)
        if member not in self.members:
            return None
        configuration = self._core.configuration.without(member)
        here = [name for name in configuration.voters if name == self.me or self._counts_now(name)]
        if len(here) < membership.majority(len(configuration.voters)):
            raise ChangeNotYet(
                f"of the voters that would remain, {','.join(configuration.voters) or 'none'}, only "
                f"{','.join(here) or 'none'} can be reached: no majority; remove those that are down first"
            )
        return self._change(configuration)

    def _counts_now(self, voter: str) -> bool:
        """Whether ``voter`` is there, as far as this leader can tell, and has what it once promised (D25)."""
        progress = self._core.progress.get(voter)
        return (
            voter in self._hellos
            and progress is not None
            and not progress.learner
            and self.member_age(voter) < ALIVE_TIMEOUTS * self._election_timeout_ms / 1000
        )

    @property
    def configuration_committed(self) -> bool:
        """Whether the configuration in force here is committed."""
        return self._log.configuration_index <= self.commit_index

    def _tell_removed(self) -> None:
        """Whoever belonged to the cluster and does no more is told so, by a leader that knows."""
        if not self.configuration_committed:
            return
        members = self.members
        for peer, hello in self._hellos.items():
            if peer in members or peer in self._told:
                continue
            self._told.add(peer)
            if not hello.empty and hello.format_max >= FORMAT_CONFIGURATION:
                self._send(peer, Removed(self.term, self._log.configuration_index))

    def _on_removed(self, peer: str, m: Removed) -> None:
        """A leader of an older term may not know that this member was added again.

        And whoever was only about to be added, by a leader that fell before that was committed, was not
        removed: it waits to be added again.
        """
        index, committed = self._log.committed_configuration(self.commit_index)
        was_member = (
            self.me in committed.members if index > FIRST_INDEX else self.me in self._standing.founders
        )
        if m.term < self.term or self.empty or not was_member:
            return
        self._set_standing(replace(self._standing, removed=True))
        self._stopped = True
        self._ports.removed(f"{peer}, which leads term {m.term}, says that {self.me} was removed")

    # ---- entries

    def append(self, payload: bytes, *, term: int) -> int | None:
        """Append one entry if this member leads in ``term``.

        Raises:
            ValueError: The payload is above ``entry_size_max``.
        """
        if len(payload) > self._entry_size_max:
            raise ValueError(f"entry of {len(payload)} bytes, at most {self._entry_size_max} are allowed")
        if self._stopped or self._restoring or self._clock() < self._handing_over_until:
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
        if self._stopped:
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
        if self._stopped:
            return
        self._core.enter()
        now = self._clock()
        self._stepping = True
        try:
            self._core.tick()
        except Stopped as error:
            self._stop(str(error))
            return
        finally:
            self._stepping = False
        self._contact.applied(self._core.applied_index)
        housekeeping = now >= self._next_housekeeping
        if housekeeping:
            self._next_housekeeping = now + HOUSEKEEPING_S
            self._look_for_stalls(now)
            self._ask_for_image_again(now)
        if self._core.leads:
            self._consider_promotion()
            self._tell_removed()
        self._flush(now, commit_too=housekeeping)
        if self._core.applied_index < self._core.commit_index:
            self._ports.wake()
        self._consider_image(now)
        self._tell_changes()

    def _tell_changes(self) -> None:
        # Of the indexes only what the state machine does not see: whoever waits for an entry has its apply.
        commit, configured = self._core.commit_index, self._log.configuration_index
        seen: tuple[object, ...] = (
            *self._core.seen(self._replay_end),
            self.in_contact(),
            len(self._hellos),
            configured,
            configured <= commit,
            self._standing,
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

    def _stop(self, reason: str) -> None:
        self._stopped = True
        logger.critical("member stops me=%s reason=%s", self.me, reason)
        self._ports.fatal(reason)

    def stop(self) -> None:
        """Take part no more, at once."""
        self._stopped = True

    def close(self) -> None:
        """Take part no more; the journal gets all that is known, so that the next start replays it."""
        if not self._stopped:
            self._core.enter()
            self._flush(self._clock(), commit_too=True)
            self._stopped = True

    def hand_over(self, to: str | None = None) -> bool:
        """Ask ``to``, or the best follower, to take over; False if this member does not lead (any more).

        For one election timeout nothing is appended, so that a follower can hold the whole log.
        """
        if self._stopped:
            return False
        self._core.enter()
        if self._core.state != LEADER or not self._core.other_voters:
            return False
        self._handing_over_until = self._clock() + self._election_timeout_ms / 1000
        self._core.hand_over(to)
        self._ports.wake()
        return True

    def may_hand_over(self, to: str | None) -> None:
        """Check that there is somebody to take over.

        Raises:
            NotLeader, ChangeRefused: And why not.
        """
        self._core.enter()
        if self._stopped or self._core.state != LEADER:
            raise NotLeader(self.leader)
        others = self._core.other_voters
        if to is not None and to not in others:
            raise ChangeRefused(
                f"{to} leads already"
                if to == self.me
                else f"{to} is none of the voters {','.join(self.voters)}"
            )
        ready = [name for name in others if self._counts_now(name)]
        if not ready or (to is not None and to not in ready):
            raise ChangeRefused(f"{to or 'each other voter'} is out of reach, or has not caught up yet")

    # ---- state images

    def _consider_image(self, now: float) -> None:
        """Rule 10 of compaction: by bytes; the shallow copy is made here, everything else elsewhere (D28,
        D29).
        """
        if self._making_image or self._installing or self._restoring or now < self._image_retry_at:
            return
        image = self._ports.image()
        threshold = max(self._compact_bytes, 2 * image[2] if image else 0)
        if self._log.journal_bytes >= threshold and self._core.applied_index > (
            image[0] if image else FIRST_INDEX
        ):
            self._begin_image()

    def save_image(self) -> None:
        """Begin an image of the state as it is now, unless one is being made.

        Raises:
            ChangeRefused: There is no state yet.
        """
        self._core.enter()
        if self._stopped or self._core.applied_index <= FIRST_INDEX:
            raise ChangeRefused("nothing was written yet: there is no state to store")
        if not (self._making_image or self._installing or self._restoring):
            self._begin_image()

    @property
    def image_failures(self) -> int:
        return self._image_failures

    @property
    def image_error(self) -> str:
        """Why storing an image failed last."""
        return self._image_error

    def _begin_image(self) -> None:
        index = self._core.applied_index
        term = self._log.term_at(index)
        assert term is not None
        self._log.journal_bytes = 0
        try:
            encode_image = self._machine.snapshot()
        except Exception as error:
            logger.exception("snapshot raised index=%d", index)
            self.image_failed(str(error))
            return
        self._making_image = True
        configuration = encode_configuration(self._log.configuration_at(index))
        self._ports.make_image(index, term, configuration, encode_image)

    def image_made(self, index: int) -> None:
        """The image at ``index`` is durable: the log before it may go."""
        if self._stopped:
            return
        self._core.enter()
        self._making_image = False
        self._image_retry_s = SNAPSHOT_RETRY_S[0]
        if index > self._log.base_index:
            self._log.trim(self._tail_from(index))
            self._ports.trim(index)
        self._ports.changed()
        self._ports.wake()

    def _tail_from(self, index: int) -> int:
        """Keep some entries behind the image for peers that lag a little."""
        size = 0
        while index > self._log.base_index + 1 and size < TAIL_BYTES:
            index -= 1
            size += self._log.size_at(index)
        return index

    def image_failed(self, error: str) -> None:
        """Storing an image failed; nothing is lost, the log stays longer (D28)."""
        if self._stopped:
            return
        self._core.enter()
        self._making_image = False
        self._image_failures += 1
        self._image_error = error
        self._ports.changed()
        self._image_retry_at = self._clock() + self._image_retry_s
        logger.warning("snapshot failed me=%s error=%s retry_s=%.0f", self.me, error, self._image_retry_s)
        self._image_retry_s = min(2 * self._image_retry_s, SNAPSHOT_RETRY_S[1])
        self._log.journal_bytes = max(self._log.journal_bytes, self._compact_bytes)

    def install_failed(self, error: str) -> None:
        """Storing a received image failed; the leader is asked for one again, after a while."""
        if not self._stopped:
            self._install_failed = self._installing, self._clock() + self._install_retry_s
            self._installing = 0
            self._image_failures += 1
            logger.warning(
                "snapshot not installed me=%s error=%s retry_s=%.0f", self.me, error, self._install_retry_s
            )
            self._install_retry_s = min(2 * self._install_retry_s, INSTALL_RETRY_S[1])

    def _ask_for_image_again(self, now: float) -> None:
        """A leader that got no word would wait for :data:`.replication.TRANSFER_TIMEOUT_S`."""
        if self._install_failed is None or now < self._install_failed[1]:
            return
        index, _ = self._install_failed
        self._install_failed = None
        if self.leader is not None and self._core.state == FOLLOWER:
            self._reply_to_part(self.leader, index, 0)

    def _reply_to_part(self, leader: str, index: int, offset: int) -> None:
        learner, echo = not self._standing.voter, self._contact.echo_for(leader)
        self.send(leader, SnapshotReply(self.term, index, offset, learner, self._clock(), echo))

    def _on_snapshot_part(self, peer: str, m: SnapshotPart) -> None:
        if m.term < self.term:
            self._send(peer, Stale(self.term))
            return
        self._core.follow(self._core.node(peer), m.term)
        self._heard(peer, m)
        if not self._standing.voter and (self._learner_base is None or self._learner_base[0] != m.term):
            self._learner_base = (m.term, m.last)
        if m.index <= self._core.applied_index:
            # D16: never back. What is committed is the same at the leader, so it may go on from there.
            self._incoming = None
            self._core.acknowledge_committed()
            return
        if self._installing or m.size > IMAGE_SIZE_MAX:
            self._core.say_alive(peer)
            return
        if m.offset == 0:
            self._incoming = (peer, m.index, bytearray())
            self._install_failed = None
        incoming = self._incoming
        if incoming is None or incoming[:2] != (peer, m.index) or m.offset != len(incoming[2]):
            self._core.say_alive(peer)
            return
        buffer = incoming[2]
        buffer += m.data
        complete = len(buffer) >= m.size
        self._reply_to_part(peer, m.index, len(buffer))
        if complete:
            self._incoming = None
            self._installing = m.index
            self._ports.install_image(m.index, m.index_term, m.configuration, buffer)

    def image_installed(
        self, index: int, term: int, configuration: bytes, install: Callable[[], None]
    ) -> None:
        """An image received from a leader is durable and ready: it becomes the state unless that has moved
        beyond (D16).
        """
        if self._stopped:
            return
        self._core.enter()
        self._installing = 0
        self._install_retry_s = INSTALL_RETRY_S[0]
        if index > self._core.applied_index:
            was_empty = self.empty
            logger.info("snapshot installed me=%s index=%d", self.me, index)
            if not self._replace_state(index, term, configuration, install):
                return
            if was_empty:
                self._say_hello_to_all()
        self._core.acknowledge_committed()
        self._ports.wake()

    def _replace_state(
        self, index: int, term: int, configuration: bytes, install: Callable[[], None]
    ) -> bool:
        """Base log and state on a durable image at ``index``; False if the member must stop."""
        try:
            held = decode_configuration(configuration) if configuration else self._log.configuration
            install()
        except Exception as error:  # whatever it is, the state may be half replaced
            logger.exception("restore raised index=%d", index)
            self._stop(f"snapshot {index} cannot be restored: {error}")
            return False
        self._log.reset(index, term, held)
        self._core.restored(index)
        self._follow_configuration()
        self._ports.trim(index)
        return True

    def may_restore(self) -> None:
        """Check that this is a cluster of one.

        Raises:
            NotLeader, ChangeRefused: Nothing was done.
        """
        self._core.enter()
        if self._stopped or not self._core.leads:
            raise NotLeader(self.leader)
        if self.members != (self.me,):
            raise ChangeRefused(
                f"a snapshot is restored in a cluster of one member only, this has {','.join(self.members)}: "
                "start one member with --force-new-cluster, restore there, empty the disks of the others, "
                "and add them again with addMember"
            )
        if self._restoring or self._making_image:
            raise ChangeRefused("a snapshot is being made or restored; ask again")

    def begin_restore(self) -> None:
        """Append nothing and make no image until :meth:`restore_ended`.

        Raises:
            NotLeader, ChangeRefused: Nothing was done.
        """
        self.may_restore()
        self._restoring = True

    @property
    def settled(self) -> bool:
        """Everything appended here is durable and applied."""
        return self._core.applied_index == self._log.last_index == self._log.durable_index

    def restore_at(self, image_index: int) -> tuple[int, int, bytes]:
        """Index, term and configuration under which an image becomes the base: behind all there is."""
        index = max(image_index, self._log.last_index) + 1
        return index, self.term, encode_configuration(self._core.configuration)

    def restored(self, index: int, term: int, configuration: bytes, install: Callable[[], None]) -> None:
        """The image is durable under ``index``: it becomes log and state, and a new term begins.

        So whatever was computed from the former state knows that it is void.
        """
        if self._stopped:
            return
        self._core.enter()
        logger.warning("snapshot restored me=%s index=%d", self.me, index)
        if self._replace_state(index, term, configuration, install):
            self._core.step_down("a snapshot was restored")
            self._core.stand_now()
            self._ports.changed()
            self._ports.wake()

    def restore_ended(self) -> None:
        """Go on, whether it was restored or not."""
        self._restoring = False

    # ---- sending

    def _send(self, peer: str, message: Message) -> bool:
        self._flush_vote()  # durable before anything that depends on it leaves
        return peer in self._links and self._ports.send(peer, encode(message))

    # ---- what the core asks (core.Host)

    @property
    def may_vote(self) -> bool:
        return self._standing.voter

    @property
    def may_stand(self) -> bool:
        return self._standing.voter and not self._stalled and self.me in self.voters

    def send(self, peer: str, message: Message) -> bool:
        return peer in self._hellos and self._send(peer, message)

    def apply(self, payload: bytes, index: int, term: int) -> None:
        self._machine.apply(payload, index=index, term=term, live=index > self._replay_end)

    def image(self) -> tuple[int, int, int, bytes] | None:
        return self._ports.image()

    def read_image(self, index: int, offset: int, size: int) -> bytes | None:
        return self._ports.read_image(index, offset, size)

    def role_changed(self) -> None:
        self._handing_over_until = -math.inf
        self._told.clear()
        self._ports.wake()

    @property
    def all_read_durable(self) -> bool:
        standing, configuration = self._standing, self._core.configuration
        known = self._durable_read
        if known is None or known[0] is not standing or known[1] is not configuration:
            known = self._durable_read = standing, configuration, self._read_by_all >= FORMAT_DURABLE
        return known[2]

    @property
    def states_durable(self) -> bool:
        return self._states_durable and self.all_read_durable

    def linked_to(self, peer: str) -> bool:
        return peer in self._hellos
