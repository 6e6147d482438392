"""Notifies the members of changed groups to rebalance (request 40)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.fields import ConsumerGroupFields

#: Bound of the members that are notified in one turn of the loop, because thousands of clients may leave
#: thousands of groups at once.
NOTICES_MAX: Final = 256


class RebalanceNotices:
    """Changed groups whose members are still to be notified.

    If a group changes several times before its turn comes, its members are notified once. Otherwise the cost
    would grow with members times changes.

    Args:
        members: Returns the connections of a group's members.
        send: Sends a request over a connection, if the connection is still open.
    """

    def __init__(
        self, members: Callable[[str], Iterable[int]], send: Callable[[int, RemotingCommand], None]
    ) -> None:
        self._members = members
        self._send = send
        self._groups: dict[str, None] = {}  # in the order in which they changed
        self._untold: deque[int] = deque()  # connections that still have to get the request
        self._request: RemotingCommand | None = None
        self._is_due = False

    def tell(self, groups: Iterable[str]) -> None:
        """Notify the members of groups: the first ones now, the others in later turns of the loop."""
        self._groups |= dict.fromkeys(groups)
        if not self._is_due:
            self._go_on()

    def _go_on(self) -> None:
        self._is_due = False
        for _ in range(NOTICES_MAX):
            while not self._untold:
                if not self._groups:
                    return
                self._begin(next(iter(self._groups)))
            assert self._request is not None
            self._send(self._untold.popleft(), self._request)
        self._is_due = True
        asyncio.get_running_loop().call_soon(self._go_on)

    def _begin(self, group: str) -> None:
        del self._groups[group]
        self._untold.extend(self._members(group))
        fields = ConsumerGroupFields(consumer_group=group).to_ext()
        self._request = RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields, oneway=True)
