"""Simulated brokers and clients, which send requests to the simulated nameservers.

They start and stop at any time, and send some messages twice or late.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from routekeeper.nameserver.modes.interface import NO_QUORUM_TAG, OUTCOME_UNKNOWN_TAG, Freshness
from routekeeper.nameserver.types import Answer, BrokerAddr, BrokerKey, ClusterName, Request
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.registration import RegisterBody, body_crc32, encode_register_body
from routekeeper.remoting.route import (
    DataVersion,
    QueueData,
    RouteDialect,
    TopicConfig,
    TopicRouteData,
    decode_route,
    encode_route,
)
from tests.history import Call, Operation, Outcome, Value

from .net import End
from .oracles import Oracle

if TYPE_CHECKING:
    from .members import Member
    from .world import World

CALL_TIMEOUT_S = 3.0
BEAT_S = (0.7, 1.1)
NAMESPACE = "sim"
VALUES = 7_000
"""Number of different queue counts that one client may write.

Client number n writes the counts above n * VALUES, so no two clients write the same count.
"""

OnAnswer = Callable[[Answer | None], None]
"""Function that is called once with the answer. It gets None if the connection ended or time ran out."""


class Caller:
    """One connection to one nameserver, with the requests that are not answered yet."""

    def __init__(self, actor: Actor, end: End) -> None:
        self._actor = actor
        self.end = end
        self._number = 0
        self._pending: dict[int, OnAnswer] = {}
        end.receive = lambda item: self._answered(*item)
        end.lost = lambda error: self._lost()

    def call(self, request: Request, then: OnAnswer, freshness: Freshness | None = None) -> None:
        self._number += 1
        self._pending[self._number] = then
        self.end.send((self._number, request, freshness))
        self._actor.world.clock.at(CALL_TIMEOUT_S, self._late, self._number)

    def _answered(self, number: int, answer: Answer) -> None:
        then = self._pending.pop(number, None)
        if then is not None:
            then(answer)

    def _late(self, number: int) -> None:
        then = self._pending.pop(number, None)
        if then is not None:
            then(None)
            if self._actor.world.clock.rng.random() < 0.5:
                self.end.close()

    def _lost(self) -> None:
        pending, self._pending = self._pending, {}
        for then in pending.values():
            then(None)


class Actor:
    """A host with connections to nameservers. Unlike a simulated nameserver, it has no event loop."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.life = 1
        self.paused_until = 0.0
        self.callers: dict[str, Caller] = {}

    def deliver(self, life: int, call: Callable[..., object], *arguments: Any) -> None:
        """Call a function now, or at the end of this host's pause; see :class:`net.Host`.

        Drop the call if ``life`` is the number of an earlier start of this host.
        """
        if life != self.life:
            return
        wait = self.paused_until - self.world.clock.now
        if wait > 0:
            self.world.clock.at(wait, self.deliver, life, call, *arguments)
        else:
            call(*arguments)

    def caller(self, member: Member) -> Caller | None:
        """Return a connection to a nameserver; open it if necessary.

        Return None if the nameserver cannot be reached now.
        """
        known = self.callers.get(member.wire)
        if known is not None and not known.end.closed:
            return known
        net = self.world.net
        if net.is_blocked(self.name, member.name) or net.is_blocked(member.name, self.name):
            return None
        end = net.connect(self, member.wire)
        if end is None:
            return None
        self.callers[member.wire] = Caller(self, end)
        return self.callers[member.wire]

    def call(
        self, member: Member, request: Request, then: OnAnswer, freshness: Freshness | None = None
    ) -> bool:
        """Send a request; return False if it was not sent.

        Args:
            freshness: Freshness that a read demands, as in a request over HTTP. If None, the freshness in the
                member's settings is used.
        """
        caller = self.caller(member)
        if caller is None:
            return False
        caller.call(request, then, freshness)
        return True


