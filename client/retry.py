"""Choice of nameservers and queues, outcomes of failed sends, and decisions about retries.

This module does no I/O and reads no clock: the caller passes clock readings and the ``random.Random``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.errors import (
    ConnectionLost,
    LocalProtocolError,
    RemotingError,
    ResponseError,
    TooManyRequests,
)

from .errors import ClientError, OutcomeUnknown, PartlyNotApplied, PartlyUnknown
from .route_cache import MessageQueue, PublishInfo

if TYPE_CHECKING:
    import random  # only for type annotations: callers pass the random generator

#: Answer codes for stored messages. They differ in how safely the message is stored. Source: SendStatus.
STORED_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
#: Answer codes after which another broker may accept the message. Source:
#: DefaultMQProducerImpl.retryResponseCodes, 5.3.
RETRIED_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
#: Beginning of the remark of an overloaded server. Some servers send this remark after they have acted on the
#: request. So a client may repeat a read at another server, but the outcome of a send is unknown.
_OVERLOAD: Final = "[OVERLOAD]"
#: If the answer code is 1 and the remark has one of these beginnings, the server changed nothing. With code 1
#: and another remark, the server may have made the change.
_REFUSALS: Final = (
    *("[NO_QUORUM]", "request queueId", "[REJECTREQUEST]", "name server not ready"),
    "org.apache.rocketmq.acl.common.AclException",  # brokers of 4.9 check access before they act
)


class Outcome(Enum):
    """The outcome of one try, or of all tries of a change."""

    APPLIED = "applied"
    NOT_APPLIED = "not applied"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one try, and whether another try at another broker may succeed."""

    outcome: Outcome
    retry: bool


_STORED: Final = Verdict(Outcome.APPLIED, retry=False)


def classify_answer(code: int, remark: str | None) -> Verdict:
    """Return the outcome of a try from the broker's answer, and whether to try another broker."""
    if code in STORED_CODES:
        return _STORED
    text = remark or ""
    unsure = text.startswith(_OVERLOAD) or (
        code == ResponseCode.SYSTEM_ERROR and not text.startswith(_REFUSALS)
    )
    return Verdict(Outcome.UNKNOWN if unsure else Outcome.NOT_APPLIED, retry=code in RETRIED_CODES)


def classify_failure(error: RemotingError) -> Verdict:
    """Return the outcome of a try that got no answer, and whether to try another broker.

    If no byte of the request was sent, the request was not applied. Otherwise the outcome is unknown.
    """
    if isinstance(error, LocalProtocolError):
        return Verdict(Outcome.NOT_APPLIED, retry=False)  # the request is too large for other brokers too
    if isinstance(error, TooManyRequests) or (isinstance(error, ConnectionLost) and not error.sent):
        return Verdict(Outcome.NOT_APPLIED, retry=True)
    return Verdict(Outcome.UNKNOWN, retry=True)


def outcome_of(error: RemotingError) -> Outcome:
    """Return the outcome of a change that ended with an error."""
    if isinstance(error, ResponseError):
        return classify_answer(error.code, error.remark).outcome
    if isinstance(error, ClientError):
        return Outcome.UNKNOWN if isinstance(error, OutcomeUnknown) else Outcome.NOT_APPLIED
    return classify_failure(error).outcome


def partial_failure(change: str, failures: Mapping[Any, RemotingError], *, of: int) -> ClientError:
    """Return the error for a call that requested several changes, if some of the changes failed.

    Args:
        change: The failed change in words, such as "offset not stored".
        failures: For each queue or broker with a failed change, the error.
        of: Number of all changes in the call.
    """
    unknown = any(outcome_of(error) is Outcome.UNKNOWN for error in failures.values())
    return (PartlyUnknown if unknown else PartlyNotApplied)(change, failures, of=of)


def merge_outcomes(tries: Sequence[Outcome]) -> Outcome:
    """Return the outcome of all tries together.

    It is "applied" if any try was applied, else "unknown" if any try is unknown, else "not applied".
    """
    for outcome in (Outcome.APPLIED, Outcome.UNKNOWN):
        if outcome in tries:
            return outcome
    return Outcome.NOT_APPLIED


