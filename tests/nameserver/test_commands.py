"""Tests of the bytes by which the raft log stores a command.

The tests cover encoding and decoding, size limits, and bytes that must be the same in all releases.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.nameserver import commands
from routekeeper.nameserver.commands import (
    COMMAND_BYTES_MAX,
    UPDATE_FORMAT,
    AddWritePerm,
    Batch,
    BrokerQueues,
    Command,
    CommandFormatError,
    CommandTooLarge,
    DeleteKv,
    DeleteTopic,
    Evict,
    ImportKv,
    Proposal,
    PutKv,
    QueueMapping,
    RegisterBroker,
    RegisterTopic,
    TopicQueues,
    Touch,
    UnregisterBroker,
    Update,
    WipeWritePerm,
    bases,
    decode_batch,
    decode_command,
    decoding_command,
    encode_batch,
    encode_command,
    written_and_read,
)
from routekeeper.nameserver.types import BrokerAddr, BrokerName, ClusterName, LeaveReason
from routekeeper.remoting.route import DataVersion
from routekeeper.remoting.steps import STEP, Steps, finish

C, N, A = ClusterName("c"), BrokerName("n"), BrokerAddr("[::1]:10911")


def registration(topics: int = 2, name: str = "t{}") -> RegisterBroker:
    return RegisterBroker(
        cluster_name=C,
        broker_name=N,
        broker_addr=A,
        broker_id=0,
        ha_server_addr="h:2",
        data_version=DataVersion(state_version=1, timestamp=2, counter=3),
        topics=tuple(
            TopicQueues(topic=name.format(i), read_queue_nums=4, write_queue_nums=4, perm=6)
            for i in range(topics)
        ),
        incremental=False,
        filter_servers=("f:1",),
        mappings=(QueueMapping(topic="t0", epoch=7, info='{"x":1}'),),
        lease_ms=120_000,
        enable_acting_master=None,
        zone_name="z",
        delete_absent=False,
        record_revision=8,
        name_revision=9,
    )


COMMANDS: tuple[Command, ...] = (
    registration(),
    Touch(
        cluster_name=C,
        broker_name=N,
        broker_addr=A,
        broker_id=1,
        ha_server_addr="",
        data_version=DataVersion(),
        complete=True,
        lease_ms=1,
        enable_acting_master=True,
        zone_name=None,
    ),
    UnregisterBroker(
        cluster_name=C, broker_name=N, broker_addr=A, broker_id=0, record_revision=1, name_revision=2
    ),
    Evict(cluster_name=C, broker_addr=A, revision=3, reason=LeaveReason.LEASE_EXPIRED),
    WipeWritePerm(broker_name=N, name_revision=1),
    AddWritePerm(broker_name=N, name_revision=1),
    DeleteTopic(topic="t", cluster_name=None, topic_revision=1),
    RegisterTopic(
        topic="t",
        queues=(BrokerQueues(broker_name=N, read_queue_nums=1, write_queue_nums=2, perm=6),),
        topic_revision=1,
    ),
    PutKv(namespace="n", key="k", value=None, key_revision=1),
    DeleteKv(namespace="n", key="k", key_revision=1),
    ImportKv(table={"n": {"k": "v", "null": None}}),
    Update(
        cluster_name=C,
        broker_name=N,
        broker_addr=A,
        data_version=DataVersion(counter=4),
        topics=(TopicQueues(topic="t", read_queue_nums=4, write_queue_nums=4, perm=6),),
        incremental=False,
        enable_acting_master=False,
        zone_name=None,
        topic_count=2,
        record_revision=3,
        name_revision=4,
    ),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: type(c).__name__)
def test_every_kind_survives_its_log_form(command: Command) -> None:
    assert decode_command(encode_command(command)) == command


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: type(c).__name__)
def test_no_command_names_the_future_or_nothing_unless_it_may(command: Command) -> None:
    named = bases(command)
    assert bool(named) == (not isinstance(command, Touch | ImportKv))


@pytest.mark.parametrize(
    ("command", "golden"),
    [
        (COMMANDS[3], "01009504a163ab5b3a3a315d3a313039313103a765787069726564"),
        (COMMANDS[4], "01009305a16e01"),
        (COMMANDS[6], "01009407a174c001"),
        (COMMANDS[8], "01009509a16ea16bc001"),
        (COMMANDS[1], "01009b02a163a16eab5b3a3a315d3a313039313101a0"),
        (COMMANDS[11], "02009d0ca163a16eab5b3a3a315d3a3130393131"),
    ],
    ids=["evict", "wipe", "delete", "put", "touch", "update"],
)
def test_log_form_is_what_older_logs_hold(command: Command, golden: str) -> None:
    assert encode_command(command).hex().startswith(golden)


def test_data_version_and_topics_keep_their_place_in_the_log_form() -> None:
    # The log contains attribute names of classes in routekeeper.remoting. If a release changed such a name,
    # its members could not read older logs.
    data = encode_command(registration(topics=1))
    for word in (b"state_version\x01", b"timestamp\x02", b"counter\x03", b"\x95\xa2t0\x04\x04\x06\x00"):
        assert word in data


def test_long_registration_is_compressed() -> None:
    command = registration(topics=1000)
    data = encode_command(command)
    assert data[1] == 1
    assert len(data) < 10_000
    assert decode_command(data) == command


def whole(topics: int) -> RegisterBroker:
    return registration(topics, "orders-of-customers-{}")


def update(topics: int) -> Update:
    return Update(
        cluster_name=C,
        broker_name=N,
        broker_addr=A,
        data_version=DataVersion(state_version=1, timestamp=2, counter=3),
        topics=whole(topics).topics,
        incremental=False,
        enable_acting_master=False,
        zone_name=None,
        topic_count=topics,
        record_revision=8,
        name_revision=9,
    )


def steps_of(steps: Steps[object]) -> int:
    return sum(1 for _ in steps)


@pytest.mark.slow
@pytest.mark.parametrize("topics", [20_000, 20_007, 70_000])
@pytest.mark.parametrize("make", [whole, update])
def test_command_with_many_topics_is_written_and_read_in_steps(
    make: Callable[[int], RegisterBroker | Update], topics: int
) -> None:
    command = make(topics)
    data, read = finish(written_and_read(command))
    assert data == encode_command(command), "the log form does not depend on the steps"
    assert read == command == decode_command(data)
    assert steps_of(written_and_read(command)) > topics / STEP
    assert steps_of(decoding_command(data)) > topics / STEP


def long_form(*fields: object) -> bytes:
    """Return the bytes by which the log stores an update command with 20,000 topics.

    The arguments `fields` replace the values of the command's last fields.
    """
    array = msgspec.msgpack.decode(msgspec.msgpack.encode(update(20_000)))
    return bytes((UPDATE_FORMAT, 0)) + msgspec.msgpack.encode([*array[: len(array) - len(fields)], *fields])


@pytest.mark.slow
@pytest.mark.parametrize("change", ["topic", "field", "behind", "cut"])
def test_damage_in_a_long_command_is_refused(change: str) -> None:
    good = long_form()
    assert decode_command(good).topics[-1].topic == "orders-of-customers-19999"  # type: ignore[union-attr]
    bad = {
        "topic": good.replace(b"customers-19998\x04", b"customers-19998\xc0"),
        "field": long_form("text", 9, None),
        "behind": good + b"\xc0",
        "cut": good[:-1],
    }[change]
    assert bad != good
    with pytest.raises(CommandFormatError):
        decode_command(bad)


@pytest.mark.slow
def test_appended_fields_of_a_long_command_of_a_newer_release_are_skipped() -> None:
    array = msgspec.msgpack.decode(msgspec.msgpack.encode(update(20_000)))
    newer = bytes((UPDATE_FORMAT, 0)) + msgspec.msgpack.encode([*array, "new", {"and": 1}])
    assert decode_command(newer) == update(20_000)


@pytest.mark.slow
def test_long_command_above_a_limit_is_refused_where_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    command = update(20_000)
    data, size = encode_command(command), len(msgspec.msgpack.encode(command))
    for bound, value in (("COMMAND_BYTES_MAX", len(data)), ("INFLATED_BYTES_MAX", size)):
        with monkeypatch.context() as patch:
            patch.setattr(commands, bound, value)
            assert finish(written_and_read(command))[0] == data
            patch.setattr(commands, bound, value - 1)
            with pytest.raises(CommandTooLarge):
                finish(written_and_read(command))


@pytest.mark.slow
def test_command_above_the_limit_names_both_sizes() -> None:
    incompressible = ImportKv(table={"n": {"k": _noise(6 * 1024 * 1024)}})
    with pytest.raises(CommandTooLarge) as caught:
        encode_command(incompressible)
    assert caught.value.size > caught.value.limit == COMMAND_BYTES_MAX


def _noise(size: int) -> str:
    state, parts = 1, []
    for _ in range(size // 8):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        parts.append(f"{state >> 32:08x}")
    return "".join(parts)[:size].translate({ord(c): 0x100 + 37 * i for i, c in enumerate("0123456789abcdef")})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01\x00",
        b"\x00\x00\x93\x05\xa1n\x01",
        b"\x04\x00\x93\x05\xa1n\x01",
        b"\x01\x07\x93\x05\xa1n\x01",
        b"\x01\x00\x93\x63\xa1n\x01",
        b"\x01\x00\x93\x05\xa1n",
        b"\x01\x01garbage",
        b"\x01\x01" + zlib.compress(b"\x93\x05\xa1n\x01")[:-3],
        b"\x01\x00\x93\x05\x01\x01",
    ],
    ids=[
        "empty",
        "short",
        "no format",
        "newer",
        "packing",
        "unknown kind",
        "cut",
        "no zlib",
        "cut zlib",
        "wrong type",
    ],
)
def test_bytes_that_are_no_command_are_refused(data: bytes) -> None:
    with pytest.raises(CommandFormatError):
        decode_command(data)


def test_decompression_bomb_is_refused_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routekeeper.nameserver.commands.INFLATED_BYTES_MAX", 10_000)
    with pytest.raises(CommandFormatError, match="above the limit"):
        decode_command(b"\x01\x01" + zlib.compress(bytes(1_000_000)))


def test_appended_fields_of_a_newer_release_are_skipped() -> None:
    assert decode_command(b"\x01\x00\x94\x05\xa1n\x01\xc3") == WipeWritePerm(
        broker_name=BrokerName("n"), name_revision=1
    )


def test_batch_keeps_commands_encoded_and_in_order() -> None:
    batch = Batch(
        proposals=tuple(
            Proposal(boot_id=2**63, sequence=i, command=encode_command(command))
            for i, command in enumerate(COMMANDS)
        )
    )
    read = decode_batch(encode_batch(batch))
    assert read == batch
    assert tuple(decode_command(proposal.command) for proposal in read.proposals) == COMMANDS


@pytest.mark.parametrize("data", [b"", b"\x02\x91\x90", b"\x01\x91", b"\x01\xc0"])
def test_bytes_that_are_no_batch_are_refused(data: bytes) -> None:
    with pytest.raises(CommandFormatError):
        decode_batch(data)


def test_batch_above_the_limit_of_an_entry_is_refused() -> None:
    proposal = Proposal(boot_id=1, sequence=1, command=bytes(3 * 1024 * 1024))
    with pytest.raises(CommandTooLarge):
        encode_batch(Batch(proposals=(proposal, proposal)))


# -- every member can read the commands that another member writes ------------------------------------------


TEXT = st.one_of(
    st.text(max_size=40),
    st.builds(lambda unit, times: unit * times, st.text(min_size=1, max_size=4), st.integers(0, 900)),
    st.integers(0, 3000).map(_noise),
)
INT64 = st.integers(-(2**63), 2**63 - 1)
ANY_COMMANDS = st.one_of(
    st.builds(PutKv, namespace=TEXT, key=TEXT, value=st.none() | TEXT, key_revision=INT64),
    st.builds(ImportKv, table=st.dictionaries(TEXT, st.dictionaries(TEXT, st.none() | TEXT, max_size=3))),
    st.builds(
        lambda infos, lease_ms: msgspec.structs.replace(
            registration(topics=2), mappings=tuple(infos), lease_ms=lease_ms
        ),
        st.lists(st.builds(QueueMapping, topic=TEXT, epoch=INT64, info=TEXT), max_size=3),
        INT64,
    ),
)


@given(command=ANY_COMMANDS)
def test_what_is_written_is_read_by_every_member_at_any_size(command: Command) -> None:
    """Every member can read each command that another member may write.

    The test lowers the limits on compressed and uncompressed bytes. So its commands are small, and some are
    below the limits and some above.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "COMMAND_BYTES_MAX", 600)
        patch.setattr(commands, "INFLATED_BYTES_MAX", 2500)
        try:
            data, read = finish(written_and_read(command))
        except CommandTooLarge:
            return
        assert read == command
        assert read is not command, "what is applied is what was read back"
        assert len(data) <= 600


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_command_that_inflates_beyond_the_limit_is_refused_where_it_is_written(
    monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    command = PutKv(namespace="n", key="k", value="1e15," * 20_000, key_revision=1)
    size = len(msgspec.msgpack.encode(command))
    monkeypatch.setattr(commands, "INFLATED_BYTES_MAX", size - beyond)
    if not beyond:
        assert decode_command(encode_command(command)) == command
        return
    with pytest.raises(CommandTooLarge) as caught:
        encode_command(command)
    assert (caught.value.size, caught.value.limit) == (size, size - 1)


def test_a_command_above_the_limit_of_the_log_is_refused_where_it_is_read() -> None:
    with pytest.raises(CommandFormatError, match="above the limit"):
        decode_command(b"\x01\x00" + bytes(COMMAND_BYTES_MAX))
