"""Clients of this broker: producers and consumers, by group and connection.

This module does no I/O and reads no clock.

Instants are seconds of the event loop's clock. A connection is identified by the small integer that the
server gave it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from routekeeper.broker.errors import Refusal
from routekeeper.remoting.bodies import (
    ClientConnection,
    ConsumerConnection,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
)
from routekeeper.remoting.codes import LanguageCode

#: Seconds without a heartbeat after which a client is removed. Source: CHANNEL_EXPIRED_TIMEOUT of
#: ConsumerManager.
CLIENT_EXPIRY_S: Final = 120.0
#: Seconds between two checks for clients that send no heartbeats. Source: ClientHousekeepingService.
SCAN_INTERVAL_S: Final = 10.0
#: Approximate memory in bytes of one membership of a client in a group, of one subscription, and of one tag.
#: The names that they contain are counted separately.
_MEMBER_BYTES: Final = 400
_SUBSCRIPTION_BYTES: Final = 700
_TAG_BYTES: Final = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client process, as this broker sees it on one of the process's connections.

    Attributes:
        host: Host of the client, in the form of :func:`routekeeper.remoting.addresses.charged_host`. Each
            host may use a limited part of this table's memory. Empty for loopback, which has no such limit.
    """

    connection: int
    client_id: str
    client_addr: str
    language: LanguageCode | None
    version: int
    host: str = ""

    def to_connection(self) -> ClientConnection:
        return ClientConnection(
            client_id=self.client_id,
            client_addr=self.client_addr,
            language=self.language,
            version=self.version,
        )


def bytes_of(text: str) -> int:
    """Return an upper bound of a text's memory in bytes, without the object's fixed size.

    A single character outside of ASCII can make Python use four bytes for each character of the text.
    """
    return len(text) if text.isascii() else 4 * len(text)


def _size_of(subscriptions: Iterable[SubscriptionData]) -> int:
    """Return the approximate memory of subscriptions in bytes."""
    return sum(
        _SUBSCRIPTION_BYTES
        + bytes_of(each.topic)
        + bytes_of(each.sub_string)
        + bytes_of(each.expression_type)
        # Clients of other languages may send only the expression. Then count the tags in the expression.
        + _TAG_BYTES * max(len(each.tags), len(each.codes), each.sub_string.count("||"))
        + sum(map(bytes_of, each.tags))
        for each in subscriptions
    )


def _size_of_choices(data: ConsumerData) -> int:
    """Return the memory in bytes of a group's three texts: consume type, message model, start position."""
    return sum(map(bytes_of, (data.consume_type, data.message_model, data.consume_from_where)))


def _size_in(group: str, client: Client | None) -> int:
    """Return the approximate memory in bytes of a client's membership in a group, or 0 without a client."""
    return 0 if client is None else _MEMBER_BYTES + bytes_of(group) + bytes_of(client.client_id)


