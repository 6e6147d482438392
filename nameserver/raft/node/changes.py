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

#: Longest time in seconds for which a leader tries to hand over leadership, when it closes or an operator
#: asks.
HANDOVER_S: Final = 1.5
#: Seconds between two attempts to hand over leadership.
HANDOVER_STEP_S: Final = 0.01
#: Longest time in seconds for which a change waits for the end of another change, or for a new leader that is
#: not ready yet.
PATIENCE_S: Final = 2.0
#: Seconds between two attempts of a waiting change.
PATIENCE_STEP_S: Final = 0.02


class ChangedMember(Protocol):
    """The methods of a member that :class:`Changes` needs."""

    images: ImageFiles

    @property
    def engine(self) -> Engine:
        """The engine, which makes the member's decisions.

        Raises:
            NotLeader: The member has not started yet.
        """

    def perform(self) -> None:
        """Perform the engine's effects."""

    def hand_over(self, to: str | None = None) -> bool:
        """Ask ``to``, or any follower that holds the whole log, to take over leadership.

        Return False if this member does not lead any more, or is the only voter.
        """

    async def restore(self, raw: bytes) -> None:
        """Replace log and state by the content of a snapshot file."""

    def keep(self, task: asyncio.Future[None]) -> None:
        """Make the member wait for the end of ``task`` before it closes its files."""


class Changes:
    """Changes of the cluster. Each call waits for the outcome of its change.

    Only the leader makes changes, unless a method says otherwise. Deadlines are in seconds of the loop's
    clock.
    """

    def __init__(self, member: ChangedMember, *, me: str) -> None:
        self._member = member
        self._me = me
        # look_again() sets this event and clears it at once, which wakes all calls that wait in _until().
        self._change = asyncio.Event()
        self._closed = False

    def look_again(self) -> None:
        """Check all waiting conditions again, because the member's state may have changed."""
        self._change.set()
        self._change.clear()

    def close(self) -> None:
        """End all waits, because the member closes."""
        self._closed = True
        self.look_again()

    async def add_member(self, address: str, *, deadline: float) -> None:
        """Add the member ``address`` as a learner, and wait until it has caught up and is a voter.

        If ``address`` is a voter already, nothing changes. The operator starts the new member's process with
        an empty disk. The option ``peers`` of this process must name the present members and the new member.
        The leader makes the learner a voter when it has caught up, even after the deadline of this call.

        Raises:
            NotLeader: This member does not lead; nothing was changed.
            ChangeRefused: Nothing was changed; the text says why.
            ChangeUnknown: ``address`` was not a voter by the deadline. If it is a learner, it can still
                become a voter.
        """
        engine = self._member.engine
        await self._patiently(lambda: engine.membership.add_member(address), deadline)
        if not await self._until(lambda: address in engine.voters and engine.shared.committed, deadline):
            if address in engine.shared.configuration.learners:
                raise ChangeUnknown(f"{address} is a learner: it becomes a voter when it has caught up")
            raise ChangeUnknown(f"{address} is not known to be a member yet")

    async def remove_member(self, address: str, *, deadline: float) -> None:
        """Remove the member ``address``, which then stops. Do nothing if there is no such member.

        If ``address`` is the leader itself, the leader only hands over leadership (repairs PySyncObj defect
        D37). The caller must then ask the new leader to remove the member.

        Raises:
            NotLeader: Nothing was removed; ask the leader that the error names.
            ChangeRefused: Nothing was changed; the text says why.
            ChangeUnknown: The change was not committed by the deadline.
        """
        engine = self._member.engine
        if address == self._me and engine.role is Role.LEADER:
            raise NotLeader(await self.transfer_leadership(None, deadline=deadline))
        await self._patiently(lambda: engine.membership.remove_member(address), deadline)
        gone = await self._until(lambda: address not in engine.members and engine.shared.committed, deadline)
        if not gone:
            raise ChangeUnknown(f"the removal of {address} is not known to be committed")

    async def transfer_leadership(self, to: str | None, *, deadline: float) -> str:
        """Hand leadership to ``to``, or to any voter that holds the whole log. Return the new leader.

        Raises:
            NotLeader: This member does not lead; nothing was changed.
            ChangeRefused: Nothing was changed; the text says why.
            ChangeUnknown: This member saw no other leader by the deadline.
        """
        member = self._member
        engine = member.engine
        engine.membership.may_hand_over(to)
        term = engine.term
        # Bound the time of all attempts, because a leader appends no entries while it hands over leadership.
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
        """Store a snapshot of the present state, and return its file, which an operator can copy and restore.

        Any member can store a snapshot. The snapshot covers the entries that this member has applied.

        Raises:
            ChangeRefused: There is no state to store, or the snapshot could not be stored.
            ChangeUnknown: The snapshot was not stored by the deadline.
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
            async with asyncio.timeout_at(deadline):
                return await member.images.as_file()
        except TimeoutError as error:  # TimeoutError is an OSError, so catch it first
            raise ChangeUnknown("the disk has not answered yet") from error
        except OSError as error:
            engine.images.save()  # store a new snapshot, because the file may be damaged
            member.perform()
            why = f"{error.strerror or error}; ask again, or ask another member"
            raise ChangeRefused(f"the snapshot cannot be stored: {why}") from error

    async def restore_snapshot(self, image: bytes, *, deadline: float) -> None:
        """Replace log and state by the content of a snapshot file, in a cluster of one member.

        All changes since the snapshot was made are lost, and a new term begins.

        Raises:
            NotLeader: This member does not lead; nothing was changed.
            ChangeRefused: Nothing was changed; the text says why.
            ChangeUnknown: The restored state was not durable by the deadline; the restore continues.
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
        """Make a change. Try again while another change, or another temporary reason, prevents it.

        Raises:
            NotLeader, ChangeRefused: The change was not made.
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
        """Wait until ``condition`` is true, and check it at each change of the member's state.

        Return False at the deadline, or when the member closes.
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
    """Log the result of a restore whose caller no longer waits."""
    error = None if restoring.cancelled() else restoring.exception()
    if error is None:
        logger.info("snapshot restored after its deadline")
    else:
        logger.error("snapshot not restored error=%s", error)