class Broker(Actor):
    """A broker that registers with all nameservers, changes its topics, stops, and starts again."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"broker-{number}")
        self.life = 0
        self.broker_name = f"broker-{'ab'[number % 2]}" if number < 3 else f"broker-{number}"
        self.broker_id = number // 2 if number < 3 else 0
        self._ids = (self.broker_id, self.broker_id + 10)
        self.addr = f"10.0.0.{number + 1}:10911"
        self.key = BrokerKey(ClusterName("C"), BrokerAddr(self.addr))
        self.alive = False
        self.speaks_until = 0.0
        """Time until which messages of an ended process of this broker may still arrive."""
        self.started_at = 0.0
        self.version = DataVersion()
        self.topics: dict[str, int] = {}
        self.said: dict[DataVersion, dict[str, int]] = {}
        """All topics of the broker, for each data version that it has sent."""
        self.backup: tuple[DataVersion, dict[str, int]] | None = None
        """Data version and topics that the broker had before its last change."""
        self.restored = False
        """True if this process started with a backup."""
        self._went_back: list[tuple[DataVersion, frozenset[DataVersion]]] = []
        self.style = number % 3
        self._topic_number = 0

    # -- start, end and restart of the broker

    def start(self, backup: tuple[DataVersion, dict[str, int]] | None = None) -> None:
        """Start the broker's process at its usual address, with the topics of a backup or with none."""
        clock = self.world.clock
        self.life += 1
        self.alive = True
        self.started_at = clock.now
        self.paused_until = 0.0
        self.callers = {}
        self.version = DataVersion(timestamp=1 + int(clock.now * 1000), counter=1)
        self.topics = {f"{self.broker_name}-{n}": 4 for n in range(3)}
        self.restored, self.backup = backup is not None, None
        if backup is not None:
            self.version, self.topics = backup
            self._went_back.append((self.version, frozenset(self.said)))
        for member in self.world.members:
            self._beat(self.life, member)

    def die(self, *, power: bool = False, late: bool = False) -> None:
        """End the broker's process without unregistering.

        Args:
            power: If True, cut the power. Then no connection is closed, so no peer notices the end.
            late: If True, delay the last messages and the closing of the connections by some seconds.
        """
        world, rng = self.world, self.world.clock.rng
        if not self.alive:
            return
        self.alive = False
        self.speaks_until = max(self.speaks_until, world.clock.now + 0.5)
        if late and not power:
            wait = rng.uniform(0.3, 4.0)
            self.speaks_until = max(self.speaks_until, world.clock.now + wait + 0.5)
            for member in world.members:
                caller = self.callers.get(member.wire)
                if caller is None or caller.end.closed:
                    continue
                caller.end.hold_until(world.clock.now + wait)
                for request in rng.choice(([], [self._register()], [self._goodbye()])):
                    caller.call(request, lambda answer: None)
        self.life += 1
        world.net.died(self, power=power)

    def leave(self) -> None:
        """Unregister from all nameservers, then end the process."""
        if not self.alive:
            return
        for member in self.world.members:
            caller = self.callers.get(member.wire)
            if caller is not None and not caller.end.closed:
                caller.call(self._goodbye(), lambda answer: None)
        self.alive = False
        self.speaks_until = max(self.speaks_until, self.world.clock.now + 0.5)
        self.life += 1
        self.world.net.died(self, power=False)

    def restore(self, *, power: bool = False, late: bool = False) -> bool:
        """End the process like :meth:`die`, and start it with its topics from before their last change.

        Return False if the broker is not running or never changed its topics.
        """
        if not self.alive or self.backup is None:
            return False
        clock, backup = self.world.clock, self.backup
        self.die(power=power, late=late)
        clock.at(clock.rng.uniform(0.0, 0.3), self._start_with, self.life, backup)
        return True

    def _start_with(self, life: int, backup: tuple[DataVersion, dict[str, int]]) -> None:
        if life == self.life and not self.alive:
            self.start(backup)

    def went_back(self, version: DataVersion, *, to: DataVersion) -> bool:
        """Return True if the broker was restored to version ``to`` after it had sent ``version``."""
        return any(to == restored and version in before for restored, before in self._went_back)

    def flap(self) -> None:
        """Reset most connections. The next heartbeat opens new connections."""
        for caller in self.callers.values():
            if self.world.clock.rng.random() < 0.7:
                caller.end.abort()

    def lose(self, members: Iterable[Member]) -> None:
        """Reset the connections to some members. The next heartbeat opens new connections."""
        for member in members:
            caller = self.callers.get(member.wire)
            if caller is not None:
                caller.end.abort()

    # -- requests of the broker

    def learn_of(self, member: Member) -> None:
        """Start to register with a new nameserver, too."""
        if self.alive:
            self._beat(self.life, member)

    def _beat(self, life: int, member: Member) -> None:
        if life != self.life or not self.alive or member not in self.world.members:
            return
        clock = self.world.clock
        wait = self.paused_until - clock.now
        if wait > 0:
            clock.at(wait, self._beat, life, member)
            return
        clock.at(clock.rng.uniform(*BEAT_S), self._beat, life, member)
        style = (self.style + clock.rng.choice((0, 0, 0, 1))) % 3
        known = self.callers.get(member.wire)
        if style == 0 or self.restored or known is None or known.end.closed:
            self.register_at(member)
        elif style == 1:
            self.call(member, self._question(), lambda answer: self._told(life, member, answer))
        else:
            self.call(member, self._heartbeat(), lambda answer: None)
            if clock.rng.random() < 0.5:
                self.register_at(member)

    def register_at(self, member: Member, topics: dict[str, int] | None = None) -> None:
        """Register ``topics`` at one member, or all topics of the broker if ``topics`` is None."""
        request = self._register(topics)
        self.call(member, request, lambda answer: None)
        if self.world.clock.rng.random() < 0.05:
            self.call(member, request, lambda answer: None)  # send some requests twice, which must do no harm

    def _told(self, life: int, member: Member, answer: Answer | None) -> None:
        unchanged = answer is not None and answer.ext_fields.get("changed") == "false"
        if life == self.life and self.alive and not unchanged:
            self.register_at(member)

    def change_topics(self) -> None:
        """Change or add a topic, and register at once with all topics or only with the changed topic."""
        if not self.alive:
            return
        rng = self.world.clock.rng
        self.backup = self.version, dict(self.topics)
        topic = rng.choice(sorted(self.topics))
        if rng.random() < 0.4 and len(self.topics) < 8:
            self._topic_number += 1
            topic = f"{self.broker_name}-x{self._topic_number}"
        self.topics[topic] = rng.randint(1, 16)
        self._change_version()
        only = {topic: self.topics[topic]} if rng.random() < 0.5 else None
        for member in self.world.members:
            self.register_at(member, only)

    def change_all_topics(self) -> None:
        """Change more topics than a member handles in one step, and register them at once."""
        rng = self.world.clock.rng
        self.backup = self.version, dict(self.topics)
        self.topics |= {f"{self.broker_name}-s{n}": rng.randint(1, 16) for n in range(rng.randint(3, 9))}
        self._change_version()
        for member in self.world.members:
            self.register_at(member)

    def change_id(self) -> None:
        """Take another broker id and register, like a slave that becomes the master."""
        if self.alive:
            self.broker_id = self._ids[self._ids.index(self.broker_id) - 1]
            self._change_version()
            for member in self.world.members:
                self.register_at(member)

    def _change_version(self) -> None:
        self.version = self.version.advanced(now_ms=1 + int(self.world.clock.now * 1000))

    def change_behind_a_late_link(self, wait: float) -> bool:
        """Register with one member over a delayed link, then change topics and register with all members.

        The delay is ``wait`` seconds. So the other members know the change before the delayed registration
        arrives. In half of the cases, the delayed link is closed, and the member gets the change over a new
        link. Return False if the broker is not running or has no link.
        """
        clock, rng = self.world.clock, self.world.clock.rng
        linked = [known for known in self.callers.values() if not known.end.closed]
        if not self.alive or not linked:
            return False
        caller = rng.choice(linked)
        caller.end.hold_until(clock.now + wait)
        self.speaks_until = max(self.speaks_until, clock.now + wait + 0.5)
        for _ in range(rng.randint(1, 2)):
            caller.call(self._register(), lambda answer: None)
        if rng.random() < 0.5:
            caller.end.close()
        self.change_topics()
        return True

    def _identity(self) -> dict[str, str]:
        return {
            "brokerName": self.broker_name,
            "brokerAddr": self.addr,
            "clusterName": self.key.cluster_name,
            "brokerId": str(self.broker_id),
        }

    def _register(self, topics: dict[str, int] | None = None) -> Request:
        self.said[self.version] = dict(self.topics)
        topics = self.topics if topics is None else topics
        return _registration(self._identity(), self.version, topics, lease_s=self.world.lease_s)

    def _question(self) -> Request:
        return Request(
            code=RequestCode.QUERY_DATA_VERSION, ext_fields=self._identity(), body=self.version.encode()
        )

    def _heartbeat(self) -> Request:
        lease = {"heartbeatTimeoutMills": str(int(self.world.lease_s * 1000))}
        return Request(code=RequestCode.BROKER_HEARTBEAT, ext_fields=self._identity() | lease)

    def _goodbye(self) -> Request:
        return Request(code=RequestCode.UNREGISTER_BROKER, ext_fields=self._identity())


