"""Pulls that the broker holds until messages arrive in their queue, or until their deadline."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final

from routekeeper.broker.requests.pulling import Park, Pull, look, time_over
from routekeeper.broker.server.delay import DelayService
from routekeeper.broker.tables.long_polling import ParkedPulls
from routekeeper.broker.tables.state import BrokerState
from routekeeper.broker.tables.topics import SCHEDULE_TOPIC
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand

logger = logging.getLogger(__name__)

LOOKS_MAX: Final = 256
"""Largest number of held pulls that the broker tries again in one iteration of the event loop.

One message can wake a hundred thousand pulls, and a hundred thousand pulls can have the same deadline.
"""
ANSWERED_BYTES: Final = 1 << 20
"""Bytes of messages in answers after which one iteration of the event loop tries no further pulls.

The bound is needed because each pull may get a message of 4 MiB.
"""
_LAST_BYTES: Final = 64 << 20
"""Bytes of messages in answers after which the broker answers no further pulls when it stops.

The clients of the remaining pulls get no answer. They only see that their connections close.
"""


class WaitingPulls:
    """The waiting pulls of one broker.

    Args:
        delay: Service that delivers delayed messages. It is woken when the schedule topic gets messages.
        send: Function that sends the answer to a pull over the pull's connection, if still open.
    """

    def __init__(
        self,
        state: BrokerState,
        *,
        delay: DelayService,
        send: Callable[[Pull, RemotingCommand], None],
    ) -> None:
        self._state = state
        self._delay = delay
        self._send = send
        self._parked: ParkedPulls[Pull] = ParkedPulls()
        self._expiry: asyncio.Handle | None = None
        self._expiry_at = math.inf  # Time at which the timer fires. Not every uvloop handle can return it.
        # For each queue with new messages: number of the last pull that was held before the messages arrived.
        # Only pulls up to this number must be searched again.
        # Use an OrderedDict. In a dict, finding the first key takes longer after each removal of a first key.
        self._arrived: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._waking = False

    def park(self, pull: Pull, *, deadline: float) -> bool:
        """Hold a pull until a deadline (loop time). Return False if too many pulls are held already."""
        if not self._parked.park(
            pull,
            owner=pull.connection,
            topic=pull.topic,
            queue_id=pull.queue_id,
            deadline=deadline,
            size=pull.size,
            host=pull.host,
        ):
            return False
        if deadline < self._expiry_at:
            self._arm()
        return True

    def drop(self, connection: int) -> None:
        """Remove the pulls of a closed connection."""
        self._parked.drop(connection)

    def arrived(self, queues: set[tuple[str, int]]) -> None:
        """Search again for the messages that held pulls want, in queues that got messages.

        The search runs after the current batch of requests, so that one answer to a pull has all messages
        that this batch has stored.
        """
        for queue in queues:
            self._arrived[queue] = self._parked.parked
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._wake)

    def deleted(self, topics: Collection[str]) -> None:
        """Search again for the messages that held pulls want, in all queues of deleted topics."""
        self.arrived(self._parked.queues_of(topics))

    def end(self) -> None:
        """Answer all pulls as if their deadline had passed, because this broker stops."""
        self._expire_until(math.inf, most=sys.maxsize, room=_LAST_BYTES)

    def _arm(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry, self._expiry_at = None, math.inf
        deadline = self._parked.next_deadline()
        if deadline is not None:
            loop = asyncio.get_running_loop()
            self._expiry, self._expiry_at = loop.call_at(deadline, self._expire), deadline

    def _expire(self) -> None:
        self._expire_until(asyncio.get_running_loop().time(), most=LOOKS_MAX, room=ANSWERED_BYTES)

    def _expire_until(self, instant: float, *, most: int, room: int) -> None:
        for pull in self._parked.expire(instant):
            try:
                answer = time_over(self._state, pull)
            except OSError as error:
                answer = _unread(pull, error)
            self._send(pull, answer)
            most -= 1
            room -= len(answer.body)
            if most <= 0 or room <= 0:
                break
        self._arm()  # if more pulls are due already, the new timer fires in the next loop iteration

    def _wake(self) -> None:
        left, room = LOOKS_MAX, ANSWERED_BYTES
        while self._arrived and left > 0 and room > 0:
            queue, up_to = self._arrived.popitem(last=False)
            (topic, queue_id), before = queue, left
            if topic == SCHEDULE_TOPIC:
                self._delay.wake()
            for pull, deadline in self._parked.wake(topic, queue_id, up_to=up_to, most=left):
                left -= 1
                try:
                    found = look(self._state, pull)
                except OSError as error:
                    found = _unread(pull, error)
                if isinstance(found, Park):
                    self.park(found.pull, deadline=deadline)
                    continue
                self._send(pull, found)
                room -= len(found.body)
                if room <= 0:
                    break
            # Count a queue without held pulls as one pull, because the bound is a number of pulls. Otherwise
            # one iteration of the event loop could visit any number of such queues.
            if left == before:
                left -= 1
            if left <= 0 or room <= 0:  # The search ended at a bound, so this queue may have more pulls.
                self._arrived[queue] = up_to
        self._waking = bool(self._arrived)
        if self._waking:
            asyncio.get_running_loop().call_soon(self._wake)


def _unread(pull: Pull, error: OSError) -> RemotingCommand:
    """Return the answer to a pull whose messages the disk cannot read."""
    logger.error("messages not read topic=%s queue=%s error=%s", pull.topic, pull.queue_id, error)
    return pull.request.reply(ResponseCode.SYSTEM_ERROR, remark=f"the disk refused: {error.strerror}")
