"""Brings back what one broker knows from its directory."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.files import Disk, load_or_backup, make_directories
from routekeeper.broker.group_configs import GroupConfigs
from routekeeper.broker.groups import ClientTable
from routekeeper.broker.locks import QueueLocks
from routekeeper.broker.log_scan import Record
from routekeeper.broker.offsets import ConsumerOffsets
from routekeeper.broker.state import BrokerState
from routekeeper.broker.state_files import (
    DELAYS,
    GROUPS,
    OFFSETS,
    SETTINGS,
    TOPICS,
    StateFile,
    StateFiles,
    state_files,
)
from routekeeper.broker.stats import Stats
from routekeeper.broker.steps import Steps
from routekeeper.broker.store import MessageStore
from routekeeper.broker.tags import tags_code
from routekeeper.broker.topics import SCHEDULE_TOPIC, StartTopics, TopicConfigs
from routekeeper.remoting.bodies import DelayOffsetTable
from routekeeper.remoting.lenient import FILE
from routekeeper.remoting.message import Host
from routekeeper.remoting.properties import parse_properties
from routekeeper.remoting.route import DataVersion

#: Share of the machine's memory that the youngest part of the log is taken to fill.
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
    """Return the state of a broker, and the files that keep it.

    Where a power cut took the end of the log, what refers to it is brought back, on disk before anything
    is stored there anew.

    Args:
        boot: The machine's present start; empty if it does not say.
        changed_settings: See :func:`read_changed_settings`; they are in ``config`` already.

    Raises:
        StoreDamaged, ValueError: If what is on disk cannot be used.
        OSError: If the disk refuses.
    """
    tables = directory / "config"
    make_directories(disk, tables)
    disk.sync_directory(tables)  # an earlier process may have left names that are not durable
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
    load_or_backup(disk, tables / TOPICS, topics.load)
    topics.begin(now_ms=now_ms)
    load_or_backup(disk, tables / GROUPS, groups.load)
    load_or_backup(disk, tables / OFFSETS, offsets.load)
    delays = load_or_backup(
        disk, tables / DELAYS, lambda text: dict(DelayOffsetTable.decode(text.encode(), FILE).offsets)
    )
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
        delay_offsets=delays or {},
        changed_settings=dict(changed_settings),
    )
    files = state_files(disk, tables, state)
    try:
        _follow_log(state, files)
    except BaseException:
        store.log.close()
        raise
    return state, files


def read_changed_settings(disk: Disk, directory: Path) -> dict[str, str]:
    """Return the settings that request 25 changed while a broker ran over this directory.

    Raises:
        ValueError: If the file cannot be read as settings.
        OSError: If the disk refuses.
    """
    path = directory / "config" / SETTINGS
    return load_or_backup(disk, path, parse_properties) or {}


def _follow_log(state: BrokerState, files: StateFiles) -> None:
    """Correct what refers to a part of the log that a power cut took."""
    store, topics = state.store, state.topics
    for file in (files.groups, files.offsets, files.delays, files.settings):
        file.is_as_loaded()
    if topics.follow_log(lambda: store.log.max_offset):
        save_now(files.topics)
    state.offsets.keep_within(
        lambda topic, queue_id: store.bounds(topic, queue_id)[1] if topic in topics else None
    )
    save_now(files.offsets)
    for level, offset in state.delay_offsets.items():
        state.delay_offsets[level] = min(offset, store.bounds(SCHEDULE_TOPIC, level - 1)[1])
    save_now(files.delays)


def save_now(file: StateFile) -> None:
    """Write a file at once, if its table has changed.

    Raises:
        OSError, StoreUnavailable: If it could not be written.
    """
    run_here(file.save())
    if file.failure is not None:
        raise file.failure


def run_here(steps: Steps) -> None:
    """Do work in this thread, blocking: at the start and the end of the process."""
    generator: Generator[Any, Any, None] = steps
    try:
        work = next(generator)
        while True:
            try:
                outcome = work()
            except Exception as error:
                work = generator.throw(error)
            else:
                work = generator.send(outcome)
    except StopIteration:
        pass
