"""A restarted broker has the same state as before the restart, even after arbitrary requests of clients."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from routekeeper.broker.config import LIVE_KEYS, BrokerConfig, apply_properties
from routekeeper.broker.requests.handlers import serve
from routekeeper.broker.server.delay import deliver_due
from routekeeper.broker.server.loading import load_broker, read_changed_settings, save_now
from routekeeper.broker.store.files import DISK
from routekeeper.broker.store.steps import Steps, run_here
from routekeeper.broker.tables.state import BrokerState, Call, Stepwise, Work
from routekeeper.broker.tables.state_files import StateFile, StateFiles
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.message import Host, StoredMessage
from routekeeper.remoting.properties import escape_properties

from .states import HOST, NOW

#: Settings that affect stored data. The values are small, so that the log consists of several files.
CONFIG: Final = BrokerConfig(
    log_file_size=1 << 17, message_size_max=1 << 12, queue_file_size=200, index_file_messages=20
)

#: Settings that a test changes: all except ``autoCreateTopicEnable``. If that setting is off, a start removes
#: the template topic. Then the state would not be the same as before the restart.
SETTINGS: Final = sorted(LIVE_KEYS - {"autoCreateTopicEnable"})

#: Any text that a frame can carry: all characters except surrogates.
anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
name_like = st.one_of(
    anything,
    st.sampled_from(
        ["T", "U", "G", "H", "%RETRY%G", "%DLQ%G", "SCHEDULE_TOPIC_XXXX", "TBW102", "a|b%c", "@"]
    ),
    st.text("%|aZ0_-", min_size=1, max_size=255),
)
known_name = st.sampled_from(["T", "U", "%RETRY%G"])
group_like = st.one_of(st.sampled_from(["G", "H"]), name_like)
int32 = st.one_of(st.integers(-3, 20), st.sampled_from([-(2**31), 2**31 - 1, 2**16]))
int64 = st.one_of(st.integers(-3, 20), st.sampled_from([-(2**63), 2**63 - 1, 2**40]))
# Characters that Python counts as blanks or digits, although other programs do not.
blanks = st.sampled_from(
    ["", "", " ", "\t", "\n", "\r", "\x1c", "\x85", "\xa0", "\u2028", "\u3000", "\\", "\0"]
)
digits = st.one_of(
    st.sampled_from(["48", "60"]), st.text(st.characters(categories=["Nd"]), min_size=1, max_size=2)
)
setting = st.one_of(
    st.integers(-3, 90).map(str),
    st.builds("{0}{2}{1}{0}".format, blanks, blanks, digits),
    st.builds("04{0};{0}{1}".format, blanks, digits),
    st.builds("{1}{0}".format, blanks, st.sampled_from(["true", "false"])),
    anything,
)
properties = st.dictionaries(
    st.one_of(
        anything, st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "REAL_TOPIC", "REAL_QID", "WAIT"])
    ),
    st.one_of(anything, st.integers(-3, 30).map(str)),
    max_size=4,
).map(lambda pairs: "".join(f"{key}\x01{value}\x02" for key, value in pairs.items()))


def fields(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries({key: value.map(str) for key, value in strategies.items()})


@dataclass(frozen=True)
class Asked:
    code: int
    ext: dict[str, str]
    body: bytes = b""


def asked(
    code: int, ext: st.SearchStrategy[dict[str, str]], body: st.SearchStrategy[bytes] | None = None
) -> st.SearchStrategy[Asked]:
    return st.builds(Asked, st.just(code), ext, st.just(b"") if body is None else body)


topic_numbers = {
    "readQueueNums": st.one_of(st.integers(0, 4), int32),
    "writeQueueNums": st.one_of(st.integers(0, 4), int32),
    "perm": st.one_of(st.integers(0, 7), int32),
    "topicSysFlag": int32,
}
none: st.SearchStrategy[dict[str, str]] = st.just({})
requests = st.one_of(
    asked(
        17,
        fields(
            topic=st.one_of(name_like, known_name),
            topicFilterType=st.one_of(st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]), anything),
            order=st.sampled_from(["true", "false"]),
            attributes=st.one_of(anything, anything.map(lambda text: f"+{text}={text}")),
            **topic_numbers,
        ),
    ),
    asked(
        18,
        none,
        st.fixed_dictionaries(
            {
                "topicName": st.one_of(name_like, known_name),
                "topicFilterType": anything,
                "attributes": st.dictionaries(anything, anything, max_size=2),
                **topic_numbers,
            }
        ).map(lambda topic: orjson.dumps({"topicConfigList": [topic]})),
    ),
    asked(215, fields(topic=st.one_of(name_like, known_name))),
    asked(
        200,
        none,
        st.fixed_dictionaries(
            {
                "groupName": group_like,
                "retryQueueNums": int32,
                "retryMaxTimes": int32,
                "brokerId": int64,
                "whichBrokerWhenConsumeSlowly": int64,
                "consumeEnable": st.booleans(),
            }
        ).map(orjson.dumps),
    ),
    asked(207, fields(groupName=group_like, cleanOffset=st.sampled_from(["true", "false"]))),
    asked(
        15,
        fields(consumerGroup=group_like, topic=known_name, queueId=int32, commitOffset=int64),
    ),
    asked(
        11,
        fields(
            consumerGroup=group_like,
            topic=known_name,
            queueId=int32,
            queueOffset=int64,
            maxMsgNums=int32,
            sysFlag=st.sampled_from(["5", "4"]),
            commitOffset=int64,
            suspendTimeoutMillis=int64,
            subscription=anything,
            subVersion=int64,
        ),
    ),
    asked(314, fields(srcGroup=group_like, destGroup=name_like, topic=known_name, offline=st.just("true"))),
    asked(
        222,
        fields(
            topic=known_name,
            group=group_like,
            timestamp=int64,
            isForce=st.sampled_from(["true", "false"]),
            offset=int64,
        ),
    ),
    asked(
        25,
        none,
        st.dictionaries(st.sampled_from(SETTINGS), setting, max_size=3).map(escape_properties),
    ),
    asked(
        310,
        fields(
            a=name_like,
            b=st.one_of(known_name, name_like),
            c=st.sampled_from(["TBW102", "T"]),
            d=int32,
            e=st.one_of(st.integers(-1, 3), int32),
            f=int32,
            g=int64,
            h=int32,
            i=properties,
            j=int32,
            l=int32,
        ),
        st.binary(max_size=300),
    ),
    asked(
        36,
        fields(offset=st.integers(0, 5), group=group_like, delayLevel=int32, maxReconsumeTimes=int32),
    ),
)


def open_broker(directory: Path) -> tuple[BrokerState, StateFiles]:
    """Load a broker's state and files as ``mqbroker`` does at its start."""
    changed = read_changed_settings(DISK, directory)
    config, _ = apply_properties(CONFIG, changed)
    config.validate()
    return load_broker(
        DISK, directory, config, store_host=HOST, boot="1", now_ms=NOW, changed_settings=changed
    )


