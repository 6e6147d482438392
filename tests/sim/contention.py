"""Contention: two clients write the entries of the same brokers while members lose their links.

At the same time, unregistrations without effect go through the raft log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from routekeeper.nameserver.types import Request
from routekeeper.remoting.codes import RequestCode

from .actors import Actor, Register, Registrant

if TYPE_CHECKING:
    from .members import Member
    from .net import End
    from .world import World

WRITERS = 2
FIRST_NUMBER = 50
"""Number of the first writer.

All clients have smaller numbers, so no writer writes the same value as a client.
"""
ROUND_S = (0.02, 0.15)
LINKS_WITHIN_S = 0.2
"""Seconds for which links stay cut: less than an election timeout, so that the leader does not change."""


class Contention:
    """A fault: for some seconds, two clients write the same registers through different members.

    A register is a broker with one topic; see :class:`Register`. Sometimes, one of these members loses its
    link to the leader while the leader can commit nothing. Then this member and the leader get a new link.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._stray = Actor(world, "stray")
        self._writers = [Registrant(world, FIRST_NUMBER + number) for number in range(WRITERS)]
        self._idle = set(self._writers)
        self._ends = 0.0
        self._blocked: set[tuple[str, str]] = set()
        world.registrants += self._writers

    def begin(self, seconds: float) -> None:
        """Write from now on for this number of seconds."""
        begins = self._ends <= self._world.clock.now
        self._ends = max(self._ends, self._world.clock.now + seconds)
        if begins:
            self._round()

    def _round(self) -> None:
        world, rng = self._world, self._world.clock.rng
        if world.clock.now >= self._ends:
            return
        world.clock.at(rng.uniform(*ROUND_S), self._round)
        leader = world.leader()
        if leader is None:
            return
        others = [member for member in world.members if member is not leader]
        proposer = rng.choice(others)
        for _ in range(2):  # the second unregistration waits until the first is applied
            world.clock.at(rng.uniform(0.0, 0.002), self._say_goodbye, rng.choice(world.registers), leader)
        for writer, member in zip(self._writers, (proposer, rng.choice(world.members)), strict=True):
            world.clock.at(rng.uniform(0.0, 0.004), self._write, writer, member)
        if not self._blocked and rng.random() < 0.7:
            self._blocked = {(other.name, leader.name) for other in others if other is not proposer}
            self._blocked -= world.net.blocked
            world.net.blocked |= self._blocked
            world.clock.at(rng.uniform(0.002, 0.006), self._relink, proposer, leader)
            world.clock.at(LINKS_WITHIN_S, self._unblock)

    def _write(self, writer: Registrant, member: Member) -> None:
        if writer in self._idle:
            self._idle.discard(writer)
            writer.act(member, lambda: self._idle.add(writer))

    def _say_goodbye(self, register: Register, member: Member) -> None:
        """Unregister a broker name that does not exist, with the register's address.

        The command goes through the raft log but has no effect.
        """
        fields = {
            "brokerName": "another",
            "brokerAddr": register.key.broker_addr,
            "clusterName": register.key.cluster_name,
            "brokerId": "0",
        }
        request = Request(code=RequestCode.UNREGISTER_BROKER, ext_fields=fields)
        self._stray.call(member, request, lambda answer: None)

    def _links(self, member: Member, other: Member) -> list[End]:
        """Return the member's open ends of its connections with another member."""
        ends = self._world.net.ends[member.name]
        return [end for end in ends if not end.closed and end.peer.host.name == other.name]

    def _relink(self, proposer: Member, leader: Member) -> None:
        """Reset the proposer's link to the leader; the two members then connect again at once."""
        former = self._links(proposer, leader)
        for end in former:
            end.reset()
        self._look_for_link(proposer, leader, former, self._world.clock.now + LINKS_WITHIN_S)

    def _look_for_link(self, proposer: Member, leader: Member, former: list[End], until: float) -> None:
        clock = self._world.clock
        links = [end for end in self._links(proposer, leader) if end not in former]
        if links:
            clock.at(clock.rng.uniform(0.001, 0.012), self._heal_slowly, links)
        elif clock.now < until:
            clock.at(0.001, self._look_for_link, proposer, leader, former, until)

    def _heal_slowly(self, links: list[End]) -> None:
        """Let the other members' answers reach the leader again; then let both clients write.

        Args:
            links: The proposer's ends of its new link to the leader. Their next messages are delayed.
        """
        clock = self._world.clock
        for end in links:
            end.hold_until(clock.now + clock.rng.uniform(0.005, 0.04))
        self._unblock()
        for writer in self._writers:
            at = clock.rng.uniform(0.0, 0.04)
            clock.at(at, self._write, writer, clock.rng.choice(self._world.members))

    def _unblock(self) -> None:
        self._world.net.heal(self._blocked)
        self._blocked = set()