class ConsumerGroup:
    """Members and subscriptions of one consumer group.

    Attributes:
        size: Approximate memory in bytes of the subscriptions, and of the texts ``consume_type``,
            ``message_model`` and ``consume_from_where``.
        host: Host whose memory quota counts these bytes: the host of the client that sent the group's
            last heartbeat.
        codes: Tag codes of the subscriptions by topic (None for all messages), or the reason why a
            subscription cannot be read. Handlers of pulls add an entry at the first pull of a topic, because
            a subscription may have thousands of tags.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type = "CONSUME_PASSIVELY"
        self.message_model = "CLUSTERING"
        self.consume_from_where = "CONSUME_FROM_LAST_OFFSET"
        self.members: dict[int, Client] = {}
        self.last_seen: dict[int, float] = {}
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.codes: dict[str, frozenset[int] | Refusal | None] = {}
        self.size = 0
        self.host = ""

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model == "BROADCASTING"

    def client_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(client.client_id for client in self.members.values()))

    def describe(self) -> ConsumerConnection:
        return ConsumerConnection(
            connections=tuple(client.to_connection() for client in self.members.values()),
            consume_type=self.consume_type,
            message_model=self.message_model,
            consume_from_where=self.consume_from_where,
            subscriptions=dict(self.subscriptions),
        )

    def update(self, client: Client, data: ConsumerData, now: float) -> bool:
        """Record a heartbeat. Return True if members or subscriptions changed.

        A newer version of a subscription replaces the old version, but does not count as a change.
        Source: ConsumerGroupInfo.updateChannel, updateSubscription.
        """
        old = self.members.get(client.connection)
        changed = old is None or old.client_id != client.client_id
        self.members[client.connection] = client
        self.last_seen[client.connection] = now
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        named = {subscription.topic: subscription for subscription in data.subscriptions}
        for topic, subscription in named.items():
            known = self.subscriptions.get(topic)
            if known is None:
                changed = True
            if known is None or subscription.sub_version > known.sub_version:
                self.subscriptions[topic] = subscription
                self.codes.pop(topic, None)
        for topic in [topic for topic in self.subscriptions if topic not in named]:
            del self.subscriptions[topic]
            self.codes.pop(topic, None)
            changed = True
        self.size = _size_of(self.subscriptions.values()) + _size_of_choices(data)
        return changed

    def growth(self, data: ConsumerData) -> int:
        """Return the number of bytes by which a heartbeat's data would enlarge the group's ``size``."""
        named = {subscription.topic: subscription for subscription in data.subscriptions}
        for topic, known in self.subscriptions.items():
            if topic in named and named[topic].sub_version <= known.sub_version:
                named[topic] = known
        return max(_size_of(named.values()) + _size_of_choices(data) - self.size, 0)

    def remove(self, connection: int) -> bool:
        self.last_seen.pop(connection, None)
        return self.members.pop(connection, None) is not None


class ClientTable:
    """All groups and their clients.

    Methods that change the table return the consumer groups whose members must be notified of the change
    (request 40).

    Attributes:
        size: Approximate memory in bytes.
    """

    def __init__(self) -> None:
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[int, tuple[Client, float]]] = {}
        self._groups_of: dict[int, set[str]] = {}
        self._produces_in: dict[int, set[str]] = {}
        self.size = 0
        self._by_host: Counter[str] = Counter()

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        return self._consumers.get(group)

    def consumer_groups(self) -> tuple[ConsumerGroup, ...]:
        return tuple(self._consumers.values())

    def producers(self, group: str) -> tuple[Client, ...]:
        return tuple(client for client, _ in self._producers.get(group, {}).values())

    def producer_group_names(self) -> tuple[str, ...]:
        return tuple(self._producers)

    def producer_count(self) -> int:
        """Return the number of producers of all groups. A producer in two groups counts twice."""
        return sum(map(len, self._produces_in.values()))

    def producer_groups(self) -> Mapping[str, tuple[tuple[Client, float], ...]]:
        """Return the producers of each group, each producer with the instant of its last heartbeat."""
        return {group: tuple(members.values()) for group, members in self._producers.items()}

    def consumers_of(self, topic: str) -> tuple[str, ...]:
        """Return the consumer groups whose members subscribe to a topic."""
        return tuple(name for name, group in self._consumers.items() if topic in group.subscriptions)

    def size_of(self, host: str) -> int:
        """Return the approximate memory in bytes that a host's clients use in this table."""
        return self._by_host[host]

    def kind_of(self, connection: int) -> str:
        """Return ``consumer`` or ``producer``, or an empty text if the connection belongs to neither kind."""
        if connection in self._groups_of:
            return "consumer"
        return "producer" if connection in self._produces_in else ""

    def groups_after(self, connection: int, data: HeartbeatData) -> tuple[int, int]:
        """Return how many consumer groups and producer groups a connection would be in after a heartbeat."""
        consumers = {consumer.group_name for consumer in data.consumers}
        return (
            len(consumers.union(self._groups_of.get(connection, ()))),
            len(self._produces_in.get(connection, set()).union(data.producer_groups)),
        )

    def growth(self, client: Client, data: HeartbeatData) -> int:
        """Return an upper bound of the bytes by which a heartbeat would enlarge the table.

        The heartbeat must name each group once, as :meth:`HeartbeatData.decode` guarantees.
        """
        growth = 0
        for consumer in data.consumers:
            name = consumer.group_name
            group = self._consumers.get(name) or ConsumerGroup(name)
            growth += max(_size_in(name, client) - _size_in(name, group.members.get(client.connection)), 0)
            growth += group.growth(consumer)
        for name in data.producer_groups:
            known, _ = self._producers.get(name, {}).get(client.connection, (None, 0.0))
            growth += max(_size_in(name, client) - _size_in(name, known), 0)
        return growth

    def heartbeat(self, client: Client, data: HeartbeatData, *, now: float) -> tuple[str, ...]:
        """Record a heartbeat, and return the consumer groups that changed."""
        changed = []
        for consumer in data.consumers:
            group = self._consumers.get(consumer.group_name)
            if group is None:
                group = self._consumers[consumer.group_name] = ConsumerGroup(consumer.group_name)
            self._take(client.host, _size_in(group.name, client))
            self._release(group.members.get(client.connection), group.name)
            self._take(group.host, -group.size)
            if group.update(client, consumer, now):
                changed.append(group.name)
            group.host = client.host
            self._take(group.host, group.size)
            self._groups_of.setdefault(client.connection, set()).add(group.name)
        for name in data.producer_groups:
            members = self._producers.setdefault(name, {})
            known, _ = members.get(client.connection, (None, 0.0))
            self._take(client.host, _size_in(name, client))
            self._release(known, name)
            members[client.connection] = (client, now)
            self._produces_in.setdefault(client.connection, set()).add(name)
        return tuple(changed)

    def unregister(
        self, connection: int, *, producer_group: str | None, consumer_group: str | None
    ) -> tuple[str, ...]:
        """Remove a client from one producer group, one consumer group, or both.

        Returns:
            The consumer group if the client was a member of it, otherwise an empty tuple.
        """
        if producer_group:
            self._drop_producer(producer_group, connection)
        if consumer_group and self._drop_consumer(consumer_group, connection):
            return (consumer_group,)
        return ()

    def closed(self, connection: int) -> tuple[str, ...]:
        """Remove all registrations of a closed connection, and return the consumer groups that changed."""
        for group in tuple(self._produces_in.get(connection, ())):
            self._drop_producer(group, connection)
        groups = sorted(self._groups_of.pop(connection, ()))
        return tuple(group for group in groups if self._drop_consumer(group, connection))

    def expire(self, now: float) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Remove clients that sent no heartbeat for :data:`CLIENT_EXPIRY_S` seconds.

        Returns:
            The connections of the removed clients, which the caller must close, and the consumer groups that
            changed.
        """
        silent: set[int] = set()
        changed = []
        for group in list(self._consumers.values()):
            gone = [
                connection for connection, seen in group.last_seen.items() if now - seen > CLIENT_EXPIRY_S
            ]
            if gone:
                changed.append(group.name)
                silent.update(gone)
            for connection in gone:
                self._drop_consumer(group.name, connection)
        for name, members in list(self._producers.items()):
            gone = [connection for connection, (_, seen) in members.items() if now - seen > CLIENT_EXPIRY_S]
            silent.update(gone)
            for connection in gone:
                self._drop_producer(name, connection)
        return tuple(sorted(silent)), tuple(changed)

    def members(self, group: str) -> Iterable[int]:
        """Return the connections of a consumer group's members."""
        found = self._consumers.get(group)
        return () if found is None else tuple(found.members)

    def _drop_consumer(self, group: str, connection: int) -> bool:
        found = self._consumers.get(group)
        client = None if found is None else found.members.get(connection)
        if found is None or not found.remove(connection):
            return False
        self._release(client, group)
        owned = self._groups_of.get(connection)
        if owned is not None:
            owned.discard(group)
            if not owned:
                del self._groups_of[connection]
        if not found.members:
            self._take(found.host, -found.size)
            del self._consumers[group]
        return True

    def _drop_producer(self, group: str, connection: int) -> None:
        members = self._producers.get(group)
        if members is None or connection not in members:
            return
        self._release(members.pop(connection)[0], group)
        if not members:
            del self._producers[group]
        names = self._produces_in[connection]
        names.discard(group)
        if not names:
            del self._produces_in[connection]

    def _release(self, client: Client | None, group: str) -> None:
        """Subtract a client's membership in a group from the memory counted for the client's host."""
        if client is not None:
            self._take(client.host, -_size_in(group, client))

    def _take(self, host: str, size: int) -> None:
        """Add bytes to the memory counted for a host and for the whole table. A negative size subtracts."""
        self.size += size
        self._by_host[host] += size
        if not self._by_host[host]:
            del self._by_host[host]