def _registration(
    identity: dict[str, str], version: DataVersion, topics: Mapping[str, int], *, lease_s: float
) -> Request:
    body = encode_register_body(
        RegisterBody(
            data_version=version,
            topic_configs=tuple(
                TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
                for topic, queues in sorted(topics.items())
            ),
            filter_servers=(),
            mapping_infos={},
        ),
        compressed=False,
        version=479,
    )
    fields = {
        "haServerAddr": "",
        "bodyCrc32": str(body_crc32(body)),
        "heartbeatTimeoutMillis": str(int(lease_s * 1000)),
    }
    return Request(code=RequestCode.REGISTER_BROKER, ext_fields=identity | fields, body=body)


class Admin(Actor):
    """An administrator's tool that changes entries of brokers over its own connections.

    It unregisters brokers, deletes and puts their topics, and changes their write permission.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.touched: set[str] = set()
        """Topics that this tool may have deleted or changed.

        A broker's next registration restores these topics only if the broker's data version has changed.
        """

    def meddle(self) -> None:
        """Unregister a random broker, or change its topics."""
        rng = self.world.clock.rng
        broker = rng.choice(self.world.brokers)
        if rng.random() < 0.5:
            self._say(broker._goodbye())
        else:
            self.touch(broker)

    def touch(self, broker: Broker) -> None:
        """Delete a broker's topic, change its number of queues, or change the broker's write permission."""
        rng = self.world.clock.rng
        if rng.random() < 0.2:
            self._say(_permission(rng.choice(PERMISSIONS), broker.broker_name))
            return
        topic = rng.choice(sorted(broker.topics) or ["none"])
        self.touched.add(topic)
        if rng.random() < 0.5:
            self._say(_delete_topic(topic, "C" if rng.random() < 0.3 else None))
        else:
            self._say(_put_topic(topic, broker.broker_name, rng.randint(17, 32)))

    def _say(self, request: Request) -> None:
        self.call(self.world.clock.rng.choice(self.world.members), request, lambda answer: None)


PERMISSIONS = (RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER)


def _permission(code: int, broker_name: str) -> Request:
    return Request(code=code, ext_fields={"brokerName": broker_name})


def _delete_topic(topic: str, cluster: str | None = None) -> Request:
    fields = {"topic": topic} if cluster is None else {"topic": topic, "clusterName": cluster}
    return Request(code=RequestCode.DELETE_TOPIC_IN_NAMESRV, ext_fields=fields)


def _put_topic(topic: str, broker_name: str, queues: int) -> Request:
    data = QueueData(
        broker_name=broker_name, read_queue_nums=queues, write_queue_nums=queues, perm=6, topic_sys_flag=0
    )
    body = encode_route(TopicRouteData(queue_datas=(data,), broker_datas=()), RouteDialect.QUOTED)
    return Request(code=RequestCode.REGISTER_TOPIC_IN_NAMESRV, ext_fields={"topic": topic}, body=body)


class Client(Actor):
    """A client that reads and writes a few KV values and a few topics, through any nameserver.

    It records its calls and their answers, which the run checks at its end. The value of a topic is the
    number of its queues at each broker name.
    """

    KEYS = ("x", "y", "z")
    TOPICS = ("t", "u")
    NAMES = ("broker-a", "broker-b")
    INSISTS = 0.3
    """Probability that a client sends a write again if its outcome is unknown."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"{type(self).__name__.lower()}-{number}")
        self._number = 1 + number
        self._value = self._sent = 0
        self._under_way: dict[int, tuple[float, Mapping[Hashable, Value]]] = {}
        """Unanswered writes, by number: their start time and the values that they write."""
        self.busy = True

    def go(self) -> None:
        """Make one call after another until ``busy`` is False."""
        if self.busy:
            self.act(self.world.clock.rng.choice(self.world.members), self._again)

    def _again(self) -> None:
        rng = self.world.clock.rng
        self.world.clock.at(rng.uniform(0.005, 0.15), self.go)

    def act(self, member: Member, then: Callable[[], None]) -> None:
        rng = self.world.clock.rng
        if rng.random() < 0.3:
            self._act_on_topic(member, then)
            return
        key = rng.choice(self.KEYS)
        kind = rng.random()
        if kind < 0.3:
            self.read(member, key, then)
        elif kind < 0.5:
            self.read(member, key, then, linearizable=True)
        elif kind < 0.8:
            self._value += 1
            self.write(member, key, f"{self.name}.{self._value}", then)
        else:
            self.write(member, key, None, then)

    def _act_on_topic(self, member: Member, then: Callable[[], None]) -> None:
        rng = self.world.clock.rng
        topic, kind = rng.choice(self.TOPICS), rng.random()
        if kind < 0.5:
            if rng.random() < 0.3:
                topic = rng.choice(self.world.registers).name
            self.read_topic(member, topic, then, linearizable=kind < 0.2)
        elif kind < 0.7:
            self._put_topic(member, topic, then)
        elif kind < 0.85:
            self._drop_topic(member, topic, then)
        else:
            # Delete the topic directly after the put, through another member. The other member may not have
            # applied the put yet.
            other = rng.choice(self.world.members)
            self._put_topic(member, topic, lambda: self._drop_topic(other, topic, then))

    def _put_topic(self, member: Member, topic: str, then: Callable[[], None]) -> None:
        self._value += 1
        name, queues = self.world.clock.rng.choice(self.NAMES), self._number * VALUES + self._value
        self._send_write(member, _put_topic(topic, name, queues), {(topic, name): queues}, then)

    def _drop_topic(self, member: Member, topic: str, then: Callable[[], None]) -> None:
        gone: dict[Hashable, Value] = {(topic, name): None for name in self.NAMES}
        self._send_write(member, _delete_topic(topic), gone, then)

    def read_topic(
        self, member: Member, topic: str, then: Callable[[], None], *, linearizable: bool = False
    ) -> None:
        begun = self.world.clock.now
        lag = 0.0 if linearizable else self.world.election_timeout_ms / 1000

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code != ResponseCode.SYSTEM_ERROR:
                route = decode_route(answer.body).queue_datas if answer.code == ResponseCode.SUCCESS else ()
                found = {data.broker_name: data.write_queue_nums for data in route}
                for name in self.NAMES if topic in self.TOPICS else (topic,):
                    key = (topic, name)
                    self._record(key, Operation.READ, found.get(name), begun, Outcome.OK, lag=lag)
            then()

        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        request = Request(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=fields)
        if not self.call(member, request, done, Freshness.LINEARIZABLE if linearizable else None):
            then()

    def read(self, member: Member, key: str, then: Callable[[], None], *, linearizable: bool = False) -> None:
        begun = self.world.clock.now
        lag = 0.0 if linearizable else self.world.election_timeout_ms / 1000

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code != ResponseCode.SYSTEM_ERROR:
                found = answer.ext_fields.get("value") if answer.code == ResponseCode.SUCCESS else None
                self._record(key, Operation.READ, found, begun, Outcome.OK, lag=lag)
            then()

        request = self._request(RequestCode.GET_KV_CONFIG, key)
        if not self.call(member, request, done, Freshness.LINEARIZABLE if linearizable else None):
            then()

    def write(self, member: Member, key: str, value: str | None, then: Callable[[], None]) -> None:
        """Write a value, or delete it if ``value`` is None. Call ``then`` afterwards.

        Sometimes repeat a write whose outcome is unknown.
        """
        request = self._request(RequestCode.DELETE_KV_CONFIG, key)
        if value is not None:
            request = self._request(RequestCode.PUT_KV_CONFIG, key, value)
        self._send_write(member, request, {key: value}, then)

    def _send_write(
        self, member: Member, request: Request, values: Mapping[Hashable, Value], then: Callable[[], None]
    ) -> None:
        begun = self.world.clock.now
        self._sent += 1
        sent = self._sent

        def done(answer: Answer | None) -> None:
            self._under_way.pop(sent)
            outcome = Outcome.UNKNOWN
            if answer is not None:
                remark = answer.remark or ""
                if answer.code == ResponseCode.SUCCESS:
                    outcome = Outcome.OK
                elif remark.startswith(NO_QUORUM_TAG):
                    outcome = Outcome.FAILED
                elif not remark.startswith(OUTCOME_UNKNOWN_TAG):
                    self.world.truth.fail(Oracle.ANSWERS, f"{self.name}: {answer}")
            self.world.truth.count[f"write {outcome.value}"] += 1
            for key, value in values.items():
                self._record(key, Operation.WRITE, value, begun, outcome)
            rng = self.world.clock.rng
            if outcome is Outcome.UNKNOWN and self.busy and rng.random() < self.INSISTS:
                self._send_write(rng.choice(self.world.members), request, values, then)
            else:
                then()

        self._under_way[sent] = begun, values
        if not self.call(member, request, done):
            del self._under_way[sent]
            then()

    def give_up(self) -> None:
        """Record the outcome of each unanswered write as unknown.

        This method is called at the end of a run.
        """
        for begun, values in self._under_way.values():
            for key, value in values.items():
                self._record(key, Operation.WRITE, value, begun, Outcome.UNKNOWN)
        self._under_way.clear()

    def _record(
        self,
        key: Hashable,
        operation: Operation,
        value: Value,
        begun: float,
        outcome: Outcome,
        *,
        lag: float = 0.0,
    ) -> None:
        self.world.truth.history.append(
            Call(
                key=key,
                operation=operation,
                value=value,
                begun=begun,
                ended=self.world.clock.now,
                outcome=outcome,
                caller=self.name,
                lag=lag,
            )
        )

    @staticmethod
    def _request(code: int, key: str, value: str | None = None) -> Request:
        fields = {"namespace": NAMESPACE, "key": key}
        return Request(code=code, ext_fields=fields if value is None else fields | {"value": value})


