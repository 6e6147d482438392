"""Notices that tell members of changed groups to rebalance: request 40, NOTIFY_CONSUMER_IDS_CHANGED."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final

from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.fields import ConsumerGroupFields

#: Largest number of members that are notified in one iteration of the event loop. Thousands of clients may
#: leave thousands of groups at the same time, and the notices to all members would block the loop. A group
#: without members counts as one member, because one client may leave thousands of groups without members.
NOTICES_MAX: Final = 256


class RebalanceNotices:
    """Queue of changed groups whose members must still be notified.

    If a group changes several times before its notices are sent, each member gets one notice. Otherwise each
    change would cause a notice to each member.

    Args:
        members: Function that returns the connections of a group's members.
        send: Function that sends a request over a connection, if the connection is still open.
    """

    def __init__(
        self, members: Callable[[str], Iterable[int]], send: Callable[[int, RemotingCommand], None]
    ) -> None:
        self._members = members
        self._send = send
        # Changed groups, in the order of their changes. A dict would be slow, because a search for its first
        # key looks again at every key that was removed before.
        self._groups: OrderedDict[str, None] = OrderedDict()
        self._untold: deque[int] = deque()  # connections of the current group's members still to be notified
        self._request: RemotingCommand | None = None
        self._is_due = False

    def tell(self, groups: Iterable[str]) -> None:
        """Notify members of groups: at most NOTICES_MAX members in each iteration of the loop."""
        self._groups.update(dict.fromkeys(groups))
        if not self._is_due:
            self._go_on()

    def _go_on(self) -> None:
        self._is_due = False
        if not self._untold and not self._groups:
            return
        for _ in range(NOTICES_MAX):
            if not self._untold:
                if not self._groups:
                    break
                self._begin(self._groups.popitem(last=False)[0])
            if self._untold:
                assert self._request is not None
                self._send(self._untold.popleft(), self._request)
        # Schedule one more call even if all members are notified. The next call handles the changes that come
        # until then. If many members leave in one iteration of the loop, each remaining member gets two
        # notices, instead of one notice for each member that left.
        self._is_due = True
        asyncio.get_running_loop().call_soon(self._go_on)

    def _begin(self, group: str) -> None:
        self._untold.extend(self._members(group))
        if not self._untold:
            return
        fields = ConsumerGroupFields(consumer_group=group).to_ext()
        self._request = RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields, oneway=True)
