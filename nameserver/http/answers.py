"""Bodies of HTTP answers, as typed values. The OpenAPI document is generated from these types.

The JSON members of a body have the order of the type's fields.
"""

from __future__ import annotations

from typing import Annotated, Self

import msgspec
from msgspec import UNSET, Meta, UnsetType

from routekeeper.nameserver.modes.group import MemberAddress, said
from routekeeper.nameserver.modes.history import Event, in_words

Mode = Annotated[str, Meta(extra_json_schema={"enum": ["independent", "raft"]})]
Epoch = Annotated[int, said("Grows when a snapshot is restored. Do not compare indexes of different epochs.")]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


class _Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Base of all bodies whose JSON members stay the same in later releases."""


class EventAnswer(_Answer, frozen=True, kw_only=True):
    """An event that happened to a topic or a broker."""

    at_ms: Annotated[int, said("Unix time in ms.")]
    reason: str
    words: str
    broker: str | None
    detail: str

    @classmethod
    def of(cls, event: Event) -> Self:
        return cls(
            at_ms=event.at_ms,
            reason=str(event.reason.value),
            words=in_words(event.reason),
            broker=None if event.broker is None else str(event.broker),
            detail=event.detail,
        )


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An error answer: the problem details of RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    index: int | UnsetType = UNSET
    epoch: Epoch | UnsetType = UNSET
    events: tuple[EventAnswer, ...] | UnsetType = UNSET
    likely_causes: tuple[str, ...] | UnsetType = UNSET
    leader: Annotated[
        str | UnsetType, said("Raft address of the leader. Send the request to the leader.")
    ] = UNSET
    leader_http: Annotated[
        str | UnsetType,
        Meta(
            description="HTTP address of the leader; absent if unknown. Only members with authenticated "
            "links exchange HTTP addresses.",
            examples=["10.0.0.4:9880"],
        ),
    ] = UNSET
    instance: str = ""


# Bodies of reads of the route table ------------------------------------------------------------------


class Read(_Answer, frozen=True, kw_only=True):
    """Fields that every answer from the table has: mode, index, epoch and contact."""

    mode: Mode
    index: Annotated[
        int, said("Revision of the requested topic or KV value; in a list the revision of the table.")
    ]
    epoch: Epoch
    leader_known: Annotated[bool, said("True if a leader is known; always true in independent mode.")]
    last_contact_ms: Annotated[
        int | None,
        said("Age of the last contact with a majority in ms; 0 in independent mode, null before a contact."),
    ]
    boot_id: Annotated[
        int | UnsetType,
        said("Number of this process, only in independent mode. Do not compare indexes of two processes."),
    ] = UNSET


_Names = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "array", "items": {"type": "string"}})]
_NextCursor = Annotated[str | UnsetType, said("Cursor of the next page; absent from the last page.")]


def _array(name: str) -> Meta:
    return Meta(extra_json_schema={"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}})


class Topics(Read, frozen=True, kw_only=True):
    """Names of topics, sorted."""

    topics: _Names
    next_cursor: _NextCursor = UNSET


class Route(Read, frozen=True, kw_only=True):
    """The route of a topic."""

    topic: str
    route: Annotated[msgspec.Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/TopicRouteData"})]


class Explanation(Read, frozen=True, kw_only=True):
    """Reasons why a topic has its route, or why it has no route."""

    topic: str
    listed: bool
    summary: str
    events: tuple[EventAnswer, ...]
    likely_causes: tuple[str, ...]


class Version(_Answer, frozen=True, kw_only=True, rename="camel"):
    """Version of a broker's topics: the fields of RocketMQ's DataVersion."""

    counter: int
    state_version: int
    timestamp: int


class Broker(_Answer, frozen=True, kw_only=True):
    """One registered broker."""

    cluster: str
    broker_name: str
    broker_id: Annotated[int, said("Id of the broker; the master has id 0.")]
    broker_addr: str
    ha_server_addr: str
    data_version: Version
    complete: Annotated[
        bool, said("True after a complete registration, false after an incremental registration.")
    ]
    lease_ms: int
    topics: Annotated[int, said("Number of topics that the broker name has.")]
    last_seen_ms: Annotated[
        int | UnsetType | None,
        said(
            "Age of the broker's last message to this nameserver in ms; null if there was no message. "
            "Absent from events of /v1/watch."
        ),
    ] = UNSET
    index: int


class Brokers(Read, frozen=True, kw_only=True):
    """All registered brokers."""

    brokers: Annotated[msgspec.Raw, _array("Broker")]
    next_cursor: _NextCursor = UNSET


class BrokerName(_Answer, frozen=True, kw_only=True):
    """A broker name with its addresses by broker id."""

    broker_name: str
    addresses: dict[str, str]


class Cluster(_Answer, frozen=True, kw_only=True):
    """A cluster with its broker names."""

    cluster: str
    brokers: list[BrokerName]


class Clusters(Read, frozen=True, kw_only=True):
    """All clusters."""

    clusters: Annotated[msgspec.Raw, _array("Cluster")]
    next_cursor: _NextCursor = UNSET


class KvNamespaces(Read, frozen=True, kw_only=True):
    """Names of the namespaces of the KV configuration, sorted."""

    namespaces: _Names
    next_cursor: _NextCursor = UNSET


class KvNamespace(Read, frozen=True, kw_only=True):
    """The values of one namespace of the KV configuration, by key."""

    namespace: str
    table: Annotated[
        msgspec.Raw,
        Meta(extra_json_schema={"type": "object", "additionalProperties": {"type": ["string", "null"]}}),
    ]
    next_cursor: _NextCursor = UNSET


class KvValue(Read, frozen=True, kw_only=True):
    """One value of the KV configuration."""

    namespace: str
    key: str
    value: str | None


class NewValue(_Answer, frozen=True, kw_only=True):
    """Request to put a value of the KV configuration."""

    value: str


class Deleted(_Answer, frozen=True, kw_only=True):
    """The key that was deleted."""

    namespace: str
    key: str


class BrokerData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A broker name that has the topic, with its addresses by broker id."""

    broker_addrs: dict[str, str]
    broker_name: str
    cluster: str
    enable_acting_master: bool | UnsetType = UNSET
    zone_name: str | UnsetType = UNSET


