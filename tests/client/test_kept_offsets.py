"""The file in which a broadcast member stores its offsets: damaged or edited while no client ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.client.errors import ClientError
from routekeeper.client.offsets import OwnOffsets
from routekeeper.client.operation import Deliver, Operation
from routekeeper.remoting.bodies import MessageQueue


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
