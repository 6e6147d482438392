"""Namespaces of tenants. Brokers store a topic or group as ``namespace%name``, and users see ``name``.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec

from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.codes import DEFAULT_TOPIC, DLQ_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    # Import queue_reader for type checks only, because it belongs to a layer above this module.
    from .queue_reader import ReceivedMessage

_SEPARATOR: Final = "%"
#: Brokers' own topics and groups, which belong to no namespace. Source: TopicValidator and MixAll, 5.3.3.
#: Release 4.9.7 has all of them except CHECKPOINT_TOPIC.
_SYSTEM: Final = frozenset(
    {
        *(DEFAULT_TOPIC, "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"),
        *("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"),
        *("TRANS_CHECK_MAX_TIME_TOPIC", "CHECKPOINT_TOPIC"),
    }
)
_SYSTEM_PREFIXES: Final = ("rmq_sys_", "CID_RMQ_SYS_")


@dataclass(frozen=True, slots=True)
class Namespace:
    """Translation of users' names to names at brokers, and back. An empty namespace changes nothing.

    Source: NamespaceUtil, RocketMQ 4.9 and 5.3.
    """

    name: str = ""

    def inside(self, resource: str) -> str:
        """Return the name under which brokers store a topic or group.

        If the name already has the namespace, it does not change.
        """
        if not self.name or resource in _SYSTEM or resource.startswith(_SYSTEM_PREFIXES):
            return resource
        prefix, plain = _split(resource)
        if not plain or plain.startswith(self._start):
            return resource
        return f"{prefix}{self._start}{plain}"

    def outside(self, resource: str) -> str:
        """Return the name that users see. If a name belongs to another namespace, it does not change."""
        if not self.name:
            return resource
        prefix, plain = _split(resource)
        return prefix + plain.removeprefix(self._start)

    def queue_inside(self, queue: MessageQueue) -> MessageQueue:
        return replace(queue, topic=self.inside(queue.topic)) if self.name else queue

    def queue_outside(self, queue: MessageQueue) -> MessageQueue:
        return replace(queue, topic=self.outside(queue.topic)) if self.name else queue

    def messages_outside(self, messages: Iterable[ReceivedMessage]) -> tuple[ReceivedMessage, ...]:
        """Return received messages, with topics and queues under the names that users see."""
        if not self.name:
            return tuple(messages)
        return tuple(
            msgspec.structs.replace(
                message, topic=self.outside(message.topic), queue=self.queue_outside(message.queue)
            )
            for message in messages
        )

    @property
    def _start(self) -> str:
        return self.name + _SEPARATOR


def _split(resource: str) -> tuple[str, str]:
    """Split a name into two parts: the prefix of a retry or dead letter topic, and the name without it.

    For other names, the prefix is empty.
    """
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if resource.startswith(prefix):
            return prefix, resource.removeprefix(prefix)
    return "", resource
