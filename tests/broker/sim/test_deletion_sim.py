"""Crash at each call to the disk while the files of a deleted topic are removed.

Topic ``Q`` is quiet: all its messages have expired, so only its queue files have its next offset. If a start
built the queues anew from the log, new messages of ``Q`` would get offsets that consumers have already read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from routekeeper.broker.store.messages import Draft, MessageStore
from routekeeper.broker.store.steps import run_here

from .broker import HOST, ROOT
from .disk import PowerCut, SimulatedDisk

pytestmark = [pytest.mark.computes]

Births = dict[str, int]
Crash = Callable[[SimulatedDisk], None]
CRASHES: dict[str, Crash] = {"power cut": SimulatedDisk.lose_power, "kill": SimulatedDisk.end_process}


def open_store(disk: SimulatedDisk, births: Births) -> MessageStore:
    return MessageStore(
        ROOT,
        log_file_size=1000,
        queue_file_size=40,
        store_host=HOST,
        tags_code=lambda _message: 0,
        born_at=births.get,
        boot="",
        disk=disk,
    )


def put(store: MessageStore, topic: str, count: int, *, queues: int = 1) -> None:
    for number in range(count):
        store.put(
            Draft(
                topic=topic,
                queue_id=number % queues,
                body=b"x" * 100,
                properties="",
                tags_code=0,
                born_host=HOST,
            ),
            now_ms=1,
        )


def with_deleted_topic(seed: int, *, is_created_again: bool) -> tuple[SimulatedDisk, Births, MessageStore]:
    """Return a store in which topic ``T`` was just deleted, and perhaps has messages of a new life."""
    disk, births = SimulatedDisk(seed), {"Q": 0, "T": 0, "U": 0}
    store = open_store(disk, births)
    put(store, "Q", 5)
    put(store, "U", 12)
    put(store, "T", 9, queues=3)
    run_here(store.checkpoint())
    run_here(store.remove_old_files(before=1e12))
    put(store, "U", 2)
    run_here(store.checkpoint())
    assert store.bounds("Q", 0) == (5, 5)
    store.delete_topic("T")
    del births["T"]
    if is_created_again:
        births["T"] = store.log.max_offset
        put(store, "T", 3)
    put(store, "U", 1)
    store.flush_log()
    store.confirm_topics(1, 1)
    return disk, births, store


def crashes(disk: SimulatedDisk, number: int, crash: Crash, work: Callable[[], object]) -> bool:
    """Do some work with a crash at the disk call of this number. Return False if the work ended before."""
    disk.cut_at = disk.calls + number
    try:
        work()
    except PowerCut:
        crash(disk)
        return True
    disk.cut_at = None
    return False


def check(store: MessageStore, *, is_created_again: bool) -> None:
    assert store.bounds("Q", 0) == (5, 5)
    assert store.bounds("U", 0)[1] == 15
    assert [store.bounds("T", number)[1] for number in range(3)] == [3 if is_created_again else 0, 0, 0]


@pytest.fixture
def is_built_anew(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], bool]]:
    with caplog.at_level(logging.WARNING):
        yield lambda: "anew" in caplog.text


@pytest.mark.parametrize("is_created_again", [False, True], ids=["deleted", "created again"])
@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
def test_crash_at_a_deletion_keeps_the_offsets_of_quiet_queues(
    crash: Crash, is_created_again: bool, is_built_anew: Callable[[], bool]
) -> None:
    number = 0
    while True:
        number += 1
        disk, births, store = with_deleted_topic(number, is_created_again=is_created_again)
        if not crashes(disk, number, crash, partial(run_here, store.checkpoint())):
            break
        again = open_store(disk, births)
        check(again, is_created_again=is_created_again)
        assert not is_built_anew(), number
        put(again, "Q", 1)
        run_here(again.checkpoint())
        disk.end_process()
        assert open_store(disk, births).bounds("Q", 0) == (5, 6)
        assert not disk.is_there(ROOT / "consumequeue" / "T" / "1"), "the files of the deleted topic are gone"
    assert number > 10


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
def test_removal_before_the_checkpoint_is_noticed(crash: Crash) -> None:
    found = set()
    for number in range(1, 20):
        disk, births, store = with_deleted_topic(number, is_created_again=False)
        store._durable = None  # planted fault: the files go without a checkpoint that does not count them
        if crashes(disk, number, crash, partial(run_here, store.checkpoint())):
            found.add(open_store(disk, births).bounds("Q", 0))
    assert (0, 0) in found


@pytest.mark.parametrize("is_created_again", [False, True], ids=["deleted", "created again"])
@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
def test_crashes_at_a_start_after_a_deletion_keep_the_offsets_of_quiet_queues(
    crash: Crash, is_created_again: bool, is_built_anew: Callable[[], bool]
) -> None:
    for number in range(1, 40):
        disk, births, store = with_deleted_topic(number, is_created_again=is_created_again)
        crashes(disk, number % 5 * 4 + 1, crash, partial(run_here, store.checkpoint()))
        crashes(disk, number, crash, partial(open_store, disk, births))
        check(open_store(disk, births), is_created_again=is_created_again)
        assert not is_built_anew(), number
