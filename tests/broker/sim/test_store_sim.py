"""The store with power cuts, kills and disk faults: all seeds pass, unless a precaution is removed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import pytest

from routekeeper.broker.errors import StoreUnavailable
from routekeeper.broker.store.messages import Draft, MessageStore
from routekeeper.broker.store.steps import run_here
from routekeeper.remoting.message import Host

from .broker import ROOT, Simulation
from .disk import SimulatedDisk
from .plants import INDEX_CONTENT, QUEUE_SYNCS, SPOILS, SYNCS, Forgets

pytestmark = [pytest.mark.computes]

HOST = Host("127.0.0.1", 10911)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_nothing_acknowledged_is_lost_and_nothing_deleted_returns(first: int) -> None:
    for seed in range(first, first + 50):
        try:
            Simulation(seed).run()
        except Exception as error:
            pytest.fail(f"python -m tests.broker.sim {seed} {seed + 1}: {error!r}")


#: Planted faults that make only few seeds fail. Each value is a seed that failed in the latest search.
LIKELY: Final = {"names of index files": 116, "a journal goes before the file has its changes": 123}


def is_found(name: str, **planted: object) -> bool:
    """Return True if the simulation fails for some seed, that is, if it finds the planted fault.

    The first seed that is tried is the seed in :data:`LIKELY`.
    """
    for seed in (LIKELY.get(name, 0), *range(300)):
        try:
            Simulation(seed, **planted).run()  # type: ignore[arg-type]
        except Exception:
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNCS)
def test_missing_sync_is_found_by_a_seed(name: str) -> None:
    assert is_found(name, forgets=SYNCS[name])


@pytest.mark.slow
def test_index_files_that_were_not_synced_are_made_again() -> None:
    for seed in range(60):
        Simulation(seed, forgets=INDEX_CONTENT).run()


@pytest.mark.slow
@pytest.mark.parametrize("name", SPOILS)
def test_missing_precaution_is_found_by_a_seed(name: str) -> None:
    assert is_found(name, spoil=SPOILS[name])


# Scripted cases ----------------------------------------------------------------------------------


def open_store(disk: SimulatedDisk, boot: str) -> MessageStore:
    return MessageStore(
        ROOT,
        log_file_size=1000,
        queue_file_size=40,
        store_host=HOST,
        tags_code=lambda _message: 0,
        born_at=lambda _topic: 0,
        boot=boot,
        disk=disk,
    )


def put(store: MessageStore, count: int, topic: str = "T") -> None:
    for _ in range(count):
        store.put(
            Draft(topic=topic, queue_id=0, body=b"x" * 100, properties="", tags_code=0, born_host=HOST),
            now_ms=1,
        )


def is_built_anew(disk: SimulatedDisk, caplog: pytest.LogCaptureFixture) -> bool:
    """Return True if the queues are rebuilt after a power cut that follows a checkpoint."""
    store = open_store(disk, "1")
    put(store, 11)
    put(store, 3, "U")
    run_here(store.checkpoint())
    put(store, 1)
    disk.lose_power()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        again = open_store(disk, "2")
    assert again.bounds("T", 0)[1] in (11, 12)
    assert again.bounds("U", 0)[1] == 3
    return "built anew" in caplog.text


def test_queue_files_are_whole_after_a_power_cut_behind_a_checkpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert [seed for seed in range(20) if is_built_anew(SimulatedDisk(seed), caplog)] == []


@pytest.mark.parametrize("forgets", QUEUE_SYNCS.values(), ids=QUEUE_SYNCS)
def test_missing_sync_of_queue_files_is_noticed(forgets: Forgets, caplog: pytest.LogCaptureFixture) -> None:
    assert any(is_built_anew(SimulatedDisk(seed, forgets=forgets), caplog) for seed in range(20))


@pytest.mark.parametrize("seed", range(20))
def test_power_cut_behind_a_file_roll_does_not_keep_it_from_starting(seed: int) -> None:
    disk = SimulatedDisk(seed)
    store = open_store(disk, "1")
    put(store, 2)
    store.flush_log()
    put(store, 9)  # enough messages for a second and a third file of the log
    disk.lose_power()
    again = open_store(disk, "2")
    assert again.bounds("T", 0)[1] >= 2
    put(again, 3)


@pytest.mark.parametrize("seed", range(20))
def test_log_that_could_not_be_synced_is_written_again_at_the_next_start(seed: int) -> None:
    disk = SimulatedDisk(seed)
    store = open_store(disk, "1")
    put(store, 2)
    disk.fault_rate = 1.0
    with pytest.raises(StoreUnavailable, match="sync of"):
        store.flush_log()
    with pytest.raises(StoreUnavailable, match="sync of"):
        put(store, 1)
    disk.fault_rate = 0.0
    disk.end_process()
    again = open_store(disk, "1")
    put(again, 2)
    again.flush_log()
    disk.lose_power()
    assert open_store(disk, "2").bounds("T", 0) == (0, 4)


def test_old_queue_files_go_with_the_log(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    store = open_store(disk, "1")
    put(store, 50)
    run_here(store.checkpoint())
    queue = ROOT / "consumequeue" / "T" / "0"
    before = len(disk.names(queue))
    run_here(store.remove_old_files(before=1e12))
    low, high = store.bounds("T", 0)
    assert (low > 40, high) == (True, 50)
    assert len(disk.names(ROOT / "commitlog")) == 1
    assert (before, len(disk.names(queue))) == (25, (high - low) // 2 + low % 2)
    assert store.get("T", 0, low, count_max=32, bytes_max=1 << 20).count == high - low
    disk.lose_power()
    assert open_store(disk, "2").bounds("T", 0) == (low, high)
