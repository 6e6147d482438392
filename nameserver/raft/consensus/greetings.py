"""Greetings: the first message on each link, which carries the sender's member state.

A member that never took part in a cluster is empty. An empty member either forms a cluster together with
other empty members, or receives a log from a leader. In the second case, the member joins the leader's
cluster as a learner, and becomes a voter once it has caught up. Without learners, a member that lost its data
could vote twice in one term (PySyncObj defect D25).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from .leading import Leading
from .members import majority
from .messages import Append, Greeting, MessageError
from .part import EnginePart, Shared

logger = logging.getLogger(__name__)


class Greetings(EnginePart):
    """The greetings that one member received and sent.

    Attributes:
        said: The newest greeting of each linked peer.
        contact_limit: The smallest election timeout, in seconds, of this member and of all greetings so far.
    """

    def __init__(self, shared: Shared, leading: Leading) -> None:
        super().__init__(shared)
        self._leading = leading
        self.said = self._effects.greeted
        self._link_numbers: dict[str, int] = {}  # for each peer, the number of links with a greeting so far
        self.contact_limit = self.shared.timeout
        # A term, and the last index of the leader's log when this learner received the leader's first message
        # of this term (see came_at)
        self._learner_base: tuple[int, int] | None = None
        self._said_waiting_for: tuple[str, ...] = ()
        self._said_distrusted: tuple[str, ...] = ()

    # ---- known members

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """The members for which this member still waits at its first start.

        The result is empty if a linked peer already belongs to a cluster, because this member then joins this
        cluster as a learner.
        """
        if not self.shared.empty or any(not greeting.empty for greeting in self.said.values()):
            return ()
        return tuple(member for member in self.shared.other_members if member not in self.said)

    @property
    def distrusted(self) -> tuple[str, ...]:
        """Voters that may lack acknowledged entries, if all other voters together are no majority.

        If the result is not empty, no member can tell which entries were committed. The result is empty while
        the other voters are a majority, or while this member knows a leader.
        """
        if self.shared.empty or self._library.leader is not None:
            return ()
        voters = self.shared.configuration.voters
        known = {**self.said, self._me: self._mine}
        # Do not count an empty member as lost, because it may soon form the cluster with this member.
        lost = [name for name in voters if name in known and not (known[name].voter or known[name].empty)]
        return () if len(voters) - len(lost) >= majority(len(voters)) else tuple(lost)

    @property
    def best(self) -> str:
        """The member with the newest last entry, among this member and the members linked to it."""
        known = {**self.said, self._me: self._mine}
        return max(sorted(known), key=lambda name: (known[name].last_term, known[name].last_index))

    def look_for_trust(self) -> None:
        """Log a warning once if no member can become leader until an operator acts."""
        distrusted = self.distrusted
        if distrusted and distrusted != self._said_distrusted:
            self._say(
                self._me,
                "no majority of members is trusted: acknowledged changes may be missing at %s; if nobody "
                "else comes back, start %s, whose log is the best, with --force-new-cluster",
                ",".join(distrusted),
                self.best,
                level=logging.WARNING,
            )
        self._said_distrusted = distrusted

    @property
    def linked(self) -> frozenset[str]:
        """Linked members of the configuration, and the linked leader even if the configuration lacks it."""
        return frozenset(self.said.keys() & {*self.shared.configuration.members, self._library.leader})

    def link_number(self, peer: str) -> int:
        """Return the number of the present link to ``peer``; 0 if there is no link.

        A higher number than before means a new link. Messages of the former link may be lost.
        """
        return self._link_numbers[peer] if peer in self.said else 0

    @property
    def http_addresses(self) -> dict[str, str]:
        """The HTTP addresses of the members that have announced an address, this member included."""
        known, members = {**self.said, self._me: self._mine}, self.shared.configuration.members
        return {name: known[name].http for name in members if name in known and known[name].http}

    # ---- greetings

    def receive(self, peer: str, greeting: Greeting) -> None:
        """Handle the greeting of ``peer``.

        Raises:
            MessageError: The peer does not belong to this cluster (repairs PySyncObj defect D10).
        """
        self._check_cluster(peer, greeting)
        first = peer not in self.said
        self.said[peer] = greeting
        self.contact_limit = min(self.contact_limit, greeting.election_timeout_ms / 1000)
        if first and greeting.durability not in ("", self.shared.config.durability):
            self._say(
                peer,
                "members differ in durability peer=%s theirs=%s mine=%s: what a majority acknowledges is as "
                "safe as the weakest of it",
                peer,
                greeting.durability,
                self.shared.config.durability,
                level=logging.WARNING,
            )
        if first:
            self._link_numbers[peer] = self._link_numbers.get(peer, 0) + 1
            voter, empty = greeting.voter, greeting.empty
            self._say(peer, "member linked peer=%s voter=%s empty=%s", peer, voter, empty)
            self._contact.forget(peer)
            self._leading.link_changed(peer)
        self.consider_founding()
        self.look_for_trust()

    def _check_cluster(self, peer: str, greeting: Greeting) -> None:
        """Refuse a member of another cluster (PySyncObj defect D10). An empty member belongs to no cluster.

        This member's configuration can lack the peer for two reasons. The peer was added while this member
        was away, or the peer was removed while the peer itself was away. In both cases this member accepts
        the peer, but does not count it in a majority.

        Raises:
            MessageError: The peer must be refused.
        """
        mine, theirs = self.shared.standing.cluster, greeting.cluster
        if theirs and mine != theirs and self.shared.empty == greeting.empty:
            raise MessageError(f"{peer} is of another cluster: {theirs}, this is {mine}")
        known = peer in self.shared.configuration.members
        if not known and not self.shared.empty and (greeting.empty or mine != theirs):
            raise MessageError(f"{peer} is no member")

    @property
    def _mine(self) -> Greeting:
        """This member's greeting."""
        standing, config, log = self.shared.standing, self.shared.config, self._log
        return Greeting(
            standing.instance,
            standing.voter,
            self.shared.empty,
            config.election_timeout_ms,
            dict(standing.founders),
            self._library.term,
            standing.cluster,
            config.http,
            log.last_term,
            log.last_index,
            config.durability,
        )

    def say(self, peer: str) -> None:
        """Send this member's greeting to ``peer``."""
        self._effects.send(peer, self._mine)

    def say_to_all(self) -> None:
        """Send every linked peer a new greeting, because this member's role changed."""
        for peer in sorted(self._effects.links):
            self.say(peer)

    # ---- member state

    def consider_founding(self) -> None:
        """Form a cluster if this member is empty, and all other founders are linked and empty."""
        if not self.shared.empty:
            return
        founders = self._founders()
        if not founders:
            if (waiting := self.waiting_for) != self._said_waiting_for:
                self._said_waiting_for = waiting
                missing = ",".join(waiting) or "none: a cluster exists"
                self._say(self._me, "first start waits for members=%s", missing)
            return
        self.shared.become(replace(self.shared.standing, voter=True, founders=founders))
        members = ",".join(self.shared.configuration.members)
        logger.info("cluster founded me=%s members=%s", self._me, members)
        self.say_to_all()

    def _founders(self) -> dict[str, str]:
        """Return the instance of each founder, this member included; empty if the founding must wait.

        An instance is the random name of a member's data directory (see :class:`.members.MemberState`).
        """
        me, mine, said = self._me, self.shared.standing.instance, self.said
        others = self.shared.other_members
        for greeting in said.values():
            if not greeting.empty and greeting.founders.get(me) == mine:
                return greeting.founders
        if all(member in said and said[member].empty for member in others):
            return {member: said[member].instance for member in others} | {me: mine}
        return {}

    def join(self, leader: str) -> list[str]:
        """Join the cluster of ``leader``, because ``leader`` has sent log entries to this empty member.

        This member joins even if it would otherwise soon form another cluster.

        Returns:
            Peers whose newest greeting names another cluster than the leader's.
        """
        cluster = self.said[leader].cluster
        if not cluster or cluster == self.shared.standing.cluster:
            return []
        logger.info("cluster joined me=%s cluster=%s leader=%s", self._me, cluster, leader)
        self.shared.become(replace(self.shared.standing, cluster=cluster))
        return [
            peer for peer, greeting in self.said.items() if greeting.cluster != cluster and not greeting.empty
        ]

    def came_at(self, term: int, last: int) -> int:
        """Return the last index of the leader's log when the first message of ``term`` arrived here.

        Args:
            last: The last index that the leader's log has now.
        """
        if self._learner_base is None or self._learner_base[0] != term:
            self._learner_base = (term, last)
        return self._learner_base[1]

    def leave_learning(self, leader: str, m: Append) -> None:
        """Make this learner a voter again once it has caught up (repairs PySyncObj defect D25).

        The learner has caught up when it holds a committed entry that the leader appended after the learner
        came back. A learner does not count, so the majority that committed this entry consists of other
        members.
        """
        library = self._library
        if m.term != library.term or leader != library.leader:
            return
        done = (
            m.commit > self.came_at(m.term, m.last)
            and self._log.term_at(m.commit) == m.term
            and min(library.commit_index, self._log.durable_index) >= m.commit
        )
        if done:
            # Before it lost its data, this member may have voted in the present term. Recording a vote for
            # the leader is safe, because no other member can be elected in this term any more.
            library.remember_vote(leader)
            self._effects.store_vote()
            self.shared.become(replace(self.shared.standing, voter=True, doubtful=False))
            logger.info("learner caught up me=%s index=%d term=%d", self._me, m.commit, m.term)
            self.say_to_all()
