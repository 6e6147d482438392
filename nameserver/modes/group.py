"""The status of a mode's raft group, and the operations on the group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from routekeeper.remoting.histogram import Histogram

if TYPE_CHECKING:
    from routekeeper.nameserver.raft.node.member import RaftMember

#: A member's address on the raft port. Operators identify a member by this address.
MemberAddress = Annotated[
    str, Meta(description="A member's raft HOST:PORT, which is its identity.", examples=["10.0.0.4:9878"])
]
#: A member's HTTP address.
HttpAddress = Annotated[str, Meta(examples=["10.0.0.4:9880"])]


def said(text: str) -> Meta:
    """Return a description of a body's field for the OpenAPI document."""
    return Meta(description=text)


_Count: TypeAlias = int | UnsetType
_Members: TypeAlias = tuple[MemberAddress, ...] | UnsetType


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Figures of this member, read locally.

    A newer release may add figures. Figures that do not apply are absent or null.
    """

    role: Annotated[str, Meta(extra_json_schema={"enum": ["leader", "follower", "candidate", "learner"]})]
    term: _Count = UNSET
    commit_index: _Count = UNSET
    applied_index: _Count = UNSET
    last_index: _Count = UNSET
    last_term: Annotated[_Count, said("Term of the last entry in the log here.")] = UNSET
    durable_index: _Count = UNSET
    leader: str | UnsetType | None = UNSET
    last_contact_ms: Annotated[
        float | UnsetType | None, said("Age of the contact with a majority; null if there never was one.")
    ] = UNSET
    contact_limit_ms: Annotated[
        _Count, said("Default reads and writes are refused while last_contact_ms is above this limit.")
    ] = UNSET
    members: _Members = UNSET
    voters: _Members = UNSET
    learners: _Members = UNSET
    configuration_index: Annotated[_Count, said("Log index of the newest change of members.")] = UNSET
    cluster: Annotated[str | UnsetType, said("Name that the group got when it was founded.")] = UNSET
    linked: Annotated[_Members, said("Members with an authenticated link up.")] = UNSET
    waiting_for: Annotated[_Members, said("First start: members for which this member still waits.")] = UNSET
    peer_format: Annotated[_Count, said("Newest version of messages that all members read.")] = UNSET
    journal_bytes: _Count = UNSET
    log_bytes: _Count = UNSET
    snapshot_index: _Count = UNSET
    snapshot_bytes: _Count = UNSET
    snapshot_failures: _Count = UNSET
    storage_stalled: bool | UnsetType = UNSET
    storage_stalls: _Count = UNSET
    leader_changes: _Count = UNSET
    elections: Annotated[_Count, said("Number of elections that this member began.")] = UNSET
    refused_truncations: _Count = UNSET
    snapshot_age_s: float | UnsetType | None = UNSET
    certificate_left_s: Annotated[
        float | UnsetType,
        said(
            "Time until this member's certificate, or the last authority in --raft-tls-ca, expires; with TLS "
            "only."
        ),
    ] = UNSET
    durability: Annotated[
        str | UnsetType, Meta(extra_json_schema={"enum": ["memory", "journal", "fsync"]})
    ] = UNSET
    me: MemberAddress
    http: Annotated[
        dict[str, HttpAddress] | UnsetType,
        said("HTTP addresses by member, as far as known; empty without a secret or TLS on the raft port."),
    ] = UNSET
    refused_reads: Annotated[
        int, said("Reads refused on any port because their freshness could not be given.")
    ]
    refused_writes: Annotated[int, said('Changes answered "not applied".')]
    unknown_outcomes: Annotated[int, said('Changes answered "may apply yet".')]
    barriers: Annotated[int, said("Barriers sent for linearizable reads here, including repeated ones.")]
    barriers_confirmed: Annotated[int, said("As leader: barriers answered, to other members and to itself.")]
    barrier_rounds: Annotated[int, said("As leader: rounds of heartbeats for these barriers.")]
    proposals: Annotated[int, said("Changes of this member that have no outcome yet.")]
    apply_lag: Annotated[int, said("Entries that are committed, as far as known here, and not applied here.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Status of a mode's raft group, and operations on the group.

    Attributes:
        raft_status: Function that returns this member's figures for people and metrics. It uses only local
            data and never waits.
        member: This process's member of the group. Its ``changes`` change members, leader and snapshots.
        times: Durations of the steps of a change: commit, fsync and apply.
    """

    raft_status: Callable[[], GroupStatus]
    member: RaftMember
    times: Mapping[str, Histogram] = field(default_factory=dict)
