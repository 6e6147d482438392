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

#: Number of election timeouts without answers from a majority, after which a leader steps down (D8).
FALLBACK: Final = 1.5
#: Largest number of election timeouts for which other members may be silent while they apply a slow entry.
APPLY_PATIENCE: Final = 4


class HeldImage(Protocol):
    """The newest snapshot that is durable on this member."""

    def image(self) -> tuple[int, int, int, bytes] | None:
        """Return index, term, size in bytes and encoded configuration; None if there is no snapshot."""

    def read_image(self, index: int, offset: int, size: int) -> bytes | None:
        """Return a piece of the snapshot at ``index``; None if it was deleted or cannot be read.

        The piece is empty if it has not been read from the disk yet. After the read, the caller of the engine
        calls :meth:`.engine.Engine.step`.
        """


@dataclass(eq=False, repr=False)
class Shared:
    """State that all parts of one member read, and that some parts change.

    This class imports no part; all parts import it.

    Attributes:
        standing: The member state; it is stored before another member sees an effect of it.
        stalled: True while the oldest unfinished write of the journal takes too long.
        volatile: True if there is no journal; entries then count as durable as soon as they are in the log.
        configuration: The configuration in force.
        other_voters: The voters of the configuration except this member.
        other_members: The voters and learners of the configuration except this member.
        timeout: The election timeout N, in seconds.
        period: The time between two heartbeats, in seconds.
        heard: Time of the last message from the leader.
        now: Time of the present event, read at its beginning. All work for the event uses this time. So a
            pause during the work does not count as silence of other members; the next event detects it.
        watch: Detects pauses of this member's process.
        within_entry: True if the entry after the last applied entry is half applied. The state is then not
            the state at any index.
        restoring: True while an operator's snapshot is about to replace log and state. Its index is the next
            one of the log, so no entry of any kind may be appended meanwhile.
        last_look_at: Election deadline after a short delay, in which the member reads its sockets once more
            before it asks for pre-votes (see :mod:`.elections`); nan before the first such delay.
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
        """Put the newest configuration in the log in force, as soon as it is appended (D36).

        From this call on, the voters of this configuration decide elections, and only they can confirm that
        a leader still leads.
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
        """Move all deadlines by ``late`` seconds, because this member paused (see :mod:`.watch`).

        Other members perhaps sent messages during the pause, so the pause must not count as their silence.
        """
        library, until = self.library, self.watch.listening_until
        if until > now:
            level = logging.WARNING if late > self.timeout else logging.DEBUG
            logger.log(level, "member stood still me=%s ms=%.0f", self.me, late * 1000)
        self.heard = max(self.heard, min(now, self.heard + late))
        if library.state == LEADER:
            # Also move forward the times of the last answers: the library steps down when these times are
            # older than leaderFallbackTimeout. A time of -inf stays, because it means that answers never
            # count.
            times, oldest = library.answered, until - FALLBACK * self.timeout
            for name, answered in times.items():
                if answered > -math.inf:
                    times[name] = max(answered, min(now, answered + late), oldest)
            return
        deadline = library.election_deadline
        if math.isfinite(deadline):
            library.election_deadline = max(deadline + late, until)
            if deadline == self.last_look_at:
                # This deadline already includes the delay for reading the sockets; do not delay again.
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
        """Set the election deadline to a random election timeout (N to 2N) after ``now``."""
        self.library.election_deadline = now + self.library.draw_timeout()

    def ask_again_soon(self, now: float, *, syncs: bool = False) -> None:
        """Set an early election deadline after a failed attempt; pre-votes make an early attempt safe.

        If ``syncs`` is true, votes are being stored, and the deadline is later. Two disks must sync before
        the present attempt can succeed, and a new attempt before that would discard the present attempt.
        """
        least, most = (3, 6) if syncs else (1, 3)
        self.library.election_deadline = now + self.rng.uniform(least, most) * self.period

    def stand_now(self) -> None:
        """Stand for election in the next tick: no other voter exists, or a majority promised its votes."""
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
        """Ask for pre-votes early if the link to the leader closed, because a killed leader's links close.

        If the leader still works, this does no harm: the other members refuse a pre-vote while they receive
        the leader's messages (D4).
        """
        library = self.library
        if library.state != LEADER and peer == library.leader:
            soon = self.clock() + self.rng.uniform(0.0, self.timeout / 2)
            library.election_deadline = min(library.election_deadline, soon)

    def silence(self, now: float) -> str:
        """Return text for the log: the age of the leader's last message, and this member's longest pause."""
        heard = f"{(now - self.heard) * 1000:.0f}" if math.isfinite(self.heard) else "never"
        return f"last_heard_ms={heard} own_gap_ms={self.watch.longest * 1000:.0f}"

    # ---- member state

    def become(self, standing: MemberState) -> None:
        """Change the member state; it is durable before another member sees an effect of it."""
        self.effects.add(StoreStanding(standing))
        self.standing = standing

    @property
    def empty(self) -> bool:
        """True if this member never took part in a cluster: it gave no vote and stored no entry."""
        standing = self.standing
        return not (standing.voter or standing.doubtful) and self.log.last_index == FIRST_INDEX

    @property
    def may_vote(self) -> bool:
        """True if this member may vote; a learner may not vote (D25)."""
        return self.standing.voter

    @property
    def votes(self) -> bool:
        """True if this member is a voter by its own configuration and its member state."""
        return self.standing.voter and self.me in self.configuration.voters

    @property
    def may_stand(self) -> bool:
        """True if this member may stand for election.

        It must be a voter, and its journal must not stall. It must not be restoring an operator's snapshot: a
        new leader appends an entry, and no entry may be appended during a restore.
        """
        return self.votes and not (self.stalled or self.restoring)


class EnginePart:
    """Base class of the engine's parts; it gives them access to the shared state."""

    def __init__(self, shared: Shared) -> None:
        self.shared: Final = shared
        self._me: Final = shared.me
        self._clock = shared.clock
        self._log = shared.log
        self._contact = shared.contact
        self._effects = shared.effects
        self._library = shared.library

    def _say(self, about: str, text: str, *values: object, level: int = logging.INFO) -> None:
        """Log a line that a peer can cause with every message; the number of such lines is limited."""
        self.shared.peer_log.write(level, about, text, *values)

    def _begins(self) -> bool:
        """Read the clock at the beginning of an event; return False if this member has stopped."""
        if self._effects.stopped:
            return False
        self.shared.look()
        return True
