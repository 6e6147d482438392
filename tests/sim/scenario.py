"""A run of the simulator: its seed chooses faults and changes, and checks follow at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .actors import Broker
from .contention import Contention
from .faults import MEMBER_FAULTS, Faults
from .members import Member
from .seams import installed
from .world import World

FAULTS = (
    *MEMBER_FAULTS,
    "broker cut off",
    "pause broker",
    "add member",
    "remove member",
    "transfer leader",
    "hand over",
    "contend for a register",
    "late registration",
    "restored broker",
    "missed report",
)
BROKERS = (
    "die",
    "die late",
    "die silently",
    "leave",
    "flap",
    "bounce",
    "change",
    "change",
    "change id",
    "contend",
    "contend",
    "meddle",
    "storm",
)
DURABILITIES = ("journal", "journal", "fsync", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run with one seed."""

    seed: int
    settings: str
    violations: tuple[str, ...]
    count: Counter[str]
    trace: str
    seconds: float
    events: int
    cpu_s: float = 0.0
    what: tuple[str, ...] = field(default=())


class Scenario(Faults):
    """The faults and changes of one run."""

    def __init__(self, world: World, kinds: Sequence[str]) -> None:
        super().__init__(world, kinds)
        self._world = world
        self._churn = world.clock.rng.choice((0.6, 1.2, 2.5))
        """Average number of broker changes (starts, stops, new topics) per second of virtual time."""
        self._contention: Contention | None = None

    def run(self, seconds: float) -> None:
        """Start the world, cause faults for ``seconds``, end them, and check that all members recover."""
        world = self._world
        world.begin()
        self.begin(seconds)
        self._change()
        world.run(seconds)
        world.heal()
        world.finish()

    # -- brokers

    def _change(self) -> None:
        world, rng = self._world, self._world.clock.rng
        if self.over():
            return
        world.clock.at(rng.expovariate(self._churn), self._change)
        broker, what = rng.choice(world.brokers), rng.choice(BROKERS)
        if not broker.alive:
            if world.clock.now > broker.speaks_until or rng.random() < 0.7:
                self.note(f"start {broker.name}")
                broker.start()
            return
        self.caused[f"broker {what}"] += 1
        self.note(f"{what} {broker.name}")
        match what:
            case "die":
                world.expect_soon_gone_after(broker, broker.die)
            case "die late":
                broker.die(late=True)
            case "die silently":
                broker.die(power=True)
            case "leave":
                world.expect_soon_gone_after(broker, broker.leave)
            case "flap":
                broker.flap()
            case "bounce":
                broker.die(late=rng.random() < 0.5)
                world.clock.at(rng.uniform(0.0, 0.3), self._start_broker, broker.life, broker)
            case "change":
                broker.change_topics()
            case "change id":
                broker.change_id()
            case "contend":
                # An administrator and the broker itself change the broker's topics at almost the same time.
                world.clock.at(rng.uniform(0.0, 0.002), world.admin.touch, broker)
                world.clock.at(rng.uniform(0.0, 0.006), broker.change_topics)
            case "meddle":
                world.admin.meddle()
            case "storm":
                self._storm()

    def _storm(self) -> None:
        """Let all brokers register many topics at once; some brokers die before they get an answer."""
        rng = self._world.clock.rng
        for broker in self._world.brokers:
            if broker.alive:
                broker.change_all_topics()
                if rng.random() < 0.3:
                    self._world.expect_soon_gone_after(broker, broker.die)

    def _start_broker(self, life: int, broker: object) -> None:
        for one in self._world.brokers:
            if one is broker and one.life == life and not one.alive:
                one.start()

    # -- faults that only nameservers and brokers have

    def cause(self, what: str, lasts: float) -> str:
        world, rng = self._world, self._world.clock.rng
        match what:
            case "broker cut off":
                broker, some = rng.choice(world.brokers).name, self.some(world.members)
                pairs = {(broker, member.name) for member in some}
                if rng.random() < 0.7:
                    pairs |= {(b, a) for a, b in pairs}
                self.block(pairs, lasts)
                return f"{broker} from {len(some)}"
            case "pause broker":
                actor = rng.choice(world.brokers)
                actor.paused_until = world.clock.now + lasts
                return actor.name
            case "late registration":
                actor = rng.choice(world.brokers)
                return actor.name if actor.change_behind_a_late_link(lasts) else ""
            case "restored broker":
                actor = rng.choice(world.brokers)
                how = {"power": rng.random() < 0.5, "late": rng.random() < 0.3}
                return actor.name if actor.restore(**how) else ""
            case "missed report":
                return self._miss_a_report(lasts)
            case "add member":
                return world.operator.add()
            case "remove member":
                return world.operator.remove()
            case "transfer leader":
                return world.operator.transfer()
            case "hand over":
                leader = world.leader()
                if leader is not None:
                    leader.look(lambda mode: mode.hand_over())
                return "leadership"
            case "contend for a register":
                if self._contention is None:
                    self._contention = Contention(world)
                self._contention.begin(lasts)
                return "two writers"
        return super().cause(what, lasts)

    def _miss_a_report(self, lasts: float) -> str:
        """Let brokers register at a member at the moment when the member's link to the leader ends.

        The member's report about these registrations is lost with the link. So the leader does not know that
        the brokers are connected with this member. As soon as there is a new link, this scenario closes the
        brokers' connections with all other members. The new link is slow. So the leader may learn of the
        closed connections before it gets the member's next report. The leader must not evict the brokers.
        """
        world, rng = self._world, self._world.clock.rng
        leader, brokers = world.leader(), self.some(b for b in world.brokers if b.alive)
        members = [member for member in world.members if member.ready and member is not leader]
        if leader is None or not members or not brokers:
            return ""
        member = rng.choice(members)
        for broker in brokers:
            broker.lose([member])
        world.clock.at(rng.uniform(0.02, 0.2), self._end_a_link, brokers, member, leader, lasts)
        return f"{','.join(broker.name for broker in brokers)} at {member.name}"

    def _end_a_link(self, brokers: list[Broker], member: Member, leader: Member, lasts: float) -> None:
        world, rng = self._world, self._world.clock.rng
        if not (member.ready and leader.ready):
            return
        for broker in brokers:
            if broker.alive:
                broker.register_at(member)
        number = leader.running.member.link_number(member.name)
        world.net.reset_between(member, leader)
        # Block the link for a random time. After a long time, the member has asked for votes, and knows no
        # leader when the link is back.
        self.block({(member.name, leader.name), (leader.name, member.name)}, rng.uniform(0.0, 0.4))
        way = member.name, leader.name
        world.net.slow_ways[way] = 0.5
        world.clock.at(lasts, self._hurry, way)
        self._lose_others_when_linked(brokers, member, leader, number, world.clock.now + lasts)

    def _hurry(self, way: tuple[str, str]) -> None:
        self._world.net.slow_ways.pop(way, None)

    def _lose_others_when_linked(
        self, brokers: list[Broker], member: Member, leader: Member, former: int, until: float
    ) -> None:
        world, rng = self._world, self._world.clock.rng
        if world.clock.now > until or not (member.ready and leader.ready):
            return
        if leader.running.member.link_number(member.name) <= former:
            world.clock.at(0.005, self._lose_others_when_linked, brokers, member, leader, former, until)
            return
        others = [other for other in world.members if other is not member]
        for broker in brokers:
            world.clock.at(rng.uniform(0.0, 0.1), broker.lose, others)