def finished(work: Work) -> Steps:
    yield from work


def ask(state: BrokerState, request: Asked) -> None:
    ext = request.ext
    if request.code == 36:
        # Take the offset of a stored message instead of the random offset, as a consumer would.
        stored = [
            message for queue in messages_of(state).values() for message in queue if message is not None
        ]
        ext = ext | {"offset": str(stored[int(ext["offset"]) % len(stored)].physical_offset if stored else 0)}
    command = RemotingCommand(code=request.code, ext_fields=ext, body=request.body)
    call = Call(request=command, connection=1, peer=Host("10.0.0.1", 5), now_ms=NOW, now=0.0)
    try:
        outcome = serve(state, call)
    except RemotingError:
        return  # here, the real server would answer with an error
    if isinstance(outcome, Stepwise):
        run_here(finished(outcome.work))


def messages_of(state: BrokerState) -> dict[tuple[str, int], list[StoredMessage | None]]:
    found = {}
    for topic in state.topics:
        name = topic.topic_name
        for queue_id in state.store.queues_of(name):
            low, high = state.store.bounds(name, queue_id)
            found[name, queue_id] = [
                state.store.message_in_queue(name, queue_id, offset) for offset in range(low, high)
            ]
    return found


def known(state: BrokerState) -> dict[str, Any]:
    """Return all state that a broker keeps across restarts."""
    return {
        "topics": {topic.topic_name: topic for topic in state.topics},
        "version": state.topics.data_version,
        "births": {topic.topic_name: state.topics.born_at(topic.topic_name) for topic in state.topics},
        "groups": {group.group_name: group for group in state.groups},
        "group version": state.groups.data_version,
        "offsets": {pair: dict(state.offsets.queues(*pair)) for pair in state.offsets.pairs()},
        "delays": dict(state.delay_offsets),
        "settings": state.config.to_properties(),
        "changed": dict(state.changed_settings),
        "messages": messages_of(state),
    }


