"""State that a consumer reports to an operator: the answers to the request codes 221 and 307.

Source: GetConsumerStatusBody and ConsumerRunningInfo of RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import orjson

from routekeeper.remoting.bodies import MessageQueue, SubscriptionData, queue_keyed, read_queue_offsets
from routekeeper.remoting.lenient import ANSWER, Limits, as_object, loads


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatus:
    """Answer to request code 221: the consumer's offset in each of its queues of one topic."""

    offsets: Mapping[MessageQueue, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        return b'{"consumerTable":{},"messageQueueTable":' + queue_keyed(self.offsets) + b"}"

    @classmethod
    def decode(cls, body: bytes, limits: Limits = ANSWER) -> Self:
        members = as_object(loads(body, limits), "consumer status")
        return cls(offsets=read_queue_offsets(members.get("messageQueueTable")))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningQueue:
    """State of one queue that a consumer reads; the cached offsets are 0 if no message is cached."""

    commit_offset: int = 0
    cached_min_offset: int = 0
    cached_max_offset: int = 0
    cached_count: int = 0
    cached_bytes: int = 0
    locked: bool = False
    dropped: bool = False

    def to_json(self) -> dict[str, object]:
        return {
            "cachedMsgCount": self.cached_count,
            "cachedMsgMaxOffset": self.cached_max_offset,
            "cachedMsgMinOffset": self.cached_min_offset,
            "cachedMsgSizeInMiB": self.cached_bytes >> 20,
            "commitOffset": self.commit_offset,
            "droped": self.dropped,  # RocketMQ's own spelling
            "lastConsumeTimestamp": 0,
            "lastLockTimestamp": 0,
            "lastPullTimestamp": 0,
            "locked": self.locked,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRunningInfo:
    """Answer to request code 307: settings, queues and subscriptions of a consumer.

    Attributes:
        properties: Settings by RocketMQ's names, such as ``PROP_...``.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    queues: Mapping[MessageQueue, RunningQueue] = field(default_factory=dict)
    subscriptions: tuple[SubscriptionData, ...] = ()

    def encode(self) -> bytes:
        queues = queue_keyed({queue: state.to_json() for queue, state in self.queues.items()})
        subscriptions = [subscription.to_json() for subscription in self.subscriptions]
        return (
            b'{"mqTable":'
            + queues
            + b',"properties":'
            + orjson.dumps(dict(self.properties))
            + b',"statusTable":{},"subscriptionSet":'
            + orjson.dumps(subscriptions)
            + b"}"
        )
