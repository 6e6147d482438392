"""Bodies of the console's answers, as typed values.

Nameservers ask each other for some of these bodies. A nameserver of a newer release may add JSON members, so
unknown members are allowed.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from routekeeper.nameserver.http.answers import EventAnswer, Mode, TopicRouteData, Version
from routekeeper.nameserver.modes.group import MemberAddress, said
from routekeeper.nameserver.modes.timeline import TimelineEvent


def _one_of(*words: str) -> Meta:
    return Meta(extra_json_schema={"enum": list(words)})


class _Body(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of the console's bodies."""


# Bodies with the data of a single nameserver -----------------------------------------------------------


class OwnBroker(_Body, frozen=True, kw_only=True):
    """A broker as one nameserver lists it."""

    cluster: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str
    data_version: Version
    topics: int
    lease_ms: int
    last_seen_ms: int | None


class Own(_Body, frozen=True, kw_only=True):
    """The console's data about one nameserver. Nameservers ask each other for this data."""

    mode: Mode
    role: str
    term: int
    leader: str | None
    commit_index: int
    applied_index: int
    last_contact_ms: int | None
    wire_port: int
    me: Annotated[str, said("Raft address of the nameserver; empty in independent mode.")]
    voters: tuple[MemberAddress, ...]
    linked: tuple[MemberAddress, ...]
    ready: bool
    waiting_for: str
    version: str
    boot_id: int
    digest: str
    topics: int
    brokers: tuple[OwnBroker, ...]
    brokers_in_all: Annotated[int, said("Number of all brokers; the list in brokers may be shorter.")]
    number: Annotated[int, said("Number of the newest event.")]
    events: Annotated[
        tuple[TimelineEvent, ...], said("Last events with numbers above the query parameter after.")
    ]


class OwnTopic(_Body, frozen=True, kw_only=True):
    """A topic as one nameserver lists it."""

    topic: str
    listed: bool
    index: Annotated[int, said("Revision of the topic's route at the nameserver that gave this data.")]
    route: TopicRouteData | None
    order_configuration: str | None
    summary: str
    events: tuple[EventAnswer, ...]
    likely_causes: tuple[str, ...]
    changes: Annotated[tuple[TimelineEvent, ...], said("Requests that changed the topic, the newest last.")]


# Bodies that compare all nameservers -------------------------------------------------------------------

State = Annotated[str, _one_of("this", "answered", "asking", "silent", "refused", "unknown")]


class SeenNameserver(_Body, frozen=True, kw_only=True):
    """One nameserver: a column of the console's comparison of brokers (rows) and nameservers (columns)."""

    name: Annotated[
        str,
        said(
            "Raft address of the nameserver, or the address of its RocketMQ port if it has no raft address. "
            "Before its first answer: the address at which it is asked."
        ),
    ]
    asked_at: Annotated[
        str,
        said(
            "Address at which the answering nameserver asks for this column's data; empty for its own "
            "column, or if the address is unknown."
        ),
    ]
    source: Annotated[str, _one_of("this", "member", "listed", "broker")]
    raft: Annotated[str, said("Raft address of the nameserver; empty without a raft address.")]
    state: State
    reason: Annotated[
        str, said("Reason why the nameserver did not answer, or was not asked; otherwise empty.")
    ]
    knows: Annotated[
        str,
        said(
            "all: the nameserver answered over HTTP. listing: the nameserver answered over RocketMQ's "
            "protocol, which gives no heartbeats and no versions. nothing: no answer."
        ),
        _one_of("all", "listing", "nothing"),
    ]
    role: str | None = None
    term: int | None = None
    leader: str | None = None
    ready: bool | None = None
    waiting_for: str = ""
    version: str | None = None
    topics: int | None = None
    brokers: int | None = None
    same_table: Annotated[
        bool | None,
        said("True if the tables of the nameserver and the answering nameserver have equal digests."),
    ] = None
    votes: bool | None = None
    linked: Annotated[
        bool | None,
        said(
            "True if the leader has a link to the member. The links of the answering nameserver are used "
            "if the leader's links are unknown."
        ),
    ] = None
    stops_group: Annotated[bool, said("True if the raft group stops when this member fails now.")] = False
    named_by: Annotated[int, said("Number of brokers whose settings name the nameserver.")] = 0