class Warnings(logging.Handler):
    """Handler that collects the texts of log records with level WARNING or above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.mark.slow
@given(st.sampled_from(["fileReservedTime", "deleteWhen", "traceOn", "shortPollingTimeMills"]), setting)
@settings(max_examples=200, deadline=None)
def test_every_setting_is_read_back_as_it_was_kept(key: str, value: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        state, files = open_broker(directory)
        ask(state, Asked(25, {}, escape_properties({key: value})))
        save_now(files.settings)
        before = known(state)
        state.store.close()
        again, _ = open_broker(directory)
        again.store.close()
        assert known(again) == before


@pytest.mark.slow
@given(st.lists(requests, max_size=12))
@settings(max_examples=150, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_what_strangers_ask_for_is_read_back_as_it_was_kept(asks: list[Asked]) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        state, files = open_broker(directory)
        plain = {"a": "PG", "c": "TBW102", "d": "4", "f": "0", "g": "1", "h": "0", "i": "", "j": "0"}
        for topic, queue_id in (("T", "0"), ("U", "1")):
            ask(state, Asked(310, plain | {"b": topic, "e": queue_id}, b"x"))
        for request in asks:
            ask(state, request)
        for delivering in (NOW, NOW + 10**10):
            while deliver_due(state, now_ms=delivering) == 0.0:
                pass
        for file in files:
            save_now(file)
        # A start lowers offsets beyond the end of their queue. Do this here, too.
        state.offsets.keep_within(state.store.within)
        before = known(state)
        state.store.close()
        heard = Warnings()
        logging.getLogger("routekeeper.broker").addHandler(heard)
        try:
            again, _ = open_broker(directory)
        finally:
            logging.getLogger("routekeeper.broker").removeHandler(heard)
        try:
            assert known(again) == before
            assert heard.texts == []
        finally:
            again.store.close()


def test_message_sent_back_that_says_it_was_consumed_less_than_never_is_retried(tmp_path: Path) -> None:
    """A client may say that it consumed a message -7 times. The broker must retry the message nevertheless.

    Otherwise this number would make the delay level negative. The message would then go to a queue of the
    schedule topic that the broker never reads.
    """
    state, files = open_broker(tmp_path)
    plain = {"a": "PG", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "-7"}
    ask(state, Asked(310, plain | {"b": "T"}, b"x"))
    ask(state, Asked(36, {"offset": "0", "group": "G", "delayLevel": "0"}))
    assert not state.store.queues_of("SCHEDULE_TOPIC_XXXX")
    assert [message.body for message in messages_of(state)["%RETRY%G", 0] if message] == [b"x"]
    for file in files:
        save_now(file)
    state.store.close()


def test_table_that_cannot_be_encoded_fails_who_waits_and_not_the_broker(tmp_path: Path) -> None:
    texts = ["\ud800"]
    file = StateFile(
        DISK,
        tmp_path / "table",
        version=lambda: tuple(texts),
        snapshot=lambda: lambda: texts[0].encode(),
    )
    told: list[object] = []
    file.when_saved(told.append)
    run_here(file.save())
    assert [str(failure)[:27] for failure in told] == ["table cannot be encoded: Un"]
    texts[0] = "x"
    file.when_saved(told.append)
    run_here(file.save())
    assert told[1:] == [None]
    assert (tmp_path / "table").read_bytes() == b"x"
