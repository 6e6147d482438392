"""Queues of which each had more than a thousand million messages. Most of these messages have expired."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from routekeeper.broker.store.commit_log import segment_name
from routekeeper.remoting.message import StoredMessage, encode_message
from tests.broker.store.test_store import (
    BORN,
    HOST,
    LOG_FILE,
    NOW,
    OpenStore,
    bodies,
    numbers,
    open_store,
    put,
)

__all__ = ["open_store"]  # a fixture, which pytest finds by its name in this module

QUEUES = 8


def leave_last_message(directory: Path, count: int) -> None:
    """Make a log with the last message of each queue of topic T. Each queue had ``count`` messages."""
    log = b""
    for queue_id in range(QUEUES):
        message = StoredMessage(
            topic="T",
            queue_id=queue_id,
            body=b"0",
            queue_offset=count - 1,
            physical_offset=LOG_FILE + len(log),
            store_timestamp=NOW,
            born_host=BORN,
            store_host=HOST,
        )
        log += encode_message(message)
    (directory / "commitlog").mkdir()
    (directory / "commitlog" / segment_name(LOG_FILE)).write_bytes(log)


@pytest.mark.parametrize("count", [1_500_000_000, 1 << 40], ids=["1.5e9", "1e12"])
def test_broker_goes_on_after_any_number_of_messages(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    leave_last_message(tmp_path, count)
    store = open_store()
    put(store, 1, first=1)
    store.close()
    caplog.clear()
    again = open_store()
    assert "built anew" not in caplog.text
    assert [again.bounds("T", queue_id)[1] for queue_id in range(QUEUES)] == [count + 1] + [count] * 7
    assert bodies(again, count - 1) == numbers(2)


def test_checkpoint_with_a_sum_above_that_of_this_release_fits_its_queues(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Earlier releases wrote the whole sum, which could be up to 2**64 - 1."""
    leave_last_message(tmp_path, 700_000_000)
    open_store().close()
    path = tmp_path / "checkpoint"
    members = orjson.loads(path.read_bytes())
    del members["crc32"]
    members["queueEntries"] = members["queueEntries"] % 2**63 + 2**63
    path.write_bytes(orjson.dumps(members))
    caplog.clear()
    again = open_store()
    assert "built anew" not in caplog.text
    assert [again.bounds("T", queue_id)[1] for queue_id in range(QUEUES)] == [700_000_000] * 8
