"""Loading of one broker's state from its directory."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.requests.sending import due_again
from routekeeper.broker.requests.tags import tags_code
from routekeeper.broker.server.delay import delay_queues
from routekeeper.broker.server.founding import keep_name
from routekeeper.broker.store.files import Disk, load_state, make_directories
from routekeeper.broker.store.journal import read_journals
from routekeeper.broker.store.log_scan import Record
from routekeeper.broker.store.mending import Mending
from routekeeper.broker.store.messages import MessageStore, read_checkpoint
from routekeeper.broker.store.recovery import Checkpoint
from routekeeper.broker.store.steps import run_here
from routekeeper.broker.tables.group_configs import GroupConfigs
from routekeeper.broker.tables.groups import ClientTable
from routekeeper.broker.tables.locks import QueueLocks
from routekeeper.broker.tables.offsets import ConsumerOffsets
from routekeeper.broker.tables.state import BrokerState
from routekeeper.broker.tables.state_files import (
    DELAYS,
    GROUPS,
    OFFSETS,
    SETTINGS,
    TOPICS,
    StateFile,
    StateFiles,
    state_files,
)
from routekeeper.broker.tables.stats import Stats
from routekeeper.broker.tables.topics import SCHEDULE_TOPIC, StartTopics, TopicConfigs
from routekeeper.remoting.bodies import DelayOffsetTable
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.lenient import FILE
from routekeeper.remoting.message import Host, StoredMessage
from routekeeper.remoting.properties import parse_properties
from routekeeper.remoting.route import DataVersion
from routekeeper.remoting.state_file import Trust

logger = logging.getLogger(__name__)

#: Assumed share of the machine's memory that caches the newest part of the commit log.
_HOT_SHARE: Final = 0.4


def load_broker(
    disk: Disk,
    directory: Path,
    config: BrokerConfig,
    *,
    store_host: Host,
    boot: str,
    now_ms: int,
    changed_settings: Mapping[str, str] = MappingProxyType({}),
) -> tuple[BrokerState, StateFiles]:
    """Return the state of a broker, and the files that store this state.

    If a power cut removed the end of the commit log, correct all references to that part. The corrections
    are on disk before the broker stores new messages at the same offsets.

    Args:
        boot: Id of the machine's current boot, or empty if unknown.
        changed_settings: Settings that request 25 changed, see :func:`read_changed_settings`. ``config``
            contains them already.

    Raises:
        SettingError: If the store belongs to a broker of another name.
        StoreDamaged, ValueError: If the content of the disk cannot be used, or if an operator has to choose
            how to go on.
        OSError: If the disk fails.
    """
    tables = directory / "config"
    make_directories(disk, tables)
    disk.sync_directory(tables)  # an earlier process may have failed to sync new file names
    keep_name(disk, directory, config.broker_name)
    topics = TopicConfigs(
        StartTopics(
            cluster_name=config.cluster_name,
            broker_name=config.broker_name,
            default_queue_nums=config.default_topic_queue_nums,
            auto_create_topic_enable=config.auto_create_topic_enable,
            cluster_topic_enable=config.cluster_topic_enable,
            broker_topic_enable=config.broker_topic_enable,
            trace_topic_enable=config.trace_topic_enable,
            delay_levels=len(config.delay_levels_ms),
        )
    )
    groups, offsets = GroupConfigs(), ConsumerOffsets()
    # If the topic table lacks a checksum, do not add one yet. A checksum would mark the table as trusted. If
    # this start fails, the next start must still compare the table with the commit log.
    trust = load_state(disk, tables / TOPICS, topics.load, adopt=False).trust
    topics.begin(now_ms=now_ms)
    topics_found = read_journals(disk, tables / TOPICS, topics)
    _compare(
        topics, trust, read_checkpoint(disk, directory), tables / TOPICS, lacks_changes=topics_found.lacks
    )
    groups_trust = load_state(disk, tables / GROUPS, groups.load).trust
    groups_found = read_journals(disk, tables / GROUPS, groups)
    offsets_trust = load_state(disk, tables / OFFSETS, offsets.load).trust
    delays = load_state(disk, tables / DELAYS, _parse_delays)
    levels = config.delay_levels_ms

    def code_of(message: Record) -> int:
        if message.topic == SCHEDULE_TOPIC and 0 <= message.queue_id < len(levels):
            return message.store_timestamp + levels[message.queue_id]
        return tags_code(message.properties)

    store = MessageStore(
        directory,
        log_directory=Path(config.log_path) if config.log_path else None,
        log_file_size=config.log_file_size,
        queue_file_size=config.queue_file_size,
        index_messages=config.index_file_messages,
        store_host=store_host,
        tags_code=code_of,
        born_at=topics.born_at,
        boot=boot,
        skip_damage=config.recover_damaged_log == "skip",
        disk=disk,
    )
    state = BrokerState(
        config=config,
        config_version=DataVersion(timestamp=now_ms),
        advertise=store_host,
        hot_bytes=int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _HOT_SHARE),
        topics=topics,
        groups=groups,
        offsets=offsets,
        clients=ClientTable(),
        locks=QueueLocks(),
        store=store,
        stats=Stats(started_ms=now_ms, cluster_name=config.cluster_name),
        delay_offsets=delays.value or {},
        changed_settings=dict(changed_settings),
    )
    files = state_files(disk, tables, state, damaged=topics_found.damaged | groups_found.damaged)
    for file, found in (
        (files.groups, None if groups_found.is_used else groups_trust),
        (files.offsets, offsets_trust),
        (files.delays, delays.trust),
        (files.settings, Trust.CHECKED),
    ):
        if found in (Trust.CHECKED, Trust.ABSENT):
            file.is_as_loaded()  # This file needs no write so far. All other files are written again below.
    try:
        _follow_log(state, files, now_ms=now_ms)
    except BaseException:
        store.log.close()
        raise
    return state, files


def read_changed_settings(disk: Disk, directory: Path) -> dict[str, str]:
    """Return the settings that request 25 (UPDATE_BROKER_CONFIG) changed in earlier runs.

    Raises:
        ValueError: If the file cannot be read as settings.
        OSError: If the disk fails.
    """
    return load_state(disk, directory / "config" / SETTINGS, parse_properties).value or {}


def _parse_delays(text: str) -> dict[int, int]:
    try:
        return dict(DelayOffsetTable.decode(text.encode(), FILE).offsets)
    except RemoteProtocolError as error:
        raise ValueError(f"{DELAYS}: {error}") from None


def _compare(
    topics: TopicConfigs, trust: Trust, checkpoint: Checkpoint | None, path: Path, *, lacks_changes: bool
) -> None:
    """If the topic table may be old or damaged, treat messages of topics that it lacks as valid.

    Otherwise the broker would drop the messages of a topic whose creation the table lost.
    """
    counter = 0 if checkpoint is None else checkpoint.topics_counter
    had = topics.data_version.counter
    is_older = topics.is_older_than(counter)
    if trust is Trust.CHECKED and is_older:
        logger.error("topic table is older than the store file=%s counter=%s known=%s", path, had, counter)
    if trust is not Trust.CHECKED or is_older or lacks_changes:
        topics.expect_unknown(trusted=trust in (Trust.CHECKED, Trust.BACKUP))


def _follow_log(state: BrokerState, files: StateFiles, *, now_ms: int) -> None:
    """Correct references to the part of the commit log that a power cut removed, and save the tables."""
    store, topics = state.store, state.topics
    counts = dict(store.queue_counts)
    if topics.unknown_from is not None:
        _count_delayed(state, topics.unknown_from, counts)
    corrected = topics.follow_log(lambda: store.log.max_offset, counts, now_ms=now_ms)
    try:
        # Save the topic table before new messages are stored. The table says below which log offset records
        # of an unknown topic are skipped. Later starts must skip the same records, but no new records.
        save_now(files.topics)
    except OSError as error:
        if corrected:
            raise
        logger.error("file not written path=%s error=%s", files.topics.name, error)
    state.offsets.keep_within(
        lambda topic, queue_id, offset: store.within(topic, queue_id, offset) if topic in topics else None
    )
    try:
        save_now(files.groups)
    except OSError as error:  # not fatal, because the table's journal still has all changes
        logger.error("file not written path=%s error=%s", files.groups.name, error)
    save_now(files.offsets)
    state.offsets.snapshot()  # encode all offsets now, because later this would delay requests
    for level, offset in state.delay_offsets.items():
        state.delay_offsets[level] = min(offset, store.bounds(SCHEDULE_TOPIC, level - 1)[1])
    save_now(files.delays)


def _count_delayed(state: BrokerState, begin: int, counts: dict[str, int]) -> None:
    """Raise queue counts so that they include the real queues of delayed messages.

    Without this, a topic whose messages are all still delayed would be missing from ``counts``.

    Args:
        begin: Log offset. Only delayed messages from this offset on count.
        counts: Number of queues that each topic needs.
    """
    store = state.store
    for queue_id in range(delay_queues(state)):
        low, high = store.bounds(SCHEDULE_TOPIC, queue_id)
        for offset in range(max(state.delay_offsets.get(queue_id + 1, low), low), high):
            message = _message(store, queue_id, offset)
            target = None if message is None else due_again(message.topic, message.properties)
            if message is not None and target is not None and message.physical_offset >= begin:
                topic, target_queue = target
                counts[topic] = max(counts.get(topic, 0), target_queue + 1)


def _message(store: MessageStore, queue_id: int, offset: int) -> StoredMessage | None:
    """Return a delayed message, or None if it is lost or damaged.

    If the message's queue entry is damaged, search the log until the message is found or lost. The search may
    block, because no client is connected while the broker starts.
    """
    while True:
        with suppress(Mending):
            return store.message_in_queue(SCHEDULE_TOPIC, queue_id, offset)


def save_now(file: StateFile) -> None:
    """Write a file in this thread, if its table has changed.

    Raises:
        OSError, StoreUnavailable: If the file could not be written.
    """
    run_here(file.save(whole=True))
    if file.failure is not None:
        raise file.failure
