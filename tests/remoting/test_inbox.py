"""A server's decisions on a peer's bytes, without a socket."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.transport.inbox import KEPT_MAX, Inbox, Stop

KNOWN, OTHER = 105, 106
BATCH_PIECES = 192
_STARTS = (b'{"code":105,',)


def frame(code: int, opaque: int) -> bytes:
    return RemotingCommand.request(code, {"topic": "T"}).with_opaque(opaque).encode()


class Fast:
    """Answers each frame of :data:`KNOWN` with three pieces, or lets it wait for ``number``."""

    def __init__(self) -> None:
        self.number = 0
        self.starts = _STARTS

    def whole(self, data: bytes) -> bytes | int | None:
        return None

    def leading(self, data: bytes, position: int, answers: list[bytes]) -> tuple[int, bool]:
        while not self.number and len(answers) < BATCH_PIECES and data.startswith(_STARTS, position + 8):
            stop = position + 4 + struct.unpack_from(">I", data, position)[0]
            if stop > len(data):
                break
            answers += (b"<", data[position:stop], b">")
            position = stop
        return position, len(answers) >= BATCH_PIECES

    def waits_now(self) -> int:
        return self.number

    def waits(self, data: bytes, position: int) -> int:
        return self.number


def inbox(fast: Fast | None = None, *, frame_size_max: int = 1 << 20) -> tuple[Inbox, list[int]]:
    parked: list[int] = []
    return Inbox(frame_size_max=frame_size_max, fast_path=fast, park=parked.append), parked


def drained(box: Inbox) -> list[int | Stop]:
    """Ask until there is nothing to look at; return the opaques, and what else was said."""
    found: list[int | Stop] = []
    while (one := box.next([])) is not None:
        found.append(one if isinstance(one, Stop) else one.opaque)
        if one is Stop.WAITS:
            break
    return found


@given(
    cuts=st.lists(st.integers(0, 400), max_size=12),
    lazy=st.lists(st.integers(0, 5), max_size=12),
    codes=st.lists(st.sampled_from((KNOWN, OTHER)), min_size=1, max_size=8),
)
def test_requests_come_out_in_order_however_bytes_arrive_and_whenever_one_stops(
    cuts: list[int], lazy: list[int], codes: list[int]
) -> None:
    stream = b"".join(frame(code, opaque) for opaque, code in enumerate(codes))
    box, _ = inbox()
    seen: list[int] = []
    position = 0
    for cut, stops in itertools.zip_longest(cuts, lazy[: len(cuts)], fillvalue=2):
        piece, position = stream[position : position + cut], position + cut
        box.receive(piece)
        for _ in range(stops):  # a driver that asks too little finds the rest there later
            one = box.next([])
            if one is None:
                break
            assert isinstance(one, RemotingCommand)
            seen.append(one.opaque)
    box.receive(stream[position:])
    seen += [opaque for opaque in drained(box) if isinstance(opaque, int)]
    assert seen == list(range(len(codes)))
    assert box.size == 0


def test_unfinished_frame_is_looked_at_once_it_is_whole() -> None:
    box, _ = inbox()
    data = frame(OTHER, 7)
    assert box.receive(data[:3])
    assert box.next([]) is None
    assert not box.receive(data[3:5])
    assert box.size == 5
    assert box.receive(data[5:])
    assert drained(box) == [7]
    assert box.size == 0


@pytest.mark.parametrize("size", [2**20 - 3, 2**31])
def test_frame_above_the_limit_is_refused_at_its_length_word(size: int) -> None:
    box, _ = inbox(frame_size_max=2**20)
    box.receive(frame(OTHER, 1) + struct.pack(">I", size))
    assert isinstance(box.next([]), RemotingCommand)
    with pytest.raises(RemoteProtocolError, match="above the limit of 1048576"):
        box.next([])


def test_frame_at_the_limit_is_taken() -> None:
    box, _ = inbox(frame_size_max=2**20)
    box.receive(struct.pack(">I", 2**20 - 4))
    assert box.next([]) is None
    assert box.size == 4


def test_long_batches_are_handed_over_in_parts() -> None:
    box, _ = inbox(Fast())
    count = BATCH_PIECES // 3 * 2 + 5
    box.receive(b"".join(frame(KNOWN, opaque) for opaque in range(count)) + frame(OTHER, 99))
    batches = []
    while True:
        answers: list[bytes] = []
        found = box.next(answers)
        batches.append(len(answers) // 3)
        if found is not Stop.FULL:
            break
    assert isinstance(found, RemotingCommand)
    assert found.opaque == 99
    assert batches == [BATCH_PIECES // 3, BATCH_PIECES // 3, 5]


def test_what_waits_anew_stays_before_what_came_behind_it() -> None:
    fast = Fast()
    box, parked = inbox(fast)
    fast.number = 1
    box.receive(frame(OTHER, 0) + frame(KNOWN, 1))
    assert drained(box) == [0, Stop.WAITS]
    fast.number = 2
    assert not box.receive(frame(OTHER, 2))
    assert not box.receive(frame(OTHER, 3))
    assert parked == [1, 2]
    assert box.unpark(0) is None
    fast.number = 3
    data = box.unpark(1)
    assert data is not None
    assert box.resume(data)
    assert drained(box) == [Stop.WAITS]
    assert box.unpark(2) is None, "all of it waits for 3 by now"
    fast.number = 0
    data = box.unpark(3)
    assert data is not None
    assert box.resume(data)
    answers: list[bytes] = []
    first = box.next(answers)
    assert isinstance(first, RemotingCommand)
    assert (len(answers), first.opaque) == (3, 2)
    assert drained(box) == [3]
    assert parked == [1, 2, 3]
    assert box.straight is False, "who sends other requests is not asked for routes first"


def test_much_that_waits_says_that_no_more_is_to_be_read() -> None:
    fast = Fast()
    box, _ = inbox(fast)
    fast.number = 1
    box.receive(frame(KNOWN, 1))
    assert drained(box) == [Stop.WAITS]
    assert not box.full
    box.receive(bytes(KEPT_MAX))
    assert box.full
    box.clear()
    assert not box.full
    assert (box.size, box.unpark(1)) == (0, None)
