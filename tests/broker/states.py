"""State of a broker that has its own store, for tests without sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.requests.tags import tags_code
from routekeeper.broker.store.messages import MessageStore
from routekeeper.broker.tables.group_configs import GroupConfigs
from routekeeper.broker.tables.groups import ClientTable
from routekeeper.broker.tables.locks import QueueLocks
from routekeeper.broker.tables.offsets import ConsumerOffsets
from routekeeper.broker.tables.state import BrokerState
from routekeeper.broker.tables.stats import Stats
from routekeeper.broker.tables.topics import StartTopics, TopicConfigs
from routekeeper.remoting.message import Host
from routekeeper.remoting.route import DataVersion, TopicConfig

HOST: Final = Host("127.0.0.1", 10911)
NOW: Final = 1_700_000_000_000
"""Time at which the topic was created, in Unix ms."""


def state_in(
    directory: Path, topic: TopicConfig, *, log_file_size: int = 1 << 20, queue_file_size: int = 2000
) -> BrokerState:
    """Return the state of a broker with one topic. The caller closes ``store.log``."""
    topics = TopicConfigs(StartTopics(cluster_name="C", broker_name="b"))
    topics.put(topic, now_ms=NOW)
    store = MessageStore(
        directory,
        log_file_size=log_file_size,
        queue_file_size=queue_file_size,
        store_host=HOST,
        tags_code=lambda message: tags_code(message.properties),
        born_at=topics.born_at,
        boot="",
    )
    return BrokerState(
        config=BrokerConfig(),
        config_version=DataVersion(),
        advertise=HOST,
        hot_bytes=1,
        topics=topics,
        groups=GroupConfigs(),
        offsets=ConsumerOffsets(),
        clients=ClientTable(),
        locks=QueueLocks(),
        store=store,
        stats=Stats(),
    )
