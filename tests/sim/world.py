"""The simulated world of one run: nameservers, brokers, clients and the network between them.

The seed of the run decides all events.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from routekeeper.nameserver.raft.types import Role
from routekeeper.nameserver.types import BrokerKey
from tests.history import Operation, as_promised
from tests.linearizability import Undecided, check

from .actors import Admin, Broker, Client, Dropper, Reader, Register, Registrant
from .clock import Clock, restart_numbers
from .faults import Victim
from .members import Member, Watched
from .net import Net
from .operator import Operator
from .oracles import Oracle
from .truth import Truth

GHOST_LOOK_S = 0.05
SETTLE_S = 12.0


class _Complaints(logging.Handler):
    """A log handler that records each logged error as a violation, unless the simulator caused the error."""

    EXPECTED = (
        *("journal full", "not exported", "unable to store"),
        *("no room for term, vote or standing", "Input/output error"),
    )

    def __init__(self, truth: Truth) -> None:
        super().__init__(logging.ERROR)
        self._truth = truth

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if not any(expected in text for expected in self.EXPECTED):
            error = record.exc_info[1] if record.exc_info else None
            self._truth.fail(
                Oracle.PROCESS, f"logged: {text}" + (f": {error!r}" if error is not None else "")
            )


class World:
    """All processes, the network and the settings of one run.

    Args:
        folder: Empty directory, in which the members' data directories are made.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        members: int = 3,
        brokers: int = 4,
        clients: int = 4,
        readers: int = 1,
        droppers: int = 0,
        registers: int = 1,
        registrants: int = 3,
        lease_s: float = 3.0,
        durability: str = "journal",
        election_timeout_ms: int = 300,
        compact_bytes: int = 8_000,
    ) -> None:
        restart_numbers()
        self.seed = seed
        self.clock = Clock(seed)
        self.net = Net(self.clock)
        self.lease_s = lease_s
        self.durability = durability
        self.election_timeout_ms = election_timeout_ms
        self.compact_bytes = compact_bytes
        self.registers = [Register(number) for number in range(registers)]
        self.truth = Truth(self)
        self._folder = folder
        self._machines = 0
        self.members: list[Member] = []
        """Members of the group, and members that the operator is adding."""
        self.gone: list[Member] = []
        """Former members of the group."""
        for _ in range(members):
            self.new_member()
        self.brokers = [Broker(self, number) for number in range(brokers)]
        self.clients = [Client(self, number) for number in range(clients)]
        self.clients += [Reader(self, number) for number in range(readers)]
        self.clients += [Dropper(self, clients + number) for number in range(droppers)]
        self.registrants = [Registrant(self, number) for number in range(registrants)]
        self.admin = Admin(self, "admin")
        self.operator = Operator(self)
        self.memory_from = 0.0
        """Start time of the member that has run longest. No member knows earlier contacts of brokers."""
        self.troubled_until = 0.0
        """Time until which faults of the scenario may have effects."""
        self._calm_since = 0.0
        self._complaints = _Complaints(self.truth)
        self._level = 0

    def new_member(self) -> Member:
        """Return a nameserver that was never started, on its own machine."""
        number, self._machines = self._machines, self._machines + 1
        member = Member(self, number, self._folder / str(number))
        self.members.append(member)
        for broker in getattr(self, "brokers", ()):
            broker.learn_of(member)
        return member

    # -- start, progress and end of the simulated world

    def open(self) -> None:
        logger = logging.getLogger("routekeeper.nameserver")
        self._level = logger.level
        logger.addHandler(self._complaints)
        logger.setLevel(logging.ERROR)
        logger.propagate = False

    def close(self) -> None:
        logger = logging.getLogger("routekeeper.nameserver")
        logger.removeHandler(self._complaints)
        logger.setLevel(self._level)
        logger.propagate = True
        for member in (*self.members, *self.operator.leaving, *self.gone):
            member.kill()
            member.bury()

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let ``seconds`` pass, or less if ``until`` returns True or a violation is found.

        Return True if ``until`` returned True.
        """
        return self.clock.run(seconds, until, stop=self.truth.violations)

    def begin(self) -> None:
        """Start all processes, and wait until there is a leader and all brokers have started."""
        for member in self.members:
            self.clock.at(self.clock.rng.uniform(0.0, 0.3), member.start)
        self.run(0.4)
        if not self.run(10.0, lambda: self.leader() is not None) and not self.truth.violations:
            self.truth.fail(Oracle.RECOVERY, "no first leader")
        for broker in self.brokers:
            self.clock.at(self.clock.rng.uniform(0.0, 0.5), broker.start)
        for client in (*self.clients, *self.registrants):
            client.go()
        self._watch()
        self.run(1.0)

    def _watch(self) -> None:
        self.clock.at(GHOST_LOOK_S, self._watch)
        now = self.clock.now
        if not self.is_calm_now():
            self._calm_since = now + 1e-9
        self.memory_from = max(self.memory_from, min((m.born_at for m in self.members if m.up), default=now))
        self.truth.look_for_ghosts()
        for member in self.members:
            if member.ready and member.server is not None and not member.loop.paused:
                member.server.look_for_the_forgotten()

    # -- state of the world

    def leader(self) -> Member | None:
        """Return the leader with the highest term among the leaders that can commit, or None."""
        leading = [m for m in self.members if m.ready and m.running.member.leads]
        return max(leading, key=lambda m: m.running.member.term, default=None)

    def broker(self, key: BrokerKey) -> Broker | Register:
        found: tuple[Broker | Register, ...] = (*self.brokers, *self.registers)
        return next(broker for broker in found if broker.key == key)

    def judging_leader(self) -> Watched | None:
        """Return the leader that can evict brokers, or None if there is none or its process is paused."""
        for member in self.members:
            if member.ready and not member.loop.paused and member.look(lambda mode: mode.judges):
                return member.running
        return None

    def nobody_remembers_since(self, at: float) -> bool:
        """Return True if all running members started after time ``at``, so none remembers earlier events."""
        return self.memory_from > at

    def disturbed(self) -> None:
        """Note a fault or a change, after which members may need some time until they work normally again."""
        self._calm_since = self.clock.now + 1e-9

    def calm_for(self) -> float:
        """Return for how many seconds the world has been healthy without interruption."""
        return self.clock.now - self._calm_since

    def is_calm_now(self) -> bool:
        """Return True if all members work, no link is cut or slow, and a leader can evict brokers."""
        return (
            self.clock.now >= self.troubled_until
            and not self.net.blocked
            and not self.net.slow
            and not self.net.slow_ways
            and all(m.ready and not m.loop.paused and m.running.in_contact_now() for m in self.members)
            and self.judging_leader() is not None
        )

    # -- interface for faults

    @property
    def victims(self) -> list[Member]:
        return [member for member in self.members if not member.removed]

    @property
    def others(self) -> list[str]:
        return [actor.name for actor in (*self.brokers, *self.clients)]

    def may_lose(self, member: Victim) -> bool:
        """Return True if the group keeps all acknowledged changes even if this member loses its data now.

        All members must be up, no member may be a learner, and no member may lag behind.
        """
        if not all(other.ready and other.running.promises_kept for other in self.members):
            return False
        modes = [other.running.member for other in self.members]
        indexes = [mode.applied_index for mode in modes]
        roles = {str(mode.role) for mode in modes}
        return (
            "learner" not in roles
            and self.leader() is not None
            and max(indexes) - min(indexes) < 5
            and not self.net.blocked
        )

    def may_lose_power(self, member: Victim) -> bool:
        """Return True if the group keeps all acknowledged changes even if this member loses power now.

        With durability ``journal``, a power cut may lose data of a member. So the result is False while
        another member may have lost data and is not a voter again yet.
        """
        if self.durability != "journal":
            return True
        for other in self.members:
            if other.at_risk and other.ready:
                other.at_risk = not (other.running.member.votes and other.running.promises_kept)
        others = [other for other in self.members if other is not member]
        return len(others) > 1 and not any(other.at_risk for other in others)

    def expect_soon_gone_after(self, broker: Broker, end: Callable[[], None]) -> None:
        """Call ``end``, which ends a broker and its connections; check that the broker is evicted soon.

        The check follows a second later. It is omitted if a member or a link does not work before or during
        this second.
        """
        now, leader = self.clock.now, self.leader()
        watched = (
            self._calm_since < now - 1.0
            and broker.started_at < now - 0.5
            and broker.speaks_until <= now
            and leader is not None
            and leader.running.view_now().record(broker.key) is not None
        )
        end()
        life = broker.life
        if not watched:
            return

        def look() -> None:
            leader = self.judging_leader()
            if broker.life != life or self._calm_since > now or leader is None or not self.is_calm_now():
                return
            self.truth.count["crashes followed"] += 1
            if leader.view_now().record(broker.key) is not None:
                self.truth.fail(Oracle.GHOSTS, f"{broker.key} was killed a second ago and is still listed")

        self.clock.at(1.0, look)

    # -- end of a run

    def heal(self) -> None:
        """End all faults."""
        self.net.slow = 0.0
        self.net.slow_ways.clear()
        self.net.heal()
        for member in self.victims:
            if not member.up:
                member.start()
            member.mend()

    def finish(self) -> None:
        """Check that all members work after all faults have ended, and check the history of all calls."""
        if self.truth.violations:
            return
        for client in (*self.clients, *self.registrants):
            client.busy = False
        if not self._settle() and not self.truth.violations:
            self.truth.fail(Oracle.RECOVERY, f"not well {SETTLE_S} s after healing: {self._what_is_wrong()}")
        if self.truth.violations:
            return
        self._write_and_read()
        self._check_history()

    def _write_and_read(self) -> None:
        """Write at every member, then read at every member, so that the history shows any difference."""
        done: list[str] = []
        client = self.clients[0]
        for number, member in enumerate(self.members):
            before = len(self.truth.history)
            client.write(member, Client.KEYS[number % 3], f"end.{number}", lambda: done.append("write"))
            self.run(4.0, lambda: len(done) == number + 1)  # noqa: B023
            written = self.truth.history[before:]
            if not written or written[-1].outcome.value != "ok":
                self.truth.fail(Oracle.RECOVERY, f"{member.name} takes no write after healing: {written}")
                return
        self.run(1.0)
        reads: list[str] = []
        topics = (*Client.TOPICS, *(register.name for register in self.registers))
        for member in self.members:
            for linearizable in (False, True):
                for key in Client.KEYS:
                    client.read(member, key, lambda: reads.append("read"), linearizable=linearizable)
                for topic in topics:
                    client.read_topic(member, topic, lambda: reads.append("read"), linearizable=linearizable)
        things = len(Client.KEYS) + len(topics)
        self.run(4.0, lambda: len(reads) == 2 * len(self.members) * things)

    def _check_history(self) -> None:
        if self.truth.violations:
            return
        for client in (*self.clients, *self.registrants):
            client.give_up()
        count, history = self.truth.count, self.truth.whole_history()
        count["calls"] = len(history)
        for call in history:
            kind = "writes" if call.operation is Operation.WRITE else "default reads"
            if call.operation is Operation.READ and not call.lag:
                kind = "linearizable reads"
            count[f"judged {kind}"] += 1
        try:
            for violation in check(as_promised(history)):
                self.truth.fail(Oracle.HISTORY, str(violation))
        except Undecided as error:
            self.truth.count["undecided"] += 1
            self.clock.note(str(error))

    def _settle(self) -> bool:
        """Wait at most ``SETTLE_S`` seconds until the world is healthy; return True if it is."""
        end = self.clock.now + SETTLE_S
        while self.clock.now < end and not self.truth.violations:
            if not self._what_is_wrong():
                return True
            self.run(0.05)
        return False

    def _what_is_wrong(self) -> str:
        if self.operator.busy:
            return "the operator is not done"
        modes = []
        for member in self.members:
            if not member.ready:
                return f"{member.name} is not up"
            if not member.look(lambda mode: mode.in_contact):
                return f"{member.name} is not in contact"
            if member.running.member.role is Role.LEARNER:
                return f"{member.name} is still a learner"
            modes.append(member.running)
        indexes = {mode.member.applied_index for mode in modes}
        if max(indexes) < self.truth.acknowledged_index:
            return f"applied up to {max(indexes)}, but {self.truth.acknowledged_index} was acknowledged"
        if len(indexes) > 1:
            return f"applied indexes differ: {sorted(indexes)}"
        digests = {mode.state_digest for mode in modes}
        if len(digests) > 1:
            return "states differ"
        view = modes[0].view_now()
        listed = {record.broker: record for record in view.records()}
        for register in self.registers:
            listed.pop(register.key, None)
        for broker in self.brokers:
            record = listed.pop(broker.key, None)
            if not broker.alive:
                if record is not None:
                    return f"{broker.key} is dead and listed"
                continue
            if record is None:
                return f"{broker.key} is alive and not listed"
            if record.data_version != broker.version or not record.complete:
                return f"{broker.key} is listed with {record.data_version}, not {broker.version}"
            for topic, queues in broker.topics.items():
                if topic in self.admin.touched:
                    continue
                entry = view.topic(topic)
                data = entry.queues.get(broker.broker_name) if entry is not None else None
                if broker.broker_id == 0 and (data is None or data.write_queue_nums != queues):
                    return f"{topic} of {broker.key} is {data}, not {queues} queues"
        if listed:
            return f"listed and unknown: {sorted(listed)}"
        return ""
