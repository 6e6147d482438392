"""If all entries of a queue file are damaged, the broker searches the log for the messages.

Each pull does a bounded part of this search. No part of the search is done twice.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from routekeeper.broker.requests.group_requests import reset_offset
from routekeeper.broker.requests.pulling import Pull, look, search_offset
from routekeeper.broker.store import log_scan, mending
from routekeeper.broker.store.consume_queue import ENTRY, ENTRY_SIZE, Entry
from routekeeper.broker.store.files import DISK, Content
from routekeeper.broker.store.log_scan import Record
from routekeeper.broker.store.messages import Draft
from routekeeper.broker.tables.state import BrokerState, Call, Later
from routekeeper.remoting.bodies import QueueOffsets, SubscriptionGroupConfig
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import MAGIC_BLANK, MAGIC_V1, decode_messages
from routekeeper.remoting.route import TopicConfig
from tests.broker.states import HOST, NOW, state_in

FILE = 12_000
COUNT = 3 * FILE
#: Greatest number of reads, writes and checks of log records in one pull. A pull that did the whole search
#: would need 30,000 or more.
WORK_MAX = 6_000


class Work:
    """Counter of reads, writes and checks of log records in one call. It fails above ``WORK_MAX``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.most = 0
        opened, read, write, look_at = DISK.open, DISK.read, DISK.write, log_scan.read_indexed

        def noting_open(path: Path, *, create: bool = False, empty: bool = False) -> int:
            self._note()
            return opened(path, create=create, empty=empty)

        def noting_read(fd: int, size: int, at: int) -> bytes:
            self._note()
            return read(fd, size, at)

        def noting_write(fd: int, data: bytes | memoryview, at: int) -> int:
            self._note()
            return write(fd, data, at)

        def noting_look(data: Content, position: int, *, base: int) -> tuple[Record, int] | None:
            self._note()
            return look_at(data, position, base=base)

        monkeypatch.setattr(DISK, "open", noting_open)
        monkeypatch.setattr(DISK, "read", noting_read)
        monkeypatch.setattr(DISK, "write", noting_write)
        for module in log_scan, mending:
            monkeypatch.setattr(module, "read_indexed", noting_look)

    def _note(self) -> None:
        self.count += 1
        assert self.count <= WORK_MAX, "one call holds up all others"

    def begin(self) -> None:
        self.most = max(self.most, self.count)
        self.count = 0


def reopened(tmp_path: Path) -> BrokerState:
    sizes = {"log_file_size": 64 << 20, "queue_file_size": FILE * ENTRY_SIZE}
    state = state_in(tmp_path, TopicConfig(topic_name="T"), **sizes)
    state.groups.put(SubscriptionGroupConfig(group_name="G"), now_ms=NOW)
    return state


def entries_of(path: Path) -> list[Entry]:
    return [Entry(*values) for values in ENTRY.iter_unpack(path.read_bytes())]


def filled(tmp_path: Path) -> tuple[list[Entry], Path]:
    """Store messages, and overwrite the queue entries of the middle third with zeros.

    Return the entries from before the damage, and their file.
    """
    state = reopened(tmp_path)
    for begin in range(0, COUNT, 1000):
        drafts = [
            Draft(topic="T", queue_id=0, body=b"%d" % number, properties="", tags_code=0, born_host=HOST)
            for number in range(begin, begin + 1000)
        ]
        state.store.put_all(drafts, now_ms=NOW + begin)
    state.store.close()
    path = tmp_path / "consumequeue" / "T" / "0" / f"{FILE * ENTRY_SIZE:020d}"
    entries = entries_of(path)
    assert len(entries) == FILE
    path.write_bytes(bytes(FILE * ENTRY_SIZE))
    return entries, path


def pull(state: BrokerState, offset: int) -> RemotingCommand:
    answer = look(
        state,
        Pull(
            request=RemotingCommand.request(11),
            connection=1,
            topic="T",
            queue_id=0,
            first_offset=offset,
            offset=offset,
            count_max=32,
            bytes_max=1 << 20,
            codes=None,
            suspend_ms=0,
        ),
    )
    assert isinstance(answer, RemotingCommand)
    return answer


