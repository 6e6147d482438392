"""Administration of a raft group over HTTP: its members, its leader and its snapshots.

The status can be read without a token, like all other data over HTTP. A request that changes the group must
send the token of ``--http-token-file``. Without that flag, the nameserver refuses all changes. Only the
leader makes changes. The other members answer 421 and name the leader.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import orjson
from aiohttp import web

from routekeeper.nameserver.modes.group import GroupStatus, Operations
from routekeeper.nameserver.modes.interface import Consistency, NoQuorum
from routekeeper.nameserver.raft.node.member import RaftMember
from routekeeper.nameserver.raft.types import ChangeRefused, ChangeUnknown, NotLeader
from routekeeper.nameserver.settings.declared import ConfigError, read_address
from routekeeper.remoting.disk_threads import DiskThreads

from . import answers
from .openapi import BINARY, NO_GROUP, PARAMETER_PROBLEM, Answer, Serves, change, content
from .problems import ASK_AGAIN, HEADERS, Problem, check_query
from .token import Token, deadline_of, read_body

log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Largest JSON body in bytes; real requests are shorter.
BODY_MAX: Final = 4096
#: Largest snapshot file in a request, in bytes. A table of 100,000 topics has some 20 MB.
SNAPSHOT_MAX: Final = 1 << 30
#: Bytes of a snapshot file that one step reads from the disk and sends.
_PIECE_BYTES: Final = 256 * 1024
_BINARY: Final = "application/octet-stream"


class RaftAdmin:
    """Handlers of the resources below ``/v1/raft``.

    Args:
        token: The token that each change must send.
    """

    def __init__(self, consistency: Consistency, *, token: Token) -> None:
        self._consistency = consistency
        self._token = token
        self._restoring = asyncio.Lock()

    # -- resources -----------------------------------------------------------------------------------

    @Serves("GET", "/v1/raft/status", "The figures.", PARAMETER_PROBLEM | NO_GROUP)
    async def get_raft_status(self, request: web.Request) -> GroupStatus:
        """Return the figures of this member of the raft group."""
        check_query(request, set())
        return self._operations().raft_status()

    @change("POST", "/v1/raft/members", "The new member is a voter.", body=answers.NewMember)
    async def add_member(self, request: web.Request) -> answers.Members:
        """Add a member. The member is a learner until it has caught up, then a voter."""
        member, deadline = self._allowed(request)
        address = await _body(request, "address", required=True)
        change = member.changes.add_member(address, deadline=deadline)
        await self._done(request, f"add member {address}", change, awaited=address)
        return self._members()

    @change(
        "DELETE",
        "/v1/raft/members/{address}",
        "The member is removed. To remove the leader, send the request again to the leader that 421 names.",
    )
    async def remove_member(self, request: web.Request) -> answers.Members:
        """Remove a member, which then stops. A leader hands over leadership before it can be removed."""
        member, deadline = self._allowed(request)
        address = _member(request.match_info["address"])
        status = self._operations().raft_status()
        if status.role == "leader" and address not in (known := status.members or ()):
            # Refuse an address that belongs to no member. Otherwise the request would change nothing but
            # report success, and nobody would notice a misspelt address.
            raise Problem(409, f"{address} is no member; the members are {', '.join(known)}")
        change = member.changes.remove_member(address, deadline=deadline)
        await self._done(request, f"remove member {address}", change)
        return self._members()

    @change("POST", "/v1/raft/transfer", "Another member leads.", body=answers.Transfer, body_required=False)
    async def transfer_leadership(self, request: web.Request) -> answers.Leader:
        """Hand leadership over to another member."""
        member, deadline = self._allowed(request)
        to = await _body(request, "to") or None
        change = member.changes.transfer_leadership(to, deadline=deadline)
        leader = await self._done(request, f"transfer leadership to {to or 'anybody'}", change)
        return answers.Leader(leader=leader)

    @change(
        "POST",
        "/v1/raft/snapshot",
        "The snapshot is on this nameserver's disk. With Accept: application/octet-stream, the answer "
        "contains the snapshot file.",
        answer=content(answers.Snapshot) | BINARY,
    )
    async def save_snapshot(self, request: web.Request) -> Answer:
        """Write the state to a file that can be copied and restored."""
        member, deadline = self._allowed(request)
        await _body(request)
        info = await self._done(request, "save snapshot", member.changes.save_snapshot(deadline=deadline))
        if request.headers.get("Accept", "").partition(";")[0].strip() == _BINARY:
            return await _download(request, info.path)
        return answers.Snapshot(path=str(info.path), index=info.index, term=info.term, size=info.file_size)

    @change("POST", "/v1/raft/restore", "The snapshot is now the state of this group.", body=BINARY)
    async def restore_snapshot(self, request: web.Request) -> answers.Restored:
        """Replace the state by a snapshot file. This works only in a group of one member."""
        member, deadline = self._allowed(request)
        # Allow one restore at a time, because each restore holds its whole file in memory.
        if self._restoring.locked():
            raise Problem(409, "another snapshot is being restored")
        async with self._restoring:
            image = await read_body(request, limit=SNAPSHOT_MAX)
            if not image:
                raise Problem(400, "the body is empty; it must be a snapshot file")
            change = member.changes.restore_snapshot(image, deadline=deadline)
            await self._done(request, f"restore snapshot of {len(image)} bytes", change)
        return msgspec.convert(self._consistency.status(), answers.Restored, from_attributes=True)

    # -- checks and log lines of each request --------------------------------------------------------

    def _operations(self) -> Operations:
        operations = self._consistency.operations
        if operations is None:
            mode = self._consistency.status().mode
            raise Problem(404, f"this nameserver runs in mode {mode}: it belongs to no raft group")
        return operations

    def _allowed(self, request: web.Request) -> tuple[RaftMember, float]:
        """Check a request's token. Return this member, and the loop time by which the request must end."""
        operations = self._operations()
        self._token.require(request, "changes of the group")
        return operations.member, deadline_of(request)

    async def _done(
        self, request: web.Request, what: str, change: Awaitable[_T], *, awaited: str | None = None
    ) -> _T:
        """Wait for a change; log its sender and its outcome.

        Args:
            awaited: Another member without which the change cannot end. If this member has no link to it, the
                error says so.
        """
        # Log the request at the leader only: other members only answer with the leader's address.
        if self._operations().raft_status().role == "leader":
            log.info("admin request peer=%s change=%s", request.remote, what)
        try:
            result = await change
        except NotLeader as error:
            if error.leader is None:
                raise Problem(503, "no leader is known; nothing was done", headers=ASK_AGAIN) from None
            told = self._operations().raft_status().http or {}
            raise Problem(
                421,
                f"only the leader does this, and that is {error.leader}; nothing was done here",
                leader=error.leader,
                leader_http=told.get(error.leader, msgspec.UNSET),
            ) from None
        except ChangeRefused as error:
            log.warning("admin request refused reason=%s change=%s", error, what)
            raise Problem(409, str(error)) from None
        except ChangeUnknown as error:
            log.warning("admin request unknown reason=%s change=%s", error, what)
            linked = self._operations().raft_status().linked or ()
            away = "; there is no link to it: is it started?" if awaited and awaited not in linked else ""
            raise Problem(504, f"outcome unknown: {error}{away}") from None
        except NoQuorum as error:
            raise Problem(503, str(error), headers=ASK_AGAIN) from None
        log.info("admin request done change=%s", what)
        return result

    def _members(self) -> answers.Members:
        return msgspec.convert(self._operations().raft_status(), answers.Members, from_attributes=True)


