"""The group behind a mode: what operators read of it and do to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

if TYPE_CHECKING:
    from nameserver.raft import RaftMember

#: Who a member is, on the raft port and to operators.
MemberAddress = Annotated[
    str, Meta(description="A member's raft HOST:PORT, which is its identity.", examples=["10.0.0.4:9878"])
]
#: Where a member serves HTTP.
HttpAddress = Annotated[str, Meta(examples=["10.0.0.4:9880"])]


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Figures of this member, local. A newer release may add some; what does not apply is absent or null."""

    role: Annotated[str, Meta(extra_json_schema={"enum": ["leader", "follower", "candidate", "learner"]})]
    term: int | UnsetType = UNSET
    commit_index: int | UnsetType = UNSET
    applied_index: int | UnsetType = UNSET
    last_index: int | UnsetType = UNSET
    durable_index: int | UnsetType = UNSET
    leader: str | UnsetType | None = UNSET
    last_contact_ms: Annotated[
        float | UnsetType | None,
        Meta(description="Age of the contact with a majority; null if there never was one."),
    ] = UNSET
    contact_limit_ms: Annotated[
        int | UnsetType, Meta(description="Above it default reads and writes are refused.")
    ] = UNSET
    members: tuple[MemberAddress, ...] | UnsetType = UNSET
    voters: tuple[MemberAddress, ...] | UnsetType = UNSET
    learners: tuple[MemberAddress, ...] | UnsetType = UNSET
    configuration_index: Annotated[
        int | UnsetType, Meta(description="Log index of the newest change of members.")
    ] = UNSET
    cluster: Annotated[str | UnsetType, Meta(description="Name the group was founded with.")] = UNSET
    linked: Annotated[
        tuple[MemberAddress, ...] | UnsetType, Meta(description="Members with an authenticated link up.")
    ] = UNSET
    waiting_for: Annotated[
        tuple[MemberAddress, ...] | UnsetType,
        Meta(description="First start: the members it still waits for."),
    ] = UNSET
    peer_format: Annotated[
        int | UnsetType, Meta(description="Version of messages that all members read.")
    ] = UNSET
    journal_bytes: int | UnsetType = UNSET
    log_bytes: int | UnsetType = UNSET
    snapshot_index: int | UnsetType = UNSET
    snapshot_bytes: int | UnsetType = UNSET
    snapshot_failures: int | UnsetType = UNSET
    storage_stalled: bool | UnsetType = UNSET
    storage_stalls: int | UnsetType = UNSET
    leader_changes: int | UnsetType = UNSET
    elections: Annotated[int | UnsetType, Meta(description="Candidacies begun here.")] = UNSET
    refused_truncations: int | UnsetType = UNSET
    snapshot_age_s: float | UnsetType | None = UNSET
    durability: Annotated[
        str | UnsetType, Meta(extra_json_schema={"enum": ["memory", "journal", "fsync"]})
    ] = UNSET
    me: MemberAddress
    http: Annotated[
        dict[str, HttpAddress] | UnsetType,
        Meta(
            description="HTTP addresses by member, as far as known; empty without a secret or TLS on the "
            "raft port."
        ),
    ] = UNSET
    refused_reads: Annotated[
        int, Meta(description="Reads refused because their freshness could not be had, on any port.")
    ]
    refused_writes: Annotated[int, Meta(description='Changes answered "not applied".')]
    unknown_outcomes: Annotated[int, Meta(description='Changes answered "may apply yet".')]
    barriers: Annotated[
        int, Meta(description="Barriers sent for linearizable reads here, those sent again included.")
    ]
    barriers_confirmed: Annotated[
        int, Meta(description="As leader: barriers answered, to other members and to itself.")
    ]
    barrier_rounds: Annotated[int, Meta(description="As leader: rounds of heartbeats that those needed.")]
    proposals: Annotated[int, Meta(description="Changes of this member that have no verdict yet.")]
    apply_lag: Annotated[
        int, Meta(description="Entries committed, as far as known here, and not applied here.")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What operators read of the group behind a mode, and do to it.

    Attributes:
        raft_status: Returns figures of this member for people and metrics; local and without waiting.
        member: Changes the group: who belongs to it, who leads it, its snapshots.
    """

    raft_status: Callable[[], GroupStatus]
    member: RaftMember
