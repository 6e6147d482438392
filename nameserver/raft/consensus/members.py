"""Membership as values without I/O: a member's state, the cluster's configuration, and the founding.

The founding: a member is empty if its data directory never took part in a cluster. Empty members form a
cluster only together. For this, each member must have a link to every other member, and all must be empty at
the same time. There is one exception: a linked peer formed the cluster a moment earlier, and named this
member among the founders (the first members). Then this member joins in forming the cluster.

Learners: a member that comes back empty later is a learner (repairs PySyncObj defect D25). It has lost its
votes and acknowledged entries, so it does not vote, and does not count in a majority, until it has caught up.

Configurations: after the founding, the configuration in the log names the members. The newest configuration
in a member's log is in force as soon as it is appended (repairs PySyncObj defect D36). If a leader later
replaces the entry of this configuration, the former configuration is in force again. Only one member is added
or removed at a time (repairs PySyncObj defect D35). So the majorities before and after a change have a member
in common.
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
    """A member's own state. It is stored durably before the member sends a message that depends on it.

    Attributes:
        instance: A random name of the data directory; a directory that was emptied gets another name.
        voter: True if the member may vote and its acknowledgements count.
        founders: The instance of each member when the cluster was founded; empty if this member did not take
            part in the founding.
        cluster: The cluster's name. It is computed from the first members, and never changes. In an empty
            member, this is the name of the cluster that the member would form. When an empty member receives
            a leader's log, the member takes over the name of the leader's cluster.
        removed: True if the cluster has removed this member. The member must not start again.
        doubtful: True if the member was a voter and may have lost entries that it acknowledged. Until it has
            caught up, it is neither a voter nor empty.
    """

    instance: str
    voter: bool = False
    founders: Mapping[str, str] = field(default_factory=dict)
    cluster: str = ""
    removed: bool = False
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members of a cluster. Voters count in a majority; learners only receive entries.

    Names are sorted, so that two configurations with the same members are equal.
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
    """Return the first configuration of a cluster that ``members`` form: all of them are voters."""
    return Configuration(tuple(sorted(members)))


def encode_configuration(configuration: Configuration) -> bytes:
    """Return the configuration as the bytes that log entries and snapshot headers carry."""
    return msgspec.msgpack.encode((FORMAT, configuration.voters, configuration.learners))


def decode_configuration(data: bytes) -> Configuration:
    """Decode a configuration that :func:`encode_configuration` has encoded.

    Raises:
        StopMember: A newer program wrote the configuration, or the data is damaged.
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
    """Return the last index that a majority holds durably.

    Args:
        members: Number of voters in the configuration, the leader included.
        durable: The leader's own durable index.
        matches: Match indexes of the other voters; 0 for a voter that has lost its data.
    """
    held, needed = sorted([durable, *matches], reverse=True), majority(members)
    return held[needed - 1] if len(held) >= needed else 0


def cluster_id(members: tuple[str, ...]) -> str:
    """Return the name of the cluster whose first members are ``members``, in any order."""
    return hashlib.sha256("\n".join(sorted(members)).encode()).hexdigest()[:32]