def run_seed(
    seed: int,
    *,
    members: int = 3,
    seconds: float = 12.0,
    faults: Sequence[str] | None = None,
    durability: str | None = None,
    droppers: int = 0,
    inspect: Callable[[World], None] | None = None,
) -> Result:
    """Run one seed and return the result.

    Args:
        faults: Names from :data:`FAULTS`. If None, the seed chooses the faults.
        droppers: Number of clients that delete topics right after putting them.
        inspect: Function that is called with the world at the end, before the world is closed.
    """
    folder = Path(tempfile.mkdtemp(prefix="sim-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        with installed():
            chooser = World(seed, folder, members=members).clock.rng
            if faults is None:
                faults = chooser.sample(FAULTS, chooser.randint(1, 6))
            if durability is None:
                durability = chooser.choice(DURABILITIES)
            world = World(seed, folder, members=members, durability=durability, droppers=droppers)
            scenario = Scenario(world, faults)
            world.open()
            try:
                scenario.run(seconds)
                if inspect is not None:
                    inspect(world)
                truth = world.truth
                truth.count += scenario.caused
                truth.count += Counter((f"setting {members} members", f"setting {durability}"))
                truth.count["elections"] = len(truth.leaders)
                return Result(
                    seed=seed,
                    settings=f"members={members} durability={durability} faults={','.join(faults)}",
                    violations=tuple(truth.violations),
                    count=truth.count,
                    trace=world.clock.trace(),
                    seconds=world.clock.now,
                    events=world.clock.events,
                    what=tuple(scenario.done),
                )
            finally:
                world.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
