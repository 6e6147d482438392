"""Changes of a cluster that an operator asks for: members, leadership, snapshots."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from routekeeper.nameserver.raft.consensus.engine import Engine
from routekeeper.nameserver.raft.storage.images import SnapshotFile
from routekeeper.nameserver.raft.types import ChangeNotYet, ChangeRefused, ChangeUnknown, NotLeader, Role

from .images import ImageFiles

logger = logging.getLogger(__name__)

#: Longest wait of a closing leader for another one.
HANDOVER_S: Final = 1.5
HANDOVER_STEP_S: Final = 0.01
#: Wait of a change for another one, or for a new leader to be ready, and the interval of its looks.
PATIENCE_S: Final = 2.0
PATIENCE_STEP_S: Final = 0.02


class ChangedMember(Protocol):
    """The member that makes the changes, as far as they need it."""

    images: ImageFiles

    @property
    def engine(self) -> Engine:
        """Decides for the member; raises NotLeader before the start."""

    def perform(self) -> None:
        """Do what the engine wants done."""

    def hand_over(self, to: str | None = None) -> bool:
        """Ask ``to``, or the best follower, to take over; False if this member does not lead."""

    async def restore(self, raw: bytes) -> None:
        """Make a snapshot file log and state."""

    def keep(self, task: asyncio.Future[None]) -> None:
        """Wait for it before the files are closed."""


class Changes:
    """Makes changes of the cluster, on its leader only unless a method says otherwise, and waits for them.

    Deadlines are times of the loop.
    """

    def __init__(self, member: ChangedMember, *, me: str) -> None:
        self._member = member
        self._me = me
        self._change = asyncio.Event()  # set for an instant at each
        self._closed = False

    def look_again(self) -> None:
        """Have all that wait look again: something in the member's state may have changed."""
        self._change.set()
        self._change.clear()

    def close(self) -> None:
        """Wait for nothing any more."""
        self._closed = True
        self.look_again()

    async def add_member(self, address: str, *, deadline: float) -> None:
        """Take ``address`` in: a learner first, a voter once it has caught up. Nothing if it is a voter.

        Its process is started with an empty disk and with the current members and itself as ``peers``.
        The leader of that moment makes it a voter, also after this call has given up.

        Raises:
            NotLeader: Nothing was done.
            ChangeRefused: Nothing was done, and why.
            ChangeUnknown: Not a voter by the deadline; if it is a learner, it still becomes one later.
        """
        engine = self._member.engine
        await self._patiently(lambda: engine.membership.add_member(address), deadline)
        if not await self._until(lambda: address in engine.voters and engine.shared.committed, deadline):
            if address in engine.shared.configuration.learners:
                raise ChangeUnknown(f"{address} is a learner: it becomes a voter when it has caught up")
            raise ChangeUnknown(f"{address} is not known to be a member yet")

    async def remove_member(self, address: str, *, deadline: float) -> None:
        """Take ``address`` out; it stops. Nothing if it is no member.

        A leader that is to go hands over first and does no more (D37): ask again where leadership went.

        Raises:
            NotLeader: Nothing was removed; ask the leader that is named.
            ChangeRefused: Nothing was done, and why.
            ChangeUnknown: Not committed by the deadline.
        """
        engine = self._member.engine
        if address == self._me and engine.role is Role.LEADER:
            raise NotLeader(await self.transfer_leadership(None, deadline=deadline))
        await self._patiently(lambda: engine.membership.remove_member(address), deadline)
        gone = await self._until(lambda: address not in engine.members and engine.shared.committed, deadline)
        if not gone:
            raise ChangeUnknown(f"the removal of {address} is not known to be committed")

    async def transfer_leadership(self, to: str | None, *, deadline: float) -> str:
        """Hand leadership to ``to``, or to the most caught-up voter; return the new leader.

        Raises:
            NotLeader: Nothing was done.
            ChangeRefused: Nothing was done, and why.
            ChangeUnknown: Nobody else was seen to lead by the deadline.
        """
        member = self._member
        engine = member.engine
        engine.membership.may_hand_over(to)
        term = engine.term
        # While it is tried nothing is appended, so it is not tried for ever.
        give_up = min(deadline, asyncio.get_running_loop().time() + HANDOVER_S)
        while engine.role is Role.LEADER and engine.term == term and member.hand_over(to):
            if asyncio.get_running_loop().time() >= give_up:
                raise ChangeUnknown(f"{to or 'no other voter'} has not taken over")
            await asyncio.sleep(HANDOVER_STEP_S)
        if not await self._until(lambda: engine.leader is not None and engine.term > term, deadline):
            raise ChangeUnknown("nobody is known to lead yet")
        leader = engine.leader
        if leader is None or leader == self._me:
            raise ChangeUnknown("this member leads again")
        return leader

    async def save_snapshot(self, *, deadline: float) -> SnapshotFile:
        """Store an image of the state as it is now; the file can be copied and restored elsewhere.

        Any member can do that: the image is of what was applied there.

        Raises:
            ChangeRefused: There is nothing to store, or it could not be stored.
            ChangeUnknown: Not stored by the deadline.
        """
        member = self._member
        engine = member.engine
        index, failures = engine.applied_index, engine.images.failures

        def done() -> bool:
            held = member.images.image()
            if held is not None and held[0] >= index:
                return True
            if engine.images.failures > failures:
                raise ChangeRefused(f"the snapshot cannot be stored: {engine.images.error}")
            engine.images.save()
            member.perform()
            return False

        if not await self._until(done, deadline):
            raise ChangeUnknown("the snapshot is not stored yet")
        try:
            return await member.images.as_file()
        except OSError as error:
            raise ChangeRefused(f"the snapshot cannot be stored: {error.strerror or error}") from error

    async def restore_snapshot(self, image: bytes, *, deadline: float) -> None:
        """Replace log and state by the contents of a snapshot file; only in a cluster of one.

        What was written since the snapshot was made is gone; a new term begins.

        Raises:
            NotLeader: Nothing was done.
            ChangeRefused: Nothing was done, and why.
            ChangeUnknown: Not durable by the deadline; it goes on.
        """
        member = self._member
        engine = member.engine
        engine.images.may_restore()
        restoring = asyncio.ensure_future(member.restore(image))
        member.keep(restoring)
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(restoring)
        except TimeoutError as error:
            restoring.add_done_callback(_say_how_it_ended)
            raise ChangeUnknown("the snapshot is being restored") from error
        if not await self._until(lambda: engine.leads, deadline):
            raise ChangeUnknown("the snapshot is restored, nobody leads yet")

    async def _patiently(self, change: Callable[[], int | None], deadline: float) -> None:
        """Make a change; one that is refused for what soon passes, such as another change, is tried again.

        Raises:
            NotLeader, ChangeRefused: Nothing was done.
        """
        loop = asyncio.get_running_loop()
        give_up = min(deadline, loop.time() + PATIENCE_S)
        while True:
            try:
                change()
                self._member.perform()
                return
            except ChangeNotYet:
                if loop.time() >= give_up or self._closed:
                    raise
            await asyncio.sleep(PATIENCE_STEP_S)

    async def _until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait until ``condition``, which is asked again at each change; False at the deadline, or when the
        member closes.
        """
        while not condition():
            try:
                async with asyncio.timeout_at(deadline):
                    await self._change.wait()
            except TimeoutError:
                return False
            if self._closed:
                return False
        return True


def _say_how_it_ended(restoring: asyncio.Future[None]) -> None:
    """Of a restore that took longer than its caller has waited."""
    error = None if restoring.cancelled() else restoring.exception()
    if error is None:
        logger.info("snapshot restored after its deadline")
    else:
        logger.error("snapshot not restored error=%s", error)