def tries_next_nameserver(code: int, remark: str | None) -> bool:
    """Return True if a read with this answer may get a better answer from another nameserver.

    These answers come from raft members that know no leader, 5.x nameservers that are starting, and
    overloaded nameservers.
    """
    if code == ResponseCode.SYSTEM_BUSY:
        return True
    return code == ResponseCode.SYSTEM_ERROR and (remark or "").startswith((_OVERLOAD, *_REFUSALS))


class NameserverChoice:
    """The choice of the nameserver to ask next.

    The client asks the same nameserver as long as this nameserver answers. After a failure, the client asks
    the next nameserver. For ``avoid_s`` seconds, it asks the failed nameserver only after all others. So an
    unreachable nameserver causes only one failed try in ``avoid_s`` seconds, not one in each call.
    """

    def __init__(self, addrs: Sequence[str], *, avoid_s: float, rng: random.Random) -> None:
        self._avoid_s = avoid_s
        self._rng = rng
        self._addrs: list[str] = []
        self._current = 0
        self._failed_s: dict[str, float] = {}
        self.replace(addrs)

    @property
    def addrs(self) -> tuple[str, ...]:
        """Return all addresses, in the order in which the client moves from one to the next."""
        return tuple(self._addrs)

    def replace(self, addrs: Sequence[str]) -> bool:
        """Set a new list, and return True if it differs from the old list.

        If the new list contains the current nameserver, the client continues to ask it first.
        """
        if set(addrs) == set(self._addrs):
            return False
        current = self._addrs[self._current] if self._addrs else None
        self._addrs = list(addrs)
        self._rng.shuffle(self._addrs)  # random, so that many clients spread over all nameservers
        self._failed_s = {addr: when for addr, when in self._failed_s.items() if addr in addrs}
        self._current = self._addrs.index(current) if current in self._addrs else 0
        return True

    def order(self, now_s: float) -> tuple[str, ...]:
        """Return all addresses in the order in which to try them now."""
        turn = self._addrs[self._current :] + self._addrs[: self._current]
        avoided = [addr for addr in turn if now_s - self._failed_s.get(addr, -self._avoid_s) < self._avoid_s]
        return tuple([addr for addr in turn if addr not in avoided] + avoided)

    def answered(self, addr: str) -> None:
        """Record that ``addr`` answered, and ask this nameserver first from now on."""
        self._failed_s.pop(addr, None)
        if addr in self._addrs:
            self._current = self._addrs.index(addr)

    def failed(self, addr: str, now_s: float) -> None:
        """Record that ``addr`` failed. If the client asked it first until now, ask the next address first."""
        if addr in self._addrs:
            self._failed_s[addr] = now_s
            if self._addrs[self._current] == addr:
                self._current = (self._current + 1) % len(self._addrs)


class QueueTurn:
    """Round-robin choice of a topic's queues, which begins at a random queue.

    Source: TopicPublishInfo.selectOneMessageQueue, ThreadLocalIndex.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next: dict[str, int] = {}

    def pick(
        self, info: PublishInfo, *, last_broker: str | None = None, avoid: Collection[str] = ()
    ) -> MessageQueue:
        """Return the next queue, if possible from a broker that is not in ``avoid``.

        ``last_broker`` is the broker of the last try. A retry prefers another broker. ``info.queues``
        must not be empty.
        """
        count = len(info.queues)
        second: MessageQueue | None = None
        for _ in range(count):
            queue = self._step(info, count)
            if queue.broker_name == last_broker:
                continue
            if queue.broker_name not in avoid:
                return queue
            second = second or queue
        return second or self._step(info, count)

    def _step(self, info: PublishInfo, count: int) -> MessageQueue:
        turn = self._next.get(info.topic)
        if turn is None:
            turn = self._rng.randrange(1 << 16)
        self._next[info.topic] = turn + 1
        return info.queues[turn % count]
