"""Checks of rules that concern the events of all members, so that no single member can check them.

A violation is recorded and not raised, because code of the nameserver could catch the exception.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from dataclasses import replace as replace_call
from typing import TYPE_CHECKING

from msgspec.structs import replace

from routekeeper.nameserver.commands import (
    AddWritePerm,
    Batch,
    Command,
    DeleteKv,
    DeleteTopic,
    Evict,
    PutKv,
    RegisterBroker,
    RegisterTopic,
    Touch,
    Update,
    WipeWritePerm,
    bases,
    decode_batch,
)
from routekeeper.nameserver.liveness import CLOCK_PERIOD_S
from routekeeper.nameserver.raft.library import LEADER
from routekeeper.nameserver.raft.types import Role
from routekeeper.nameserver.routes.entries import Record
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.types import BrokerKey, LeaveReason
from routekeeper.nameserver.verdicts import Applied, Moved, RegisterReply, Verdict
from routekeeper.remoting.codes import MASTER_ID
from tests.history import Call, Operation, Outcome, Value

from .actors import Client
from .oracles import Oracle

if TYPE_CHECKING:
    from routekeeper.nameserver.raft.consensus.engine import Engine

    from .members import Member, Watched
    from .world import World

REPORT_S = 1.3
"""Seconds within which a member reports a contact with a broker: 1 s plus a tick of the liveness clock."""
TURNS_S = 0.01
"""Seconds that a few passes of a member's event loop may take."""
ANSWER_S = 2.5
GHOST_SLACK_S = 1.6
"""Seconds that a dead broker may stay listed after its lease.

This time covers a tick of the clock, the commit of the eviction, reports that are 1 s old, and a new leader.
"""
REGISTRATIONS = (RegisterBroker, Update)
HANDED_S = 1.3
"""Seconds that a leader needs to send all broker contacts to a majority, so that the next leader has them.

The time begins when the leader can evict brokers.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log, with the results of its commands on the first member that applied it."""

    payload: bytes
    term: int
    verdicts: tuple[Verdict, ...]


