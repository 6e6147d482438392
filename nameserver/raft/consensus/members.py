"""Membership: a member's role in its cluster, and the founding of a cluster. Pure.

A data directory that never took part is empty. Empty members found a cluster only together: each must see
every other one linked and empty at the same time (or hear from one that has just done so that its own
instance was among them). Any later empty member is a learner (D25): what it once promised is lost, so it
neither votes nor counts until it has caught up.

Who takes part after that is the configuration in the log: the newest one that a member holds is in force from
the moment it is appended (D36), and one that is dropped with a conflicting tail gives way to the one before.
One change at a time (D35), of one member: so the majorities before and after have a member in common.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from routekeeper.nameserver.raft.types import StopMember
from routekeeper.remoting.lenient import UNREADABLE

#: Version of an encoded configuration.
FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """A member's own role; durable before others see the effects of it.

    Attributes:
        instance: Names this life of the data directory; another one after it was emptied.
        voter: It may vote, and what it acknowledges counts.
        founders: Instance of each member when the cluster was founded, if this member saw it.
        cluster: The cluster's name: its founders', for good. An empty member has only the name
            of the cluster that it would found; it takes over that of the leader from which it gets a log.
        removed: The cluster has removed this member, which must not start again.
        doubtful: It was a voter, and may have lost what it acknowledged last: it is none until it has caught
            up, nor is it empty.
    """

    instance: str
    voter: bool = False
    founders: Mapping[str, str] = field(default_factory=dict)
    cluster: str = ""
    removed: bool = False
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members: voters count, learners only receive. Sorted, so that equal ones are equal."""

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(sorted((*self.voters, *self.learners)))

    def with_learner(self, member: str) -> Configuration:
        return Configuration(self.voters, tuple(sorted({*self.learners, member})))

    def promoting(self, member: str) -> Configuration:
        return Configuration(tuple(sorted({*self.voters, member})), self.without(member).learners)

    def without(self, member: str) -> Configuration:
        return Configuration(
            tuple(name for name in self.voters if name != member),
            tuple(name for name in self.learners if name != member),
        )


#: Before anything is known.
NOBODY: Final = Configuration(())


def founding(members: tuple[str, ...]) -> Configuration:
    """The configuration of a cluster that was just founded."""
    return Configuration(tuple(sorted(members)))


def encode_configuration(configuration: Configuration) -> bytes:
    """Return the configuration as a log entry or an image's header carries it."""
    return msgspec.msgpack.encode((FORMAT, configuration.voters, configuration.learners))


def decode_configuration(data: bytes) -> Configuration:
    """Read what :func:`encode_configuration` made.

    Raises:
        StopMember: A newer program wrote it, or it is damaged.
    """
    try:
        version, *rest = msgspec.msgpack.decode(data, type=list[object])
        if version != FORMAT:
            raise StopMember(f"configuration of format {version}, this program knows {FORMAT}")
        voters, learners = msgspec.convert(rest, type=tuple[tuple[str, ...], tuple[str, ...]])
    except (*UNREADABLE, ValueError) as error:
        raise StopMember(f"configuration of {len(data)} bytes cannot be read: {error}") from error
    return Configuration(voters, learners)


def majority(members: int) -> int:
    """Return the smallest number that is more than half of so many."""
    return members // 2 + 1


def quorum_index(members: int, durable: int, matches: Iterable[int]) -> int:
    """The last index that a majority holds durably, the leader counted only up to its own durable index.

    Args:
        members: Size of the cluster, learners included (they hold 0).
        durable: The leader's own durable index.
        matches: Match indexes of the other voters.
    """
    held, needed = sorted([durable, *matches], reverse=True), majority(members)
    return held[needed - 1] if len(held) >= needed else 0


def cluster_id(members: tuple[str, ...]) -> str:
    """Name a cluster by the members that found it; the order in which they are written does not matter."""
    return hashlib.sha256("\n".join(sorted(members)).encode()).hexdigest()[:32]
