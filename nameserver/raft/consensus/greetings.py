"""Hellos, the first message on each link: what the others say of themselves, and this member of itself.

What it says is its standing. A member that never took part is empty. It founds a cluster with others that
are, or joins the one whose leader sends it a log: as a learner, until it has caught up (D25).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from .core import Surroundings
from .hardening import RaftCore
from .log import FIRST_INDEX
from .members import Configuration, Standing, found, waiting_for
from .messages import FORMAT, FORMAT_DURABLE, FORMAT_MAX, Append, Hello, MessageError
from .ports import Ports

if TYPE_CHECKING:
    from .engine import Engine

logger = logging.getLogger(__name__)


class Hellos:
    """Hellos heard and said by one member.

    Attributes:
        standing: What this member is; stored before it is acted upon.
        links: Peers to which a link is up.
        said: The newest hello of each of them that has said one.
        contact_limit: The smallest election timeout that any member ever stated to this one, in seconds.
    """

    def __init__(
        self,
        given: Surroundings,
        engine: Engine,
        ports: Ports,
        core: RaftCore,
        *,
        http: str,
        standing: Standing,
    ) -> None:
        self._me: Final = given.me
        self._log = given.log
        self._election_timeout_ms = given.election_timeout_ms
        self._engine = engine
        self._ports = ports
        self._core = core
        self._http = http
        self.standing = standing
        self.links: set[str] = set()
        self.said: dict[str, Hello] = {}
        self._greeted: dict[str, int] = {}  # links over which each peer has said one so far
        self.contact_limit = given.election_timeout_s
        self._learner_base: tuple[int, int] | None = None  # term, the leader's last index when we came
        self._durable_read: tuple[Standing, Configuration, bool] | None = None  # what it was found for, found
        self._said_waiting_for: tuple[str, ...] = ()

    # ---- what is known

    @property
    def empty(self) -> bool:
        """Nothing was ever promised or stored here."""
        return not self.standing.voter and self._log.last_index == FIRST_INDEX

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """First start: the members it still waits for."""
        members = self._core.configuration.members
        return waiting_for(self._me, members, self.said) if self.empty else ()

    @property
    def linked(self) -> frozenset[str]:
        """Members to which a link is up; and the leader, which may be one that is not known here yet."""
        return frozenset(self.said.keys() & {*self._core.configuration.members, self._core.leader_id})

    def link_number(self, peer: str) -> int:
        """Tell links to ``peer`` apart: they are counted, 0 is none. What went over another may be lost."""
        return self._greeted[peer] if peer in self.said else 0

    @property
    def read_by_all(self) -> int:
        """Rule 7: the highest format that every member said it reads."""
        others = [name for name in self._core.configuration.members if name != self._me]
        return min([FORMAT_MAX, *(self.standing.formats.get(name, FORMAT) for name in others)])

    @property
    def all_read_durable(self) -> bool:
        """Every member has said that it understands :attr:`.messages.Append.durable`."""
        standing, configuration = self.standing, self._core.configuration
        known = self._durable_read
        if known is None or known[0] is not standing or known[1] is not configuration:
            known = self._durable_read = standing, configuration, self.read_by_all >= FORMAT_DURABLE
        return known[2]

    @property
    def http_addresses(self) -> dict[str, str]:
        """Where operators reach the members that have said so, this one included."""
        said = {peer: hello.http for peer, hello in self.said.items()} | {self._me: self._http}
        return {member: said[member] for member in self._core.configuration.members if said.get(member)}

    # ---- hellos

    def receive(self, peer: str, hello: Hello) -> None:
        """Take what ``peer`` says of itself.

        Raises:
            MessageError: It is a stranger (D10).
        """
        self._check_cluster(peer, hello)
        first = peer not in self.said
        self.said[peer] = hello
        self.contact_limit = min(self.contact_limit, hello.election_timeout_ms / 1000)
        formats = self.standing.formats
        if formats.get(peer) != hello.format_max:
            self.become(replace(self.standing, formats={**formats, peer: hello.format_max}))
        if first:
            self._greeted[peer] = self._greeted.get(peer, 0) + 1
            logger.info("member linked peer=%s voter=%s empty=%s", peer, hello.voter, hello.empty)
            self._core.link_up(peer)
        self.consider_founding()

    def _check_cluster(self, peer: str, hello: Hello) -> None:
        """D10: two members of different clusters are strangers; an empty one is of none yet.

        Whoever is not in the configuration here may have been added while this member was away, or removed
        while it was away itself. Both belong to the cluster; neither counts.
        """
        mine, theirs = self.standing.cluster, hello.cluster
        if theirs and mine != theirs and self.empty == hello.empty:
            raise MessageError(f"{peer} is of another cluster: {theirs}, this is {mine}")
        known = peer in self._core.configuration.members
        if not known and not self.empty and (hello.empty or mine != theirs):
            raise MessageError(f"{peer} is no member")

    def say(self, peer: str) -> None:
        """Say to ``peer`` what this member is."""
        standing = self.standing
        self._engine.transmit(
            peer,
            Hello(
                standing.instance,
                standing.voter,
                self.empty,
                self._election_timeout_ms,
                dict(standing.founders),
                self._core.term,
                FORMAT_MAX,
                standing.cluster,
                self._http,
            ),
        )

    def say_to_all(self) -> None:
        """What this member is has changed."""
        for peer in sorted(self.links):
            self.say(peer)

    # ---- standing

    def become(self, standing: Standing) -> None:
        """Take another standing, which is durable then."""
        self._ports.save_standing(standing)
        self.standing = standing

    def consider_founding(self) -> None:
        """Found a cluster, if this member is empty and all that it needs for that are there and empty."""
        if not self.empty:
            return
        members = self._core.configuration.members
        founded = found(self.standing, self._me, members, self.said)
        if founded is None:
            if (waiting := self.waiting_for) != self._said_waiting_for:
                self._said_waiting_for = waiting
                logger.info("first start waits for members=%s", ",".join(waiting) or "none: a cluster exists")
            return
        self.become(founded)
        logger.info("cluster founded me=%s members=%s", self._me, ",".join(members))
        self.say_to_all()

    def join(self, leader: str) -> list[str]:
        """An empty member belongs to the cluster whose leader sends it a log, whatever it was to found.

        Returns:
            The peers that are strangers then.
        """
        cluster = self.said[leader].cluster
        if not cluster or cluster == self.standing.cluster:
            return []
        logger.info("cluster joined me=%s cluster=%s leader=%s", self._me, cluster, leader)
        self.become(replace(self.standing, cluster=cluster))
        return [peer for peer, hello in self.said.items() if hello.cluster != cluster and not hello.empty]

    def came_at(self, term: int, last: int) -> int:
        """A learner hears from the leader of ``term``, whose log ends at ``last``; return where it ended when
        that was heard first.
        """
        if self._learner_base is None or self._learner_base[0] != term:
            self._learner_base = (term, last)
        return self._learner_base[1]

    def leave_learning(self, leader: str, m: Append) -> None:
        """D25: a learner is a voter again once an entry appended after it came back is committed without its
        help.
        """
        core = self._core
        if m.term != core.term or leader != core.leader_id:
            return
        done = (
            m.commit > self.came_at(m.term, m.last)
            and self._log.term_at(m.commit) == m.term
            and min(core.commit_index, self._log.durable_index) >= m.commit
        )
        if done:
            # It may have voted in this very term in its former life: only for this leader could that have
            # mattered.
            self._log.setCurrentTerm(core.term, leader)
            core.remember_vote(leader)
            self._engine.store_vote()
            self.become(replace(self.standing, voter=True))
            logger.info("learner caught up me=%s index=%d term=%d", self._me, m.commit, m.term)
            self.say_to_all()