def consume(state: BrokerState, offset: int, end: int, before_pull: Callable[[], None]) -> list[int]:
    """Pull as consumers do, from an offset to ``end``, and return the numbers of the messages."""
    numbers: list[int] = []
    pulls = 0
    while offset < end:
        pulls += 1
        assert pulls < 10_000
        before_pull()
        answer = pull(state, offset)
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), answer
        numbers += [int(message.body) for message in decode_messages(answer.body)]
        offset = int(answer.ext_fields["nextBeginOffset"])
    return [number for number in numbers if number < end]


@pytest.mark.slow
def test_entries_of_intact_messages_are_repaired_and_no_pull_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, path = filled(tmp_path)
    state = reopened(tmp_path)
    work = Work(monkeypatch)
    assert consume(state, FILE - 100, 2 * FILE + 100, work.begin) == list(range(FILE - 100, 2 * FILE + 100))
    work.begin()
    state.store.close()
    assert state.store.damaged_entries == FILE
    assert entries_of(path) == entries


@pytest.mark.slow
def test_lost_messages_are_passed_over_and_searched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entries, _ = filled(tmp_path)
    (log,) = (tmp_path / "commitlog").iterdir()
    begin, end = entries[0].log_offset, entries[-1].log_offset + entries[-1].size
    with log.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(end - begin))
    state = reopened(tmp_path)
    work = Work(monkeypatch)
    kept = [*range(FILE - 100, FILE), *range(2 * FILE, 2 * FILE + 100)]
    assert consume(state, FILE - 100, 2 * FILE + 100, work.begin) == kept
    searches = caplog.text.count("queue entries damaged")
    assert 1 <= searches <= 4
    assert consume(state, FILE - 100, 2 * FILE + 100, work.begin) == kept
    assert caplog.text.count("queue entries damaged") == searches, "they are known to be lost"
    assert state.store.damaged_entries == FILE
    state.store.log.close()


@pytest.mark.slow
def test_requests_for_times_wait_for_the_search_in_their_own_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    state = reopened(tmp_path)
    work = Work(monkeypatch)
    instant = NOW + FILE + 5_000
    ext = {"topic": "T", "queueId": "0", "timestamp": str(instant)}
    call = Call(request=RemotingCommand.request(29, ext), connection=1, peer=HOST, now_ms=NOW, now=0.0)
    with pytest.raises(Exception, match="searched in the log: try again"):
        search_offset(state, call)
    ext = {"topic": "T", "group": "G", "timestamp": str(instant), "isForce": "true"}
    call = Call(request=RemotingCommand.request(222, ext), connection=1, peer=HOST, now_ms=NOW, now=0.0)
    steps = reset_offset(state, call).work
    try:
        step = next(steps)
        while True:
            work.begin()
            step = steps.send(step())
    except StopIteration as done:
        outcome = done.value
    assert isinstance(outcome, Later)
    found = {queue.queue_id: at for queue, at in QueueOffsets.decode(outcome.reply.body).offsets.items()}
    assert found[0] == FILE + 5_000
    state.store.log.close()


