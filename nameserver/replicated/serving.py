"""Requests that may wait on their way through :func:`serve`, and what operators ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nameserver.commands import Command
from nameserver.handlers import READS, Heard, Renewal, SettingsChange, Unregister
from nameserver.modes.group import GroupStatus
from nameserver.modes.interface import Freshness
from nameserver.modes.serving import serve
from nameserver.modes.settings_file import SettingsFile
from nameserver.raft import RaftMember, SnapshotInfo
from nameserver.routes.table import RouteTable
from nameserver.routes.view import RouteView
from nameserver.settings.changes import LiveSettings
from nameserver.types import Answer, ConnectionId, Request
from nameserver.verdicts import Verdict
from remoting.codes import RequestCode

from .contact import ANSWER_MARGIN_S, ContactWatch
from .proposals import WRITE_DEADLINE_S
from .reads import Reads
from .registrations import Registrations
from .writes import Writes


class Requests:
    """Answers requests, one task each: reads that cannot be answered at once, changes, settings."""

    def __init__(
        self,
        table: RouteTable,
        contact: ContactWatch,
        reads: Reads,
        writes: Writes,
        registrations: Registrations,
        settings: LiveSettings,
    ) -> None:
        self.table = table
        self.contact = contact
        self.reads = reads
        self.writes = writes
        self.registrations = registrations
        self.settings = settings
        self.settings_file = SettingsFile(settings)
        self._loop = asyncio.get_running_loop()

    async def execute(self, request: Request, origin: ConnectionId, *, deadline: float) -> Answer:
        """Answer a request, see :meth:`Consistency.execute`."""
        if request.code == RequestCode.REGISTER_BROKER:
            waiter: asyncio.Future[Answer] = self._loop.create_future()

            def answered(answer: Answer) -> None:
                if not waiter.done():
                    waiter.set_result(answer)

            answer = self.registrations.register(request, origin, deadline=deadline, answered=answered)
            return await waiter if answer is None else answer
        deadline = min(deadline, self._loop.time() + WRITE_DEADLINE_S)
        return await serve(_Serving(self), request, origin, deadline=deadline)

    async def close(self) -> None:
        """Return once no file is being written."""
        await self.settings_file.close()


class _Serving:
    """One request on its way through :func:`serve`. Implements ``Mode``."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    @property
    def settings(self) -> LiveSettings:
        return self._requests.settings

    async def readable(self, request: Request, *, deadline: float) -> RouteView:
        requests = self._requests
        if request.code in READS:
            freshness = Freshness(requests.settings.current.route_freshness)
            return await requests.reads.await_view(freshness, deadline=deadline)
        if request.code == RequestCode.QUERY_DATA_VERSION:
            await requests.contact.require(deadline=deadline - ANSWER_MARGIN_S)
        return requests.table.view

    def heard_over(self, origin: ConnectionId) -> Heard:
        return self._requests.registrations.heard_over(origin)

    async def renew(self, renewal: Renewal, origin: ConnectionId, *, deadline: float) -> Answer | Command:
        return self._requests.registrations.renew(renewal, origin)

    async def propose(self, command: Command, *, deadline: float) -> Verdict:
        return await self._requests.writes.propose(command, deadline=deadline)

    async def unregister(self, unregister: Unregister, origin: ConnectionId, *, deadline: float) -> Answer:
        return self._requests.registrations.unregister(unregister, origin)

    async def change_settings(self, change: SettingsChange) -> Answer:
        return await self._requests.settings_file.change(change)


class GroupOperations:
    """What operators do to the group, through this member; see :class:`Operations`.

    Args:
        raft_status: Returns this member's figures.
    """

    def __init__(self, member: RaftMember, *, raft_status: Callable[[], GroupStatus]) -> None:
        self._member = member
        self._raft_status = raft_status

    def raft_status(self) -> GroupStatus:
        return self._raft_status()

    async def add_member(self, address: str, *, deadline: float) -> None:
        await self._member.add_member(address, deadline=deadline)

    async def remove_member(self, address: str, *, deadline: float) -> None:
        await self._member.remove_member(address, deadline=deadline)

    async def transfer_leadership(self, to: str | None, *, deadline: float) -> str:
        return await self._member.transfer_leadership(to, deadline=deadline)

    async def save_snapshot(self, *, deadline: float) -> SnapshotInfo:
        return await self._member.save_snapshot(deadline=deadline)

    async def restore_snapshot(self, image: bytes, *, deadline: float) -> None:
        await self._member.restore_snapshot(image, deadline=deadline)
