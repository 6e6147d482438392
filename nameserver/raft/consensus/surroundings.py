"""What the parts of one member are given at their construction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from remoting.line_limit import LimitedLog

from .contact import Contact
from .log import RaftLog
from .messages import Message

if TYPE_CHECKING:
    import random


class HeldImage(Protocol):
    """The newest state image that is durable here."""

    def image(self) -> tuple[int, int, int, bytes] | None:
        """Index, term, size and encoded configuration."""

    def read_image(self, index: int, offset: int, size: int) -> bytes | None:
        """A piece of the image at ``index``; None if it is there no more.

        Nothing if the disk has not given it yet: :meth:`.engine.Engine.step` follows.
        """


class Host(Protocol):
    """What the core needs from the engine around it."""

    @property
    def may_vote(self) -> bool:
        """False for a learner (D25)."""

    @property
    def may_stand(self) -> bool:
        """False for a learner, for whoever is no voter, and while the own journal stalls."""

    def send(self, peer: str, message: Message) -> None: ...
    def apply(self, payload: bytes, index: int, term: int) -> None: ...
    @property
    def all_read_durable(self) -> bool:
        """Every member has said that it understands :attr:`Append.durable`."""

    @property
    def states_durable(self) -> bool:
        """As leader it says what is durable here: under durability ``memory``, and if all read it."""

    def role_changed(self) -> None: ...
    def linked_to(self, peer: str) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """One member's name, log and contact; clock and chance; the way out.

    Attributes:
        peer_log: For lines that a peer can cause with every message: it writes no more than some.
    """

    me: str
    log: RaftLog
    host: Host
    held_image: HeldImage
    contact: Contact
    clock: Callable[[], float]
    rng: random.Random
    election_timeout_ms: int
    peer_log: LimitedLog

    @property
    def election_timeout_s(self) -> float:
        return self.election_timeout_ms / 1000

    @property
    def period(self) -> float:
        """Seconds between two heartbeats of a leader."""
        return self.election_timeout_s / 6
