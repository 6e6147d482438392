"""Membership: a member's state in its cluster, and the founding of a cluster. Pure.

A data directory that never took part is empty. Empty members found a cluster only together: each must see
every other one linked and empty at the same time (or hear from one that has just done so that its own
instance was among them). Any later empty member is a learner (D25): its former promises are lost, so it
neither votes nor counts until it has caught up.

Later the configuration in the log names the members. The newest one that a member holds is in force from the
moment it is appended (D36). If it is dropped with a conflicting tail, the one before is in force again. Only
one member changes at a time (D35), so the majorities before and after a change have a member in common.
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
    """A member's own state; durable before other members see its effects.

    Attributes:
        instance: The name of this life of the data directory; an emptied directory gets another one.
        voter: It may vote, and its acknowledgements count.
        founders: The instance of each member when the cluster was founded, if this member took part in
            that.
        cluster: The cluster's name, which comes from its founders and never changes. An empty member has
            the name of the cluster that it would found; it takes over the name of the leader that sends
            it a log.
        removed: The cluster has removed this member, which must not start again.
        doubtful: It was a voter, and may have lost entries that it acknowledged. Until it has caught up
            it is no voter, and it is not empty either.
    """

    instance: str
    voter: bool = False
    founders: Mapping[str, str] = field(default_factory=dict)
    cluster: str = ""
    removed: bool = False
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members: voters count, learners only receive. Names are sorted, so that equal sets compare
    equal.
    """

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


#: The configuration before any member is known.
NOBODY: Final = Configuration(())


def founding(members: tuple[str, ...]) -> Configuration:
    """Return the configuration of a cluster that was just founded."""
    return Configuration(tuple(sorted(members)))


def encode_configuration(configuration: Configuration) -> bytes:
    """Return the configuration as a log entry or a snapshot's header carries it."""
    return msgspec.msgpack.encode((FORMAT, configuration.voters, configuration.learners))


def decode_configuration(data: bytes) -> Configuration:
    """Return the configuration that :func:`encode_configuration` has encoded.

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
    """Return the smallest number that is more than half of ``members``."""
    return members // 2 + 1


def quorum_index(members: int, durable: int, matches: Iterable[int]) -> int:
    """Return the last index that a majority holds durably; the leader counts with its own durable index.

    Args:
        members: Size of the cluster, learners included (they hold 0).
        durable: The leader's own durable index.
        matches: Match indexes of the other voters.
    """
    held, needed = sorted([durable, *matches], reverse=True), majority(members)
    return held[needed - 1] if len(held) >= needed else 0


def cluster_id(members: tuple[str, ...]) -> str:
    """Return the name of the cluster that these members found; their order does not matter."""
    return hashlib.sha256("\n".join(sorted(members)).encode()).hexdigest()[:32]
