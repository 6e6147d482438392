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

#: A leader that a majority has not answered for so many election timeouts steps down (D8).
FALLBACK: Final = 1.5
#: Others are expected to apply an entry for as long as this member, up to so many election timeouts.
APPLY_PATIENCE: Final = 4


class HeldImage(Protocol):
    """The newest state image that is durable here."""

    def image(self) -> tuple[int, int, int, bytes] | None:
        """Index, term, size and encoded configuration."""

    def read_image(self, index: int, offset: int, size: int) -> bytes | None:
        """A piece of the image at ``index``; None if it is there no more.

        Nothing if the disk has not given it yet: :meth:`.engine.Engine.step` follows.
        """


@dataclass(eq=False, repr=False)
class Shared:
    """State that all parts of one member read, and some change: it imports none of them, they all import it.

    Attributes:
        standing: What this member is; stored before anybody hears of what it does by it.
        stalled: The oldest write of the journal is under way for too long.
        volatile: There is no journal: what is in the log is as durable as it will ever be.
        configuration: The one in force.
        other_voters: Its voters but this member; ``other_members``: and learners.
        timeout: N, in seconds; ``period`` lies between two heartbeats of a leader.
        heard: When the leader was heard last.
        watch: Whether this member itself stood still.
        within_entry: The entry behind the last one that is applied has begun: the state is that of no index.
        last_look_at: The election deadline that is the last look into the sockets, see :mod:`.elections`.
        peer_log: For lines that a peer can cause with every message: it writes no more than some.
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
        self.watch.look(clock())
        self.within_entry = False
        self.last_look_at = math.nan

    # ---- who counts

    def adopt_configuration(self) -> None:
        """D36: put in force what the log holds last, from append on, and no more once it is dropped.

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
        """Return whether the configuration that the log holds last is committed."""
        return self.log.configuration_index <= self.library.commit_index

    # ---- who is silent: how long this member waits; that it stood still itself is nobody's silence

    def look(self) -> None:
        """Look at the clock, at each event; notice if this member stood still."""
        now = self.clock()
        late = self.watch.look(now)
        if late:
            self._forgive(now, late)

    def hear(self) -> None:
        """The leader was heard."""
        self.heard = self.clock()
        self.watch.heard()

    def _forgive(self, now: float, late: float) -> None:
        """This member stood still for so long: that was nobody's silence (see :mod:`.watch`)."""
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
                self.last_look_at = library.election_deadline  # one last look is enough

    def expect_silence(self, took: float) -> None:
        """Expect silence of the others: they take as long to apply an entry as this member did."""
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
        """Wait for a whole election timeout from ``now`` on."""
        self.library.election_deadline = now + self.library.draw_timeout()

    def ask_again_soon(self, now: float, *, syncs: bool = False) -> None:
        """Without a leader a refused or split attempt is repeated soon; asking first makes that harmless.

        Not as soon if votes are under way: two disks must sync one, and asking anew makes it worthless.
        """
        least, most = (3, 6) if syncs else (1, 3)
        self.library.election_deadline = now + self.rng.uniform(least, most) * self.period

    def stand_now(self) -> None:
        """Do not wait for the election timeout (the only member; the one asked to take over)."""
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
        """A killed leader's links close at once. Asking early is harmless: others refuse (D4)."""
        library = self.library
        if library.state != LEADER and peer == library.leader:
            soon = self.clock() + self.rng.uniform(0.0, self.timeout / 2)
            library.election_deadline = min(library.election_deadline, soon)

    def silence(self, now: float) -> str:
        """Return the time of the last message from the leader, for the log."""
        heard = f"{(now - self.heard) * 1000:.0f}" if math.isfinite(self.heard) else "never"
        return f"last_heard_ms={heard} own_gap_ms={self.watch.longest * 1000:.0f}"

    # ---- what this member is

    def become(self, standing: MemberState) -> None:
        """Take another standing, which is durable before anybody hears of it."""
        self.effects.add(StoreStanding(standing))
        self.standing = standing

    @property
    def empty(self) -> bool:
        """Nothing was ever promised or stored here."""
        standing = self.standing
        return not (standing.voter or standing.doubtful) and self.log.last_index == FIRST_INDEX

    @property
    def may_vote(self) -> bool:
        """False for a learner (D25)."""
        return self.standing.voter

    @property
    def votes(self) -> bool:
        """This member is a voter, by its own configuration and standing: no learner."""
        return self.standing.voter and self.me in self.configuration.voters

    @property
    def may_stand(self) -> bool:
        """Also False while the own journal stalls."""
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
        """Each event begins with a look at the clock; False if this member takes part no more."""
        if self._effects.stopped:
            return False
        self.shared.look()
        return True
