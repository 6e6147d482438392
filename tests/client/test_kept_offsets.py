"""A broadcast member's file of offsets that was damaged or edited while no client ran."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from routekeeper import AsyncClient
from routekeeper.client import file_lock
from routekeeper.client.errors import ClientError, InvalidArgument
from routekeeper.client.offsets import OwnOffsets
from routekeeper.client.operation import Deliver, Operation, Wait
from routekeeper.remoting import state_file
from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.files import open_regular
from tests.waiting import WITHIN_S, in_thread, until


def perform(operation: Operation[int | None] | Operation[None]) -> int | None:
    """Run an operation that only reads and writes files."""
    try:
        effect = next(operation)
        while True:
            assert isinstance(effect, Deliver)
            try:
                outcome = effect.call(effect.argument)
            except Exception as error:
                effect = operation.throw(error)
            else:
                effect = operation.send(outcome)
    except StopIteration as end:
        value: int | None = end.value
        return value


QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=0)


def kept(file: Path, *offsets: int) -> Path:
    member = OwnOffsets(str(file))
    for offset in offsets:
        perform(member.commit(QUEUE, offset, oneway=True))
    return file


def test_second_consumer_of_a_file_is_refused_until_the_first_one_ends(tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    first, second = OwnOffsets(str(file)), OwnOffsets(str(file))
    perform(first.open())
    perform(first.open())
    with pytest.raises(InvalidArgument) as refused:
        perform(second.open())
    assert str(refused.value) == (
        f"offset_file='{file}' is used by another consumer, of this process or another one; allowed is one"
        " consumer, so name a file of its own for each"
    )
    perform(second.committed(QUEUE))  # without the lock; ``second`` must read again when it has the lock
    perform(first.commit(QUEUE, 7, oneway=True))
    first.close()
    perform(second.open())
    assert perform(second.committed(QUEUE)) == 7
    second.close()
    third = OwnOffsets(str(file))
    perform(third.open())
    del third
    perform(first.open())


def test_file_is_reserved_until_the_last_write_has_ended(tmp_path: Path) -> None:
    first, second = (OwnOffsets(str(tmp_path / "offsets.json")) for _ in range(2))
    perform(first.open())
    perform(first.committed(QUEUE))
    writing = first.commit(QUEUE, 7, oneway=True)
    write = next(writing)
    assert isinstance(write, Deliver)
    first.close()
    with pytest.raises(InvalidArgument):
        perform(second.open())
    write.call(write.argument)
    with pytest.raises(StopIteration):
        writing.send(None)
    perform(second.open())
    assert perform(second.committed(QUEUE)) == 7


def test_file_is_reserved_for_a_commit_that_waits_for_another_write(tmp_path: Path) -> None:
    first, second = (OwnOffsets(str(tmp_path / "offsets.json")) for _ in range(2))
    perform(first.open())
    perform(first.committed(QUEUE))
    writing, waiting = first.commit(QUEUE, 7, oneway=True), first.commit(QUEUE, 8, oneway=True)
    write = next(writing)
    assert isinstance(write, Deliver)
    assert isinstance(next(waiting), Wait)
    first.close()
    write.call(write.argument)
    with pytest.raises(StopIteration):
        writing.send(None)
    write = waiting.send(True)
    assert isinstance(write, Deliver)
    with pytest.raises(InvalidArgument):
        perform(second.open())
    write.call(write.argument)
    with pytest.raises(StopIteration):
        waiting.send(None)
    perform(second.open())
    assert perform(second.committed(QUEUE)) == 8


def test_file_is_reserved_while_a_thread_writes_for_a_commit_that_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (OwnOffsets(str(tmp_path / "offsets.json")) for _ in range(2))
    perform(first.open())
    perform(first.committed(QUEUE))
    writing, replace = first.commit(QUEUE, 7, oneway=True), state_file.replace

    def cancelled(storage: state_file.Storage, path: Path, data: bytes) -> None:
        writing.close()
        first.close()
        with pytest.raises(InvalidArgument):
            perform(second.open())
        replace(storage, path, data)

    write = next(writing)
    assert isinstance(write, Deliver)
    with monkeypatch.context() as patched:
        patched.setattr(state_file, "replace", cancelled)
        write.call(write.argument)
    with pytest.raises(ClientError, match="the consumer is closed"):
        write.call(write.argument)  # the thread began after the consumer had closed
    perform(second.open())
    assert perform(second.committed(QUEUE)) == 7


class SlowDisk:
    """A disk that holds back one write: ``held`` is set then, and the write continues after ``goes_on``.

    Args:
        at: Function that waits for the disk, as a module and a name.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: tuple[Any, str]) -> None:
        self.held, self.goes_on = threading.Event(), threading.Event()
        call = getattr(*at)

        def slow(*arguments: Any) -> Any:
            if not self.held.is_set():
                self.held.set()
                assert self.goes_on.wait(WITHIN_S)
            return call(*arguments)

        monkeypatch.setattr(*at, slow)


