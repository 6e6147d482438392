"""State that all parts of one engine share, and the base class of these parts."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import TYPE_CHECKING, Final, Protocol

from routekeeper.nameserver.raft.library import LEADER, Library
from routekeeper.nameserver.raft.types import RaftConfig, RaftStartError, StopMember
from routekeeper.remoting.line_limit import LimitedLog

from .contact import QuorumContact
from .effects import EffectQueue, StoreStanding
from .log import FIRST_INDEX, RaftLog, Recovered
from .members import Configuration, MemberState, majority
from .watch import Watch

if TYPE_CHECKING:
    import random

logger = logging.getLogger(__name__)

#: A leader steps down after this number of election timeouts without answers from a majority (repairs
#: PySyncObj defect D8).
FALLBACK: Final = 1.5
#: Other members may be silent for at most this number of election timeouts while they apply a slow entry.
APPLY_PATIENCE: Final = 4


class HeldImage(Protocol):
    """The newest snapshot that is durable on this member."""

    def image(self) -> tuple[int, int, int, bytes] | None:
        """Return index, term, size in bytes and encoded configuration, or None if there is no snapshot."""

    def read_image(self, index: int, offset: int, size: int) -> bytes | None:
        """Return a piece of the snapshot at ``index``; None if the snapshot was deleted or cannot be read.

        The result is empty if the piece must first be read from the disk. When the disk has answered, the
        caller of the engine calls :meth:`.engine.Engine.step`.
        """


@dataclass(eq=False, repr=False)
class Shared:
    """State that all parts of one member read, and that some parts change.

    This module imports none of the parts, because all parts import this module.

    Attributes:
        standing: The member state. It is stored before another member sees an effect of it.
        stalled: True while the oldest unfinished write of the journal takes too long.
        volatile: True if there is no journal. Entries then count as durable as soon as they are in the log.
        configuration: The configuration in force.
        other_voters: The voters of the configuration except this member.
        other_members: The voters and learners of the configuration except this member.
        timeout: The election timeout N, in seconds.
        period: The time between two heartbeats, in seconds.
        heard: Time of the last message from the leader.
        now: Time of the present event, read at the beginning of the event. All work for the event uses this
            time, so a pause during the work does not count as silence of other members. The next event
            detects the pause.
        watch: Detects pauses of this member's process.
        within_entry: True if some, but not all, steps of the next entry are applied. The state then belongs
            to no index.
        restoring: True while an operator's snapshot is about to replace log and state. The snapshot uses the
            next index of the log, so no entry may be appended meanwhile.
        last_look_at: When an election deadline passes, the member delays it a little, and reads its sockets
            once more before it asks for pre-votes (see :mod:`.elections`). This is the delayed deadline; nan
            before the first delay.
        peer_log: A bounded log for lines that a peer can cause with every message.
    """

    config: RaftConfig
    _: KW_ONLY
    held_image: HeldImage
    clock: Callable[[], float]
    rng: random.Random
    standing: MemberState
    recovered: InitVar[Recovered]
    stalled: bool = False

    def __post_init__(self, recovered: Recovered) -> None:
        config, clock = self.config, self.clock
        self.me = me = config.me
        self.volatile = config.durability == "memory"
        self.timeout = timeout = config.election_timeout_ms / 1000
        self.period = period = timeout / 6
        try:
            self.log = log = RaftLog(recovered)
        except StopMember as error:
            raise RaftStartError(f"raft: {error}") from error
        self.contact = QuorumContact(1)
        self.effects = EffectQueue(log)
        self.peer_log = LimitedLog(logger, clock)
        self.library = library = Library(
            me, log, now=clock(), rng=self.rng, timeout=timeout, fallback=FALLBACK * timeout
        )
        library.connected = self.effects.greeted
        self.adopt_configuration()
        self.heard = -math.inf
        self.watch = Watch(period)
        self.now = clock()
        self.watch.look(self.now)
        self.within_entry = False
        self.restoring = False
        self.last_look_at = math.nan

    # ---- voters

    def adopt_configuration(self) -> None:
        """Use the newest configuration in the log from now on, even before it is committed.

        From this call on, only the voters of this configuration decide elections and confirm that a leader
        still leads. PySyncObj uses a new configuration only after its entry was applied (its defect D36).
        """
        self.configuration: Configuration = self.log.configuration
        self.other_voters = tuple(name for name in self.configuration.voters if name != self.me)
        self.other_members = tuple(name for name in self.configuration.members if name != self.me)
        self.library.count_voters(self.other_voters)
        self.contact.voters_are(self.other_voters)

    def is_majority(self, others: Collection[str]) -> bool:
        """Return True if this member and the voters among ``others`` are more than half of the voters."""
        voters = self.configuration.voters
        return 1 + sum(name in voters for name in others) >= majority(len(voters))

    @property
    def committed(self) -> bool:
        """True if the newest configuration in the log is committed."""
        return self.log.configuration_index <= self.library.commit_index

    # ---- silence: time without messages from other members. This member's own pauses are not counted.

    def look(self) -> None:
        """Read the clock at the beginning of an event, and detect a pause of this member."""
        self.now = now = self.clock()
        late = self.watch.look(now)
        if late:
            self._forgive(now, late)

    def _forgive(self, now: float, late: float) -> None:
        """Move all deadlines later by ``late`` seconds, because this member paused (see :mod:`.watch`).

        Other members may have sent messages during the pause, so the pause must not count as their silence.
        """
        library, until = self.library, self.watch.listening_until
        if until > now:
            level = logging.WARNING if late > self.timeout else logging.DEBUG
            logger.log(level, "member stood still me=%s ms=%.0f", self.me, late * 1000)
        self.heard = max(self.heard, min(now, self.heard + late))
        if library.state == LEADER:
            # Also set the times of the last answers later, because the library (PySyncObj) steps down when
            # these times are older than its setting leaderFallbackTimeout. Do not change -inf: it marks a
            # member whose answers never count.
            times, oldest = library.answered, until - FALLBACK * self.timeout
            for name, answered in times.items():
                if answered > -math.inf:
                    times[name] = max(answered, min(now, answered + late), oldest)
            return
        deadline = library.election_deadline
        if math.isfinite(deadline):
            library.election_deadline = max(deadline + late, until)
            if deadline == self.last_look_at:
                # The deadline already includes the delay for reading the sockets. Without this line, the
                # member would delay its election a second time.
                self.last_look_at = library.election_deadline

    def expect_silence(self, took: float) -> None:
        """Expect silence of the other members for ``took`` seconds, because they apply the same entry."""
        now, took, library = self.clock(), min(took, APPLY_PATIENCE * self.timeout), self.library
        if library.state == LEADER:
            times = library.answered
            for name, answered in times.items():
                if answered > -math.inf:
                    times[name] = now + took
        elif library.leader is not None and math.isfinite(library.election_deadline):
            self.heard = now + took
            self.postpone(self.heard)

    def postpone(self, now: float) -> None:
        """Set the election deadline to a random time after ``now``: one to two times the election timeout."""
        self.library.election_deadline = now + self.library.draw_timeout()

    def ask_again_soon(self, now: float, *, syncs: bool = False) -> None:
        """Set an early election deadline after a failed attempt. Pre-votes make an early attempt safe.

        If ``syncs`` is true, the deadline is later, because votes are being stored on two disks. A new
        attempt before both disks have synced would discard the present attempt.
        """
        least, most = (3, 6) if syncs else (1, 3)
        self.library.election_deadline = now + self.rng.uniform(least, most) * self.period

    def stand_now(self) -> None:
        """Stand for election in the next tick.

        The caller makes sure that no other voter exists, or that a majority promised its votes.
        """
        self.library.election_deadline = -math.inf

    def hears_leader(self, now: float) -> bool:
        """Return True if this member knows a working leader, so that it votes for no other member."""
        listening = now < self.watch.listening_until
        if self.library.state == LEADER:
            return listening or now - self.contact.majority_date(now) < self.timeout
        leader = self.library.leader
        if leader is None or leader not in self.effects.greeted:
            return False
        return listening or now - self.heard < self.timeout

    def link_down(self, peer: str) -> None:
        """Ask for pre-votes early if the link to the leader closed, because the leader may be dead.

        If the leader still works, this does no harm. The other members refuse a pre-vote while they receive
        the leader's messages (repairs PySyncObj defect D4).
        """
        library = self.library
        if library.state != LEADER and peer == library.leader:
            soon = self.clock() + self.rng.uniform(0.0, self.timeout / 2)
            library.election_deadline = min(library.election_deadline, soon)

    def silence(self, now: float) -> str:
        """Return the age of the leader's last message and this member's longest pause, as log fields."""
        heard = f"{(now - self.heard) * 1000:.0f}" if math.isfinite(self.heard) else "never"
        return f"last_heard_ms={heard} own_gap_ms={self.watch.longest * 1000:.0f}"

    # ---- member state

    def become(self, standing: MemberState) -> None:
        """Change the member state. It is stored durably before another member sees an effect of it."""
        self.effects.add(StoreStanding(standing))
        self.standing = standing

    @property
    def empty(self) -> bool:
        """True if this member never took part in a cluster: it gave no vote and stored no entry."""
        standing = self.standing
        return not (standing.voter or standing.doubtful) and self.log.last_index == FIRST_INDEX

    @property
    def may_vote(self) -> bool:
        """True if this member may vote.

        A learner may not vote, because it may lack entries. It may also have lost its data after it voted in
        this term. A second vote could then elect a second leader (PySyncObj's defect D25).
        """
        return self.standing.voter

    @property
    def votes(self) -> bool:
        """True if this member is a voter by its own configuration and its member state."""
        return self.standing.voter and self.me in self.configuration.voters

    @property
    def may_stand(self) -> bool:
        """True if this member may stand for election.

        The member must be a voter, and its journal must not stall. It must not be restoring an operator's
        snapshot, because a new leader appends an entry, and a restore allows no new entry.
        """
        return self.votes and not (self.stalled or self.restoring)


class EnginePart:
    """Base class of the engine's parts, with access to the shared state."""

    def __init__(self, shared: Shared) -> None:
        self.shared: Final = shared
        self._me: Final = shared.me
        self._clock = shared.clock
        self._log = shared.log
        self._contact = shared.contact
        self._effects = shared.effects
        self._library = shared.library

    def _say(self, about: str, text: str, *values: object, level: int = logging.INFO) -> None:
        """Log a line that a peer can cause with every message.

        The number of such lines is limited, so that a peer cannot fill the disk with log lines.

        Args:
            about: The member to which the line belongs. The number of lines is limited for each member.
        """
        self.shared.peer_log.write(level, about, text, *values)

    def _begins(self) -> bool:
        """Read the clock at the beginning of an event, or return False if this member has stopped."""
        if self._effects.stopped:
            return False
        self.shared.look()
        return True