class Dropper(Client):
    """A client that puts a topic at one member, and at once deletes it at another member.

    This other member may not have applied the put yet.
    """

    def act(self, member: Member, then: Callable[[], None]) -> None:
        rng = self.world.clock.rng
        topic, other = rng.choice(self.TOPICS), rng.choice(self.world.members)
        self._put_topic(member, topic, lambda: self._drop_topic(other, topic, then))


class Reader(Client):
    """A client that makes linearizable reads with short pauses, so that several reads share a barrier."""

    def _again(self) -> None:
        self.world.clock.at(self.world.clock.rng.uniform(0.0, 0.08), self.go)

    def act(self, member: Member, then: Callable[[], None]) -> None:
        registers = (register.name for register in self.world.registers)
        key = self.world.clock.rng.choice((*self.KEYS, *self.TOPICS, *registers))
        (self.read if key in self.KEYS else self.read_topic)(member, key, then, linearizable=True)


class Register:
    """A broker with one topic, whose number of queues many clients write.

    The topic has the same name as the broker.
    """

    LEASE_S = 60.0

    def __init__(self, number: int) -> None:
        self.name = f"register-{number}"
        self.key = BrokerKey(ClusterName("C"), BrokerAddr(f"10.9.0.{number}:10911"))
        self.said: dict[DataVersion, dict[str, int]] = {}
        """All topics of the register's broker, for each data version that was sent."""
        self.queues: int | None = None
        """Number of queues after the last applied log entry; None if the topic is not in the table."""
        self.former: set[int] = set()

    def went_back(self, version: DataVersion, *, to: DataVersion) -> bool:
        """Return False, because a register is never restored from a backup.

        See :meth:`Broker.went_back`.
        """
        return False

    def registration(self, queues: int) -> Request:
        """Return a request that registers the topic with this number of queues.

        The caller must use each number only once.
        """
        # A later registration has a larger counter but an earlier timestamp. So no version is greater in both
        # fields, and a nameserver never ignores a registration as a late copy.
        version, topics = DataVersion(counter=queues, timestamp=2**40 - queues), {self.name: queues}
        self.said[version] = topics
        identity = {
            "brokerName": self.name,
            "brokerAddr": self.key.broker_addr,
            "clusterName": self.key.cluster_name,
            "brokerId": "0",
        }
        return _registration(identity, version, topics, lease_s=self.LEASE_S)


class Registrant(Client):
    """A client that writes registers (see :class:`Register`) while other clients write them, too.

    It sends each value only once.
    """

    INSISTS = 0.0  # probability of a repetition after an unknown outcome: never send a value twice
    PERIOD_S = 0.6

    def _again(self) -> None:
        clock = self.world.clock
        wait = self.PERIOD_S - clock.now % self.PERIOD_S
        clock.at(wait + clock.rng.uniform(0.0, 0.005), self.go)

    def act(self, member: Member, then: Callable[[], None]) -> None:
        register = self.world.clock.rng.choice(self.world.registers)
        self._value += 1
        queues = self._number * VALUES + self._value
        request = register.registration(queues)
        self._send_write(member, request, {(register.name, register.name): queues}, then)