class Truth:
    """All facts about one run that the checks need, and the violations of the rules."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.violations: list[str] = []
        self.count: Counter[str] = Counter()
        self.log: dict[int, Entry] = {}
        self.digests: dict[int, str] = {}
        self.leaders: dict[int, str] = {}
        self.history: list[Call] = []
        self._void: set[tuple[Hashable, Value]] = set()
        """Puts of a topic for a broker name that did not exist, each with its number of queues.

        The answer to such a put was success, but nothing changed.
        """
        self._put: set[tuple[Hashable, Value]] = set()
        self._drops: list[tuple[int, Call]] = []
        """Topics that were removed together with their broker name: log index, and the removal as a call.

        Each removal stays here until its index or a later index is acknowledged.
        """
        self._judged_topics = {*Client.TOPICS, *(register.name for register in world.registers)}
        self._marks: dict[tuple[int, int], int] = {}
        self._changed: dict[tuple[str, Hashable], int] = {}
        self._judged: dict[tuple[int, int], int] = {}
        self._closings: set[tuple[BrokerKey, int | None]] = set()
        self._acknowledged_at: list[float] = []
        self._acknowledged_index: list[int] = []  # greatest index at each time in ``_acknowledged_at``
        self._contact_since: dict[tuple[str, int, int], dict[str, float]] = {}
        self._nobody_lapses_before: dict[tuple[str, int, int], float] = {}
        self._ghosts: dict[BrokerKey, float] = {}
        self._terms_begun: list[int] = []  # terms in the order of their first applied entries
        self._judged_for: dict[int, float] = {}
        self._looked_at = 0.0

    def fail(self, oracle: Oracle, text: str) -> None:
        """Record a violation."""
        self.violations.append(f"{self.world.clock.now:.6f} {oracle}: {text}")

    def whole_history(self) -> list[Call]:
        """Return all clients' calls, and the removals of topics that lost a broker name.

        If a broker name is removed, it also disappears from its topics. For each checked topic, this removal
        is in the history as a call that writes None. The outcome of the call is unknown until its index or a
        later index is acknowledged.
        """
        calls = [replace_call(call, outcome=Outcome.UNKNOWN) for _, call in self._drops]
        for call in self.history:
            what = call.key, call.value
            if call.outcome is Outcome.OK and call.operation is Operation.WRITE and what in self._void:
                if what in self._put:
                    # The client sent this put twice, and one of the two requests changed nothing. This call
                    # may be either of the two requests.
                    call = replace_call(call, outcome=Outcome.UNKNOWN)
                else:
                    # The put changed nothing, because the broker name did not exist. Check the put as a read
                    # that found no value.
                    call = replace_call(call, operation=Operation.READ, value=None)
            calls.append(call)
        return calls

    # -- the log

    def applied(self, member: Watched, index: int, term: int, payload: bytes) -> None:
        """Note that a member applied the entry at ``index``."""
        name = member.host.name
        verdicts = tuple([_in_order(verdict) for _, verdict in member.verdicts])
        first = self.log.get(index)
        if first is None:
            self.log[index] = Entry(payload, term, verdicts)
            self._first_applied(index, term, decode_batch(payload), member.verdicts)
            self._check_registers(member.view_now(), index)
        elif first.payload != payload or first.term != term:
            self.fail(Oracle.AGREEMENT, f"{name} applies another entry at {index} than was applied before")
        elif first.verdicts != verdicts:
            self.fail(
                Oracle.AGREEMENT, f"{name} finds other verdicts at {index}: {verdicts} {first.verdicts}"
            )
        self.digest(name, index, member.state_digest)
        member.looked_at_index = index

    def before(self, command: Command, view: RouteView) -> Record | None:
        """Return the broker's record before a registration is applied for the first time on any member.

        Return None if there is no record, or if the command is no registration.
        """
        return view.record(command.broker) if isinstance(command, REGISTRATIONS) else None

    def after(
        self, command: Command, verdict: Verdict, view: RouteView, before: Record | None, index: int
    ) -> None:
        """Check that a command changed the table as its sender intended, when a member first applied it."""
        if isinstance(verdict, Applied):
            now = self.world.clock.now
            for lost in verdict.lost:
                if lost.broker_name is not None:
                    self._drops += [
                        (index, _drop((topic, lost.broker_name), now))
                        for topic in lost.topics
                        if topic in self._judged_topics
                    ]
        match command:
            case RegisterTopic(topic=topic, queues=queues) if not isinstance(verdict, Moved):
                for put in queues:
                    if view.name(put.broker_name) is None:
                        self._void.add(((topic, put.broker_name), put.write_queue_nums))
                        continue
                    self._put.add(((topic, put.broker_name), put.write_queue_nums))
                    if self._line(view, topic, put.broker_name) != (put.write_queue_nums, put.perm):
                        self.fail(Oracle.TABLE, f"{command} at {index} leaves {view.topic(topic)}")
            case DeleteTopic(topic=topic) if not isinstance(verdict, Moved) and view.topic(topic) is not None:
                self.fail(Oracle.TABLE, f"{command} at {index} leaves {view.topic(topic)}")
            case WipeWritePerm(broker_name=name) | AddWritePerm(broker_name=name) if not isinstance(
                verdict, Moved
            ):
                perm = 4 if isinstance(command, WipeWritePerm) else 6
                for topic in view.topics_of_name(name):
                    line = self._line(view, topic, name)
                    if line is None or line[1] != perm:
                        self.fail(Oracle.TABLE, f"{command} at {index} leaves {topic} with {line}")
            case RegisterBroker() | Update() if isinstance(verdict, Applied):
                if before is not None:
                    self._check_version(command, before, index)
                if before is None or before.data_version != command.data_version:
                    self._check_topics(command, view, index, perms=(6,))
                elif not before.complete:
                    # The version is equal, so a permission that an operator has set (6 or 4) stays.
                    self._check_topics(command, view, index, perms=(6, 4))

    def _check_version(self, command: RegisterBroker | Update, before: Record, index: int) -> None:
        """Check that a listed broker's data version does not become older, unless its store was restored."""
        listed, version = before.data_version, command.data_version
        if version == listed or not version.contained_in(listed):
            return
        if self.world.broker(command.broker).went_back(listed, to=version):
            self.count["restored brokers shown"] += 1
        else:
            self.fail(Oracle.GOING_BACK, f"{command.broker} goes back from {listed} to {version} at {index}")

    def _check_topics(
        self, command: RegisterBroker | Update, view: RouteView, index: int, *, perms: tuple[int, ...]
    ) -> None:
        """Check that the table has a master's topics as the master has registered them."""
        record = view.record(command.broker)
        if record is None or record.broker_id != MASTER_ID:
            return
        broker = self.world.broker(command.broker)
        topics = broker.said[command.data_version]
        if command.incremental:
            topics = {queues.topic: queues.write_queue_nums for queues in command.topics}
        for topic, queues in topics.items():
            line = self._line(view, topic, command.broker_name)
            if line not in [(queues, perm) for perm in perms]:
                self.fail(
                    Oracle.TABLE,
                    f"{topic} of {command.broker} is {line} at {index}, but it registered {queues} queues",
                )

    def _check_registers(self, view: RouteView, index: int) -> None:
        """Check that no old value of a register comes back. Each value was sent only once."""
        for register in self.world.registers:
            line = self._line(view, register.name, register.name)
            queues = None if line is None else line[0]
            if queues != register.queues:
                if queues in register.former:
                    self.fail(
                        Oracle.REGISTER,
                        f"{register.name} has {queues} queues again at {index}, a second time",
                    )
                if register.queues is not None:
                    register.former.add(register.queues)
                register.queues = queues

    @staticmethod
    def _line(view: RouteView, topic: str, name: str) -> tuple[int, int] | None:
        """Return the number of queues and the permission that a broker name has for a topic."""
        entry = view.topic(topic)
        data = None if entry is None else entry.queues.get(name)
        return None if data is None else (data.write_queue_nums, data.perm)

    def digest(self, name: str, index: int, digest: str) -> None:
        """Check that a member's state at an applied index equals the other members' states."""
        if self.digests.setdefault(index, digest) != digest:
            self.fail(Oracle.AGREEMENT, f"{name} has another state at {index} than was seen before")

    def _first_applied(
        self, index: int, term: int, batch: Batch, verdicts: list[tuple[Command, Verdict]]
    ) -> None:
        self.count["entries"] += 1
        if not self._terms_begun or self._terms_begun[-1] != term:
            self._terms_begun.append(term)
        for proposal, (command, verdict) in zip(batch.proposals, verdicts, strict=True):
            self.count[type(verdict).__name__] += 1
            mark = (proposal.boot_id, proposal.sequence)
            if isinstance(verdict, Applied):
                self.count[type(command).__name__] += 1
                # Only a ``Touch`` may be applied twice, because it only renews a lease. Rule 1 of
                # docs/raft-rules.md has this exception.
                if self._marks.setdefault(mark, index) != index and not isinstance(command, Touch):
                    self.fail(
                        Oracle.REVISIONS,
                        f"one command applied twice, at {self._marks[mark]} and {index}: {command}",
                    )
                self._check_bases(index, command, verdict)
            if isinstance(command, Evict) and self._judged.get(mark) != term:
                self.fail(
                    Oracle.EVICTION_TERM,
                    f"eviction in term {term}, judged in {self._judged.get(mark)}: {command}",
                )

    def _check_bases(self, index: int, command: Command, verdict: Applied) -> None:
        """Check rule 1 of docs/raft-rules.md.

        A command must not be applied if a part of the table from which it was computed has changed.
        """
        for base in bases(command):
            if base.revision < self._changed.get((base.kind, base.key), 0):
                self.fail(Oracle.REVISIONS, f"applied at {index} over something younger: {command}")
        for left in verdict.left:
            self._changed["record", left.broker] = self._changed["name", left.broker_name] = verdict.revision
        for topic in verdict.topics:
            self._changed["topic", topic] = verdict.revision
        for name in verdict.names:
            self._changed["name", name] = verdict.revision
        match command:
            case RegisterBroker() | Update() | Touch() if isinstance(verdict.reply, RegisterReply):
                self._changed["record", command.broker] = verdict.revision
            case PutKv() | DeleteKv():
                self._changed["key", (command.namespace, command.key)] = verdict.revision

    def acknowledged(self, index: int) -> None:
        """Note that the member that proposed the command at ``index`` knows that it was applied."""
        self.count["acknowledged"] += 1
        self._acknowledged_at.append(self.world.clock.now)
        self._acknowledged_index.append(max([index, *self._acknowledged_index[-1:]]))
        # From now on, clients must not find topics that were removed up to this index.
        while self._drops and self._drops[0][0] <= index:
            call = self._drops.pop(0)[1]
            self.history.append(replace_call(call, ended=self.world.clock.now))

    @property
    def acknowledged_index(self) -> int:
        """Return the greatest index that was acknowledged so far; 0 if there is none."""
        return self._acknowledged_index[-1] if self._acknowledged_index else 0

    def check_barrier(self, member: Watched, needed: int) -> None:
        """Check that a linearizable read sees all changes that were acknowledged before it arrived.

        This is a part of rule 8 of docs/raft-rules.md.
        """
        self.count["barriers"] += 1
        applied = member.member.applied_index
        if needed > applied:
            self.fail(
                Oracle.BARRIER,
                f"{member.host.name} lets a linearizable read go at index {applied}, but {needed} was "
                "acknowledged before it arrived",
            )

    def check_promise(self, member: Watched, what: str) -> None:
        """Check that a member in contact has applied all changes that were acknowledged long enough ago.

        Rule 8 of docs/raft-rules.md allows that changes of the last election timeout are missing.

        Args:
            what: The kind of read or answer that is checked, for the text of a violation.
        """
        self.count["promises"] += 1
        since = self.world.clock.now - member.member.contact_limit
        before = bisect.bisect_left(self._acknowledged_at, since)
        applied = member.member.applied_index
        if before and self._acknowledged_index[before - 1] > applied:
            self.fail(
                Oracle.CONTACT,
                f"{member.host.name} gives {what} at index {applied}, but "
                f"{self._acknowledged_index[before - 1]} was acknowledged "
                f"{self.world.clock.now - self._acknowledged_at[before - 1]:.3f} s ago or more",
            )

    # -- leaders

    def look(self, mode: Watched) -> None:
        """Check a started member after each turn of its event loop."""
        # This code runs more often than all other code of this module. So it reads attributes and not
        # properties, which need more time.
        engine = mode.engine
        library = engine.shared.library
        term = library.term
        if term != mode.looked_at_term:
            if term < mode.looked_at_term:
                self.fail(Oracle.ELECTIONS, f"{mode.host.name}'s term falls to {term}")
            mode.looked_at_term = term
        if library.state == LEADER and engine.role is Role.LEADER:
            self._look_at_leader(mode, engine, term)
        log = engine.shared.log
        held, acknowledged = log.last_index, engine.following.acknowledged
        if held < acknowledged:
            name = mode.host.name
            self.fail(
                Oracle.HELD_ENTRIES,
                f"{name} holds entries up to {held}, but has acknowledged {acknowledged} in this term",
            )
        applied, durable = library.applied_index, log.durable_index
        if applied > durable and not engine.shared.other_voters:
            name = mode.host.name
            self.fail(Oracle.DURABILITY, f"{name} applies {applied}, its journal ends at {durable}")
        if self._acknowledged_index and applied < self._acknowledged_index[-1] and mode.in_contact:
            self.check_promise(mode, "a default read")
        if engine.shared.within_entry:
            self._check_within(mode, applied)
        if applied != mode.looked_at_index:
            mode.looked_at_index = applied
            self.digest(mode.host.name, applied, mode.state_digest)

    def _check_within(self, mode: Watched, applied: int) -> None:
        """Check that the table shows only complete commands, even while an entry is being applied."""
        if mode.view_now().state_digest() != mode.digest_of_whole_commands:
            self.fail(Oracle.TABLE, f"{mode.host.name} shows a part of a command of entry {applied + 1}")

    def _look_at_leader(self, mode: Watched, engine: Engine, term: int) -> None:
        """Check that a term has only one leader; note since when this leader has contact with each member."""
        name = mode.host.name
        if self.leaders.setdefault(term, name) != name:
            self.fail(Oracle.ELECTIONS, f"two leaders in term {term}: {self.leaders[term]}, {name}")
        key = (name, mode.host.life, term)
        clock = engine.shared.clock()
        if clock < self._nobody_lapses_before.get(key, -math.inf):
            return
        since = self._contact_since.setdefault(key, {})
        now, date, limit = (
            self.world.clock.now,
            engine.shared.contact.member_date,
            2 * engine.greetings.contact_limit,
        )
        me = engine.shared.me
        oldest = math.inf
        for member in engine.members:
            if member == me or date(member) > clock - limit:
                if member not in since:
                    since[member] = now
                if member != me:
                    oldest = min(oldest, date(member))
            else:
                oldest = -math.inf
                since.pop(member, None)
        self._nobody_lapses_before[key] = oldest + limit

    # -- last-seen times of brokers. A member measures them by a clock that moves in steps. So the sender and
    # the receiver of a report may each note a time that is one step too early.

    def reported(self, broker: BrokerKey, revision: int | None) -> None:
        """Note that a member reports to its leader that this broker's connection has closed.

        The report names the revision of the broker's record.
        """
        self._closings.add((broker, revision))

    def judged(self, leader: Watched, eviction: Evict, mark: tuple[int, int]) -> None:
        """Check an eviction when a leader proposes it.

        Args:
            mark: The proposal's boot id and sequence number.
        """
        self._judged[mark] = leader.member.term
        self.count[f"evicted {eviction.reason}"] += 1
        broker, now = eviction.broker, self.world.clock.now
        silent = eviction.reason is LeaveReason.LEASE_EXPIRED
        if not silent and (broker, eviction.revision) not in self._closings:
            self.fail(
                Oracle.EVICTION_CLOSE,
                f"{broker} evicted as gone at {eviction.revision}, where nobody saw a close",
            )
        term = leader.member.term
        contact_since = self._contact_since.get((leader.host.name, leader.host.life, term), {})
        for host in self.world.members:
            mode = host.mode
            if mode is None or not mode.started:
                continue
            age = leader.member.member_age(host.name)
            if age >= 2 * leader.member.contact_limit:
                continue
            connected_at = mode.connected_at.get(broker, math.inf)
            if not silent and connected_at < now - age - TURNS_S:
                self.fail(
                    Oracle.EVICTION_LINK,
                    f"{broker} evicted as gone by {leader.host.name}, but {host.name}, "
                    f"heard {age:.3f} s ago, has a connection with it since {connected_at:.3f}",
                )
            lease_s = self.world.lease_s
            early = CLOCK_PERIOD_S if host is leader.host else 2 * CLOCK_PERIOD_S
            since = -math.inf if host is leader.host else contact_since.get(host.name, math.inf)
            heard_at = mode.heard_at.get(broker, -math.inf)
            heard_long_enough_ago = now - REPORT_S - (0.0 if host is leader.host else age + TURNS_S)
            if (
                silent
                and now - lease_s + early < heard_at < heard_long_enough_ago
                and since < heard_at
                and not mode.was_paused_since(heard_at)
            ):
                self.fail(
                    Oracle.EVICTION_SILENCE,
                    f"{broker} evicted as silent by {leader.host.name}, but {host.name} heard it "
                    f"{now - heard_at:.3f} s ago",
                )

    def look_for_ghosts(self) -> None:
        """Check that dead brokers are evicted soon after their lease.

        Time without a leader that can evict does not count. The simulator calls this method every
        :data:`GHOST_LOOK_S` seconds.
        """
        now = self.world.clock.now
        passed, self._looked_at = now - self._looked_at, now
        leader = self.world.judging_leader()
        if leader is not None:
            self._note_judging(leader.member.term, passed)
        for broker in self.world.brokers:
            key = broker.key
            if broker.alive or broker.speaks_until > now or self.world.nobody_remembers_since(now - passed):
                self._ghosts.pop(key, None)
                continue
            if any(m.ready and m.running.heard_at.get(key, -1.0) > now - passed for m in self.world.members):
                self._ghosts[key] = 0.0  # a delayed message of the dead broker has just arrived
            if leader is None or any(m.up and m.machine.cannot_write for m in self.world.members):
                continue  # no leader can evict, or a full or hung disk may prevent commits
            record = leader.view_now().record(key)
            if record is None:
                self._ghosts.pop(key, None)
                continue
            if self._is_held_up(key, leader.host):
                continue
            self._ghosts[key] = self._ghosts.get(key, 0.0) + passed
            if self._ghosts[key] > record.lease_ms / 1000 + GHOST_SLACK_S + self._stood_still(key):
                self.fail(
                    Oracle.GHOSTS, f"{key} is dead and listed after {self._ghosts[key]:.3f} s with a leader"
                )
                self._ghosts[key] = -math.inf

    def _is_held_up(self, broker: BrokerKey, leader: Member) -> bool:
        """Return True if a report that may name this broker waits on a blocked link to the leader.

        A report says how long ago a broker was last seen, and the leader counts from the report's arrival. So
        a report that waits lengthens the broker's lease.
        """
        members = {member.name: member for member in self.world.members}
        for (source, target), ends in self.world.net.held.items():
            waiting = [end for end in ends if end._held and not end.peer.closed]
            if target != leader.name or not waiting:
                continue
            member = members.get(source)
            if member is None or not member.ready or any(end.life != member.life for end in waiting):
                return True  # the sender has ended, so the content of its report is unknown
            reporter = member.running.reports.reporter
            if any(line.broker == broker for _, part in reporter._outstanding for line in part.contacts):
                return True
        return False

    def _stood_still(self, broker: BrokerKey) -> float:
        """Return by how many seconds a member's time for this broker's heartbeat may be too late.

        A member's clock does not advance while the member is paused. So after a pause, the member may report
        a heartbeat from before the pause as a new heartbeat.
        """
        pauses = [
            member.paused_at_last - member.paused_from
            for member in self.world.members
            if member.ready
            and 0.0 <= member.paused_from - member.running.heard_at.get(broker, -9.0) < REPORT_S
        ]
        return max(pauses, default=0.0)

    def _note_judging(self, term: int, passed: float) -> None:
        """Add ``passed`` seconds to the time for which the leader of this term could evict brokers.

        If the previous leader could evict only for a moment, it may not have passed all reports on. Then the
        current leader may lack last-seen times, and may list each dead broker for a whole lease again.
        """
        if term not in self._judged_for:
            before = next((begun for begun in reversed(self._terms_begun) if begun < term), 0)
            if before and self._judged_for.get(before, 0.0) < HANDED_S:
                self.count["leaders for a moment"] += 1
                self._ghosts.clear()
        self._judged_for[term] = self._judged_for.get(term, 0.0) + passed


def _drop(key: tuple[str, str], now: float) -> Call:
    return Call(key=key, operation=Operation.WRITE, value=None, begun=now, ended=now, caller="a broker's end")


def _in_order(verdict: Verdict) -> Verdict:
    """Return the verdict with sorted names, because a table from a snapshot has them in another order."""
    if not isinstance(verdict, Applied):
        return verdict
    return replace(
        verdict,
        topics=tuple(sorted(verdict.topics)),
        names=tuple(sorted(verdict.names)),
        lost=tuple(replace(lost, topics=tuple(sorted(lost.topics))) for lost in verdict.lost),
    )
