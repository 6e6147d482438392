"""RaftMember: what the layer above holds in its hands."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable
from typing import Final

from .driver import Driver
from .library import check_library
from .types import ChangeRefused, RaftConfig, Role, SnapshotInfo, StateMachine

logger = logging.getLogger(__name__)

#: How long a closing leader waits for another one.
HANDOVER_S: Final = 1.5
HANDOVER_STEP_S: Final = 0.01


class RaftMember:
    """One member of a Raft cluster on the running loop.

    Args:
        machine: The replicated state.
        on_peer_message: (sender, message) of application messages from other members.
        on_change: Role, term, leader, indexes, links or contact may have changed; coalesced, on the loop.
        on_fatal: The member cannot go on (broken disk, unreadable entry) and takes part no more; the argument
            is one line. By default the process ends: whatever it would still answer could be wrong.

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
    ) -> None:
        config.validate()
        check_library()
        self.bound = ""
        self._config = config
        self._machine = machine
        self._on_peer_message = on_peer_message
        self._on_change = on_change
        self._on_fatal = on_fatal if on_fatal is not None else _end_process
        self._driver: Driver | None = None

    async def start(self) -> None:
        """Lock, recover, bind, take part; does not wait for a quorum.

        Replays what the journal knows to be committed through ``machine.apply(live=False)``.

        Raises:
            RaftStartError: With one line for the operator.
        """
        driver = Driver(
            self._config,
            self._machine,
            on_peer_message=self._on_peer_message,
            on_change=self._on_change,
            on_fatal=self._on_fatal,
        )
        self._driver = driver
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
        if handover:
            for _ in range(round(HANDOVER_S / HANDOVER_STEP_S)):
                if not driver.engine.linked or not driver.engine.hand_over():
                    break
                await asyncio.sleep(HANDOVER_STEP_S)
        await driver.close()

    # ---- entries and messages

    def append(self, payload: bytes, *, term: int) -> int | None:
        """Append one entry if this member leads in ``term`` right now; return its index, else None.

        Raises:
            ValueError: The payload is above ``entry_size_max``.
        """
        return self._driver.engine.append(payload, term=term) if self._driver is not None else None

    def send(self, member: str, message: bytes) -> bool:
        """Send an application message; False if there is no link, or far too much waits in it.

        First in, first out for each link, in order with the engine's own messages.
        """
        return self._driver is not None and self._driver.send_application(member, message)

    # ---- changes of the cluster: on the leader only; deadlines are times of the loop

    async def add_member(self, address: str, *, deadline: float) -> None:
        """Take ``address`` in: a learner first, a voter once it has caught up. Nothing if it is a voter.

        Raises:
            NotLeader: Nothing was done.
            ChangeRefused: Nothing was done, and why.
            ChangeUnknown: Not a voter by the deadline; it may be a learner, and asking again goes on from there.
        """
        raise ChangeRefused("not offered yet")

    async def remove_member(self, address: str, *, deadline: float) -> None:
        """Take ``address`` out; it stops. A leader hands over first, then answers :class:`NotLeader`.

        Raises:
            NotLeader: Nothing was done here; ask the leader that is named.
            ChangeRefused: Nothing was done, and why.
            ChangeUnknown: Not committed by the deadline.
        """
        raise ChangeRefused("not offered yet")

    async def transfer_leadership(self, to: str | None, *, deadline: float) -> str:
        """Hand leadership to ``to``, or to the most caught-up voter; return the new leader.

        Raises:
            NotLeader: Nothing was done.
            ChangeRefused: Nothing was done, and why.
            ChangeUnknown: Nobody else was seen to lead by the deadline.
        """
        raise ChangeRefused("not offered yet")

    async def save_snapshot(self, *, deadline: float) -> SnapshotInfo:
        """Store an image of the state as it is now; the file can be copied and restored elsewhere.

        Raises:
            ChangeRefused: There is nothing to store, or it could not be stored.
            ChangeUnknown: Not stored by the deadline.
        """
        raise ChangeRefused("not offered yet")

    async def restore_snapshot(self, image: bytes, *, deadline: float) -> None:
        """Replace log and state by the contents of a snapshot file; only in a cluster of one.

        Raises:
            NotLeader: Nothing was done.
            ChangeRefused: Nothing was done, and why.
            ChangeUnknown: Not durable by the deadline.
        """
        raise ChangeRefused("not offered yet")

    # ---- state

    @property
    def role(self) -> Role:
        return self._driver.engine.role if self._driver is not None else Role.LEARNER

    @property
    def term(self) -> int:
        return self._driver.engine.term if self._driver is not None else 0

    @property
    def leader(self) -> str | None:
        return self._driver.engine.leader if self._driver is not None else None

    @property
    def commit_index(self) -> int:
        return self._driver.engine.commit_index if self._driver is not None else 0

    @property
    def applied_index(self) -> int:
        return self._driver.engine.applied_index if self._driver is not None else 0

    @property
    def leads(self) -> bool:
        """Leader, and an entry of its own term is committed."""
        return self._driver is not None and self._driver.engine.leads

    @property
    def linked(self) -> frozenset[str]:
        """Members with an authenticated link up."""
        return self._driver.engine.linked if self._driver is not None else frozenset()

    @property
    def members(self) -> tuple[str, ...]:
        """Voters and learners of the configuration in force: the stored one, whatever ``peers`` says."""
        return self._driver.engine.members if self._driver is not None else self._config.peers

    @property
    def voters(self) -> tuple[str, ...]:
        return self._driver.engine.members if self._driver is not None else self._config.peers

    @property
    def learners(self) -> tuple[str, ...]:
        """Members that were added and have not caught up yet: they do not count."""
        return ()

    @property
    def contact_limit(self) -> float:
        """Seconds: the smallest election timeout N that any member states."""
        if self._driver is None:
            return self._config.election_timeout_ms / 1000
        return self._driver.engine.contact_limit

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """First start: the members it still waits for."""
        return self._driver.engine.waiting_for if self._driver is not None else ()

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
        if self._driver is None:
            return {"role": str(self.role), "me": self._config.me}
        return self._driver.engine.status() | {"durability": self._config.durability, "me": self._config.me}


def _end_process(reason: str) -> None:
    """Rule 9: after a broken sync nothing this process says can be trusted; the reason is already logged."""
    logging.shutdown()
    os._exit(70)