class QueueData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The queues that a broker name has for the topic."""

    broker_name: str
    perm: int
    read_queue_nums: int
    write_queue_nums: int
    topic_sys_flag: int | UnsetType = UNSET


class TopicRouteData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Route of a topic, with RocketMQ's names of the members. Numbers as keys are JSON strings in quotes."""

    broker_datas: list[BrokerData]
    filter_server_table: dict[str, list[str]] | UnsetType = UNSET
    order_topic_conf: str | UnsetType = UNSET
    queue_datas: list[QueueData]
    topic_queue_mapping_by_broker: dict[str, msgspec.Raw] | UnsetType = UNSET


# Bodies about this nameserver process ----------------------------------------------------------------


class Status(_Answer, frozen=True, kw_only=True):
    """State of this nameserver in its group."""

    mode: Mode
    role: Annotated[
        str, Meta(extra_json_schema={"enum": ["leader", "follower", "candidate", "learner", "independent"]})
    ]
    term: int
    commit_index: int
    applied_index: int
    leader: str | None
    last_contact_ms: int | None
    members: tuple[str, ...]
    linked: Annotated[
        tuple[str, ...],
        said("Other members with an authenticated link to this member. Absent members are down or cut off."),
    ]
    version: str
    boot_id: int
    revision: int
    durability: Annotated[str | None, Meta(extra_json_schema={"enum": ["memory", "journal", "fsync", None]})]
    reads_ready: bool
    writes_ready: bool
    waiting_for: Annotated[str, said("Reason why this nameserver is not ready; empty if it is ready.")]
    uptime_ms: int
    connections: int


class Digests(_Answer, frozen=True, kw_only=True):
    """Digests of the table, to compare nameservers."""

    digest: Annotated[
        Digest,
        said("Digest of all data that clients can read. Equal tables have equal digests in both modes."),
    ]
    state_digest: Annotated[
        Digest, said("Digest of the whole replicated state. Members at the same index have equal digests.")
    ]
    revision: int
    applied_index: Annotated[int, said("Applied log index; in independent mode the revision.")] = (
        msgspec.field(name="index")
    )


# Bodies about the raft group -------------------------------------------------------------------------


class Members(_Answer, frozen=True, kw_only=True):
    """The members of the group."""

    members: tuple[MemberAddress, ...]
    voters: tuple[MemberAddress, ...]
    learners: tuple[MemberAddress, ...]


class Leader(_Answer, frozen=True, kw_only=True):
    """The present leader of the group."""

    leader: MemberAddress


class Snapshot(_Answer, frozen=True, kw_only=True):
    """A snapshot file on this nameserver's disk."""

    path: str
    index: int
    term: int
    size: Annotated[int, said("Size of the file in bytes.")]


class Restored(_Answer, frozen=True, kw_only=True):
    """The state of the nameserver after a snapshot was restored."""

    revision: int
    applied_index: int
    digest: Digest


class NewMember(_Answer, frozen=True, kw_only=True):
    """Request to add a member to the group."""

    address: MemberAddress


class Transfer(_Answer, frozen=True, kw_only=True):
    """Request to hand leadership over to the member ``to``, by default to the voter with most of the log."""

    to: MemberAddress | UnsetType = UNSET
