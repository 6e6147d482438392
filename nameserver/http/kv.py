"""Changes of the KV configuration over HTTP. A change needs the token, and may have conditions."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from routekeeper.nameserver.commands import Command, CommandFormatError, CommandTooLarge, DeleteKv, PutKv
from routekeeper.nameserver.handlers import decide
from routekeeper.nameserver.modes.interface import Consistency, Freshness, NoQuorum, OutcomeUnknown
from routekeeper.nameserver.routes.kv import KV_ENTRY_BYTES_MAX
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.types import KvEntry, Request
from routekeeper.nameserver.verdicts import Applied, NoChange, Rejected, Verdict
from routekeeper.remoting.codes import RequestCode

from . import answers
from .coding import has_tag
from .openapi import CONDITIONS, Answer, change_kv
from .problems import ASK_AGAIN, Problem
from .reads import Reads
from .token import Token, deadline_of, read_body

#: Largest body in bytes. JSON escapes may make the text of the largest value twice as long as the value.
BODY_MAX: Final = 2 * KV_ENTRY_BYTES_MAX + 4096
#: Status of the error answer if a change was applied, but could not be stored on the disk. After status 500
#: or 504, the outcome is unknown. After any other error status, nothing has changed.
_NOT_KEPT: Final = 507


class KvChanges:
    """Puts and deletes of KV values.

    Args:
        token: The token that each change must send.
    """

    def __init__(
        self, consistency: Consistency, settings: LiveSettings, reads: Reads, *, token: Token
    ) -> None:
        self._consistency = consistency
        self._settings = settings
        self._reads = reads
        self._token = token

    @change_kv(
        "PUT",
        "The stored value.",
        answer=answers.KvValue,
        body=answers.NewValue,
        headers=CONDITIONS,
    )
    async def put_kv_value(self, request: web.Request) -> Answer:
        """Put a value of the KV configuration."""
        self._token.require(request, "changes over HTTP")
        deadline = deadline_of(request)
        raw = await read_body(request, limit=BODY_MAX)
        try:
            value = msgspec.json.decode(raw, type=answers.NewValue).value
        except (ValueError, RecursionError) as error:  # ValueError includes msgspec's DecodeError.
            raise Problem(400, f'the body must be {{"value": "TEXT"}}: {error}'[:300]) from None
        entry, epoch = await self._change(request, RequestCode.PUT_KV_CONFIG, deadline=deadline, value=value)
        return self._reads.kv_value(request, entry, epoch)

    @change_kv(
        "DELETE",
        "The value is removed.",
        answer=answers.Deleted,
        headers={"If-Match": CONDITIONS["If-Match"]},
    )
    async def delete_kv_value(self, request: web.Request) -> answers.Deleted:
        """Delete a value of the KV configuration."""
        self._token.require(request, "changes over HTTP")
        await self._change(request, RequestCode.DELETE_KV_CONFIG, deadline=deadline_of(request))
        return answers.Deleted(namespace=request.match_info["namespace"], key=request.match_info["key"])

    async def _change(
        self, request: web.Request, code: RequestCode, *, deadline: float, **value: str
    ) -> tuple[KvEntry, int]:
        """Apply a change if its conditions hold. Return the changed entry, and the epoch of its table.

        The result comes from the verdict, because later changes may be in the table already.
        """
        namespace, key = request.match_info["namespace"], request.match_info["key"]
        fields = {"namespace": namespace, "key": key, **value}
        while True:
            view = await self._view(request, deadline=deadline)
            before, epoch = view.kv_value(namespace, key), view.epoch
            self._check(request, before, epoch)
            command = decide(view, Request.request(code, fields), self._settings.current, uptime_s=0.0)
            if not isinstance(command, PutKv | DeleteKv):
                raise Problem(400, getattr(command, "remark", None) or "this cannot be changed")
            verdict = await self._proposed(command, deadline=deadline)
            match verdict:
                case Applied():
                    return KvEntry(value.get("value"), verdict.revision), epoch
                case NoChange() if before is not None and before.value == value.get("value"):
                    return before, epoch
                case Rejected():
                    raise Problem(_NOT_KEPT if verdict.in_force else 409, verdict.remark)
            # Another client has changed the value, or another table has replaced the table. Check the
            # conditions again.

    async def _view(self, request: web.Request, *, deadline: float) -> RouteView:
        """Return the table; for a deletion or a conditional change, the newest table.

        Otherwise :meth:`_check` would refuse the change because of an old value.
        """
        checked = request.method == "DELETE" or any(name in request.headers for name in CONDITIONS)
        grouped = self._consistency.operations is not None
        freshness = Freshness.LINEARIZABLE if checked and grouped else Freshness.DEFAULT
        try:
            return await self._consistency.await_view(freshness, deadline=deadline)
        except NoQuorum as error:
            raise Problem(503, f"nothing was changed: {error}", headers=ASK_AGAIN) from None

    def _check(self, request: web.Request, entry: KvEntry | None, epoch: int) -> None:
        """Refuse a change whose conditions do not hold for the entry, and a deletion without an entry."""
        tag = None if entry is None else self._reads.kv_tag(entry, epoch)
        for_match, unless_match = (request.headers.get(name) for name in ("If-Match", "If-None-Match"))
        if for_match is not None and (tag is None or not has_tag(for_match, tag, strong=True)):
            raise Problem(412, "there is no such key" if tag is None else f"the value has the ETag {tag}")
        if unless_match is not None and tag is not None and has_tag(unless_match, tag):
            raise Problem(412, f"the key exists, with the ETag {tag}")
        if request.method == "DELETE" and entry is None:
            named = request.match_info
            raise Problem(404, f"no KV key {named['key']} in namespace {named['namespace']}")

    async def _proposed(self, command: Command, *, deadline: float) -> Verdict:
        try:
            return await self._consistency.propose(command, deadline=deadline)
        except NoQuorum as error:
            raise Problem(503, f"nothing was changed: {error}", headers=ASK_AGAIN) from None
        except OutcomeUnknown as error:
            raise Problem(504, f"outcome unknown: {error}") from None
        except (CommandTooLarge, CommandFormatError) as error:
            raise Problem(409, str(error)) from None
