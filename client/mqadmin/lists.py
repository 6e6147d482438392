"""Subcommands updateTopicList and updateSubGroupList."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from routekeeper.remoting.bodies import SubscriptionGroupConfig
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.lenient import ANSWER, as_object, loads
from routekeeper.remoting.route import TopicConfig

from ..errors import NotApplied
from ..operation import Operation
from .context import Context
from .kept import has_attributes
from .options import Arguments, Command, Option, UsageError
from .targets import ask_together, brokers_of, raise_failures

#: Largest size in bytes of the file with the list. This also limits the size of a request.
_SIZE_MAX: Final = 8 << 20
#: Two time limits in seconds: _WITHIN_S for all brokers together, _CALL_S for one request to one broker.
_WITHIN_S: Final = 120.0
_CALL_S: Final = 30.0
_NAMED_MAX: Final = 3
#: Settings of a group that only brokers of 5.x know, by their JSON names.
_OF_5: Final = (
    "groupRetryPolicy",
    "groupSysFlag",
    "consumeTimeoutMinute",
    "subscriptionDataSet",
    "attributes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """The differences between a list of topics and a list of groups.

    Attributes:
        name: JSON member that contains the name of a topic or group.
        member: JSON member of the request that contains the list.
        read: Request that returns all topics or groups of a broker.
        table: JSON member of the answer to ``read`` that contains the topics or groups.
        settings: Function that converts one item of the file to the form that a request contains.
        known: Names of all settings.
        done: Texts that RocketMQ's tool prints after success: for a single broker, and for each broker of a
            cluster.
    """

    word: str
    name: str
    code: RequestCode
    member: str
    read: RequestCode
    table: str
    settings: Callable[[object], dict[str, Any]]
    known: frozenset[str]
    done: tuple[str, str]


def _topic(value: object) -> dict[str, Any]:
    return TopicConfig.from_json(value).to_json()


def _group(value: object) -> dict[str, Any]:
    members = as_object(value, "group")
    more = {name: members[name] for name in _OF_5 if members.get(name) is not None}
    return SubscriptionGroupConfig.from_json(members).to_json() | more


_TOPICS: Final = _Kind(
    word="topic",
    name="topicName",
    code=RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    member="topicConfigList",
    read=RequestCode.GET_ALL_TOPIC_CONFIG,
    table="topicConfigTable",
    settings=_topic,
    known=frozenset(TopicConfig(topic_name="T").to_json()),
    done=("topic config",) * 2,
)
_GROUPS: Final = _Kind(
    word="group",
    name="groupName",
    code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    member="groupConfigList",
    read=RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    table="subscriptionGroupTable",
    settings=_group,
    known=frozenset({*SubscriptionGroupConfig(group_name="G").to_json(), *_OF_5}),
    done=("group config", "subscription group config"),
)


def _update_list(kind: _Kind) -> Callable[[Context, Arguments], None]:
    def run(context: Context, args: Arguments) -> None:
        wanted = _read_file(context, kind, args.text("f"))
        addrs = brokers_of(context, args)

        def submit(addr: str, left_s: float) -> Operation[None]:
            yield from _submit(context, kind, addr, wanted, min(left_s, _CALL_S))

        done, failures = ask_together(context, addrs, submit, within_s=_WITHIN_S)
        words = kind.done["b" not in args]
        for addr in done:
            context.line(f"submit batch of {words} to {addr} success, please check the result later.")
        raise_failures(f"list of {len(wanted)} {kind.word}s not stored", failures, of=len(addrs))

    return run


def _read_file(context: Context, kind: _Kind, name: str) -> list[dict[str, Any]]:
    """Return the topics or groups of a file, in the file's order.

    Raises:
        UsageError: If the file cannot be read, or an item is wrong. The text names the wrong item.
    """
    try:
        with Path(name).open("rb") as file:
            content = file.read(_SIZE_MAX + 1)
    except FileNotFoundError:
        raise UsageError(f"the file path {name} does not exists") from None
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}") from None
    if len(content) > _SIZE_MAX:
        raise UsageError(f"{name} has more than {_SIZE_MAX} bytes: split it into several files")
    try:
        items = loads(content, ANSWER)
    except RemotingError as error:
        raise UsageError(f"{name}: {error}") from None
    if not isinstance(items, list) or not items:
        example = f'[{{"{kind.name}": "A"}}]'
        raise UsageError(f"{name} contains no JSON list of {kind.word}s, such as {example}")
    found: dict[str, dict[str, Any]] = {}
    unknown: dict[str, None] = {}
    for number, item in enumerate(items, 1):
        try:
            settings = kind.settings(item)
        except RemotingError as error:
            raise UsageError(f"{name}: {kind.word} {number}: {error}") from None
        if settings[kind.name] in found:
            raise UsageError(f"{name}: {kind.word} {number}: {settings[kind.name]!r} appears twice")
        found[settings[kind.name]] = settings
        unknown |= dict.fromkeys(set(item) - kind.known)
    if unknown:
        context.warn(
            f"unknown {kind.word} settings are ignored: {', '.join(sorted(unknown)[:_NAMED_MAX])};"
            f" known settings are {', '.join(sorted(kind.known))}"
        )
    return list(found.values())


def _submit(
    context: Context, kind: _Kind, addr: str, wanted: Sequence[Mapping[str, Any]], timeout_s: float
) -> Operation[None]:
    """Send a list to a broker, and check that the broker stored it.

    If one topic of the list is unchanged, a broker of RocketMQ 5.3 ignores the whole list, but answers
    success. So if items are missing at the broker after the first request, send only these items once more.

    Raises:
        NotApplied: If the broker did not store some of the items.
        ResponseError, ConnectionLost, RequestTimeout: If the broker refused, or did not answer.
    """
    admin = context.client.admin
    missing = wanted
    for _ in range(2):
        body = orjson.dumps({kind.member: missing})
        yield from admin.call(addr, kind.code, body=body, timeout_s=timeout_s)
        answer = yield from admin.call(addr, kind.read, timeout_s=timeout_s)
        document = as_object(loads(answer.body, ANSWER), "answer")
        table = as_object(document.get(kind.table) or {}, kind.table)
        missing = [one for one in wanted if not _has(kind, table.get(one[kind.name]), one)]
        if not missing:
            return
    names = ", ".join(repr(one[kind.name]) for one in missing[:_NAMED_MAX])
    more = f" and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
    raise NotApplied(f"it did not store {names}{more}, or only in part")


def _has(kind: _Kind, present: object, wanted: Mapping[str, Any]) -> bool:
    """Return True if a broker has a topic or group with the wanted settings."""
    if not isinstance(present, dict):
        return False
    try:
        have = kind.settings(present)
    except RemotingError:
        return False
    return all(
        has_attributes(have.get(name), value) if name == "attributes" else have.get(name) == value
        for name, value in wanted.items()
    )


def _options(things: str, class_name: str) -> tuple[Option, ...]:
    return (
        Option(short="b", long="brokerAddr", description=f"create {things} to which broker", group="target"),
        Option(
            short="c", long="clusterName", description=f"create {things} to which cluster", group="target"
        ),
        Option(
            short="f",
            long="filename",
            description=f"Path to a file with {class_name} in json format",
            required=True,
        ),
    )


COMMANDS: Final = (
    Command(
        name="updateTopicList",
        description="create or update topic in batch",
        options=_options("topic", "list of org.apache.rocketmq.common.TopicConfig"),
        run=_update_list(_TOPICS),
    ),
    Command(
        name="updateSubGroupList",
        description="Update or create subscription group in batch",
        options=_options(
            "groups",
            "a list of org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig",
        ),
        run=_update_list(_GROUPS),
    ),
)
