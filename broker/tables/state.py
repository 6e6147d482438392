"""State that the handlers of one broker share: its tables, its store, and the effects they ask for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from routekeeper.broker.config import LIVE_KEYS, BrokerConfig
from routekeeper.broker.errors import Refusal
from routekeeper.broker.store.messages import MessageStore
from routekeeper.broker.tables.group_configs import GroupConfigs
from routekeeper.broker.tables.groups import Client, ClientTable
from routekeeper.broker.tables.locks import QueueLocks
from routekeeper.broker.tables.long_polling import HOST_PERCENT
from routekeeper.broker.tables.offsets import ConsumerOffsets
from routekeeper.broker.tables.stats import Stats
from routekeeper.broker.tables.topics import TopicConfigs, name_fault
from routekeeper.remoting.bodies import HeartbeatData, MessageQueue, SubscriptionGroupConfig
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import Host, offset_message_id
from routekeeper.remoting.names import GROUP_LENGTH_MAX, GROUP_TOPIC_LENGTH_MAX
from routekeeper.remoting.route import DataVersion, TopicConfig

logger = logging.getLogger(__name__)

#: Appended to refusals about which users may read more. Source: FAQUrl, RocketMQ 5.3.
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request with the server's facts about it.

    Attributes:
        connection: The server's number of its connection.
        peer: Address of the caller.
        now_ms: Unix ms.
        now: Loop time in seconds.
    """

    request: RemotingCommand
    connection: int
    peer: Host
    now_ms: int
    now: float


@dataclass(slots=True)
class Effects:
    """Effects that a handler requests besides its answer; the server clears them after each call.

    Attributes:
        notify: Consumer groups whose members are notified to rebalance (request 40), before the answer is
            sent.
        changed_topics: Topics to register incrementally, in order, each with the data version of its own
            change. If a topic carried a later version, nameservers would believe that they know the later
            change already.
        register_all: All topics are to be registered.
        nameservers: The setting that names the nameservers may have changed.
        save_topics, save_groups: The table has changed and must be written.
        arrived: Queues that got messages.
        tell: Connections, each with a request to its client.
        clean: Old files are to be removed soon, at any hour.
        about: For an audited request: its subject, and the old and the new value, by name.
    """

    notify: list[str] = field(default_factory=list)
    changed_topics: list[tuple[TopicConfig, DataVersion]] = field(default_factory=list)
    register_all: bool = False
    nameservers: bool = False
    save_topics: bool = False
    save_groups: bool = False
    arrived: set[tuple[str, int]] = field(default_factory=set)
    tell: list[tuple[int, RemotingCommand]] = field(default_factory=list)
    clean: bool = False
    about: dict[str, str] = field(default_factory=dict)