@pytest.mark.parametrize("at", [(state_file, "replace"), (os, "fsync")], ids=["at its start", "in fsync"])
def test_write_that_was_cancelled_neither_spoils_nor_overwrites_the_next_one(
    at: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelling a task of asyncio does not end the thread that writes the file for this task."""
    file = kept(tmp_path / "offsets.json", 10)

    async def main() -> None:
        client, member = AsyncClient("127.0.0.1:1"), OwnOffsets(str(file))
        await client.run(member.open())
        disk = SlowDisk(monkeypatch, at)
        cancelled = asyncio.create_task(client.run(member.commit(QUEUE, 20, oneway=True)))
        await until(disk.held.is_set, "the disk holds the write back")
        cancelled.cancel()
        await asyncio.wait([cancelled])
        storing = asyncio.create_task(client.run(member.commit(QUEUE, 30, oneway=False)))
        await asyncio.wait([storing], timeout=0.1)
        disk.goes_on.set()
        await storing
        await client.close()

    asyncio.run(main())  # it also waits for the threads
    assert perform(OwnOffsets(str(file)).committed(QUEUE)) == 30


def test_write_whose_thread_begins_too_late_leaves_the_newer_offsets(tmp_path: Path) -> None:
    member = OwnOffsets(str(tmp_path / "offsets.json"))
    perform(member.open())
    perform(member.committed(QUEUE))
    writing = member.commit(QUEUE, 20, oneway=True)
    write = next(writing)
    assert isinstance(write, Deliver)
    writing.close()
    perform(member.commit(QUEUE, 30, oneway=True))
    write.call(write.argument)
    assert perform(OwnOffsets(str(tmp_path / "offsets.json")).committed(QUEUE)) == 30


@pytest.mark.parametrize("ends_with", ["cancellation", "error"])
def test_offset_before_a_write_without_a_result_is_written_again(ends_with: str, tmp_path: Path) -> None:
    """Without a result, nobody knows if the file has the offset of this write or the offset before it."""
    member = OwnOffsets(str(kept(tmp_path / "offsets.json", 10)))
    perform(member.committed(QUEUE))
    writing = member.commit(QUEUE, 20, oneway=True)
    write = next(writing)
    assert isinstance(write, Deliver)
    write.call(write.argument)
    if ends_with == "cancellation":
        writing.close()
    else:
        with pytest.raises(ClientError, match="not kept"):
            writing.throw(OSError("the disk failed after the file got its name"))
    perform(member.commit(QUEUE, 10, oneway=True))
    assert perform(OwnOffsets(str(tmp_path / "offsets.json")).committed(QUEUE)) == 10


def test_write_waits_only_for_a_while_for_a_write_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, disk = tmp_path / "offsets.json", SlowDisk(monkeypatch, (os, "fsync"))
    member = OwnOffsets(str(file))
    perform(member.committed(QUEUE))
    writing = member.commit(QUEUE, 20, oneway=True)
    write = next(writing)
    assert isinstance(write, Deliver)
    hanging = in_thread(lambda: write.call(write.argument))
    assert disk.held.wait(WITHIN_S)
    writing.close()
    monkeypatch.setattr(file_lock, "EARLIER_S", 0.01)
    not_kept = "an earlier write of the file has not ended"
    with pytest.raises(ClientError, match=not_kept):
        perform(member.commit(QUEUE, 30, oneway=True))
    # Further writes must not wait: a consumer that closes stores the offsets of its queues one by one.
    monkeypatch.setattr(file_lock, "EARLIER_S", WITHIN_S)
    failing = in_thread(lambda: perform(member.commit(QUEUE, 40, oneway=True)))
    with pytest.raises(ClientError, match=not_kept):
        failing.result(WITHIN_S / 2)
    disk.goes_on.set()
    hanging.result(WITHIN_S)
    perform(member.commit(QUEUE, 50, oneway=True))
    assert perform(OwnOffsets(str(file)).committed(QUEUE)) == 50


def in_child(call: Callable[[], None]) -> Callable[[], int]:
    """Fork a child process that calls the function. The child ends when the returned function is called."""
    called, calls = os.pipe()
    ended, ends = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(ends)
            call()
            os.write(calls, b"x")
            os.read(ended, 1)
            status = 0
        finally:
            os._exit(status)
    os.close(calls)
    os.close(ended)
    assert os.read(called, 1), "the child called the function"

    def end() -> int:
        os.close(ends)
        os.close(called)
        return os.waitpid(child, 0)[1]

    return end


def test_child_process_after_a_fork_neither_ends_nor_keeps_the_lock(tmp_path: Path) -> None:
    first, second = (OwnOffsets(str(tmp_path / "offsets.json")) for _ in range(2))
    perform(first.open())
    end = in_child(first.close)
    try:
        with pytest.raises(InvalidArgument):
            perform(second.open())
        del first  # like the end of the parent process in a crash: nothing unlocks the file
        perform(second.open())
    finally:
        assert end() == 0


def test_file_system_that_refuses_to_unlock_lets_the_consumer_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (OwnOffsets(str(tmp_path / "offsets.json")) for _ in range(2))
    flock = fcntl.flock

    def stale(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN:
            raise OSError(116, "Stale file handle")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", stale)
    perform(first.open())
    first.close()
    perform(second.open())


def test_refused_consumer_leaves_no_file_open(tmp_path: Path) -> None:
    first, second = (OwnOffsets(str(tmp_path / "offsets.json")) for _ in range(2))

    def held() -> int:
        # Count only files of this test, because files of earlier tests may be closed meanwhile.
        return sum(one.path.startswith(str(tmp_path)) for one in psutil.Process().open_files())

    perform(first.open())
    before = held()
    with pytest.raises(InvalidArgument) as refused:
        perform(second.open())
    assert held() == before > 0, refused.value


def test_thread_that_opens_the_file_too_late_for_a_cancelled_start_keeps_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (OwnOffsets(str(tmp_path / "offsets.json")) for _ in range(2))
    opens, goes_on = threading.Event(), threading.Event()

    def slow(path: Path, flags: int) -> int:
        opens.set()
        assert goes_on.wait(WITHIN_S)
        return open_regular(path, flags)

    starting = first.open()
    lock = next(starting)
    assert isinstance(lock, Deliver)
    with monkeypatch.context() as patched:
        patched.setattr(file_lock, "open_regular", slow)
        # Keep the thread's outcome, as an event loop does. So the lock is not released merely because Python
        # deletes the outcome.
        outcome = in_thread(lambda: lock.call(lock.argument))
        assert opens.wait(WITHIN_S)
        starting.close()
        goes_on.set()
        assert isinstance(outcome.exception(WITHIN_S), ClientError)
    perform(second.open())
    with pytest.raises(InvalidArgument):
        perform(first.open())


def test_start_that_is_cancelled_after_its_thread_has_locked_the_file_keeps_no_lock(tmp_path: Path) -> None:
    first, second = (OwnOffsets(str(tmp_path / "offsets.json")) for _ in range(2))
    starting = first.open()
    lock = next(starting)
    assert isinstance(lock, Deliver)
    outcome = lock.call(lock.argument)
    starting.close()
    perform(second.open())
    assert outcome is not None, "the lock was not released by its end"
    with pytest.raises(InvalidArgument):
        perform(first.open())


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Semaphore]:
    """Cancel a start whose thread has just locked the file.

    Return an event that lets the thread go on, and a semaphore that counts refused attempts to lock the file.
    """
    locked, goes_on, refused = threading.Event(), threading.Event(), threading.Semaphore(0)
    flock = fcntl.flock

    def slow(descriptor: int, operation: int) -> None:
        try:
            flock(descriptor, operation)
        except BlockingIOError:
            refused.release()
            raise
        if operation != fcntl.LOCK_UN and not locked.is_set():
            locked.set()
            assert goes_on.wait(WITHIN_S)

    monkeypatch.setattr(fcntl, "flock", slow)
    starting = OwnOffsets(str(tmp_path / "offsets.json")).open()
    lock = next(starting)
    assert isinstance(lock, Deliver)
    in_thread(lambda: lock.call(lock.argument))
    assert locked.wait(WITHIN_S)
    starting.close()
    return goes_on, refused


def test_start_waits_until_the_thread_of_a_cancelled_start_has_released_the_file(
    tmp_path: Path, held: tuple[threading.Event, threading.Semaphore]
) -> None:
    goes_on, refused = held
    second, third = (OwnOffsets(str(tmp_path / "offsets.json")) for _ in range(2))
    outcome = in_thread(lambda: perform(second.open()))
    assert refused.acquire(timeout=WITHIN_S)
    goes_on.set()
    outcome.result(WITHIN_S)
    with pytest.raises(InvalidArgument):
        perform(third.open())


def test_start_waits_only_for_a_while_for_a_thread_that_hangs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    held: tuple[threading.Event, threading.Semaphore],
) -> None:
    goes_on, _ = held
    monkeypatch.setattr(file_lock, "EARLIER_S", 0.01)
    outcome = in_thread(lambda: perform(OwnOffsets(str(tmp_path / "offsets.json")).open()))
    try:
        assert isinstance(outcome.exception(WITHIN_S), InvalidArgument)
    finally:
        goes_on.set()


def test_file_that_cannot_be_locked_is_used_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "offsets.json"
    (tmp_path / "offsets.json.lock").mkdir()
    member = OwnOffsets(str(file))
    perform(member.open())
    perform(member.commit(QUEUE, 7, oneway=True))
    member.close()
    (record,) = caplog.records
    assert f"offset file not locked, another consumer could use it file={file} " in record.getMessage()
    assert perform(OwnOffsets(str(file)).committed(QUEUE)) == 7


def test_flipped_bit_in_a_queues_name_is_an_error_not_a_new_beginning(tmp_path: Path) -> None:
    file = kept(tmp_path / "offsets.json", 5, 6)
    file.write_text(file.read_text().replace("T@b", "U@b"))
    with pytest.raises(ClientError, match=r"remove offsets\.json\.sha256"):
        perform(OwnOffsets(str(file)).committed(QUEUE))
    (tmp_path / "offsets.json.sha256").unlink()
    assert perform(OwnOffsets(str(file)).committed(QUEUE)) is None


def test_half_of_the_file_gives_way_to_its_backup(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = kept(tmp_path / "offsets.json", 5, 6)
    file.write_text(file.read_text()[:5])
    assert perform(OwnOffsets(str(file)).committed(QUEUE)) == 5
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert str(file) in record.getMessage()
