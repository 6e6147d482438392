"""D35, D37: changes of the cluster, which its leader makes: members come and go one at a time, leadership
moves.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import Final

from routekeeper.nameserver.raft.library import LEADER
from routekeeper.nameserver.raft.types import ChangeNotYet, ChangeRefused, NotLeader
from routekeeper.remoting.addresses import is_unspecified, split_address
from routekeeper.remoting.errors import LocalProtocolError

from .effects import KeepLinks, Leave
from .leading import Leading
from .log import CONFIGURATION, FIRST_INDEX
from .members import Configuration, encode_configuration, majority
from .messages import Removed
from .part import EnginePart, Shared

logger = logging.getLogger(__name__)

#: A learner that lacks fewer entries than this has caught up: they are on their way.
CAUGHT_UP_ENTRIES: Final = 128
#: A member that answered within so many election timeouts is there: a pause of it is no absence.
ALIVE_TIMEOUTS: Final = 4


class Membership(EnginePart):
    """Changes of members and of the leader, as one member makes them or learns of them."""

    def __init__(self, shared: Shared, leading: Leading) -> None:
        super().__init__(shared)
        self._leading = leading

    # ---- what is in force

    def adopt_configuration(self) -> None:
        """Put in force what the log holds, and tell everyone concerned if that is another configuration."""
        former = self.shared.configuration
        if self._log.configuration is not former:
            self._leading.adopt_configuration()
        configuration = self.shared.configuration
        if configuration != former:
            logger.info(
                "members changed me=%s index=%d voters=%s learners=%s",
                self._me,
                self._log.configuration_index,
                ",".join(configuration.voters),
                ",".join(configuration.learners) or "none",
            )
            self._effects.add(KeepLinks(configuration.members))
            self._effects.wake()

    # ---- members

    def _change(self, configuration: Configuration) -> int:
        """Append another configuration as the leader; return its index.

        D35: the one before must be committed, and an entry of this term, else two majorities without a common
        member could come about. D37: a leader never appends one in which it does not vote. So the member that
        goes never holds the entry that removes it: it is in force here, and is not sent there.

        Raises:
            ChangeNotYet: Nothing was done.
        """
        if not self._library.leads:
            raise ChangeNotYet("the leader has not committed an entry of its own term yet; ask again")
        if not self.shared.committed:
            raise ChangeNotYet("another change of the members is under way; ask again")
        if self._me not in configuration.voters:
            raise ChangeNotYet("the leader cannot remove itself")
        index = self._leading.add(CONFIGURATION + encode_configuration(configuration))
        self.adopt_configuration()
        return index

    def _must_lead(self) -> None:
        """Look at the clock.

        Raises:
            NotLeader: Another one leads, or nobody, or this member takes part no more.
        """
        if not self._begins() or self._library.state != LEADER:
            raise NotLeader(self._library.leader)

    def _may_change(self) -> None:
        """Look at the clock.

        Raises:
            NotLeader, ChangeRefused: Nothing was done.
        """
        self._must_lead()
        if self._clock() < self._leading.handing_over_until:
            raise ChangeNotYet("leadership is being handed over; ask again")

    def add_member(self, member: str) -> int | None:
        """Append the configuration with ``member`` as a learner; None if it is a learner or voter already.

        The leader makes it a voter by another entry as soon as it has caught up.

        Raises:
            NotLeader, ChangeRefused: Nothing was done.
        """
        self._may_change()
        configuration = self.shared.configuration
        if member in configuration.members:
            return None
        try:
            host, _ = split_address(member)
        except LocalProtocolError as error:
            raise ChangeRefused(str(error)) from error
        if is_unspecified(host):
            raise ChangeRefused(f"address {member} names no machine: the others could not dial it")
        return self._change(configuration.with_learner(member))

    def consider_promotion(self) -> None:
        """A learner that is no longer empty and has nearly everything becomes a voter."""
        configuration = self.shared.configuration
        if not configuration.learners or not self.shared.committed:
            return
        for name in configuration.learners:
            progress = self._leading.trusted(name)
            if (
                progress is not None
                and progress.transfer is None
                and progress.match >= self._log.configuration_index
                and progress.match + CAUGHT_UP_ENTRIES > self._log.last_index
            ):
                logger.info("learner becomes a voter member=%s match=%d", name, progress.match)
                with contextlib.suppress(ChangeNotYet):
                    self._change(configuration.promoting(name))
                return

    def remove_member(self, member: str) -> int | None:
        """Append the configuration without ``member``; None if it is not in the one in force.

        Raises:
            NotLeader, ChangeRefused: Nothing was done. This member itself must hand over first (D37).
        """
        self._may_change()
        if member not in self.shared.configuration.members:
            return None
        configuration = self.shared.configuration.without(member)
        here = [name for name in configuration.voters if name == self._me or self._counts_now(name)]
        if len(here) < majority(len(configuration.voters)):
            raise ChangeNotYet(
                f"of the voters that would remain, {','.join(configuration.voters) or 'none'}, only "
                f"{','.join(here) or 'none'} can be reached: no majority; remove those that are down first"
            )
        return self._change(configuration)

    def _counts_now(self, voter: str) -> bool:
        """Return whether ``voter`` answers this leader, and has all that it once promised (D25)."""
        age = self._clock() - self._contact.member_date(voter)
        return self._leading.trusted(voter) is not None and age < ALIVE_TIMEOUTS * self.shared.timeout

    def notify_removed(self) -> None:
        """Notify members that were removed, as a leader that knows it."""
        if not self.shared.committed:
            return
        members = self.shared.configuration.members
        for peer, greeting in self._effects.greeted.items():
            if peer in members or peer in self._leading.notified_removed:
                continue
            if not greeting.empty:
                self._leading.notified_removed.add(peer)
                self._effects.send(peer, Removed(self._library.term, self._log.configuration_index))

    def on_removed(self, peer: str, m: Removed) -> None:
        """A leader of an older term may not know that this member was added again.

        And anyone who was only about to be added, by a leader that fell before that was committed, was not
        removed: it waits to be added again. Without a committed change in its log it cannot be a voter, so a
        voter is a member since the founding, also if it was emptied since and no founder knows its instance.
        """
        index, committed = self._log.committed_configuration(self._library.commit_index)
        was_member = self._me in committed.members if index > FIRST_INDEX else self.shared.standing.voter
        if m.term < self._library.term or self.shared.empty or not was_member:
            return
        self.shared.become(replace(self.shared.standing, removed=True))
        self._effects.stopped = True
        self._effects.add(Leave(f"{peer}, which leads term {m.term}, says that {self._me} was removed"))

    # ---- leadership

    def hand_over(self, to: str | None = None) -> bool:
        """Ask ``to``, or the best follower, to take over; False if this member does not lead (any more).

        For one election timeout nothing is appended.
        """
        if not self._begins() or self._library.state != LEADER or not self.shared.other_voters:
            return False
        self._leading.handing_over_until = self._clock() + self.shared.timeout
        self._leading.hand_over(to)
        self._effects.wake()
        return True

    def may_hand_over(self, to: str | None) -> None:
        """Check that there is somebody to take over.

        Raises:
            NotLeader, ChangeRefused: And why not.
        """
        self._must_lead()
        others = self.shared.other_voters
        if to == self._me:
            raise ChangeRefused(f"{to} leads already")
        if to not in (None, *others):
            raise ChangeRefused(f"{to} is none of the voters {','.join(self.shared.configuration.voters)}")
        if not any(self._counts_now(name) for name in others if to in (None, name)):
            raise ChangeRefused(f"{to or 'each other voter'} is out of reach, or has not caught up yet")
