"""Bodies of the console's answers, as values. Peers of a newer release may add members."""

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


# One nameserver's own part -----------------------------------------------------------------------------


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
    """All that the console shows of one nameserver. Peers request it from each other."""

    mode: Mode
    role: str
    term: int
    leader: str | None
    commit_index: int
    applied_index: int
    last_contact_ms: int | None
    wire_port: int
    me: Annotated[str, said("Raft address; empty in independent mode.")]
    voters: tuple[MemberAddress, ...]
    linked: tuple[MemberAddress, ...]
    ready: bool
    waiting_for: str
    version: str
    boot_id: int
    digest: str
    topics: int
    brokers: tuple[OwnBroker, ...]
    brokers_in_all: Annotated[int, said("Number of all brokers; brokers lists them only up to a bound.")]
    number: Annotated[int, said("Number of the newest event.")]
    events: Annotated[tuple[TimelineEvent, ...], said("The events after the number that the request named.")]


class OwnTopic(_Body, frozen=True, kw_only=True):
    """A topic as one nameserver lists it."""

    topic: str
    listed: bool
    index: Annotated[int, said("Revision of the topic's route there.")]
    route: TopicRouteData | None
    order_configuration: str | None
    summary: str
    events: tuple[EventAnswer, ...]
    likely_causes: tuple[str, ...]
    changes: Annotated[tuple[TimelineEvent, ...], said("Requests that changed it, the newest last.")]


# All nameservers side by side --------------------------------------------------------------------------

State = Annotated[str, _one_of("this", "answered", "asking", "silent", "refused", "unknown")]


class SeenNameserver(_Body, frozen=True, kw_only=True):
    """One nameserver as a column of the picture."""

    name: Annotated[str, said("Its raft address, or else the address of its RocketMQ port, as far as known.")]
    asked_at: Annotated[str, said("Address at which it is asked; empty for this one.")]
    source: Annotated[str, _one_of("this", "member", "listed", "broker")]
    raft: Annotated[str, said("Its raft address; empty if it has none.")]
    state: State
    reason: Annotated[str, said("Why it did not answer, or was not asked; else empty.")]
    knows: Annotated[
        str,
        said("all: by its HTTP port. listing: by RocketMQ's protocol, without heartbeats and versions."),
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
    same_table: Annotated[bool | None, said("Its table has the same digest as this nameserver's.")] = None
    votes: bool | None = None
    linked: Annotated[bool | None, said("The leader, or this member, has a link to it.")] = None
    stops_group: Annotated[bool, said("The raft group stops if this member is lost now.")] = False
    named_by: Annotated[int, said("Brokers that name it in their settings.")] = 0


class Cell(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """A broker at one nameserver."""

    state: Annotated[str, _one_of("listed", "late", "differs", "older", "missing", "unknown")] = "listed"
    differs: Annotated[tuple[str, ...], said("Fields that differ from those of the newest copy.")] = ()
    broker: Annotated[OwnBroker | UnsetType, said("The nameserver's copy, if it differs.")] = UNSET


class Row(_Body, frozen=True, kw_only=True):
    """A broker at all nameservers."""

    cluster: str
    broker_addr: str
    broker_name: str
    broker_id: int
    topics: int | None
    differs: bool
    cells: Annotated[tuple[Cell, ...], said("One entry for each nameserver, in their order.")]


class Picture(_Body, frozen=True, kw_only=True):
    """All nameservers against all brokers."""

    mode: Mode
    tag: Annotated[str, said("A name for this picture; heartbeats alone do not change it.")]
    asked: Annotated[
        str,
        said("Source of the other nameservers' addresses."),
        _one_of("members", "listed", "brokers", "off"),
    ]
    note: Annotated[str, said("Why no other nameserver is shown; else empty.")]
    happened: Annotated[int, said("Grows with every event of the history.")]
    differing: Annotated[int, said("Brokers that are not the same at all nameservers.")]
    more_brokers: Annotated[int, said("Brokers above the bound, which are not compared.")]
    nameservers: tuple[SeenNameserver, ...]
    rows: tuple[Row, ...]


class NameserverPulse(_Body, frozen=True, kw_only=True):
    """Figures of a nameserver that change all the time."""

    name: str
    answered_ms: Annotated[int | None, said("Age of its last answer to this nameserver.")]
    last_contact_ms: int | None
    lag: Annotated[
        int | None, said("Entries that the group has committed and this nameserver has not applied.")
    ]
    seen_s: Annotated[
        tuple[int, ...], said("Age of each broker's last message there in s, by row; -1 if unknown.")
    ]


class Pulse(_Body, frozen=True, kw_only=True):
    """Ages that go with a picture."""

    tag: Annotated[str, said("Tag of the picture to which these rows belong.")]
    nameservers: tuple[NameserverPulse, ...]


class TopicAt(_Body, frozen=True, kw_only=True):
    """A topic at one nameserver."""

    name: str
    state: State
    reason: str
    same: Annotated[bool | None, said("Its route equals this nameserver's; null if that is not known.")]
    own: OwnTopic | None


class TopicEverywhere(_Body, frozen=True, kw_only=True):
    """A topic at all nameservers."""

    topic: str
    differs: bool
    nameservers: tuple[TopicAt, ...]


class HistoryEvent(_Body, frozen=True, kw_only=True):
    """An event and the nameserver that saw it."""

    nameserver: str
    event: TimelineEvent


class History(_Body, frozen=True, kw_only=True):
    """The last events of all nameservers, the newest first."""

    happened: int
    events: tuple[HistoryEvent, ...]
