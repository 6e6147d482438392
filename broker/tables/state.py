"""State that all request handlers of one broker use: tables, store, and the effects of a request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from routekeeper.broker.config import LIVE_KEYS, BrokerConfig
from routekeeper.broker.errors import Refusal, StoreUnavailable
from routekeeper.broker.store.messages import MessageStore
from routekeeper.broker.tables.group_configs import GroupConfigs
from routekeeper.broker.tables.groups import Client, ClientTable
from routekeeper.broker.tables.locks import QueueLocks
from routekeeper.broker.tables.long_polling import HOST_PERCENT
from routekeeper.broker.tables.offsets import ConsumerOffsets
from routekeeper.broker.tables.stats import Stats
from routekeeper.broker.tables.topics import TopicConfigs, name_fault
from routekeeper.remoting.bodies import HeartbeatData, MessageQueue, SubscriptionGroupConfig
from routekeeper.remoting.bounds import GROUPS_MAX
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import Host, offset_message_id
from routekeeper.remoting.names import GROUP_LENGTH_MAX, GROUP_TOPIC_LENGTH_MAX
from routekeeper.remoting.route import DataVersion, TopicConfig

logger = logging.getLogger(__name__)

#: Text that ends an error answer if RocketMQ's FAQ explains the error. Source: FAQUrl, RocketMQ 5.3.
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request, together with the facts that the server knows about its arrival.

    Attributes:
        connection: Number that the server gave to the connection of this request.
        peer: Address of the caller.
        now_ms: Time of the call in Unix ms.
        now: Time of the call in seconds of the event loop's clock.
    """

    request: RemotingCommand
    connection: int
    peer: Host
    now_ms: int
    now: float


@dataclass(slots=True)
class Effects:
    """Effects that a handler requests in addition to its answer. The server clears them after each call.

    Attributes:
        notify: Consumer groups. The server tells their members to rebalance (request 40) before the answer is
            sent.
        changed_topics: Changed topics to register at the nameservers, in order. Each topic is registered with
            the data version of its own change. With the version of a later change, a nameserver would treat
            that later change as already known.
        register_all: True if all topics must be registered.
        nameservers: True if the setting that names the nameservers may have changed.
        save_topics, save_groups: True if the table of topics or of groups has changed and must be written.
        arrived: Queues to which this request added messages, as topic and queue id. The server tries the held
            pulls of these queues again.
        deleted_topics: Topics whose queues this request removed. The server tries the held pulls of these
            topics again.
        tell: Requests to send to clients, each with the client's connection.
        clean: True if expired files must be removed soon, at any hour.
        about: Fields of the audit log's entry, by name: the object that the request changes, its old value
            and its new value.
    """

    notify: list[str] = field(default_factory=list)
    changed_topics: list[tuple[TopicConfig, DataVersion]] = field(default_factory=list)
    register_all: bool = False
    nameservers: bool = False
    save_topics: bool = False
    save_groups: bool = False
    arrived: set[tuple[str, int]] = field(default_factory=set)
    deleted_topics: set[str] = field(default_factory=set)
    tell: list[tuple[int, RemotingCommand]] = field(default_factory=list)
    clean: bool = False
    about: dict[str, str] = field(default_factory=dict)


