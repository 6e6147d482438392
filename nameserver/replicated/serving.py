"""Requests that may wait on their way through :func:`serve`."""

from __future__ import annotations

import asyncio

from nameserver.handlers import READS
from nameserver.modes.interface import Freshness
from nameserver.modes.serving import serve
from nameserver.modes.settings_file import SettingsFile
from nameserver.routes.view import RouteView
from nameserver.types import Answer, ConnectionId, Request
from remoting.codes import RequestCode

from .contact import ANSWER_MARGIN_S, ContactWatch
from .proposals import WRITE_DEADLINE_S
from .reads import Reads
from .registrations import Registrations
from .reports import Reports
from .surroundings import Part, Surroundings
from .writes import Writes


class Requests(Part):
    """Answers requests, one task each: reads that cannot be answered at once, changes, settings.

    Implements ``Mode``.
    """

    def __init__(
        self,
        given: Surroundings,
        contact: ContactWatch,
        reads: Reads,
        reports: Reports,
        writes: Writes,
        registrations: Registrations,
    ) -> None:
        self.settings = given.settings
        super().__init__(given)
        self._contact = contact
        self._reads = reads
        self._registrations = registrations
        self._settings_file = SettingsFile(given.settings)
        self.heard_over = registrations.heard_over
        self.renew = registrations.renew
        self.withdrawn = reports.withdrawn
        self.propose = writes.propose
        self.change_settings = self._settings_file.change
        self._loop = asyncio.get_running_loop()

    async def execute(self, request: Request, origin: ConnectionId, *, deadline: float) -> Answer:
        """Answer a request, see :meth:`Consistency.execute`."""
        if request.code == RequestCode.REGISTER_BROKER:
            waiter: asyncio.Future[Answer] = self._loop.create_future()

            def answered(answer: Answer) -> None:
                if not waiter.done():
                    waiter.set_result(answer)

            answer = self._registrations.register(request, origin, deadline=deadline, answered=answered)
            return await waiter if answer is None else answer
        deadline = min(deadline, self._loop.time() + WRITE_DEADLINE_S)
        return await serve(self, request, origin, deadline=deadline)

    async def close(self) -> None:
        """Return once no file is being written."""
        await self._settings_file.close()

    # -- Mode

    async def readable(self, request: Request, *, deadline: float) -> RouteView:
        if request.code in READS:
            freshness = Freshness(self.settings.current.route_freshness)
            return await self._reads.await_view(freshness, deadline=deadline)
        if request.code == RequestCode.QUERY_DATA_VERSION:
            await self._contact.require(deadline=deadline - ANSWER_MARGIN_S)
        return self._table.view
