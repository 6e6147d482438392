"""Changes of the members and of the leader, made by the leader.

The leader adds or removes one member at a time, and hands over leadership. This module repairs PySyncObj's
defects D35 and D37 (docs/pysyncobj-defects.md).
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

#: A learner that lacks fewer entries than this number counts as caught up, because the missing entries are
#: probably on their way.
CAUGHT_UP_ENTRIES: Final = 128
#: A member counts as present for this number of election timeouts after its last answer, because it may only
#: have paused.
ALIVE_TIMEOUTS: Final = 4


class Membership(EnginePart):
    """The part of the engine for changes of the members and of the leader."""

    def __init__(self, shared: Shared, leading: Leading) -> None:
        super().__init__(shared)
        self._leading = leading

    # ---- the configuration in force

    def adopt_configuration(self) -> None:
        """Use the newest configuration in the log from now on, and keep links to its members."""
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
        """Append a new configuration as the leader, and return its index.

        The former configuration and an entry of this term must be committed first (repairs PySyncObj defect
        D35). Otherwise two majorities without a common member could exist. A leader never appends a
        configuration in which it does not vote (repairs PySyncObj defect D37). A removed member never
        receives the entry about its removal, because the leader sends it no entries from this entry on.

        Raises:
            ChangeNotYet: The change is not possible at present; nothing was appended.
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
        """Read the clock at the beginning of an event, and check that this member leads.

        Raises:
            NotLeader: This member does not lead, or has stopped.
        """
        if not self._begins() or self._library.state != LEADER:
            raise NotLeader(self._library.leader)

    def _may_change(self) -> None:
        """Read the clock at the beginning of an event, and check that this member may change the cluster.

        Raises:
            NotLeader, ChangeRefused: This member may not change the cluster now.
        """
        self._must_lead()
        if self._clock() < self._leading.handing_over_until:
            raise ChangeNotYet("leadership is being handed over; ask again")
        if self.shared.restoring:
            raise ChangeNotYet("a snapshot is being restored; ask again")

    def add_member(self, member: str) -> int | None:
        """Append the configuration with ``member`` as a learner, and return its index.

        Return None if ``member`` is already a learner or voter. As soon as the learner has caught up, the
        leader appends another entry that makes the learner a voter.

        Raises:
            NotLeader, ChangeRefused: The member cannot be added; nothing was changed.
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
        """Make a learner a voter once it has nearly all entries.

        A voter without entries would make a majority harder to reach.
        """
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
        """Append the configuration without ``member``, and return its index.

        Return None if the configuration in force does not name ``member``.

        Raises:
            NotLeader, ChangeRefused: The member cannot be removed; nothing was changed. To remove the leader,
                hand over leadership first (repairs PySyncObj defect D37).
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
        """Return True if ``voter`` answers this leader and did not lose its data.

        PySyncObj also counts a voter that has lost its data (its defect D25).
        """
        age = self._clock() - self._contact.member_date(voter)
        return self._leading.trusted(voter) is not None and age < ALIVE_TIMEOUTS * self.shared.timeout

    def notify_removed(self) -> None:
        """Send :class:`.messages.Removed` to removed members once the leader has committed the removal."""
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
        """Stop this member because a leader says that it removed this member.

        Ignore the message in these cases:

        - A leader of an older term sent the message. This leader may not know that this member was added
          again.
        - This member is empty, or does not belong to the cluster. For example, the leader failed before it
          committed the addition of this member. Then this member waits until a leader adds it again.

        A member belongs to the cluster if the newest committed configuration in its log names it. If the log
        has no committed configuration, the cluster still has its first members. In this case a voter belongs
        to the cluster, even if its disk was emptied and it has caught up since.
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
        """Ask ``to``, or any follower that holds the whole log, to take over leadership.

        This member appends no entry for one election timeout, so that the follower can receive the whole log.
        Return False if this member does not lead any more, or is the only voter.
        """
        if not self._begins() or self._library.state != LEADER or not self.shared.other_voters:
            return False
        self._leading.handing_over_until = self._clock() + self.shared.timeout
        self._leading.hand_over(to)
        self._effects.wake()
        return True

    def may_hand_over(self, to: str | None) -> None:
        """Check that a member can take over leadership.

        Raises:
            NotLeader, ChangeRefused: No member can take over; the text says why.
        """
        self._must_lead()
        others = self.shared.other_voters
        if to == self._me:
            raise ChangeRefused(f"{to} leads already")
        if to not in (None, *others):
            raise ChangeRefused(f"{to} is none of the voters {','.join(self.shared.configuration.voters)}")
        if not any(self._counts_now(name) for name in others if to in (None, name)):
            raise ChangeRefused(f"{to or 'each other voter'} is out of reach, or has not caught up yet")
