"""Search for messages by key: the index of the log, and request 12, which uses the index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.broker.requests.queries import RESULTS_MAX
from routekeeper.broker.store.files import DISK
from routekeeper.broker.store.message_index import KEYS_MAX, keys_of
from routekeeper.broker.store.messages import Draft, MessageStore
from routekeeper.broker.store.steps import run_here
from routekeeper.remoting.message import Host, decode_messages
from tests.broker.conftest import StartBroker, Wire

HOST = Host("127.0.0.1", 10911)


class Stores:
    """A store that can be opened again and again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.births: dict[str, int] = {"T": 0, "U": 0}
        self._opened: list[MessageStore] = []

    def open(self) -> MessageStore:
        self.close()
        store = MessageStore(
            self.directory,
            log_file_size=2000,
            queue_file_size=400,
            store_host=HOST,
            tags_code=lambda _: 0,
            born_at=self.births.get,
            boot="this",
            index_messages=10,
        )
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.log.close()
        self._opened.clear()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    made = Stores(tmp_path)
    yield made
    made.close()


def put(store: MessageStore, keys: str, *, topic: str = "T", unique: str = "", now_ms: int = 1000) -> int:
    marks = f"KEYS\x01{keys}\x02" if keys else ""
    draft = Draft(
        topic=topic,
        queue_id=0,
        body=b"x" * 50,
        properties=marks + (f"UNIQ_KEY\x01{unique}\x02" if unique else ""),
        tags_code=0,
        born_host=HOST,
    )
    return store.put(draft, now_ms=now_ms).physical_offset


def find(
    store: MessageStore, key: str, *, topic: str = "T", begin_ms: int = 0, end_ms: int = 2**63 - 1
) -> list[int]:
    """Return the log offsets of the messages with a key, the youngest first."""
    run_here(store.index.follow())
    steps = store.index.search(topic, key, begin_ms=begin_ms, end_ms=end_ms)
    return [found.offset for step in steps for found in step()]


def test_keys_are_those_between_blanks_and_the_unique_id() -> None:
    assert keys_of("KEYS\x01a b  a\x02UNIQ_KEY\x01id\x02TAGS\x01t\x02") == ["a", "b", "id"]
    assert keys_of("UNIQ_KEY\x01id") == ["id"]
    assert keys_of("TAGS\x01t\x02") == []


def test_one_message_has_a_bounded_number_of_keys() -> None:
    many = " ".join(f"k{number}" for number in range(5000))
    assert len(keys_of(f"KEYS\x01{many}\x02UNIQ_KEY\x01id\x02")) == KEYS_MAX
    # A message of a batch is stored with unchanged properties, so a property name may occur several times.
    repeated = "".join(f"KEYS\x01k{n}\x02UNIQ_KEY\x01id{n}\x02" for n in range(1_000))
    assert keys_of(repeated) == ["k999", "id999"]


def test_messages_are_found_by_key_in_memory_in_files_and_after_a_restart(stores: Stores) -> None:
    store = stores.open()
    offsets = [put(store, f"k{number} all", unique=f"id{number}", now_ms=number) for number in range(45)]
    other = put(store, "k3", topic="U")
    for again in (False, True):
        if again:
            store = stores.open()
        assert find(store, "k3") == find(store, "id3") == [offsets[3]]
        assert find(store, "k44") == [offsets[44]]
        assert find(store, "k3", topic="U") == [other]
        assert find(store, "nothing") == []
        assert find(store, "all") == offsets[::-1]
        assert find(store, "all", begin_ms=12, end_ms=14) == offsets[14:11:-1]
    assert len(DISK.names(stores.directory / "index")) == 4


def test_a_damaged_or_missing_file_is_made_anew(stores: Stores) -> None:
    store = stores.open()
    offsets = [put(store, "all") for _ in range(45)]
    assert len(find(store, "all")) == 45
    files = sorted((stores.directory / "index").iterdir())
    files[1].unlink()
    files[2].write_bytes(files[2].read_bytes()[:-1])
    assert find(stores.open(), "all") == offsets[::-1]


def test_a_file_of_a_stretch_that_the_log_lost_is_not_believed(stores: Stores) -> None:
    store = stores.open()
    for _ in range(10):
        put(store, "lost")
    assert len(find(store, "lost")) == 10
    stores.close()
    for name in ("commitlog", "consumequeue", "checkpoint"):
        path = stores.directory / name
        for file in path.rglob("*") if path.is_dir() else [path]:
            if file.is_file():
                file.unlink()
    assert find(stores.open(), "lost") == []