class Later(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that must wait until data are on disk, or until nameservers were informed.

    Attributes:
        log_offset: The log must be synced up to here; 0 for no wait.
        topics_saved, groups_saved, offsets_saved, settings_saved: This table must be on disk.
        registered: The topics that this call changed must have been sent to the nameservers.
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
        """Return whether it waits only for the log."""
        return not (
            self.topics_saved
            or self.groups_saved
            or self.offsets_saved
            or self.settings_saved
            or self.registered
        )


class KnownSend(msgspec.Struct, frozen=True):
    """Conclusions from a send's arguments; they hold for all messages that a producer sends to a queue.

    Attributes:
        topic, settings: The values on which the conclusions depend; these are valid while both are in force.
    """

    topic: TopicConfig
    settings: BrokerConfig
    queue_id: int
    flag: int
    sys_flag: int
    reconsume_times: int


#: Work in steps like the store's; a yielded step may run in a thread. The result is the answer.
Work = Generator[Callable[[], Any], Any, RemotingCommand | Later]


@dataclass(frozen=True, slots=True)
class Stepwise:
    """An answer that is made in steps, because it takes long; other work may run between the steps.

    Attributes:
        work: The steps.
        asked: The request that it answers.
        queues: Largest number of queues that the answer can list. They take memory until it is sent.
    """

    work: Work
    asked: RemotingCommand
    queues: int = 0


@dataclass(slots=True, kw_only=True)
class BrokerState:
    """The whole state of one broker.

    Attributes:
        advertise: Address in message ids and at the nameservers.
        hot_bytes: Number of bytes at the end of the log that count as being in memory.
        delay_offsets: Delay level to next offset of its queue.
        delay_turn: Delay level whose queue was looked at last; the next turn begins with the level after it.
        id_prefix: Beginning of all message ids: the advertised address.
        live_keys: Settings that request 25 may change.
        changed_settings: Settings that request 25 has changed, now or before the last start, by RocketMQ's
            keys.
        sign: Signs requests to nameservers.
        known_sends: Conclusions from sends' arguments; ``requests.sending`` fills and reads it.
        full: Kinds of entries whose bound was reached once; logged once for each.
        topics_promised, groups_promised: Number of new entries in lists that are being applied; their room is
            reserved.
        unsaved_topics: Topics created or changed since the table was last written, with the counter of the
            change's version.
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
    full: set[str] = field(default_factory=set)
    topics_promised: int = 0
    groups_promised: int = 0
    id_prefix: str = ""
    sign: Callable[[RemotingCommand], RemotingCommand] = field(default=lambda request: request)
    known_sends: dict[tuple[str | None, ...], KnownSend] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.id_prefix = offset_message_id(self.advertise, 0)[:-16]

    def message_id(self, physical_offset: int) -> str:
        """Return the id of a message stored here."""
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
        """Return the next of ``queue_nums`` queues in turn, where RocketMQ takes a random one."""
        self.turn += 1
        return self.turn % queue_nums if queue_nums > 0 else 0

    def require_room_for_topics(self, *names: str) -> None:
        """Check that topics exist, or that the bound of topics allows to create them.

        Raises:
            Refusal: If there would be too many.
        """
        new = sum(name not in self.topics for name in set(names))
        used = len(self.topics) + self.topics_promised
        if new and used + new > self.config.topics_max:
            raise self._full("topics", f"maxTopics={self.config.topics_max}", used)

    def require_room_for_queue(self, topic: str, queue_id: int, *, reserve: bool = False) -> None:
        """Check that a queue has messages, or that the bound of queues allows its first one.

        Args:
            reserve: The message comes later; reserve room for its queue.

        Raises:
            Refusal: If there would be too many.
        """
        if self.store.has_queue(topic, queue_id):
            return
        if self.store.queue_count >= self.config.queues_max:
            raise self._full("queues", f"maxQueues={self.config.queues_max}", self.store.queue_count)
        if reserve:
            self.store.reserve_queue(topic, queue_id)

    def require_room_for_groups(self, *names: str) -> None:
        """Check that consumer groups exist, or that the bound of groups allows to create them.

        Raises:
            Refusal: If there would be too many.
        """
        new = sum(self.groups.get(name) is None for name in set(names))
        used = len(self.groups) + self.groups_promised
        if new and used + new > self.config.groups_max:
            raise self._full("groups", f"maxSubscriptionGroups={self.config.groups_max}", used)

    def require_room_for_client(self, client: Client, data: HeartbeatData) -> None:
        """Check that a heartbeat has nothing new, or that there is room for it.

        Raises:
            Refusal: If the clients, or those of its host, would exceed their bound.
        """
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
            Refusal: If one of these queues had no offset yet, and there is no room for another offset.
        """
        growth = sum(self.offsets.growth(topic, group, queue_id) for queue_id in offsets)
        size, size_max = self.offsets.size, self.config.offset_bytes_max
        if growth and size + growth > size_max:
            raise self._full("offsets", f"maxConsumerOffsetBytes={size_max}", size)
        for queue_id, offset in offsets.items():
            self.offsets.commit(topic, group, queue_id, offset)

    def _full(self, kind: str, setting: str, used: int) -> Refusal:
        if kind not in self.full:
            self.full.add(kind)
            logger.warning("no new ones are taken kind=%s used=%s allowed=%s", kind, used, setting)
        return Refusal(
            ResponseCode.NO_PERMISSION,
            f"this broker takes no new {kind}: it has {used}, allowed is {setting}; remove some or raise it",
        )

    def group_config(self, group: str, *, now_ms: int) -> SubscriptionGroupConfig | None:
        """Return a group's configuration; create it if that is allowed and its name is valid.

        Raises:
            Refusal: If there would be too many.
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
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}] does not exist{FAQ}"
            )
        return found

    def topic_changed(self, topic: str) -> None:
        """Request that the topic that was just changed is written and registered."""
        self.topic_unsaved(topic)
        config = self.topics.get(topic)
        if config is not None:
            self.effects.changed_topics.append((config, self.topics.data_version))

    def topic_unsaved(self, topic: str) -> None:
        """Request that the topic that was just changed is written."""
        self.effects.save_topics = True
        self.unsaved_topics[topic] = self.topics.data_version.counter

    def topics_saved(self, version: DataVersion, deletions: int) -> None:
        """Note that the topic table of this version, after this many deletions, is on disk."""
        for topic in [name for name, count in self.unsaved_topics.items() if count <= version.counter]:
            del self.unsaved_topics[topic]
        self.store.confirm_topics(version.counter, deletions)

    def ensure_group_topic(
        self, topic: str, *, queue_nums: int, now_ms: int, perm: int = 6, sys_flag: int = 0
    ) -> TopicConfig:
        """Return a retry or dead-letter topic, created if it is missing.

        Raises:
            Refusal: If the group's name makes no valid topic, or there would be too many.
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
