"""Schedule of the broker's disk work, except the storing of messages. Each kind of work has its own task.

``store`` and ``state_files`` define the work. This module runs its blocking steps in threads, one thread for
each kind of work. Therefore work that waits for a hung disk does not delay work of other kinds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sys
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final

from routekeeper.broker.errors import DiskState, Refused, StoreUnavailable
from routekeeper.broker.server.delay import oldest_waiting
from routekeeper.broker.server.disk_threads import in_threads
from routekeeper.broker.store.mending import Mending
from routekeeper.broker.store.messages import MessageStore
from routekeeper.broker.store.retention import OLDEST_AT_ONCE, Removal, parse_hours, removal
from routekeeper.broker.store.steps import Steps
from routekeeper.broker.tables.state import BrokerState
from routekeeper.broker.tables.state_files import Done, Failure, LogFlush, StateFile, StateFiles
from routekeeper.remoting import wall_clock
from routekeeper.remoting.disk_threads import DiskThreads

logger = logging.getLogger(__name__)

#: Longest time in seconds between two checkpoints.
_CHECKPOINT_S: Final = 2.0
#: Interval in seconds between searches for old log files. Source: cleanResourceInterval, RocketMQ 4.9.
_CLEAN_S: Final = 10.0
#: Interval in seconds at which the message index is updated from the commit log.
_INDEX_S: Final = 1.0
#: Interval in seconds at which a failed disk is tried again, and a change of the disk's state is logged.
_WATCH_S: Final = 1.0
#: Pause in seconds after the disk has failed, before the same work is tried again.
_RETRY_S: Final = 1.0
#: Longest wait for the disk at the end of the process, in seconds. The process may wait twice: for running
#: work and the tables, and then for the store. If the disk still does not answer, the process ends, and loses
#: only data that a killed process would also lose.
CLOSE_S: Final = 5.0


class _Waiting:
    """A caller that waits for a sync. The caller gets one report: the outcome of the sync, or a timeout.

    Attributes:
        done: Callback that receives the report, or None after the report.
        deadline: Time of the timeout, in seconds of the event loop's clock.
    """

    __slots__ = ("deadline", "done")

    def __init__(self, done: Done, deadline: float) -> None:
        self.done: Done | None = done
        self.deadline = deadline

    def end(self, failure: Failure) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(failure)


class Upkeep:
    """Tasks that keep one broker's state on disk."""

    def __init__(self, state: BrokerState, files: StateFiles) -> None:
        self._state = state
        self._files = files
        self._flush = LogFlush(state.store)
        self._flush_wanted = asyncio.Event()
        self._clean_wanted = False
        self._file_wanted = {file.name: asyncio.Event() for file in files}
        for file in (files.topics, files.groups):  # write them again, if the write at the start has failed
            self._file_wanted[file.name].set()
        self._file_threads = {file.name: DiskThreads(file.name) for file in files}
        self._unsynced: deque[_Waiting] = deque()
        self._give_up: asyncio.Handle | None = None
        self._log_thread = DiskThreads("log")
        self._store_thread = DiskThreads("store")
        self._index_thread = DiskThreads("index")
        self._sync_began: float | None = None

    def begin(self) -> None:
        """Start all threads now, because the system may be unable to start a thread later.

        Raises:
            NoFreeThread: If the system cannot start all threads.
        """
        for thread in self._threads():
            thread.begin()

    def _threads(self) -> tuple[DiskThreads, ...]:
        return (*self._file_threads.values(), self._log_thread, self._store_thread, self._index_thread)

    def tasks(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Return the tasks that run until the broker stops."""
        config = self._state.config
        return (
            self._keep_file(self._files.topics, every_s=None),
            self._keep_file(self._files.groups, every_s=None),
            self._keep_file(self._files.offsets, every_s=config.flush_offset_interval_ms / 1000),
            self._keep_file(self._files.settings, every_s=None),
            self._keep_file(self._files.delays, every_s=config.flush_delay_offset_interval_ms / 1000),
            self._flush_log(),
            self._keep_store(),
            self._keep_index(),
            self._watch_disk(),
        )

    @property
    def refusing(self) -> str | None:
        """Reason why the broker cannot store messages or tables on the disk now, or None if it can."""
        if (reason := self._state.store.refusing) is not None:
            return f"no messages are taken: {reason}"
        for name, failure in self._state.unwritten_files.items():
            text = failure.strerror if isinstance(failure, OSError) else failure
            return f"{name} is not written: {text}"
        if self._is_hung:
            return "the disk of the log has not answered for longer than syncFlushTimeout"
        return None

    @property
    def disk_state(self) -> DiskState:
        """State of the disk for metrics. The property :attr:`refusing` gives the reason in words."""
        if self._state.store.refusing is not None:
            return DiskState.REFUSING
        if self._state.unwritten_files:
            return DiskState.UNWRITTEN
        return DiskState.HUNG if self._is_hung else DiskState.OK

    @property
    def _is_hung(self) -> bool:
        began, longest_s = self._sync_began, self._state.config.sync_flush_timeout_ms / 1000
        return began is not None and time.monotonic() - began > longest_s

    def save(self, file: StateFile) -> None:
        """Request that a file is written soon."""
        self._file_wanted[file.name].set()

    def clean(self) -> None:
        """Request that expired files are removed soon."""
        self._clean_wanted = True

    async def saved(self, file: StateFile) -> None:
        """Wait until the current content of a table is on disk.

        Raises:
            OSError, StoreUnavailable: If the table could not be written.
        """
        done, waiter = _waiter()
        file.when_saved(done)
        self.save(file)
        await waiter

    async def synced(self, log_offset: int) -> None:
        """Wait until the log is synced up to an offset.

        Raises:
            TimeoutError: If the sync takes longer than ``syncFlushTimeout``.
            StoreUnavailable: If the disk failed.
        """
        done, waiter = _waiter()
        self.when_synced(log_offset, done)
        await waiter

    def when_synced(self, log_offset: int, done: Done) -> None:
        """Call ``done`` when the log is synced up to an offset, or with an error listed in :meth:`synced`."""
        loop = asyncio.get_running_loop()
        timeout_s = self._state.config.sync_flush_timeout_ms / 1000
        waiting = _Waiting(done, loop.time() + timeout_s)
        self._flush.when_flushed(log_offset, waiting.end)
        self._flush_wanted.set()
        unsynced = self._unsynced
        while unsynced and unsynced[0].done is None:
            unsynced.popleft()
        unsynced.append(waiting)
        if self._give_up is None:
            self._give_up = loop.call_later(timeout_s, self._time_over)

    def _time_over(self) -> None:
        """Report a timeout to callers whose deadline for a sync has passed."""
        loop, unsynced = asyncio.get_running_loop(), self._unsynced
        while unsynced and (unsynced[0].done is None or unsynced[0].deadline <= loop.time()):
            unsynced.popleft().end(TimeoutError())
        self._give_up = loop.call_at(unsynced[0].deadline, self._time_over) if unsynced else None

    async def close(self) -> None:
        """Write all tables and the store at the end of the process, after all tasks have ended.

        A hung disk does not block this method.
        """
        # A cancelled task may have left work in its thread. Each thread finishes that work first.
        await asyncio.gather(
            self._end("log", _nothing(), self._log_thread),
            self._end("index", _nothing(), self._index_thread),
            *(self._end(file.name, _saved(file), self._file_threads[file.name]) for file in self._files),
        )
        # A slow disk may need longer than CLOSE_S for all queue files. Therefore the store skips the
        # remaining queue files shortly before that time is over. Otherwise the slow disk would count as hung.
        closing = close_store(self._state.store, longest_s=0.8 * CLOSE_S)
        await self._end("store", closing, self._store_thread)
        for thread in self._threads():
            thread.shutdown()

    async def _end(self, what: str, steps: Steps, thread: DiskThreads) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await in_threads(steps, thread)
        except TimeoutError:
            logger.error("the disk has not answered for %g s: ending without it what=%s", CLOSE_S, what)
        except Exception as error:  # go on, because the other tables must still be written
            logger.error("not written at shutdown what=%s error=%s", what, error)

    # Tasks ---------------------------------------------------------------------------------------

    async def _keep_file(self, file: StateFile, *, every_s: float | None) -> None:
        wanted, unwritten = self._file_wanted[file.name], self._state.unwritten_files
        while True:
            try:
                async with asyncio.timeout(every_s):
                    await wanted.wait()
            except TimeoutError:
                pass
            wanted.clear()
            await in_threads(file.save(), self._file_threads[file.name])
            if file.failure is None:
                if unwritten.pop(file.name, None) is not None:
                    logger.info("file written again path=%s", file.name)
                continue
            if file.name not in unwritten:
                logger.error("file not written path=%s error=%s", file.name, file.failure)
            unwritten[file.name] = file.failure
            await asyncio.sleep(_RETRY_S)
            wanted.set()

    async def _flush_log(self) -> None:
        """Sync the commit log: at once while callers wait for a sync, otherwise at intervals."""
        failing = False
        while True:
            if not self._flush.is_wanted:
                try:
                    async with asyncio.timeout(self._state.config.flush_interval_ms / 1000):
                        await self._flush_wanted.wait()
                except TimeoutError:
                    pass
            self._flush_wanted.clear()
            self._sync_began = time.monotonic()
            await in_threads(self._flush.flush(), self._log_thread)
            self._sync_began = None
            if self._flush.failure is not None:
                if not failing:
                    logger.critical(
                        "log not synced, no more messages are taken error=%s", self._flush.failure
                    )
                failing = True
                await asyncio.sleep(_RETRY_S)

    async def _watch_disk(self) -> None:
        """Try a failed disk again. Log once that the disk has failed, and once that it works again."""
        log, counts = self._state.store.log, self._state.stats.refused
        is_ready, began, refused_before = True, 0.0, 0
        while True:
            refused = counts[Refused.DISK_FULL] + counts[Refused.DISK_FAILED]
            if is_ready and (reason := self.refusing) is not None:
                logger.warning("not ready reason=%s", reason)
                is_ready, began = False, time.monotonic()
            elif is_ready:
                refused_before = refused
            if not self._is_hung:  # on a hung disk, this write would block
                log.try_again()
            if not is_ready and self.refusing is None:
                lasted_s, count = time.monotonic() - began, refused - refused_before
                logger.warning("ready again after_s=%.1f sends_refused=%d", lasted_s, count)
                is_ready = True
            await asyncio.sleep(_WATCH_S)

    async def _keep_store(self) -> None:
        """Write checkpoints, and remove old files, one after the other in one thread."""
        store = self._state.store
        pause_s = _CHECKPOINT_S
        cleaned = time.monotonic()
        while True:
            await asyncio.sleep(pause_s)
            started = time.monotonic()
            await in_threads(store.checkpoint(), self._store_thread)
            # The sync of thousands of queues takes long. Pause longer, so that the disk can do other work.
            pause_s = max(_CHECKPOINT_S, 5 * (time.monotonic() - started))
            if self._clean_wanted or time.monotonic() - cleaned >= _CLEAN_S:
                asked, self._clean_wanted = self._clean_wanted, False
                await self._remove_old_files(asked=asked)
                cleaned = time.monotonic()

    async def _remove_old_files(self, *, asked: bool) -> None:
        store, config = self._state.store, self._state.config
        loop = asyncio.get_running_loop()
        used = await loop.run_in_executor(self._store_thread, store.disk_used)
        wanted = removal(
            hour=time.localtime().tm_hour,
            asked=asked,
            used=used,
            delete_when=parse_hours(config.delete_when),
            used_max=config.disk_used_max_percent / 100,
            forcibly=config.disk_clean_forcibly_percent / 100,
            clean_forcibly=config.clean_file_forcibly,
        )
        if wanted is Removal.NOTHING:
            return
        reserved_from_ms = wall_clock.now_ms() - config.file_reserved_h * 3_600_000
        before, count_max = reserved_from_ms / 1000, sys.maxsize
        if wanted is Removal.OLDEST:
            before, count_max = math.inf, OLDEST_AT_ONCE
        begin = store.log.min_offset
        try:
            # Delayed messages that are not delivered yet stay at any age, while the disk has room.
            is_full = used > config.disk_clean_forcibly_percent / 100
            keep_from = sys.maxsize
            if not is_full:
                keep_from = oldest_waiting(self._state, due_after_ms=reserved_from_ms)
                # Write the delay offsets first. Otherwise, after a crash, the broker would report messages as
                # lost that were delivered before their files were removed. But remove the files even if that
                # write fails: with a quota, or without free inodes, only the removal makes room for it. No
                # message is lost, because the store syncs the delivered copies before it removes files.
                with contextlib.suppress(OSError, StoreUnavailable):
                    await self.saved(self._files.delays)
            work = store.remove_old_files(before=before, count_max=count_max, keep_from=keep_from)
            await in_threads(work, self._store_thread)
        except Mending:
            return  # the search for the oldest delayed message has not finished; the next call continues it
        except (OSError, StoreUnavailable) as error:
            logger.error("old files not removed error=%s", error)
        if wanted is Removal.OLDEST and store.log.min_offset > begin:
            logger.warning("files removed before their time, the disk is full used=%.3f", used)

    async def _keep_index(self) -> None:
        """Update the index from the log at each interval."""
        failing = False
        while True:
            await asyncio.sleep(_INDEX_S)
            try:
                await in_threads(self._state.store.index.follow(), self._index_thread)
            except OSError as error:
                if not failing:
                    logger.error("index file not written error=%s", error)
                failing = True
                await asyncio.sleep(_RETRY_S)
            else:
                failing = False


def _nothing() -> Steps:
    yield lambda: None


def _saved(file: StateFile) -> Steps:
    """Write the whole table to its file.

    Raises:
        OSError, StoreUnavailable: If the table could not be written.
    """
    yield from file.save(whole=True)
    if file.failure is not None:
        raise file.failure


def close_store(store: MessageStore, *, longest_s: float) -> Steps:
    """Write the queue files and a last checkpoint, and close the store.

    If this takes more than ``longest_s`` seconds, write no further queue files and no checkpoint. The next
    start then reads the missing queue entries from the commit log.

    Raises:
        OSError, StoreUnavailable: If the disk failed.
    """
    end = time.monotonic() + longest_s
    yield from store.closing(lambda: time.monotonic() >= end)


def _waiter() -> tuple[Done, asyncio.Future[None]]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(failure: Failure) -> None:
        if future.done():
            return
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)

    return done, future
