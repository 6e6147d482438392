"""Who takes part: a member's standing in its cluster, and how a cluster is founded. Pure.

A data directory that never took part is empty. Empty members found a cluster only together: each must see
every other one linked and empty at the same time (or hear from one that has just done so that its own
instance was among them). Any later empty member is a learner (D25): what it once promised is lost, so it
neither votes nor counts until it has caught up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .messages import Hello


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a member knows of its own part; durable before it is acted upon.

    Attributes:
        instance: Names this life of the data directory; another one after it was emptied.
        voter: It may vote, and what it acknowledges counts.
        founders: Instance of each member when the cluster was founded, if this member saw it.
    """

    instance: str
    voter: bool = False
    founders: Mapping[str, str] = field(default_factory=dict)


def cluster_id(members: tuple[str, ...]) -> str:
    """Name a cluster by the members that found it; the order in which they are written does not matter."""
    return hashlib.sha256("\n".join(sorted(members)).encode()).hexdigest()[:32]


def found(
    standing: Standing, me: str, members: tuple[str, ...], hellos: Mapping[str, Hello]
) -> Standing | None:
    """Decide whether an empty member is now a founding one.

    Args:
        hellos: The newest hello of each member to which a link is up.

    Returns:
        The new standing, or None if it stays as it is.
    """
    for hello in hellos.values():
        if not hello.empty and hello.founders.get(me) == standing.instance:
            return replace(standing, voter=True, founders=dict(hello.founders))
    others = [member for member in members if member != me]
    if all(member in hellos and hellos[member].empty for member in others):
        founders = {member: hellos[member].instance for member in others} | {me: standing.instance}
        return replace(standing, voter=True, founders=founders)
    return None


def waiting_for(me: str, members: tuple[str, ...], hellos: Mapping[str, Hello]) -> tuple[str, ...]:
    """Members that an empty member still needs; none if a cluster exists, which it will join as a learner."""
    if any(not hello.empty for hello in hellos.values()):
        return ()
    return tuple(member for member in members if member != me and member not in hellos)