def test_index_files_go_with_the_log(stores: Stores) -> None:
    store = stores.open()
    for _ in range(45):
        put(store, "all")
    assert len(find(store, "all")) == 45
    store.flush_log()
    run_here(store.checkpoint())
    run_here(store.remove_old_files(before=1e12))
    low = store.log.min_offset
    assert low > 0
    assert [offset for offset in find(store, "all") if offset < low and store.message_at(offset)] == []
    assert all(
        int(name) >= low or name == min(names)
        for names in [DISK.names(stores.directory / "index")]
        for name in names
    )
    assert put(store, "new") in find(store, "new")
    assert put(stores.open(), "later") > low


def test_a_flood_of_messages_is_read_from_the_log_instead_of_kept(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("routekeeper.broker.store.message_index.NOTED_MAX", 3)
    store = stores.open()
    offsets = [put(store, "all") for _ in range(20)]
    assert store.index.noted == 3
    assert find(store, "all") == offsets[::-1]


# Request 12 (QUERY_MESSAGE) ------------------------------------------------------------------------


def query(wire: Wire, topic: str, key: str, count: int = 32, **changes: str) -> tuple[int, list[bytes]]:
    ext = {"topic": topic, "key": key, "maxNum": str(count), "beginTimestamp": "0"}
    answer = wire.call(12, ext | {"endTimestamp": str(2**63 - 1)} | changes)
    return answer.code, [message.body for message in decode_messages(answer.body)]


def test_messages_are_queried_by_key(wire: Wire) -> None:
    for number in range(3):
        properties = f"KEYS\x01order{number} all\x02UNIQ_KEY\x01id{number}\x02"
        assert wire.send_message("Keyed", b"%d" % number, properties=properties).code == 0
    assert query(wire, "Keyed", "order1") == (0, [b"1"])
    assert query(wire, "Keyed", "id2", _UNIQUE_KEY_QUERY="true") == (0, [b"2"])
    assert query(wire, "Keyed", "all") == (0, [b"0", b"1", b"2"])
    assert query(wire, "Keyed", "all", 2) == (0, [b"1", b"2"])
    assert query(wire, "Keyed", "nothing") == (22, [])
    assert query(wire, "Keyed", "all", endTimestamp="5") == (22, [])
    assert query(wire, "Keyed", "all", beginTimestamp="-5", endTimestamp="-1") == (22, [])
    assert query(wire, "Keyed", "all", 0)[0] == query(wire, "Keyed", "all", -(2**31))[0] == 29
    header = wire.call(12, {"topic": "Keyed", "key": "all", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}).ext_fields  # fmt: skip  # noqa: E501
    assert set(header) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}


def test_messages_of_a_deleted_topic_are_not_found(wire: Wire) -> None:
    assert wire.send_message("KeyedOnce", b"old", properties="KEYS\x01k\x02").code == 0
    assert query(wire, "KeyedOnce", "k") == (0, [b"old"])
    assert wire.call(215, {"topic": "KeyedOnce"}).code == 0
    assert query(wire, "KeyedOnce", "k") == (22, [])
    assert wire.send_message("KeyedOnce", b"new", properties="KEYS\x01k\x02").code == 0
    assert query(wire, "KeyedOnce", "k") == (0, [b"new"])


def test_results_are_bounded_in_number_and_bytes(wire: Wire) -> None:
    for number in range(RESULTS_MAX + 5):
        assert wire.send_message("KeyedMany", b"%d" % number, properties="KEYS\x01k\x02").code == 0
    code, found = query(wire, "KeyedMany", "k", 2**31 - 1)
    assert (code, found) == (0, [b"%d" % number for number in range(5, RESULTS_MAX + 5)])
    for number in range(50):
        assert (
            wire.send_message("KeyedLarge", b"%02d" % number * 45_000, properties="KEYS\x01k\x02").code == 0
        )
    _, large = query(wire, "KeyedLarge", "k", 64)
    assert (4 << 20) - 100_000 < sum(map(len, large)) <= 4 << 20


@pytest.mark.slow
def test_keys_survive_a_kill(start_broker: StartBroker) -> None:
    broker = start_broker("--set", "indexFileMessages=3")
    for number in range(10):
        properties = f"KEYS\x01k{number}\x02"
        assert broker.wire().send_message("Kept", b"%d" % number, properties=properties).code == 0
    broker.kill()
    again = start_broker(store=broker.store).wire()
    assert [query(again, "Kept", f"k{number}") for number in range(10)] == [
        (0, [b"%d" % number]) for number in range(10)
    ]