class Cell(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """One broker at one nameserver: a cell of the console's comparison of brokers and nameservers."""

    state: Annotated[str, _one_of("listed", "late", "differs", "older", "missing", "unknown")] = "listed"
    differs: Annotated[
        tuple[str, ...],
        said("Fields in which the nameserver's entry differs from the broker's newest entry."),
    ] = ()
    broker: Annotated[
        OwnBroker | UnsetType,
        said("The nameserver's entry, if it differs from the broker's newest entry."),
    ] = UNSET


class Row(_Body, frozen=True, kw_only=True):
    """One broker at all nameservers: a row of the console's comparison of brokers and nameservers."""

    cluster: str
    broker_addr: str
    broker_name: str
    broker_id: int
    topics: int | None
    differs: bool
    cells: Annotated[
        tuple[Cell, ...], said("One cell for each nameserver, in the order of the picture's nameservers.")
    ]


class Picture(_Body, frozen=True, kw_only=True):
    """The picture: a comparison of all brokers (rows) at all nameservers (columns)."""

    mode: Mode
    tag: Annotated[str, said("Tag of this picture. Heartbeats alone do not change the tag.")]
    asked: Annotated[
        str,
        said(
            "Source of the other nameservers' addresses: the members of the raft group, the list in "
            "--console-peers, or the settings of brokers. off: the console asks no other nameserver."
        ),
        _one_of("members", "listed", "brokers", "off"),
    ]
    note: Annotated[str, said("Reason why the console asks no other nameserver; otherwise empty.")]
    happened: Annotated[int, said("Number that grows with every event of the history.")]
    differing: Annotated[int, said("Number of brokers that are not the same at all nameservers.")]
    more_brokers: Annotated[
        int, said("Number of the answering nameserver's brokers that are above the limit of the comparison.")
    ]
    nameservers: tuple[SeenNameserver, ...]
    rows: tuple[Row, ...]


class NameserverPulse(_Body, frozen=True, kw_only=True):
    """Figures of one nameserver that change all the time."""

    name: str
    answered_ms: Annotated[
        int | None, said("Age of the nameserver's last answer in ms; null if there was no answer.")
    ]
    last_contact_ms: int | None
    lag: Annotated[
        int | None,
        said("Number of log entries that the group has committed and the nameserver has not applied."),
    ]
    seen_s: Annotated[
        tuple[int, ...],
        said(
            "Age of each broker's last message to the nameserver in s, in the order of the picture's rows; "
            "-1 if unknown."
        ),
    ]


class Pulse(_Body, frozen=True, kw_only=True):
    """Figures of the picture that change all the time: ages of messages and answers, and lags."""

    tag: Annotated[str, said("Tag of the picture. The ages in seen_s have the order of its rows.")]
    nameservers: tuple[NameserverPulse, ...]


class TopicAt(_Body, frozen=True, kw_only=True):
    """A topic at one nameserver."""

    name: str
    state: State
    reason: str
    same: Annotated[
        bool | None,
        said("True if the route equals the route at the answering nameserver; null if unknown."),
    ]
    own: OwnTopic | None


class TopicEverywhere(_Body, frozen=True, kw_only=True):
    """A topic at all nameservers."""

    topic: str
    differs: bool
    nameservers: tuple[TopicAt, ...]


class HistoryEvent(_Body, frozen=True, kw_only=True):
    """An event, and the name of the nameserver that recorded the event."""

    nameserver: str
    event: TimelineEvent


class History(_Body, frozen=True, kw_only=True):
    """The last events of all nameservers, the newest first."""

    happened: int
    events: tuple[HistoryEvent, ...]
