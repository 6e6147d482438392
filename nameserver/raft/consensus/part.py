"""What the parts of one member share, and what each of them holds of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import TYPE_CHECKING, Final, Protocol

from nameserver.raft.library import Library
from nameserver.raft.types import RaftConfig, RaftStartError, StateMachine, StopMember
from remoting.line_limit import LimitedLog

from .contact import Contact
from .effects import Effects
from .log import FIRST_INDEX, RaftLog, Recovered
from .members import Configuration, Standing, majority
from .messages import FORMAT, FORMAT_DURABLE, FORMAT_MAX
from .patience import FALLBACK, Patience

if TYPE_CHECKING:
    import random

logger = logging.getLogger(__name__)


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
    """What all parts of one member look at, and some change: it imports none of them, they all import it.

    Attributes:
        standing: What this member is; stored before anybody hears of what it does by it.
        stalled: The oldest write of the journal is under way for too long.
        volatile: There is no journal: what is in the log is as durable as it will ever be.
        configuration: The one in force.
        other_voters: Its voters but this member; ``other_members``: and learners.
        timeout: N, in seconds; ``period`` lies between two heartbeats of a leader.
        peer_log: For lines that a peer can cause with every message: it writes no more than some.
    """

    config: RaftConfig
    machine: StateMachine
    _: KW_ONLY
    held_image: HeldImage
    clock: Callable[[], float]
    rng: random.Random
    standing: Standing
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
        self.contact = contact = Contact(1)
        self.effects = Effects(log)
        self.peer_log = LimitedLog(logger, clock)
        self.library = library = Library(
            me, log, now=clock(), rng=self.rng, period=period, timeout=timeout, fallback=FALLBACK * timeout
        )
        library.connected = self.effects.greeted
        self.follow()
        self.patience = Patience(me, self.effects.greeted, contact, library, clock, self.rng, period, timeout)

    # ---- who counts

    def follow(self) -> None:
        """D36: put in force what the log holds last, from append on, and no more once it is dropped.

        Library and contact count by it from here on.
        """
        self.configuration: Configuration = self.log.configuration
        self.other_voters = tuple(name for name in self.configuration.voters if name != self.me)
        self.other_members = tuple(name for name in self.configuration.members if name != self.me)
        self.library.follow_voters(self.other_voters)
        self.contact.voters_are(self.other_voters)

    def is_majority(self, others: Collection[str]) -> bool:
        """Whether this member and those of ``others`` that are voters are more than half of the voters."""
        voters = self.configuration.voters
        return 1 + sum(name in voters for name in others) >= majority(len(voters))

    @property
    def settled_three(self) -> bool:
        """The log holds three voters and nobody else last, and that is committed."""
        held = self.log.configuration
        three = len(held.voters) == 3 and not held.learners
        return three and self.log.configuration_index <= self.library.commit_index

    # ---- what this member is

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

    @property
    def read_by_all(self) -> int:
        """Rule 7: the highest format that every member said it reads."""
        stated = (self.standing.formats.get(name, FORMAT) for name in self.other_members)
        return min([FORMAT_MAX, *stated])

    @property
    def all_read_durable(self) -> bool:
        """Every member has said that it understands :attr:`.messages.Append.durable`."""
        return self.read_by_all >= FORMAT_DURABLE


class Part:
    """What each part holds of what they share."""

    def __init__(self, shared: Shared) -> None:
        self.shared: Final = shared
        self._me: Final = shared.me
        self._clock = shared.clock
        self._timeout = shared.timeout
        self._period = shared.period
        self._log = shared.log
        self._contact = shared.contact
        self._effects = shared.effects
        self._library = shared.library
        self._patience = shared.patience

    def _say(self, about: str, text: str, *values: object, level: int = logging.INFO) -> None:
        """Write a line that a peer can cause with every message, unless there are too many of them."""
        self.shared.peer_log.write(level, about, text, *values)

    def _begins(self) -> bool:
        """Each event begins with a look at the clock; False if this member takes part no more."""
        if self._effects.stopped:
            return False
        self._patience.look()
        return True
