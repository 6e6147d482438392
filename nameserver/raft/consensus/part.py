"""State that the parts of one member share (voters, silent members), and each part's access to it."""

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

#: Election timeouts without an answer from a majority after which a leader steps down (D8).
FALLBACK: Final = 1.5
#: Longest time that other members are expected to apply an entry, in election timeouts.
APPLY_PATIENCE: Final = 4


class HeldImage(Protocol):
    """The newest snapshot that is durable here."""

    def image(self) -> tuple[int, int, int, bytes] | None:
        """Return index, term, size and encoded configuration."""

    def read_image(self, index: int, offset: int, size: int) -> bytes | None:
        """Return a piece of the snapshot at ``index``; None if the snapshot is gone.

        Empty if the disk has not read it yet; :meth:`.engine.Engine.step` is called when it has.
        """


@dataclass(eq=False, repr=False)
class Shared:
    """State that all parts of one member read, and some change. It imports no part; all parts import it.

    Attributes:
        standing: The member state; stored before another member sees an effect of it.
        stalled: The oldest write of the journal takes too long.
        volatile: There is no journal, so entries count as durable as soon as they are in the log.
        configuration: The configuration in force.
        other_voters: Its voters except this member; ``other_members``: its learners as well.
        timeout: The election timeout N, in seconds; ``period`` is the time between two heartbeats.
        heard: Time of the last message from the leader.
        now: Time of the present event, read at its beginning. The step of the event uses it, so that a pause
            in between is no silence of others: the next event notices the pause.
        watch: Detects pauses of this member itself.
        within_entry: The entry after the last applied one is half applied, so the state belongs to no
            index.
        last_look_at: The election deadline after the last read of the sockets, see :mod:`.elections`.
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
        self.last_look_at = math.nan

    # ---- voters

    def adopt_configuration(self) -> None:
        """D36: put the log's newest configuration in force, from its append until it may be dropped.

        Library and contact count by it from here on.
        """
        self.configuration: Configuration = self.log.configuration
        self.other_voters = tuple(name for name in self.configuration.voters if name != self.me)
        self.other_members = tuple(name for name in self.configuration.members if name != self.me)
        self.library.count_voters(self.other_voters)
        self.contact.voters_are(self.other_voters)

    def is_majority(self, others: Collection[str]) -> bool:
        """Return whether this member and the voters among ``others`` are more than half of the voters."""
        voters = self.configuration.voters
        return 1 + sum(name in voters for name in others) >= majority(len(voters))

    @property
    def committed(self) -> bool:
        """Return whether the newest configuration in the log is committed."""
        return self.log.configuration_index <= self.library.commit_index

    # ---- silence: how long this member waits. Its own pauses are not the silence of others.

    def look(self) -> None:
        """Read the clock, at each event, and notice a pause of this member."""
        self.now = now = self.clock()
        late = self.watch.look(now)
        if late:
            self._forgive(now, late)

    def _forgive(self, now: float, late: float) -> None:
        """Do not count a pause of this member, of ``late`` seconds, as silence of others (see
        :mod:`.watch`).
        """
        library, until = self.library, self.watch.listening_until
        if until > now:
            level = logging.WARNING if late > self.timeout else logging.DEBUG
            logger.log(level, "member stood still me=%s ms=%.0f", self.me, late * 1000)
        self.heard = max(self.heard, min(now, self.heard + late))
        if library.state == LEADER:
            # The library steps down when answers are older than leaderFallbackTimeout; -inf never counts.
            times, oldest = library.answered, until - FALLBACK * self.timeout
            for name, answered in times.items():
                if answered > -math.inf:
                    times[name] = max(answered, min(now, answered + late), oldest)
            return
        deadline = library.election_deadline
        if math.isfinite(deadline):
            library.election_deadline = max(deadline + late, until)
            if deadline == self.last_look_at:
                self.last_look_at = library.election_deadline  # so the sockets are read once more, not twice

    def expect_silence(self, took: float) -> None:
        """Expect others to be silent for ``took`` seconds: applying an entry takes them as long as this
        member.
        """
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
        """Set the election deadline to a whole election timeout after ``now``."""
        self.library.election_deadline = now + self.library.draw_timeout()

    def ask_again_soon(self, now: float, *, syncs: bool = False) -> None:
        """Set a short election deadline after a refused or split attempt; pre-votes make that harmless.

        It is longer while votes are being stored: two disks must sync one, and a new attempt would discard
        it.
        """
        least, most = (3, 6) if syncs else (1, 3)
        self.library.election_deadline = now + self.rng.uniform(least, most) * self.period

    def stand_now(self) -> None:
        """Set the election deadline to now (for the only member, and for one asked to take over)."""
        self.library.election_deadline = -math.inf

    def hears_leader(self, now: float) -> bool:
        """Return whether a leader works as far as this member can tell (stickiness)."""
        listening = now < self.watch.listening_until
        if self.library.state == LEADER:
            return listening or now - self.contact.majority_date(now) < self.timeout
        leader = self.library.leader
        if leader is None or leader not in self.effects.greeted:
            return False
        return listening or now - self.heard < self.timeout

    def link_down(self, peer: str) -> None:
        """Ask for pre-votes early if the leader's link closed, as a killed leader's links do at once.

        That is harmless: others refuse while they hear the leader (D4).
        """
        library = self.library
        if library.state != LEADER and peer == library.leader:
            soon = self.clock() + self.rng.uniform(0.0, self.timeout / 2)
            library.election_deadline = min(library.election_deadline, soon)

    def silence(self, now: float) -> str:
        """Return the time of the last message from the leader, for the log."""
        heard = f"{(now - self.heard) * 1000:.0f}" if math.isfinite(self.heard) else "never"
        return f"last_heard_ms={heard} own_gap_ms={self.watch.longest * 1000:.0f}"

    # ---- member state

    def become(self, standing: MemberState) -> None:
        """Take another member state, which is durable before another member sees an effect of it."""
        self.effects.add(StoreStanding(standing))
        self.standing = standing

    @property
    def empty(self) -> bool:
        """Return whether nothing was ever promised or stored here."""
        standing = self.standing
        return not (standing.voter or standing.doubtful) and self.log.last_index == FIRST_INDEX

    @property
    def may_vote(self) -> bool:
        """Return whether this member may vote; a learner may not (D25)."""
        return self.standing.voter

    @property
    def votes(self) -> bool:
        """Return whether this member is a voter by its own configuration and member state."""
        return self.standing.voter and self.me in self.configuration.voters

    @property
    def may_stand(self) -> bool:
        """Return whether this member may stand for election: a voter whose journal does not stall."""
        return self.votes and not self.stalled


class EnginePart:
    """Base of the parts: their access to the shared state."""

    def __init__(self, shared: Shared) -> None:
        self.shared: Final = shared
        self._me: Final = shared.me
        self._clock = shared.clock
        self._log = shared.log
        self._contact = shared.contact
        self._effects = shared.effects
        self._library = shared.library

    def _say(self, about: str, text: str, *values: object, level: int = logging.INFO) -> None:
        """Write a line that a peer can cause with every message, unless there are too many of them."""
        self.shared.peer_log.write(level, about, text, *values)

    def _begins(self) -> bool:
        """Read the clock at the beginning of an event; return False if this member takes part no more."""
        if self._effects.stopped:
            return False
        self.shared.look()
        return True