class Later(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that must wait until data are on disk, or until nameservers have received a registration.

    Attributes:
        log_offset: Log offset up to which the log must be synced before the answer, or 0 for no wait.
        topics_saved, groups_saved, offsets_saved, settings_saved: True if the table of this name must be on
            disk before the answer.
        registered: True if the broker must first send the topics that this call changed to the nameservers.
    """

    reply: RemotingCommand
    log_offset: int = 0
    topics_saved: bool = False
    groups_saved: bool = False
    offsets_saved: bool = False
    settings_saved: bool = False
    registered: bool = False

    @property
    def only_synced(self) -> bool:
        """True if the answer waits for the log and nothing else."""
        return not (
            self.topics_saved
            or self.groups_saved
            or self.offsets_saved
            or self.settings_saved
            or self.registered
        )


class KnownSend(msgspec.Struct, frozen=True):
    """Checked arguments of a send, valid for all messages that a producer sends to one queue.

    Attributes:
        topic, settings: The topic's and the broker's configuration against which the arguments were checked.
            If one of these two configurations changes, the arguments must be checked again.
    """

    topic: TopicConfig
    settings: BrokerConfig
    queue_id: int
    flag: int
    sys_flag: int
    reconsume_times: int


#: Computation of an answer, divided into steps. The yielded functions may run in a thread. The generator
#: returns the answer.
Work = Generator[Callable[[], Any], Any, RemotingCommand | Later]


@dataclass(frozen=True, slots=True)
class Stepwise:
    """An answer that is computed in steps, because it takes long. Other work may run between the steps.

    Attributes:
        work: The steps.
        asked: The request that is answered.
        queues: Largest number of queues that the answer can list. The list takes memory until the answer is
            sent.
    """

    work: Work
    asked: RemotingCommand
    queues: int = 0


@dataclass(slots=True, kw_only=True)
class BrokerState:
    """The whole state of one broker.

    Attributes:
        advertise: Address of this broker in message ids and at the nameservers.
        hot_bytes: Size in bytes of the end of the log that the broker assumes to be in memory.
        delay_offsets: Next offset to deliver from the queue of each delay level.
        delay_turn: Delay level whose queue was checked last. The next check begins with the following level.
        id_prefix: Beginning of all message ids of this broker: the encoded address.
        live_keys: Settings that request 25 (UPDATE_BROKER_CONFIG) may change.
        changed_settings: Settings that request 25 has changed, in this run of the broker or an earlier run,
            by RocketMQ's keys.
        sign: Function that signs requests to nameservers.
        tls_to_nameservers: True if connections to nameservers are encrypted.
        known_sends: Checked arguments of recent sends. ``requests.sending`` fills and reads this dict.
        full: Kinds of table entries (``topics``, ``groups`` and so on) that have reached their largest
            number. The broker logs this once for each kind.
        topics_promised, groups_promised: Number of topics and of groups that running requests still have to
            create. Each of these requests contains a list of topics or groups. Checks of the largest numbers
            count these topics and groups as if they existed.
        unsaved_topics: Topics created or changed since the table was last written, each with the counter of
            the data version that contains the change.
        unwritten_files: Names of the tables' files whose last write has failed, each with the error.
    """

    config: BrokerConfig
    config_version: DataVersion
    advertise: Host
    hot_bytes: int
    topics: TopicConfigs
    groups: GroupConfigs
    offsets: ConsumerOffsets
    clients: ClientTable
    locks: QueueLocks
    store: MessageStore
    stats: Stats
    delay_offsets: dict[int, int] = field(default_factory=dict)
    delay_turn: int = 0
    effects: Effects = field(default_factory=Effects)
    live_keys: frozenset[str] = LIVE_KEYS
    changed_settings: dict[str, str] = field(default_factory=dict)
    turn: int = 0
    unsaved_topics: dict[str, int] = field(default_factory=dict)
    unwritten_files: dict[str, OSError | StoreUnavailable] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)
    topics_promised: int = 0
    groups_promised: int = 0
    id_prefix: str = ""
    sign: Callable[[RemotingCommand], RemotingCommand] = field(default=lambda request: request)
    tls_to_nameservers: bool = False
    known_sends: dict[tuple[str | None, ...], KnownSend] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.id_prefix = offset_message_id(self.advertise, 0)[:-16]

    def message_id(self, physical_offset: int) -> str:
        """Return the id of a message in this broker's log."""
        return f"{self.id_prefix}{physical_offset:016X}"

    def queue(self, topic: str, queue_id: int) -> MessageQueue:
        """Return a queue of this broker in the form that clients use."""
        return MessageQueue(topic=topic, broker_name=self.config.broker_name, queue_id=queue_id)

    def require_topic(self, topic: str) -> TopicConfig:
        """Return a topic's configuration, for operators' requests.

        Raises:
            Refusal: If the topic is unknown.
        """
        config = self.topics.get(topic)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return config

    def pick_queue(self, queue_nums: int) -> int:
        """Return the next queue id in rotation, from 0 to ``queue_nums`` - 1. RocketMQ chooses at random."""
        self.turn += 1
        return self.turn % queue_nums if queue_nums > 0 else 0

    def require_room_for_topics(self, *names: str) -> None:
        """Check that topics exist, or that creating them would not exceed the largest number of topics.

        Raises:
            Refusal: If creating the missing topics would exceed that number.
        """
        new = sum(name not in self.topics for name in set(names))
        used = len(self.topics) + self.topics_promised
        if new and used + new > self.config.topics_max:
            raise self._full("topics", f"maxTopics={self.config.topics_max}", used)

    def require_room_for_queue(self, topic: str, queue_id: int, *, reserve: bool = False) -> None:
        """Check that a queue already has messages, or that one more queue is allowed (``queues_max``).

        Args:
            reserve: True if the queue's first message is stored later. The queue then counts from now on, as
                if it had a message.

        Raises:
            Refusal: If one more queue would be too many.
        """
        if self.store.has_queue(topic, queue_id):
            return
        if self.store.queue_count >= self.config.queues_max:
            raise self._full("queues", f"maxQueues={self.config.queues_max}", self.store.queue_count)
        if reserve:
            self.store.reserve_queue(topic, queue_id)

    def require_room_for_groups(self, *names: str) -> None:
        """Check that consumer groups exist, or that creating them would not exceed the largest number.

        Raises:
            Refusal: If creating the missing groups would exceed that number.
        """
        new = sum(self.groups.get(name) is None for name in set(names))
        used = len(self.groups) + self.groups_promised
        if new and used + new > self.config.groups_max:
            raise self._full("groups", f"maxSubscriptionGroups={self.config.groups_max}", used)

    def require_room_for_client(self, client: Client, data: HeartbeatData) -> None:
        """Check that the table of clients can grow by the contents of a heartbeat.

        Raises:
            Refusal: If the client's connection would be in too many groups. Also if all clients together, or
                all clients of this client's host, would need too many bytes.
        """
        counts = self.clients.groups_after(client.connection, data)
        for kind, count in zip(("consumer", "producer"), counts, strict=True):
            if count > GROUPS_MAX:
                raise Refusal(
                    ResponseCode.NO_PERMISSION,
                    f"the connection of client {client.client_id[:80]!r} would be in {count} {kind} groups,"
                    f" allowed are {GROUPS_MAX}; unregister from groups that are not in use",
                )
        growth, size_max = self.clients.growth(client, data), self.config.client_bytes_max
        if growth and self.clients.size + growth > size_max:
            raise self._full("clients", f"maxClientBytes={size_max}", self.clients.size)
        used, share = self.clients.size_of(client.host), size_max * HOST_PERCENT // 100
        if growth and client.host and used + growth > share:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"this broker takes no new clients of host {client.host}: they have {used} bytes, allowed are"
                f" {share}, that is {HOST_PERCENT} % of maxClientBytes={size_max}",
            )

    def commit_offsets(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Store a group's offsets of several queues: all of them, or none.

        Raises:
            Refusal: If the group has no offset yet in one of the queues, and a new offset would exceed the
                table's largest size in bytes. Nothing was stored.
        """
        size_max = self.config.offset_bytes_max
        if not self.offsets.commit_all(topic, group, offsets, size_max=size_max):
            raise self._full("offsets", f"maxConsumerOffsetBytes={size_max}", self.offsets.size)

    def _full(self, kind: str, setting: str, used: int) -> Refusal:
        if kind not in self.full:
            self.full.add(kind)
            logger.warning("no new ones are taken kind=%s used=%s allowed=%s", kind, used, setting)
        return Refusal(
            ResponseCode.NO_PERMISSION,
            f"this broker takes no new {kind}: it has {used}, allowed is {setting}; remove some or raise it",
        )

    def group_config(self, group: str, *, now_ms: int) -> SubscriptionGroupConfig | None:
        """Return a group's configuration. Create it if the settings allow that and the group's name is valid.

        Returns:
            None if the group does not exist and was not created.

        Raises:
            Refusal: If one more group would be too many.
        """
        found = self.groups.get(group)
        if found is None and self.config.auto_create_subscription_group:
            if name_fault(group, length_max=GROUP_LENGTH_MAX) is not None:
                return None
            self.require_room_for_groups(group)
            found = SubscriptionGroupConfig(group_name=group)
            self.groups.put(found, now_ms=now_ms)
            self.effects.save_groups = True
        return found

    def require_group(self, group: str, *, now_ms: int) -> SubscriptionGroupConfig:
        found = self.group_config(group, now_ms=now_ms)
        if found is None:
            raise no_group(group)
        return found

    def topic_changed(self, topic: str) -> None:
        """Request a write of the topic table and a registration of this topic, which was just changed."""
        self.topic_unsaved(topic)
        config = self.topics.get(topic)
        if config is not None:
            self.effects.changed_topics.append((config, self.topics.data_version))

    def topic_unsaved(self, topic: str) -> None:
        """Request a write of the topic table, because this topic was just changed."""
        self.effects.save_topics = True
        self.unsaved_topics[topic] = self.topics.data_version.counter

    def topics_saved(self, version: DataVersion, deletions: int) -> None:
        """Record that the topic table of this version is on disk.

        Args:
            deletions: Number of topics that the message store had deleted when the write began. The table on
                disk contains these deletions, so the store may now remove the queue files of these topics.
        """
        for topic in [name for name, count in self.unsaved_topics.items() if count <= version.counter]:
            del self.unsaved_topics[topic]
        self.store.confirm_topics(version.counter, deletions)

    def ensure_group_topic(
        self, topic: str, *, queue_nums: int, now_ms: int, perm: int = 6, sys_flag: int = 0
    ) -> TopicConfig:
        """Return a retry or dead-letter topic. Create the topic if it does not exist.

        Raises:
            Refusal: If the topic's name is invalid, or one more topic would be too many.
        """
        fault = name_fault(topic, length_max=GROUP_TOPIC_LENGTH_MAX)
        if fault is not None:
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"{topic[:200]}: {fault}")
        self.require_room_for_topics(topic)
        if self.topics.create_for_group(
            topic, queue_nums=queue_nums, perm=perm, sys_flag=sys_flag, now_ms=now_ms
        ):
            self.topic_changed(topic)
        config = self.topics.get(topic)
        assert config is not None
        return config


def no_group(group: str) -> Refusal:
    """Return the refusal of a request that names a group which does not exist."""
    return Refusal(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}] does not exist{FAQ}"
    )
