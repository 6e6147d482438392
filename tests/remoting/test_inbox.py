"""Tests of the inbox, which splits the bytes of a peer into requests, without a socket."""

from __future__ import annotations

import itertools
import struct
import tracemalloc

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
    """A fake fast path, which answers each frame of :data:`KNOWN` in three parts.

    A server's fast path answers known requests without parsing them. While ``number`` is not 0, this fast
    path answers nothing and says that requests must wait.
    """

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
    """Take all requests; return their opaques, and other results (``Stop``) unchanged."""
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
        for _ in range(stops):  # requests that are still in the buffer must be found later
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


def large(code: int, opaque: int, size: int) -> bytes:
    body = bytes(range(256)) * (size // 256)
    return RemotingCommand.request(code, {"topic": "T"}, body).with_opaque(opaque).encode()


@pytest.mark.parametrize("code", [KNOWN, OTHER])
@pytest.mark.parametrize(
    "cuts",
    [
        pytest.param([100_000], id="in two pieces"),
        pytest.param([65_536, 131_072], id="in three pieces"),
        pytest.param([7, 100_000], id="within the header word"),
        pytest.param([40, 90, 100_000], id="within the header"),
        pytest.param([60_000, 60_001, 60_002, 150_000], id="single bytes"),
    ],
)
@pytest.mark.parametrize("behind", [0, 20], ids=["alone", "with the next frame's begin"])
def test_large_frame_in_pieces_is_the_same_request(code: int, cuts: list[int], behind: int) -> None:
    box, _ = inbox(Fast() if code == OTHER else None)
    first, second = large(code, 7, 200_000), frame(OTHER, 8)
    stream = first + second
    ends = [*cuts, len(first) + behind]
    for begin, end in itertools.pairwise([0, *ends]):
        box.receive(stream[begin:end])
        if end < len(first):
            assert drained(box) == []
            assert box.size == end
    assert box.more
    assert box.full, "no more is read until it is handled"
    assert not box.large
    assert box.size == len(first) + behind
    request = box.next([])
    assert isinstance(request, RemotingCommand)
    assert request.encode() == first
    box.receive(stream[len(first) + behind :])
    assert drained(box) == [8]
    assert box.size == 0


def test_bytes_that_come_before_a_whole_large_frame_is_handled_stay_behind_it() -> None:
    box, _ = inbox()
    first, second = large(OTHER, 7, 200_000), frame(OTHER, 8)
    box.receive(first[:100_000])
    assert drained(box) == []
    assert box.receive(first[100_000:])
    assert not box.receive(second[:9])
    assert box.size == len(first) + 9
    box.receive(second[9:])
    assert drained(box) == [7, 8]
    assert box.size == 0


def test_large_frame_byte_by_byte_takes_little_more_memory_than_its_bytes() -> None:
    box, _ = inbox()
    data = large(OTHER, 7, 100_000)
    tracemalloc.start()
    try:
        for position in range(len(data) - 1):
            box.receive(data[position : position + 1])
            if position < 8:
                drained(box)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * len(data)
    box.receive(data[-1:])
    assert drained(box) == [7]


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
