"""Lines of journal files that are incomplete (cut off) or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.broker.store.files import read_whole
from routekeeper.broker.store.journal import Change, Journal, begin_journal, decode_lines, encode_line
from routekeeper.remoting.route import DataVersion, TopicConfig
from tests.broker.sim.disk import SimulatedDisk


def line(counter: int, topic: str = "T") -> bytes:
    return encode_line([Change(DataVersion(counter=counter), put=(TopicConfig(topic_name=topic),))])


def test_every_cut_of_a_journal_gives_its_whole_lines() -> None:
    first, second = line(1), line(2)
    for size in range(len(first + second) + 1):
        found = decode_lines((first + second)[:size])
        whole = (size >= len(first)) + (size >= len(first + second))
        assert (len(found.changes), found.damaged) == (whole, 0)
        assert found.torn == size - (0, len(first), len(first + second))[whole]


def test_every_flipped_bit_is_noticed_and_damages_one_line_or_two() -> None:
    lines = [line(1), line(2, "U"), line(3)]
    content = b"".join(lines)
    for at in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit
            found = decode_lines(bytes(flipped))
            assert found.damaged or found.torn
            kept = [change["dataVersion"]["counter"] for change in found.changes]
            assert kept in ([2, 3], [1, 3], [1, 2], [3], [1]), (at, bit)


@pytest.mark.parametrize("seed", range(10))
def test_line_for_which_the_disk_has_no_room_leaves_no_torn_end(seed: int) -> None:
    disk, path = SimulatedDisk(seed), Path("/topics-0.journal")
    begin_journal(disk, path)
    journal = Journal(disk, path, size_max=0)
    journal.append(line(1))
    disk.is_full = True
    with pytest.raises(OSError, match="No space left"):
        journal.append(line(2))
    assert read_whole(disk, path) == line(1)
