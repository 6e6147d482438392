"""Delivery of delayed messages: the broker moves a due message from the schedule topic to its real topic.

Each delay level is one queue of the schedule topic. All messages of a queue have the same delay, so they
become due in their order. The broker writes the delay offsets periodically. After a crash, it delivers
messages again that it delivered after the last write, as in RocketMQ.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final

from routekeeper.broker.errors import StoreUnavailable
from routekeeper.broker.requests.sending import due_again
from routekeeper.broker.requests.tags import tags_code
from routekeeper.broker.store.mending import Mending
from routekeeper.broker.store.messages import Draft
from routekeeper.broker.tables.state import BrokerState
from routekeeper.broker.tables.topics import SCHEDULE_TOPIC
from routekeeper.remoting import wall_clock
from routekeeper.remoting.errors import LocalProtocolError
from routekeeper.remoting.message import StoredMessage

logger = logging.getLogger(__name__)

#: Bounds of one call of :func:`deliver_due`: number of messages, and their bytes (the first message may be
#: larger). A call delivers messages of one level. Other tasks of the event loop run between two calls.
TURN_MESSAGES: Final = 32
TURN_BYTES: Final = 1 << 20
#: Pause in seconds after the store has refused a message.
_RETRY_S: Final = 1.0


def deliver_due(state: BrokerState, *, now_ms: int, limit: int = TURN_MESSAGES) -> float | None:
    """Deliver at most ``limit`` due messages of one level. The next call begins with the next level.

    Returns:
        Seconds until the next message is due. 0.0 if a message may be due now. None if no message waits.

    Raises:
        StoreUnavailable: If the store refused a message. Deliveries before this message stay valid.
        OSError: If the disk failed at some level, and no other level has due messages.
    """
    wait_ms: int | None = None
    failure: OSError | None = None
    is_mending = False
    levels, last = delay_queues(state), state.delay_turn
    for number in range(levels):
        level = state.delay_turn = (last + number) % levels + 1
        begin = state.delay_offsets.get(level)
        try:
            left_ms, delivered = _deliver_level(state, level, now_ms=now_ms, limit=limit)
        except OSError as error:  # an unreadable message must not delay the other levels
            if state.delay_offsets.get(level) != begin:
                return 0.0
            failure = failure or error
            continue
        except Mending:
            if is_mending:
                return 0.0  # search one part of the log per call, so that the event loop is not blocked
            is_mending = True
            continue
        if delivered:
            return 0.0
        if left_ms is not None:
            wait_ms = left_ms if wait_ms is None else min(wait_ms, left_ms)
    if is_mending:
        return 0.0
    if failure is not None:
        raise failure
    return None if wait_ms is None else wait_ms / 1000


def delay_queues(state: BrokerState) -> int:
    """Return the number of queues of the schedule topic.

    If the operator removed delay levels, their queues may still contain messages, which must be delivered.
    """
    return max(len(state.config.delay_levels_ms), state.store.queue_counts.get(SCHEDULE_TOPIC, 0))


def oldest_waiting(state: BrokerState, *, due_after_ms: float = -math.inf) -> int:
    """Return the log offset of the oldest delayed message that still has to be delivered.

    If no message waits, return the end of the log.

    Args:
        due_after_ms: Skip levels whose next message was due before this Unix time in ms. The broker has
            failed to deliver such a message for a long time, for example because the disk cannot read it.

    Raises:
        Mending: If an entry is damaged, and the search for its message has not finished.
        OSError: If the disk failed.
    """
    oldest = state.store.log.max_offset
    for level in range(1, delay_queues(state) + 1):
        first = state.store.entries(SCHEDULE_TOPIC, level - 1, state.delay_offsets.get(level, 0), 1)
        oldest = min([oldest, *(entry.log_offset for entry in first if entry.tags_code >= due_after_ms)])
    return oldest


def _deliver_level(state: BrokerState, level: int, *, now_ms: int, limit: int) -> tuple[int | None, bool]:
    """Deliver due messages of one level, within the bounds of one call.

    Returns:
        Two values. The first is the time in ms until the level's next message is due, or None if unknown.
        The second is True if the function delivered or dropped a message.

    Raises:
        OSError: If a message cannot be read. Deliveries before this message stay valid.
    """
    queue_id, levels_ms = level - 1, state.config.delay_levels_ms
    # If the operator removed this level, the level's delay is unknown. Then trust the time in the entry.
    delay_ms = levels_ms[queue_id] if queue_id < len(levels_ms) else math.inf
    low, high = state.store.bounds(SCHEDULE_TOPIC, queue_id)
    if low < high:
        next_offset = state.delay_offsets.setdefault(level, low)
        if next_offset < low:
            # Log files with undelivered messages were removed. Either the disk was full, or the delivery
            # failed until the files expired.
            logger.error(
                "delayed messages removed before they were due level=%s count=%s", level, low - next_offset
            )
            state.delay_offsets[level] = low
    begin = offset = min(max(state.delay_offsets.get(level, low), low), high)
    if offset == high:
        return None, False
    end = min(high, offset + limit)
    size = 0
    while offset < end:
        entries = state.store.entries(SCHEDULE_TOPIC, queue_id, offset, end - offset)
        if not entries:
            break
        for entry in entries:
            left_ms = entry.tags_code - now_ms
            # If the remaining time is longer than the level's delay, the clock was set back. Deliver now.
            if entry.size > 0 and 0 < left_ms <= delay_ms:
                return left_ms, offset > begin
            size += entry.size
            if offset > begin and size > TURN_BYTES:
                return None, True
            message = state.store.message_of(SCHEDULE_TOPIC, queue_id, offset, entry)
            if message is not None:
                _deliver(state, message, now_ms=now_ms)
            else:
                logger.error("delayed message cannot be read, dropped level=%s offset=%s", level, offset)
            offset += 1
            state.delay_offsets[level] = offset
    return None, offset > begin


def _deliver(state: BrokerState, message: StoredMessage, *, now_ms: int) -> None:
    target = due_again(message.topic, message.properties)
    born = None if target is None else state.topics.born_at(target[0])
    if target is None or born is None or message.physical_offset < born:
        logger.warning("delayed message without a topic dropped id=%s", message.offset_message_id)
        return
    topic, queue_id = target
    draft = Draft(
        topic=topic,
        queue_id=queue_id,
        body=message.body,
        properties=message.properties,
        tags_code=tags_code(message.properties),
        born_host=message.born_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        reconsume_times=message.reconsume_times,
    )
    try:
        placed = state.store.put(draft, now_ms=now_ms)
    except LocalProtocolError as error:
        # The message is not valid under the current settings. Drop it. Otherwise it would be retried forever.
        logger.error("delayed message dropped id=%s error=%s", message.offset_message_id, error)
        return
    state.stats.stored(topic, 1, state.store.log.max_offset - placed.physical_offset)
    state.effects.arrived.add((topic, queue_id))


class DelayService:
    """Task that calls :func:`deliver_due` whenever a message is due.

    Args:
        delivered: Callback after each call of :func:`deliver_due`. The callback performs the effects that the
            deliveries have requested in the state, such as waking held pulls.
    """

    def __init__(self, state: BrokerState, *, delivered: Callable[[], object]) -> None:
        self._state = state
        self._delivered = delivered
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Check the queues soon, because the schedule topic has a new message."""
        self._wake.set()

    async def run(self) -> None:
        refused = False
        while True:
            self._wake.clear()
            try:
                wait_s = deliver_due(self._state, now_ms=wall_clock.now_ms())
                refused = False
            except (StoreUnavailable, OSError) as error:
                if not refused:
                    logger.error("delayed messages wait error=%s", error)
                refused = True
                wait_s = _RETRY_S
            self._delivered()
            if wait_s == 0:
                await asyncio.sleep(0)
                continue
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
