"""Requests by which operators change a broker, and the texts of their audit lines.

This module does no I/O and reads no clock.

No audit line is written for requests that clients send for their own work:

- a send that creates a topic;
- a pull or a heartbeat that creates a group;
- a commit of offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from routekeeper.remoting.bodies import SubscriptionGroupConfig
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import TopicConfig

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

#: Largest number of list entries in one audit line. The line also states how many entries the list has.
NAMED_MAX: Final = 8
#: Response codes for a change that is made in memory but may not be on disk. A power cut may undo the change.
_UNKNOWN: Final = frozenset({ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLUSH_DISK_TIMEOUT})


def result_of(answer: RemotingCommand) -> str:
    """Return the outcome of a change in one word: applied, unknown, or refused with the response code."""
    if answer.code == ResponseCode.SUCCESS:
        return "applied"
    return "unknown" if answer.code in _UNKNOWN else f"refused({answer.code})"


def topic_text(config: TopicConfig, edits: str | None = None) -> str:
    """Return a topic's configuration as a text of key=value words.

    Args:
        edits: Changes of the topic's attributes, to be shown instead of the attributes.
    """
    parts = [f"read={config.read_queue_nums} write={config.write_queue_nums} perm={config.perm}"]
    if config.order:
        parts.append("order=true")
    attributes = edits
    if edits is None:
        attributes = ",".join(f"+{key}={value}" for key, value in config.attributes.items())
    if attributes:
        parts.append(f"attributes={attributes}")
    return " ".join(parts)


def group_text(config: SubscriptionGroupConfig) -> str:
    """Return the fields of a group's configuration that differ from the default, as key=value words."""
    default = SubscriptionGroupConfig(group_name=config.group_name).to_json()
    differ = [(name, value) for name, value in config.to_json().items() if value != default[name]]
    words = [f"{name}={str(value).lower()}" for name, value in differ]
    return " ".join(words) or "defaults"


def offsets_text(offsets: Mapping[int, int]) -> str:
    """Return the offsets of a group's first NAMED_MAX queues, as words of the form queue:offset."""
    return " ".join(f"{queue_id}:{offset}" for queue_id, offset in islice(offsets.items(), NAMED_MAX))


def settings_text(values: Mapping[str, str]) -> str:
    """Return settings as key=value words, the form of lines in the settings file."""
    return " ".join(f"{key}={text}" for key, text in sorted(values.items()))
