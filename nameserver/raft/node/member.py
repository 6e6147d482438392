"""RaftMember: what the layer above holds in its hands."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from routekeeper.nameserver.raft.consensus.members import majority
from routekeeper.nameserver.raft.library import check_library
from routekeeper.nameserver.raft.types import (
    ChangeNotYet,
    ChangeRefused,
    ChangeUnknown,
    NotLeader,
    RaftConfig,
    Role,
    StateMachine,
)

from .driver import Driver

if TYPE_CHECKING:
    from routekeeper.nameserver.raft.consensus.engine import Engine
    from routekeeper.nameserver.raft.storage.images import Image

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

#: How long a closing leader waits for another one.
HANDOVER_S: Final = 1.5
HANDOVER_STEP_S: Final = 0.01
#: How long a change waits for another one, or for a new leader to find its feet, and how often it looks.
PATIENCE_S: Final = 2.0
PATIENCE_STEP_S: Final = 0.02


def _asked(ask: Callable[[Engine], _T], before: _T) -> _T:
    """What the engine says whenever it is asked; ``before`` as long as there is none."""
    return property(lambda member: before if member._driver is None else ask(member._driver.engine))  # type: ignore[return-value]


class RaftMember:
    """One member of a Raft cluster on the running loop.

    Args:
        machine: The replicated state.
        on_peer_message: (sender, message) of application messages from other members.
        on_change: Role, term, leader, indexes, links or contact may have changed; coalesced, on the loop.
        on_fatal: The member cannot go on (broken disk, unreadable entry) and takes part no more; the argument
            is one line. By default the process ends: whatever it would still answer could be wrong.
        on_removed: The cluster removed this member, which takes part no more; the argument is one line. By
            default as ``on_fatal``.

    Raises:
        RaftStartError: The settings are wrong, or the library is not the one this was written for.
    """

    def __init__(
        self,
        config: RaftConfig,
        machine: StateMachine,
        *,
        on_peer_message: Callable[[str, bytes], None],
        on_change: Callable[[], None],
        on_fatal: Callable[[str], None] | None = None,
        on_removed: Callable[[str], None] | None = None,
    ) -> None:
        config.validate()
        check_library()
        self.bound = ""
        self._config = config
        self._on_change = on_change
        on_fatal = on_fatal or _end_process
        self._make_driver = partial(
            Driver,
            config,
            machine,
            on_peer_message=on_peer_message,
            on_change=self._changed,
            on_fatal=on_fatal,
            on_removed=on_removed or on_fatal,
        )
        self._change = asyncio.Event()  # set for an instant at each
        self._closed = False
        self._driver: Driver | None = None

    async def start(self) -> None:
        """Lock, recover, bind, take part; does not wait for a quorum.

        Replays what the journal knows to be committed through ``machine.apply(live=False)``.

        Raises:
            RaftStartError: With one line for the operator.
        """
        driver = self._driver = self._make_driver()
        try:
            self.bound = await driver.start()
        except BaseException:
            await driver.close()
            raise
        logger.info(
            "raft member started me=%s listen=%s durability=%s role=%s term=%d applied_index=%d",
            self._config.me,
            self.bound,
            self._config.durability,
            self.role,
            self.term,
            self.applied_index,
        )

    async def close(self, *, handover: bool = True) -> None:
        """Hand leadership over if asked to and possible, stop, close all files. Idempotent."""
        driver = self._driver
        if driver is None:
            return
        self._closed = True
        self._tell_waiters()
        if handover:
            for _ in range(round(HANDOVER_S / HANDOVER_STEP_S)):
                if not driver.engine.greetings.linked or not driver.hand_over():
                    break
                await asyncio.sleep(HANDOVER_STEP_S)
        await driver.close()

    # ---- entries and messages

    def append(self, payload: bytes, *, term: int) -> int | None:
        """Append one entry if this member leads in ``term`` right now; return its index, else None.

        Raises:
            ValueError: The payload is above ``entry_size_max``.
        """
        driver = self._driver
        if driver is None:
            return None
        index = driver.engine.append(payload, term=term)
        driver.perform()
        return index

    def send(self, member: str, message: bytes) -> bool:
        """Send an application message; False if there is no link, or far too much waits in it.

        First in, first out for each link, in order with the engine's own messages.
        """
        return self._driver is not None and self._driver.send_application(member, message)

    # ---- changes of the cluster: on the leader only; deadlines are times of the loop

    async def add_member(self, address: str, *, deadline: float) -> None:
        """Take ``address`` in: a learner first, a voter once it has caught up. Nothing if it is a voter.

        Its process is started with an empty disk and with the current members and itself as ``peers``.
        Whoever leads makes it a voter, also after this call has given up.

        Raises:
            NotLeader: Nothing was done.
            ChangeRefused: Nothing was done, and why.
            ChangeUnknown: Not a voter by the deadline; if it is a learner, it still becomes one later.
        """
        engine = self._running.engine
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
        engine = self._running.engine
        if address == self._config.me and engine.role is Role.LEADER:
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
        driver = self._running
        engine = driver.engine
        engine.membership.may_hand_over(to)
        term = engine.term
        # While it is tried nothing is appended, so it is not tried for ever.
        give_up = min(deadline, asyncio.get_running_loop().time() + HANDOVER_S)
        while engine.role is Role.LEADER and engine.term == term and driver.hand_over(to):
            if asyncio.get_running_loop().time() >= give_up:
                raise ChangeUnknown(f"{to or 'no other voter'} has not taken over")
            await asyncio.sleep(HANDOVER_STEP_S)
        if not await self._until(lambda: engine.leader is not None and engine.term > term, deadline):
            raise ChangeUnknown("nobody is known to lead yet")
        leader = engine.leader
        if leader is None or leader == self._config.me:
            raise ChangeUnknown("this member leads again")
        return leader

    async def save_snapshot(self, *, deadline: float) -> Image:
        """Store an image of the state as it is now; the file can be copied and restored elsewhere.

        Any member can do that: the image is of what was applied there.

        Raises:
            ChangeRefused: There is nothing to store, or it could not be stored.
            ChangeUnknown: Not stored by the deadline.
        """
        driver = self._running
        engine = driver.engine
        index, failures = engine.applied_index, engine.images.failures

        def done() -> bool:
            held = driver.images.image()
            if held is not None and held[0] >= index:
                return True
            if engine.images.failures > failures:
                raise ChangeRefused(f"the snapshot cannot be stored: {engine.images.error}")
            engine.images.save()
            driver.perform()
            return False

        if not await self._until(done, deadline):
            raise ChangeUnknown("the snapshot is not stored yet")
        try:
            return await driver.images.as_file()
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
        driver = self._running
        engine = driver.engine
        engine.images.may_restore()
        restoring = asyncio.ensure_future(driver.restore(image))
        driver.keep(restoring)
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(restoring)
        except TimeoutError as error:
            restoring.add_done_callback(_say_how_it_ended)
            raise ChangeUnknown("the snapshot is being restored") from error
        if not await self._until(lambda: engine.leads, deadline):
            raise ChangeUnknown("the snapshot is restored, nobody leads yet")

    @property
    def _running(self) -> Driver:
        if self._driver is None:
            raise NotLeader(None)
        return self._driver

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
                self._running.perform()
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

    def _changed(self) -> None:
        self._tell_waiters()
        self._on_change()

    def _tell_waiters(self) -> None:
        self._change.set()
        self._change.clear()

    # ---- state

    role: Role = _asked(lambda engine: engine.role, Role.LEARNER)
    term: int = _asked(lambda engine: engine.shared.library.term, 0)
    leader: str | None = _asked(lambda engine: engine.shared.library.leader, None)
    applied_index: int = _asked(lambda engine: engine.shared.library.applied_index, 0)
    #: Leader, and an entry of its own term is committed.
    leads: bool = _asked(lambda engine: engine.shared.library.leads, False)
    #: This member is a voter, by its own configuration and standing: no learner.
    votes: bool = _asked(lambda engine: engine.shared.votes, False)
    voters: tuple[str, ...] = _asked(lambda engine: engine.voters, ())
    commit_index: int = _asked(lambda engine: engine.commit_index, 0)
    #: Members with an authenticated link up.
    linked: frozenset[str] = _asked(lambda engine: engine.greetings.linked, frozenset())
    #: Voters and learners of the configuration in force: the stored one, whatever ``peers`` says.
    members: tuple[str, ...] = _asked(lambda engine: engine.members, ())
    #: Seconds: the smallest election timeout N that any member states.
    contact_limit: float = _asked(lambda engine: engine.greetings.contact_limit, 0.0)
    #: First start: the members it still waits for.
    waiting_for: tuple[str, ...] = _asked(lambda engine: engine.greetings.waiting_for, ())
    #: Voters that may lack what they acknowledged, if the rest is no majority: nobody leads then.
    distrusted: tuple[str, ...] = _asked(lambda engine: engine.greetings.distrusted, ())
    #: Of this member and those linked, the one with the best log.
    best: str = _asked(lambda engine: engine.greetings.best, "")

    def link_number(self, peer: str) -> int:
        """Tell links to ``peer`` apart, also if one took the place of another at once; 0 is none."""
        return self._driver.engine.greetings.link_number(peer) if self._driver is not None else 0

    def read_index_in(self, term: int) -> int | None:
        """Return what must be applied so as to miss nothing that a member answered; None if this member does
        not lead (:attr:`leads`) in ``term``.
        """
        return self._driver.engine.leading.read_index_in(term) if self._driver is not None else None

    def read_index_with(self, member: str, term: int) -> int | None:
        """As :meth:`read_index_in`; None also if this member and ``member``, a voter, are no majority."""
        enough = member in self.voters and majority(len(self.voters)) <= 2
        return self.read_index_in(term) if enough else None

    def contact_age(self) -> float:
        """Seconds since this member certainly belonged to the cluster (rule 8); inf if it never did."""
        return self._driver.engine.contact_age() if self._driver is not None else math.inf

    def in_contact(self) -> bool:
        """``contact_age() < contact_limit``, for one reading of the clock in nearly every call."""
        return self._driver is not None and self._driver.engine.in_contact()

    def member_age(self, member: str) -> float:
        """Leader: seconds since ``member`` certainly accepted it; inf if it never did in this term."""
        return self._driver.engine.member_age(member) if self._driver is not None else math.inf

    def status(self) -> dict[str, object]:
        """Figures for people and metrics; the keys are those of /v1/status and some more."""
        driver = self._running
        age = driver.images.age()
        certificates = driver.certificates
        left = {} if certificates is None else {"certificate_left_s": round(certificates.left_s, 3)}
        return (
            left
            | driver.engine.status()
            | {
                "snapshot_age_s": None if age is None else round(age, 3),
                "durability": self._config.durability,
                "me": self._config.me,
                # Operators send a secret there: only what members say that have proved to be members.
                "http": driver.engine.greetings.http_addresses if self._config.authenticated else {},
            }
        )


def _say_how_it_ended(restoring: asyncio.Future[None]) -> None:
    """Of a restore that took longer than whoever asked for it has waited."""
    error = None if restoring.cancelled() else restoring.exception()
    if error is None:
        logger.info("snapshot restored after its deadline")
    else:
        logger.error("snapshot not restored error=%s", error)


def _end_process(reason: str) -> None:
    """Rule 9: after a broken sync nothing this process says can be trusted; the reason is already logged."""
    logging.shutdown()
    os._exit(70)
