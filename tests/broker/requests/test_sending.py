"""Sends of a kind that the broker has already checked. The broker caches the results of the checks by kind.

The kind of a send is all its arguments except the properties and the birth time. Each send must have the
same result as without the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.requests.sending import send
from routekeeper.broker.requests.tags import tags_code, tags_of
from routekeeper.broker.tables.state import BrokerState, Call, Later
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import Host, decode_messages, tag_hash
from routekeeper.remoting.route import TopicConfig
from tests.broker.states import NOW, state_in

MakeState = Callable[[], BrokerState]


@pytest.fixture(scope="module")
def make_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeState]:
    stores = []

    def make() -> BrokerState:
        topic = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)
        state = state_in(tmp_path_factory.mktemp("store"), topic, log_file_size=1 << 22)
        stores.append(state.store)
        return state

    yield make
    for store in stores:
        store.log.close()


def sent(state: BrokerState, ext: dict[str, str], body: bytes = b"x") -> tuple[RemotingCommand, bytes]:
    """Send a message, and return the answer and the stored bytes."""
    before = state.store.log.max_offset
    request = RemotingCommand(code=310, opaque=3, ext_fields=ext, body=body)
    outcome = send(state, Call(request=request, connection=1, peer=Host("10.0.0.1", 5), now_ms=NOW, now=0.0))
    answer = outcome.reply if isinstance(outcome, Later) else outcome
    size = state.store.log.max_offset - before
    return answer, (state.store.log.read(before, size) or b"") if size else b""


def arguments(**changes: str) -> dict[str, str]:
    usual = {
        "a": "PG",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": "1",
        "f": "0",
        "g": "17",
        "h": "5",
        "i": "UNIQ_KEY\x01id\x02WAIT\x01true\x02",
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "b",
    }
    return usual | changes


numbers = st.sampled_from(["0", "1", "3", "-1", "99", "007", "+5", "1e3", "", "x", "4294967296", "9" * 20])
texts = st.lists(
    st.sampled_from(
        [
            *("UNIQ_KEY\x01id\x02", "WAIT\x01true\x02", "WAIT\x01false\x02", "TAGS\x01A\x02"),
            *("TAGS\x01B\x02", "XTAGS\x01C\x02", "KEYS\x01k\x02", "CLUSTER\x01other\x02", "junk\x02"),
            *("MSG_REGION\x01x\x02", "TRACE_ON\x01false\x02"),
            *("DELAY\x013\x02", "TRAN_MSG\x01true\x02", "TIMER_DELAY_SEC\x015\x02", "A\x01b\x01c\x02"),
            *("\x01v\x02", "E\x01\x02", "ü\x01ö\x02"),
        ]
    ),
    max_size=4,
).map("".join)


@pytest.fixture(scope="module")
def pair(make_state: MakeState) -> tuple[BrokerState, BrokerState]:
    """Return two brokers for the same sends. The second broker forgets all cached kinds before each send."""
    return make_state(), make_state()


@settings(max_examples=150)
@given(
    kind=st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys("defhjl", numbers),
            "b": st.sampled_from(["T", "%RETRY%G", "%DLQ%G", "TBW102", "bad name", "SCHEDULE_TOPIC_XXXX"]),
            **dict.fromkeys("km", st.sampled_from(["true", "false", "1"])),
        },
    ),
    first=texts,
    then=st.lists(st.tuples(texts, numbers), min_size=1, max_size=3),
)
def test_message_of_a_known_kind_is_stored_as_any_other(
    pair: tuple[BrokerState, BrokerState], kind: dict[str, str], first: str, then: list[tuple[str, str]]
) -> None:
    learnt, fresh = pair
    for text, born in [(first, "17"), *then]:
        ext = arguments(**kind, i=text, g=born)
        fresh.known_sends.clear()
        answer, stored = sent(learnt, ext)
        expected, as_first = sent(fresh, ext)
        assert msgspec.structs.asdict(answer) == msgspec.structs.asdict(expected)
        assert stored == as_first


def test_usual_messages_are_read_by_their_kind(make_state: MakeState) -> None:
    state = make_state()
    assert sent(state, arguments())[0].code == 0
    ((kind, known),) = state.known_sends.items()
    state.known_sends[kind] = msgspec.structs.replace(known, flag=77)
    answer, stored = sent(
        state, arguments(i="UNIQ_KEY\x01two\x02WAIT\x01false\x02TAGS\x01A\x02", g="18"), b"two"
    )
    assert (answer.code, answer.ext_fields["transactionId"]) == (0, "two")
    (message,) = decode_messages(stored)
    assert (message.body, message.flag, message.queue_id, message.born_timestamp) == (b"two", 77, 1, 18)
    assert message.properties == (
        "UNIQ_KEY\x01two\x02TAGS\x01A\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02"
        "CLUSTER\x01DefaultCluster\x02"
    )
    assert state.store.entries("T", 1, 1, 1)[0].tags_code == tags_code("TAGS\x01A\x02") != 0


def test_what_is_known_of_a_kind_ends_with_its_topic_and_the_settings(make_state: MakeState) -> None:
    state = make_state()
    assert sent(state, arguments(e="3"))[0].code == 0
    state.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2), now_ms=NOW)
    refused, stored = sent(state, arguments(e="3"))
    assert (refused.code, stored) == (29, b"")
    assert sent(state, arguments())[0].code == 0
    state.config = BrokerConfig(message_size_max=10)
    assert sent(state, arguments(), b"x" * 11)[0].code == 13
    assert sent(state, arguments(), b"x" * 10)[0].code == 0
    state.config = BrokerConfig(cluster_name="Other")
    assert b"CLUSTER\x01Other" in sent(state, arguments())[1]


def test_kinds_that_are_remembered_are_bounded(
    make_state: MakeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("routekeeper.broker.requests.sending.KNOWN_MAX", 3)
    state = make_state()
    for number in range(10):
        assert sent(state, arguments(a=f"P{number}"))[0].code == 0
        assert len(state.known_sends) <= 3
    state.known_sends.clear()
    assert sent(state, arguments(k="x" * 900))[0].code == 0
    assert len(state.known_sends) == 1
    assert sent(state, arguments(k="x" * 1025))[0].code == 0
    assert len(state.known_sends) == 1, "who sends long arguments is not remembered"


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        *(("", ""), ("TAGS\x01A\x02", "A"), ("TAGS\x01A", "A"), ("B\x01x\x02TAGS\x01A\x02", "A")),
        *(("XTAGS\x01A\x02", ""), ("TAGS\x01A\x02TAGS\x01B\x02", "B"), ("TAGS\x01\x02", "")),
        *(("XTAGS\x01A\x02TAGS\x01B", "B"), ("K\x01TAGS\x01A\x02", ""), ("TAGS\x01A\x02K\x01k", "A")),
    ],
)
def test_tags_are_found_in_property_text(text: str, tags: str) -> None:
    assert tags_of(text) == tags
    assert tags_code(text) == (tag_hash(tags) if tags else 0)
