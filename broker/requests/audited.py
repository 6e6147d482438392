"""Requests by which operators change a broker, and the words of their audit lines (pure).

Clients' own requests are not among them: sends that create topics, pulls and heartbeats that create groups,
commits of offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from routekeeper.remoting.bodies import SubscriptionGroupConfig
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand

AUDITED: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    }
)

#: Bound of the entries of a list that one line names; the line also has the number of all entries.
NAMED_MAX: Final = 8
#: Codes of answers to a change that has taken effect here and may not survive a power cut.
_UNKNOWN: Final = frozenset({ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLUSH_DISK_TIMEOUT})


def result_of(answer: RemotingCommand) -> str:
    """Return the outcome of a change in a word: applied, unknown, or refused with its code."""
    if answer.code == ResponseCode.SUCCESS:
        return "applied"
    return "unknown" if answer.code in _UNKNOWN else f"refused({answer.code})"


def topic_text(*, read: int, write: int, perm: int, order: bool, attributes: str) -> str:
    """Return a topic's configuration in words."""
    parts = [f"read={read} write={write} perm={perm}"]
    if order:
        parts.append("order=true")
    if attributes:
        parts.append(f"attributes={attributes}")
    return " ".join(parts)


def group_text(config: SubscriptionGroupConfig) -> str:
    """Return the fields in which a group's configuration differs from the default."""
    default = SubscriptionGroupConfig(group_name=config.group_name).to_json()
    differ = [(name, value) for name, value in config.to_json().items() if value != default[name]]
    words = [f"{name}={str(value).lower()}" for name, value in differ]
    return " ".join(words) or "defaults"


def offsets_text(offsets: Mapping[int, int]) -> str:
    """Return the first offsets of a group, by queue."""
    return " ".join(f"{queue_id}:{offset}" for queue_id, offset in islice(offsets.items(), NAMED_MAX))


def settings_text(values: Mapping[str, str]) -> str:
    """Return settings in the form of their file."""
    return " ".join(f"{key}={text}" for key, text in sorted(values.items()))