async def _download(request: web.Request, path: Path) -> web.StreamResponse:
    """Send a file in pieces. A thread of its own reads the file.

    A hung disk then blocks neither the shared threads nor the end of the process.
    """
    thread, loop = DiskThreads("snapshot download"), asyncio.get_running_loop()
    try:
        opening = thread.submit(path.open, "rb")
    except RuntimeError as error:
        why = f"{path} is stored, but no thread can be started to read it: {error}"
        raise Problem(503, why, headers=ASK_AGAIN) from None
    try:
        try:
            file = await asyncio.wrap_future(opening)
        except OSError as error:
            raise Problem(503, f"{path} cannot be read: {error.strerror}") from None
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": _BINARY})
        response.content_length = await loop.run_in_executor(thread, os.path.getsize, file.fileno())
        await response.prepare(request)
        while piece := await loop.run_in_executor(thread, file.read, _PIECE_BYTES):
            await response.write(piece)
        await response.write_eof()
        return response
    finally:
        thread.submit(lambda: opening.result().close())
        thread.shutdown()


def _member(address: str) -> str:
    try:
        _, port = read_address("member", address[:300])
    except ConfigError as error:
        raise Problem(400, str(error)) from None
    if not port:
        raise Problem(400, f"member {address[:300]} needs a port of 1 to 65535")
    return address


async def _body(request: web.Request, name: str = "", *, required: bool = False) -> str:
    """Return the member address in a JSON body, or "" if the body names none.

    Args:
        name: Name of the JSON member that holds the address. If empty, the body must be empty, too.
        required: True to refuse a body without the address.
    """
    raw = await read_body(request, limit=BODY_MAX)
    try:
        document: Any = orjson.loads(raw) if raw.strip() else {}
    except orjson.JSONDecodeError:
        raise Problem(400, "the body is no JSON") from None
    if not isinstance(document, dict):
        raise Problem(400, "the body is no JSON object")
    for key in document:
        if key != name:
            raise Problem(400, f"unknown member {key[:40]}, allowed: {name or 'none'}")
    value = document.get(name)
    if value is None and not required:
        return ""
    if not isinstance(value, str):
        raise Problem(400, f'the body must be {{"{name}": "HOST:PORT"}}, a raft address')
    return _member(value)
