"""Requests 18 and 225: lists of topics and of groups. If one entry is refused, the whole list is refused.

This module accesses files only through the store. Source: AdminBrokerProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from routekeeper.broker.errors import Refusal
from routekeeper.broker.requests.admin import checked_topic, note_topics
from routekeeper.broker.requests.client_requests import checked_group, note_groups
from routekeeper.broker.store.steps import no_work
from routekeeper.broker.tables.state import BrokerState, Call, Later, Stepwise, Work
from routekeeper.broker.tables.topics import ATTRIBUTES_MAX, TopicChange
from routekeeper.remoting.bodies import SubscriptionGroupConfig
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.lenient import Limits, loads
from routekeeper.remoting.route import DataVersion, TopicConfig

T = TypeVar("T")
#: Largest number of topics or groups in one request.
LIST_MAX: Final = 10_000
#: Number of topics or groups that one step handles.
TURN: Final = 100
#: Bounds of a request's body. A list of LIST_MAX groups, whose names have the usual length, takes 4.5 MB.
_LIMITS: Final = Limits(size=8 << 20, containers=64 << 10, dialect_size=64 << 10, dialect_keys=1 << 10)


def create_topics(state: BrokerState, call: Call) -> Stepwise:
    """Serve request 18: create a list of topics. If one topic is refused, nothing is changed."""
    return Stepwise(_answered(call, _create_topics(state, call, state.effects.about)), asked=call.request)


def create_groups(state: BrokerState, call: Call) -> Stepwise:
    """Serve request 225: create a list of groups. If one group is refused, nothing is changed."""
    return Stepwise(_answered(call, _create_groups(state, call, state.effects.about)), asked=call.request)


def _answered(call: Call, work: Work) -> Work:
    """Run a handler's steps and return their answer. Turn an error into an answer."""
    try:
        return (yield from work)
    except Refusal as refusal:
        return call.request.reply(refusal.code, remark=refusal.remark)
    except RemotingError as error:
        return call.request.failed(error)


def _create_topics(state: BrokerState, call: Call, about: dict[str, str]) -> Work:
    changes = yield from _listed(
        call.request,
        "topics",
        "topicConfigList",
        _read_topic,
        lambda some: note_topics(state, about, some),
    )
    configs: list[TopicConfig] = []
    for change in changes:
        if len(configs) % TURN == TURN - 1:
            yield no_work
        configs.append(checked_topic(state, change))
    changed: list[tuple[TopicConfig, DataVersion]] = []
    new = {config.topic_name for config in configs if config.topic_name not in state.topics}
    state.require_room_for_topics(*new)
    state.topics_promised += len(new)
    try:
        for number, config in enumerate(configs):
            if number % TURN == TURN - 1:
                yield no_work
            if config.topic_name in new:
                new.discard(config.topic_name)
                state.topics_promised -= 1
            if state.topics.put(config, now_ms=call.now_ms):
                state.topic_unsaved(config.topic_name)
                changed.append((config, state.topics.data_version))
    finally:  # If the broker stops between two steps, register the topics that are already changed.
        state.topics_promised -= len(new)
        state.effects.changed_topics += changed
    return Later(reply=call.request.reply(), topics_saved=True, registered=bool(changed))


def _read_topic(item: Any) -> TopicChange:
    attributes = item.get("attributes") if type(item) is dict else None
    if type(attributes) is dict and len(attributes) > ATTRIBUTES_MAX:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"a topic has {len(attributes)} attributes, allowed are {ATTRIBUTES_MAX}",
        )
    return TopicChange.of(TopicConfig.from_json(item))


def _create_groups(state: BrokerState, call: Call, about: dict[str, str]) -> Work:
    configs = yield from _listed(
        call.request,
        "groups",
        "groupConfigList",
        SubscriptionGroupConfig.from_json,
        lambda some: note_groups(state, about, some),
    )
    for number, config in enumerate(configs):
        if number % TURN == TURN - 1:
            yield no_work
        checked_group(config)
    new = {config.group_name for config in configs if state.groups.get(config.group_name) is None}
    state.require_room_for_groups(*new)
    state.groups_promised += len(new)
    try:
        for number, config in enumerate(configs):
            if number % TURN == TURN - 1:
                yield no_work
            if config.group_name in new:
                new.discard(config.group_name)
                state.groups_promised -= 1
            if state.groups.put(config, now_ms=call.now_ms):
                state.effects.save_groups = True
    finally:
        state.groups_promised -= len(new)
    return Later(reply=call.request.reply(), groups_saved=True)


def _listed(
    request: RemotingCommand,
    kind: str,
    member: str,
    read: Callable[[Any], T],
    note: Callable[[Sequence[T]], None],
) -> Generator[Callable[[], Any], Any, list[T]]:
    """Read the list in a body. The body is the list itself, or an object whose ``member`` is the list.

    Args:
        note: Function that adds entries to the audit line.

    Raises:
        Refusal: If the body has no list, or the list is too long.
        RemoteProtocolError: If the list cannot be read.
    """
    document = (yield partial(loads, request.body, _LIMITS)) if request.body else {}
    table = document.get(member) if type(document) is dict else document
    if type(table) is not list:
        raise Refusal(ResponseCode.INVALID_PARAMETER, f"body holds no {member}")
    if len(table) > LIST_MAX:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER, f"a list of {len(table)} {kind}, allowed are {LIST_MAX}"
        )
    found: list[T] = []
    for item in table:
        if len(found) % TURN == TURN - 1:
            yield no_work
        found.append(read(item))
    note(found)
    return found
