"""Lines of journals, cut and damaged."""

from __future__ import annotations

from routekeeper.broker.journal import Change, decode_lines, encode_line
from routekeeper.remoting.route import DataVersion, TopicConfig


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