def test_search_in_a_deleted_topic_ends_with_it(tmp_path: Path) -> None:
    _, path = filled(tmp_path)
    state = reopened(tmp_path)
    assert pull(state, FILE).code == ResponseCode.PULL_RETRY_IMMEDIATELY
    state.store.delete_topic("T")
    for _ in range(1000):
        pull(state, FILE)
    assert path.read_bytes() == bytes(FILE * ENTRY_SIZE), "the file may be another queue's by now"
    state.store.log.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_size_of_a_slice_changes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Entries and the log are damaged. The search works in slices, which may end at any byte of the log."""
    rng, count = random.Random(seed), 300
    made = state_in(tmp_path / "made", TopicConfig(topic_name="T"))
    for number in range(count):
        properties = "KEYS\x01" + "k" * rng.randrange(60) + "\x02"
        message = Draft(
            topic=rng.choice("TU"), queue_id=0, body=b"", properties=properties, tags_code=0, born_host=HOST
        )
        made.store.put(message, now_ms=NOW + number)
    made.store.close()
    (log,) = (tmp_path / "made" / "commitlog").iterdir()
    damage(rng, log, places=6, size_max=200, end=log.stat().st_size - 1000, noise=False)
    for path in sorted((tmp_path / "made" / "consumequeue" / "T" / "0").iterdir())[:-1]:
        damage(rng, path, places=8, size_max=400, end=path.stat().st_size, noise=True)
    found = []
    for slice_, bytes_ in ((1 << 30, 1 << 20), (1, 16), (7, 20)):
        monkeypatch.setattr(mending, "SLICE", slice_)
        monkeypatch.setattr(mending, "_BYTES", bytes_)
        directory = tmp_path / f"{slice_}"
        shutil.copytree(tmp_path / "made", directory)
        state = state_in(directory, TopicConfig(topic_name="T"))
        end = state.store.bounds("T", 0)[1]
        offset, offsets, pulls = 0, [], 0
        while offset < end:
            answer = pull(state, offset)
            offsets += [message.queue_offset for message in decode_messages(answer.body)]
            offset = int(answer.ext_fields["nextBeginOffset"])
            pulls += 1
            assert pulls < 20_000
        found.append((offsets, state.store.damaged_entries))
        state.store.log.close()
    assert found[1] == found[2] == found[0]
    assert found[0][1] > 0


#: ``PADDING`` looks like a padding record of eight bytes. ``MESSAGE`` is the magic number of a message.
PADDING, MESSAGE = struct.pack(">ii", 8, MAGIC_BLANK), struct.pack(">i", MAGIC_V1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bodies", [[PADDING * 200_000] * 8, [MESSAGE * 500_000]], ids=["padding", "messages"]
)
def test_body_like_records_of_a_damaged_message_neither_hides_others_nor_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bodies: list[bytes]
) -> None:
    """The body of the damaged message looks like records of the log.

    A slice of the search may end within this message, at any byte of the body's pattern.
    """
    state = reopened(tmp_path)
    large = [b"x" * shift + body for shift, body in enumerate(bodies)]
    stored = [b"0", *(body for at, big in enumerate(large) for body in (big, b"%d" % (2 * at + 2)))]
    for number, body in enumerate(stored):
        draft = Draft(topic="T", queue_id=0, body=body, properties="", tags_code=0, born_host=HOST)
        state.store.put(draft, now_ms=NOW + number)
    state.store.put_all(
        [
            Draft(topic="T", queue_id=0, body=b"%d" % number, properties="", tags_code=0, born_host=HOST)
            for number in range(len(stored), FILE + 1)
        ],
        now_ms=NOW,
    )
    state.store.close()
    path, _ = sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())
    (log,) = (tmp_path / "commitlog").iterdir()
    with log.open("r+b") as file:
        for entry in entries_of(path)[1 : len(stored) : 2]:
            file.seek(entry.log_offset + entry.size // 2)
            (byte,) = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))
    path.write_bytes(bytes(FILE * ENTRY_SIZE))
    state = reopened(tmp_path)
    work = Work(monkeypatch)
    kept = [*range(0, len(stored), 2), *range(len(stored), FILE + 1)]
    assert consume(state, 0, FILE + 1, work.begin) == kept
    state.store.log.close()


def damage(rng: random.Random, path: Path, *, places: int, size_max: int, end: int, noise: bool) -> None:
    """Overwrite random ranges of a file with zeros. With ``noise``, some ranges get random bytes instead."""
    with path.open("r+b") as file:
        for _ in range(places):
            size = rng.randrange(1, min(size_max, end))
            file.seek(rng.randrange(end - size))
            file.write(rng.randbytes(size) if noise and rng.random() < 0.5 else bytes(size))
