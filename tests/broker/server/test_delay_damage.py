"""Delayed messages with damaged bytes in the log: the broker starts, and delivers all other messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.server.loading import load_broker, save_now
from routekeeper.broker.store.files import DISK
from routekeeper.broker.tables.state import BrokerState
from routekeeper.broker.tables.state_files import StateFiles
from routekeeper.remoting.route import TopicConfig
from tests.broker.server.test_delay import deliver_all, delivered, schedule
from tests.broker.states import HOST, NOW


def start(directory: Path) -> tuple[BrokerState, StateFiles]:
    config = BrokerConfig(broker_name="b", log_file_size=1 << 20, queue_file_size=2000)
    return load_broker(DISK, directory, config, store_host=HOST, boot="", now_ms=NOW)


def stop_with_two_messages(directory: Path) -> None:
    """Store the delayed messages ``hello`` and ``behind`` of topic T, and stop the broker."""
    state, files = start(directory)
    state.topics.put(TopicConfig(topic_name="T"), now_ms=NOW)
    save_now(files.topics)
    for body in (b"hello", b"behind"):
        schedule(state, body, 1)
    state.store.close()


def damage(directory: Path, part: bytes, changed: bytes) -> None:
    """Replace the first occurrence of some bytes in the log."""
    (file,) = (directory / "commitlog").iterdir()
    content = file.read_bytes()
    assert part in content
    file.write_bytes(content.replace(part, changed, 1))


DAMAGES = pytest.mark.parametrize(
    ("part", "changed"),
    [
        pytest.param(b"TAGS", b"T\xffGS", id="properties"),
        pytest.param(b"hello", b"hemlo", id="body"),
    ],
)


@DAMAGES
def test_damaged_delayed_message_is_dropped_and_the_next_one_is_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, part: bytes, changed: bytes
) -> None:
    stop_with_two_messages(tmp_path)
    damage(tmp_path, part, changed)
    state, _ = start(tmp_path)
    assert deliver_all(state, now_ms=NOW + 1_000) is None
    assert [message.body for message in delivered(state)] == [b"behind"]
    assert caplog.text.count("delayed message cannot be read, dropped level=1 offset=0") == 1
    state.store.log.close()


@DAMAGES
def test_broker_without_its_topic_table_starts_with_a_damaged_delayed_message(
    tmp_path: Path, part: bytes, changed: bytes
) -> None:
    """Without the table, a start searches the topics of the delayed messages."""
    stop_with_two_messages(tmp_path)
    damage(tmp_path, part, changed)
    for file in (tmp_path / "config").glob("topics.json*"):
        file.unlink()
    state, _ = start(tmp_path)
    assert deliver_all(state, now_ms=NOW + 1_000) is None
    assert [message.body for message in delivered(state)] == [b"behind"]
    state.store.log.close()
