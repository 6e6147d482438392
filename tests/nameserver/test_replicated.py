"""Three replicated nameservers in one process, over loopback, with the real engine and real disks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nameserver import exchange
from nameserver.commands import (
    COMMAND_BYTES_MAX,
    UPDATE_FORMAT,
    Batch,
    Evict,
    Proposal,
    PutKv,
    Update,
    decode_command,
    encode_batch,
    encode_command,
)
from nameserver.config import LiveSettings, load_settings
from nameserver.consistency import (
    NO_QUORUM_TAG,
    OUTCOME_UNKNOWN_TAG,
    Freshness,
    FreshnessNotOffered,
    NoQuorum,
)
from nameserver.explain import Note
from nameserver.files import load_kv_file, load_settings_file, save_kv_file
from nameserver.handlers import Registration, decode_registration
from nameserver.proposals import Waiting
from nameserver.raft import RaftStartError, StopMember
from nameserver.replicated import ANSWER_MARGIN_S, Replicated, kv_file, registrations, writes
from nameserver.types import (
    Answer,
    BrokerAddr,
    BrokerKey,
    ClusterName,
    ConnectionId,
    LeaveReason,
    MinBrokerChange,
    Request,
)
from remoting.codes import RequestCode, ResponseCode
from remoting.route import DataVersion, RegisterBody, TopicConfig, body_crc32, encode_register_body
from tests.ports import free_addresses

ADDR = "10.0.0.1:10911"
BROKER = BrokerKey(ClusterName("C"), BrokerAddr(ADDR))
ONE, TWO = ConnectionId(1), ConnectionId(2)
CONDITION_S = 30.0


def register(
    *,
    addr: str = ADDR,
    broker_id: int = 0,
    counter: int = 1,
    topics: tuple[str, ...] = ("T", "U"),
    **extra: str,
) -> Request:
    body = encode_register_body(
        RegisterBody(
            data_version=DataVersion(counter=counter),
            topic_configs=tuple(TopicConfig(topic_name=topic) for topic in topics),
            filter_servers=(),
            mapping_infos={},
        ),
        compressed=False,
        version=479,
    )
    fields = _identity(addr, broker_id) | {"haServerAddr": "", "bodyCrc32": str(body_crc32(body))} | extra
    return Request(code=RequestCode.REGISTER_BROKER, ext_fields=fields, body=body)


def _identity(addr: str, broker_id: int = 0) -> dict[str, str]:
    return {"brokerName": "broker-a", "brokerAddr": addr, "clusterName": "C", "brokerId": str(broker_id)}


def unregister(addr: str = ADDR) -> Request:
    return Request(code=RequestCode.UNREGISTER_BROKER, ext_fields=_identity(addr))


def query_version(*, counter: int) -> Request:
    body = DataVersion(counter=counter).encode()
    return Request(code=RequestCode.QUERY_DATA_VERSION, ext_fields=_identity(ADDR), body=body)


def route(topic: str = "T") -> Request:
    return Request(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic})


def put_kv(key: str, value: str) -> Request:
    return Request(code=RequestCode.PUT_KV_CONFIG, ext_fields={"namespace": "n", "key": key, "value": value})


@dataclass
class RecordedEffects:
    """What a server would be asked to do."""

    closed: list[ConnectionId] = field(default_factory=list)
    notices: list[MinBrokerChange] = field(default_factory=list)

    def close_connection(self, origin: ConnectionId) -> None:
        self.closed.append(origin)

    def notify_min_broker(self, change: MinBrokerChange) -> None:
        self.notices.append(change)


@dataclass
class Group:
    """Members by number; a stopped one is None."""

    root: Path
    addresses: tuple[str, ...]
    settings: dict[str, str]
    members: list[Replicated | None]
    effects: list[RecordedEffects]

    async def start(self, number: int) -> Replicated:
        flags = {
            "mode": "raft",
            "raftAddress": self.addresses[number],
            "raftPeers": ",".join(self.addresses),
            "dataDir": str(self.root / str(number)),
        }
        settings = load_settings(flags=flags | self.settings, file={}).settings
        self.effects[number] = RecordedEffects()
        member = Replicated.open(LiveSettings(settings), self.effects[number], boot_id=secrets.randbits(48))
        await member.start()
        self.members[number] = member
        return member

    async def stop(self, number: int) -> None:
        member = self.members[number]
        assert member is not None
        self.members[number] = None
        await member.close()

    @property
    def running(self) -> list[Replicated]:
        return [member for member in self.members if member is not None]

    def leader(self) -> int:
        (number,) = (n for n, m in enumerate(self.members) if m is not None and m.member.leads)
        return number

    def followers(self) -> list[int]:
        leader = self.leader()
        return [n for n, m in enumerate(self.members) if m is not None and n != leader]

    def at(self, number: int) -> Replicated:
        member = self.members[number]
        assert member is not None
        return member

    async def ready(self) -> None:
        def all_ready() -> bool:
            if not any(member.member.leader for member in self.running):
                self._let_one_stand()
            return all(member.status().reads_ready for member in self.running)

        await until(all_ready, "all are ready")

    def _let_one_stand(self) -> None:
        """Nobody leads: do not wait for an election timeout that is long so that leadership stays."""
        driver = self.running[0].member._driver
        assert driver is not None
        driver.engine._core.stand_now()
        driver.wake()

    async def equal(self) -> None:
        await until(
            lambda: len({(s.applied_index, s.state_digest) for s in (m.status() for m in self.running)}) == 1,
            "all applied the same",
        )

    async def everywhere(self, request: Request, origin: ConnectionId = ONE) -> list[Answer]:
        return list(await asyncio.gather(*(ask(member, request, origin) for member in self.running)))


async def until(condition: Callable[[], bool], what: str) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CONDITION_S
    while not condition():
        assert loop.time() < deadline, f"not within {CONDITION_S} s: {what}"
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def timed() -> AsyncIterator[Callable[[], float]]:
    """Yield a clock (s) that stands while this loop is not let run: that is the machine's fault."""
    loop = asyncio.get_running_loop()
    begun, lost = loop.time(), 0.0

    async def watch() -> None:
        nonlocal lost
        while True:
            due = loop.time() + 0.01
            await asyncio.sleep(0.01)
            late = loop.time() - due
            lost += late if late > 0.05 else 0.0

    task = asyncio.create_task(watch())
    try:
        yield lambda: loop.time() - begun - lost
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def ask(member: Replicated, request: Request, origin: ConnectionId = ONE) -> Answer:
    return await member.execute(request, origin, deadline=asyncio.get_running_loop().time() + 2.5)


def codes(answers: list[Answer]) -> list[int]:
    return [answer.code for answer in answers]


@contextlib.asynccontextmanager
async def group_of(
    root: Path, *, size: int = 3, started: int | None = None, **settings: str
) -> AsyncIterator[Group]:
    # Three members on one loop of a busy machine: leadership stays where a test saw it.
    settings = {"raftElectionTimeoutMs": "2000"} | settings
    group = Group(
        root, tuple(free_addresses(size)), settings, [None] * size, [RecordedEffects() for _ in range(size)]
    )
    try:
        for number in range(size if started is None else started):
            await group.start(number)
        yield group
    finally:
        for number, member in enumerate(group.members):
            if member is not None:
                await group.stop(number)


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await body()

    asyncio.run(main())


# -- registrations ----------------------------------------------------------------------------------------


def test_acknowledged_registration_is_on_every_member(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            follower = group.at(group.followers()[0])
            answer = await ask(follower, register())
            assert answer.code == ResponseCode.SUCCESS
            assert follower.view(Freshness.STALE).topics() == ["T", "U"], "applied here when acknowledged"
            await group.equal()
            assert all(member.view(Freshness.DEFAULT).topics() == ["T", "U"] for member in group.running)

    run(body)


def test_start_of_a_broker_costs_one_body_and_two_touches(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            assert codes(await group.everywhere(register())) == [0, 0, 0]
            await group.equal()
            assert group.running[0].view(Freshness.STALE).revision == 3

    run(body)


def test_registration_that_changes_nothing_needs_no_log(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            await group.everywhere(register())
            members = group.running

            async def unchanged() -> bool:
                before = members[0].status().commit_index
                assert codes(await group.everywhere(register())) == [0, 0, 0]
                await group.equal()
                return members[0].status().commit_index == before

            # The first reports, a second apart, make the hearings known to the leader.
            for _ in range(300):
                if await unchanged():
                    break
                await asyncio.sleep(0.02)
            assert await unchanged()

    run(body)


def test_registration_over_a_new_connection_goes_through_the_log(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            await group.everywhere(register())
            await group.equal()
            before = group.running[0].view(Freshness.STALE).revision
            assert codes(await group.everywhere(register(), TWO)) == [0, 0, 0]
            await group.equal()
            assert group.running[0].view(Freshness.STALE).revision == before + 3

    run(body)


def test_concurrent_changes_at_all_members_all_apply(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            requests = [register(addr=f"10.0.1.{i}:1", broker_id=i, topics=(f"T{i}",)) for i in range(60)]
            answers = await asyncio.gather(
                *(ask(group.running[i % 3], request) for i, request in enumerate(requests))
            )
            assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
            await group.equal()
            for member in group.running:
                name = member.view(Freshness.STALE).name("broker-a")
                assert name is not None
                assert sorted(name.addrs) == list(range(60))

    run(body)


def test_two_writers_of_one_key_do_not_lose_each_other(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            answers = await asyncio.gather(
                *(ask(member, put_kv("k", f"v{n}")) for n, member in enumerate(group.running))
            )
            assert codes(list(answers)) == [0, 0, 0]
            await group.equal()
            values = {member.view(Freshness.STALE).kv_value("n", "k") for member in group.running}
            assert len(values) == 1

    run(body)


def test_registration_above_the_limit_names_both_sizes(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path, size=1) as group:
            await group.ready()
            # Random names do not compress: the log's form stays above its limit.
            topics = tuple(secrets.token_hex(60) for _ in range(80_000))
            answer = await ask(group.running[0], register(topics=topics))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark is not None
            assert str(COMMAND_BYTES_MAX) in answer.remark
            assert group.running[0].view(Freshness.STALE).topics() == []

    run(body)


def test_data_version_question_is_vouched_for_like_a_registration(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            await group.everywhere(register(counter=4))
            (stranger,) = {
                answer.ext_fields["changed"]
                for answer in await group.everywhere(query_version(counter=4), TWO)
            }
            assert stranger == "true", "no registration succeeded over that connection"

            async def known() -> set[str]:
                answers = await group.everywhere(query_version(counter=4))
                return {answer.ext_fields["changed"] for answer in answers}

            for _ in range(300):
                if await known() == {"false"}:
                    break
                await asyncio.sleep(0.02)
            assert await known() == {"false"}
            other = await group.everywhere(query_version(counter=5))
            assert {answer.ext_fields["changed"] for answer in other} == {"true"}

    run(body)


# -- liveness -----------------------------------------------------------------------------------------------


def test_broker_whose_connections_all_close_is_gone_within_a_second(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path, raftDurability="memory") as group:  # however slow the disk is
            await group.ready()
            await group.everywhere(register())
            async with timed() as elapsed:
                for member in group.running:
                    member.closed(ONE, by_us=False)
                await until(
                    lambda: not any(member.view(Freshness.STALE).topics() for member in group.running), "gone"
                )
                assert elapsed() < 1.0
            for member in group.running:
                assert member.history.of_broker(BROKER)[-1].reason is LeaveReason.CONNECTION_CLOSED
                assert "connection closed" in member.explain("T").summary

    run(body)


def test_what_a_process_reads_after_standing_still_is_heard_now(tmp_path: Path) -> None:
    """What waited in sockets may be read before the liveness clock's timer fires."""

    async def body() -> None:
        async with group_of(tmp_path, size=1) as group:
            await group.ready()
            member = group.running[0]
            await ask(member, register())
            time.sleep(0.9)  # noqa: ASYNC251 - as SIGSTOP does: no timer fires meanwhile
            member.heard(BROKER, ONE)
            contact = member._liveness.contact(BROKER)
            assert contact is not None
            member._reports.tick()
            assert member._liveness.clock - contact.heard_at < 0.5

    run(body)


def test_broken_link_to_one_nameserver_keeps_the_broker(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            await group.everywhere(register())
            await group.everywhere(register(addr="10.0.0.2:10911", broker_id=1), TWO)
            group.running[0].closed(ONE, by_us=False)
            # The other broker goes for certain; by then the first one was judged, too.
            for member in group.running:
                member.closed(TWO, by_us=False)
            await until(
                lambda: all(len(m.view(Freshness.STALE).records()) == 1 for m in group.running), "one left"
            )
            assert all(member.view(Freshness.STALE).record(BROKER) is not None for member in group.running)

    run(body)


def test_leader_hears_of_a_connection_before_the_command_that_came_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            follower = group.at(group.followers()[0])
            sent: list[exchange.Message] = []
            send = follower.member.send

            def recorded(member: str, message: bytes) -> bool:
                sent.append(exchange.decode(message))
                return send(member, message)

            monkeypatch.setattr(follower.member, "send", recorded)
            for origin in (ONE, TWO):
                sent.clear()
                assert (await ask(follower, register(), origin)).code == ResponseCode.SUCCESS
                told = next(
                    place
                    for place, message in enumerate(sent)
                    if isinstance(message, exchange.Report)
                    and any(line.connected and line.broker == BROKER for line in message.lines)
                )
                proposed = next(i for i, message in enumerate(sent) if isinstance(message, exchange.Propose))
                assert told < proposed

    run(body)


def test_own_close_is_no_evidence(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            await group.everywhere(register())
            await group.everywhere(register(addr="10.0.0.2:10911", broker_id=1), TWO)
            for member in group.running:
                member.closed(ONE, by_us=True)
                member.closed(TWO, by_us=False)
            await until(
                lambda: all(len(m.view(Freshness.STALE).records()) == 1 for m in group.running), "one left"
            )
            assert all(member.view(Freshness.STALE).record(BROKER) is not None for member in group.running)

    run(body)


def test_goodbye_is_answered_at_once_and_evicts_after_the_last(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            await group.everywhere(register())
            for member in group.running:
                assert (await ask(member, unregister())).code == ResponseCode.SUCCESS
            await until(
                lambda: not any(member.view(Freshness.STALE).topics() for member in group.running), "gone"
            )
            assert group.running[0].history.of_broker(BROKER)[-1].reason is LeaveReason.UNREGISTERED

    run(body)


def test_the_same_registration_is_decoded_once_for_each_state_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[Request] = []

    def counted(request: Request) -> Registration | Answer:
        decoded.append(request)
        return decode_registration(request)

    monkeypatch.setattr(registrations, "decode_registration", counted)

    async def body() -> None:
        async with group_of(tmp_path, size=1) as group:
            await group.ready()
            member = group.at(0)
            revision = member.view(Freshness.STALE).revision

            async def registered(request: Request, origin: ConnectionId = ONE) -> int:
                before = len(decoded)
                assert (await ask(member, request, origin)).code == ResponseCode.SUCCESS
                return len(decoded) - before

            async def answered_without_the_log(request: Request) -> None:
                nonlocal revision
                while True:  # the leader's acknowledgement of the hearing may be on its way
                    revision = member.view(Freshness.STALE).revision
                    await registered(request)
                    if member.view(Freshness.STALE).revision == revision:
                        return

            await answered_without_the_log(register())
            heard_at = member._liveness.contact(BROKER)
            assert await registered(register()) == 0
            assert member._liveness.contact(BROKER) is not heard_at  # its lease is renewed all the same
            assert member.view(Freshness.STALE).revision == revision

            assert await registered(register(counter=2)) == 1  # other bytes
            await answered_without_the_log(register(counter=2))
            assert await registered(register(counter=2)) == 0
            assert await registered(register(counter=2, zoneName="z")) == 1  # another header
            await answered_without_the_log(register(counter=2))
            await ask(member, put_kv("k", "v"), TWO)  # another table
            assert await registered(register(counter=2)) == 1
            assert await registered(register(counter=2)) == 0
            member.closed(ONE, by_us=True)
            assert not member._registrations._repeats
            assert not member._registrations._repeats_bytes

    run(body)


def test_late_goodbye_over_an_older_connection_is_ignored(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            await group.everywhere(register(), ONE)
            await group.everywhere(register(), TWO)
            member = group.running[0]
            assert (await ask(member, unregister(), ONE)).code == ResponseCode.SUCCESS
            assert [event.reason for event in member.history.of_broker(BROKER)][-1] is Note.LATE_UNREGISTER
            assert member.view(Freshness.STALE).record(BROKER) is not None

    run(body)


def test_unregistration_by_an_admin_tool_goes_through_the_log(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            await group.everywhere(register())
            answer = await ask(group.at(group.followers()[0]), unregister(), ConnectionId(99))
            assert answer.code == ResponseCode.SUCCESS
            await group.equal()
            assert not any(member.view(Freshness.STALE).topics() for member in group.running)

    run(body)


def test_silent_broker_expires_and_its_connections_are_closed(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            answers = await group.everywhere(register(heartbeatTimeoutMillis="3000"))
            assert codes(answers) == [0, 0, 0]
            await until(
                lambda: not any(member.view(Freshness.STALE).topics() for member in group.running), "expired"
            )
            assert group.running[0].history.of_broker(BROKER)[-1].reason is LeaveReason.LEASE_EXPIRED
            assert [effects.closed for effects in group.effects] == [[ONE], [ONE], [ONE]]

    run(body)


def test_a_leader_that_nobody_stands_by_lets_no_linearizable_read_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            leader = group.at(group.leader())
            loop = asyncio.get_running_loop()
            await leader.barrier(deadline=loop.time() + CONDITION_S)
            # Its engine hears the others as before, so it leads on and is in contact; its questions are lost.
            monkeypatch.setattr(leader.member, "send", lambda member, message: True)
            with pytest.raises(NoQuorum):
                await leader.barrier(deadline=loop.time() + 0.3)
            monkeypatch.undo()
            await leader.barrier(deadline=loop.time() + CONDITION_S)  # it asks again

    run(body)


def test_a_follower_whose_barrier_is_lost_with_its_leader_asks_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            follower, old = group.at(group.followers()[0]), group.leader()
            monkeypatch.setattr(follower.member, "send", lambda member, message: True)
            deadline = asyncio.get_running_loop().time() + CONDITION_S
            waiting = asyncio.create_task(follower.barrier(deadline=deadline))
            await until(lambda: follower.raft_status()["barriers"] == 1, "the barrier is sent")
            monkeypatch.undo()
            await group.stop(old)
            await waiting
            assert follower.member.leader != group.addresses[old]
            assert follower.raft_status()["barriers"] != 1

    run(body)


def test_a_newer_kind_of_command_waits_until_every_member_understands_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            follower = group.at(group.followers()[0])
            monkeypatch.setattr(
                writes, "encode_command", lambda command: b"\x03" + encode_command(command)[1:]
            )
            answer = await ask(follower, put_kv("k", "v"))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert (answer.remark or "").startswith(f"{NO_QUORUM_TAG} not applied: it needs format 3")
            # One that a former leader allowed does not get past this one either.
            monkeypatch.setattr(follower._writes._reporter, "understood", 3)
            answer = await ask(follower, put_kv("k", "v"))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            monkeypatch.undo()
            assert (await ask(follower, put_kv("k", "v"))).code == ResponseCode.SUCCESS
            await group.equal()  # whoever had met such an entry would have stopped

    run(body)


def under_way(member: Replicated) -> list[Waiting]:
    return list(member._writes._book._waiting.values())


def kinds_under_way(member: Replicated) -> set[str]:
    return {type(decode_command(waiting.proposal.command)).__name__ for waiting in under_way(member)}


@contextlib.asynccontextmanager
async def change_that_gets_lost(
    group: Group, patch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Replicated, asyncio.Task[Answer]]]:
    """A registration at a follower that adds topic ``V``; what it sends is lost until the block ends."""
    await group.ready()
    assert codes(await group.everywhere(register())) == [0, 0, 0]
    follower = group.at(group.followers()[0])
    await until(lambda: follower._writes._reporter.understood >= UPDATE_FORMAT, "all have said so")
    patch.setattr(registrations, "WRITE_DEADLINE_S", CONDITION_S)
    with pytest.MonkeyPatch.context() as lost:
        lost.setattr(follower.member, "send", lambda member, message: True)
        lost.setattr(follower._writes._reporter, "acknowledged", lambda answer: False)
        deadline = asyncio.get_running_loop().time() + CONDITION_S
        request = register(counter=2, topics=("T", "V"))
        asking = asyncio.create_task(follower.execute(request, ONE, deadline=deadline))
        await until(lambda: kinds_under_way(follower) == {"Update"}, "it is proposed as its difference")
        yield follower, asking
    assert (await asking).code == ResponseCode.SUCCESS
    await group.equal()
    assert follower.view(Freshness.STALE).topics() == ["T", "U", "V"]


def test_what_a_registration_changes_goes_through_the_log_as_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group, change_that_gets_lost(group, monkeypatch) as (follower, _):
            (waiting,) = under_way(follower)
            command = decode_command(waiting.proposal.command)
            assert isinstance(command, Update)
            assert [queues.topic for queues in command.topics] == ["V"]

    run(body)


def test_a_difference_goes_whole_if_a_member_may_not_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group, change_that_gets_lost(group, monkeypatch) as (follower, _):
            monkeypatch.setattr(follower._writes._reporter, "understood", 1)  # says another leader
            await until(lambda: kinds_under_way(follower) == {"RegisterBroker"}, "it goes whole")

    run(body)


def test_a_difference_to_another_table_is_decided_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group, change_that_gets_lost(group, monkeypatch) as (follower, _):
            (before,) = (waiting.proposal.sequence for waiting in under_way(follower))
            follower._writes.table_replaced()
            await until(lambda: kinds_under_way(follower) == {"Update"}, "it is decided again")
            assert [waiting.proposal.sequence for waiting in under_way(follower)] != [before]

    run(body)


def test_losing_and_finding_a_majority_is_one_line_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            one, other = group.followers()
            survivor = group.at(group.leader())
            for number in (one, other):
                await group.stop(number)
            caplog.clear()
            await until(lambda: not survivor.status().reads_ready, "contact is lost")
            await until(lambda: said(caplog, "contact lost") == 1, "it is said")
            await group.start(one)
            await until(lambda: survivor.status().reads_ready, "contact is found")
            await until(lambda: said(caplog, "contact found") == 2, "both say so")
            assert said(caplog, "contact lost") == 1

    with caplog.at_level(logging.INFO, "nameserver.replicated"):
        run(body)


def said(caplog: pytest.LogCaptureFixture, event: str) -> int:
    return sum(record.getMessage().startswith(event) for record in caplog.records)


def test_a_leader_whose_hand_over_fails_leads_on_with_its_evidence(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            assert codes(await group.everywhere(register())) == [0, 0, 0]
            await group.equal()
            leader = group.at(group.leader())
            term = leader.status().term
            assert hand_over_in_vain(leader)
            # Meanwhile the broker dies, and something is written; neither can be appended for a moment.
            for member in group.running:
                member.closed(ONE, by_us=False)
            assert (await ask(leader, put_kv("k", "v"))).code == ResponseCode.SUCCESS
            await until(lambda: not leader.view(Freshness.STALE).topics(), "the dead broker is evicted")
            assert leader.status().term == term

    run(body)


def test_a_leader_whose_hand_over_fails_at_once_takes_office_later(tmp_path: Path) -> None:
    """It hands over before the entry that marks its office is in the log."""

    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            assert codes(await group.everywhere(register())) == [0, 0, 0]
            await group.equal()
            leader = group.at(group.leader())
            leader._office.end()  # as just elected: nobody has looked at the new role yet
            assert hand_over_in_vain(leader)
            leader._on_change()
            for member in group.running:
                member.closed(ONE, by_us=False)
            await until(lambda: not leader.view(Freshness.STALE).topics(), "the dead broker is evicted")

    run(body)


def test_what_a_leader_refused_while_it_waited_in_its_own_queue_never_applies(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            leader = group.at(group.leader())
            assert hand_over_in_vain(leader)  # its log takes nothing for a moment
            soon = asyncio.get_running_loop().time() + ANSWER_MARGIN_S + 0.01
            answer = await leader.execute(put_kv("late", "v"), ONE, deadline=soon)
            assert answer.remark is not None
            assert answer.remark.startswith(f"{NO_QUORUM_TAG} not applied: ")
            assert (await ask(leader, put_kv("k", "v"))).code == ResponseCode.SUCCESS
            assert leader.view(Freshness.STALE).kv_value("n", "late") is None

    run(body)


def hand_over_in_vain(leader: Replicated) -> bool:
    """Have a leader hand over while all others lag: nobody can take over, so it leads on in its term."""
    member = leader.member
    command = encode_command(PutKv(namespace="n", key="other", value="v", key_revision=0))
    batch = Batch(proposals=(Proposal(boot_id=7, sequence=1, command=command),))
    assert member.append(encode_batch(batch), term=member.term) is not None
    assert member._driver is not None
    return member._driver.engine.hand_over()


def test_new_leader_evicts_what_died_with_the_old_one(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path, raftElectionTimeoutMs="500") as group:
            await group.ready()
            await group.everywhere(register())
            await group.stop(group.leader())
            for member in group.running:
                member.closed(ONE, by_us=False)
            await until(
                lambda: not any(member.view(Freshness.STALE).topics() for member in group.running), "gone"
            )

    run(body)


def test_min_broker_change_is_told_by_the_leader_alone(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path, notifyMinBrokerIdChanged="true") as group:
            await group.ready()
            await group.everywhere(register(addr="10.0.0.2:10911", broker_id=1), TWO)
            await group.everywhere(register(broker_id=0), ONE)
            await group.equal()
            told = {number for number, effects in enumerate(group.effects) if effects.notices}
            assert told == {group.leader()}

    run(body)


# -- without a quorum ----------------------------------------------------------------------


def test_minority_refuses_writes_and_fresh_reads_and_serves_stale_ones(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            await group.everywhere(register())
            await group.equal()
            left = group.followers()[0]
            for number in range(3):
                if number != left:
                    await group.stop(number)
            member = group.at(left)
            await until(lambda: not member.status().reads_ready and member.status().leader is None, "alone")
            async with timed() as elapsed:
                answer, unchanged, question, read = await asyncio.gather(
                    ask(member, register(counter=2)),
                    ask(member, register()),
                    ask(member, query_version(counter=1)),
                    ask(member, route()),
                )
                assert elapsed() < 3.0
            assert answer.code == read.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark is not None
            assert answer.remark.startswith(f"{NO_QUORUM_TAG} not applied: "), "it was never sent"
            assert read.remark is not None
            assert read.remark.startswith(f"{NO_QUORUM_TAG} name server not ready: no leader")
            with pytest.raises(NoQuorum):
                member.view(Freshness.DEFAULT)
            assert member.view(Freshness.STALE).topics() == ["T", "U"]
            assert unchanged.code == ResponseCode.SYSTEM_ERROR, "nobody vouches for the record"
            assert question.code == ResponseCode.SYSTEM_ERROR
            assert not member.status().writes_ready

    run(body)


def test_write_that_a_leader_appended_without_a_majority_has_an_unknown_outcome(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            leader = group.at(group.leader())
            await asyncio.gather(*(group.stop(number) for number in group.followers()))
            answer = await ask(leader, register())
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark is not None
            assert answer.remark.startswith(OUTCOME_UNKNOWN_TAG)
            assert leader.view(Freshness.STALE).topics() == []

    run(body)


def test_default_read_waits_for_contact_at_most_one_longest_election(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path, started=1, raftElectionTimeoutMs="500") as group:
            member = group.running[0]
            async with timed() as elapsed:
                answer = await ask(member, route())
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert 0.5 < elapsed() < 2.0, "about twice the least election timeout"
            assert group.addresses[1] in member.status().waiting_for
            deadline = asyncio.get_running_loop().time() + CONDITION_S
            waiting = asyncio.ensure_future(member.execute(register(), ONE, deadline=deadline))
            await group.start(1)
            await group.start(2)
            assert (await waiting).code == ResponseCode.SUCCESS, "a write waits for the group to form"

    run(body)


def test_linearizable_reads_are_not_offered(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path, size=1) as group:
            await group.ready()
            with pytest.raises(FreshnessNotOffered):
                group.running[0].view(Freshness.LINEARIZABLE)

    run(body)


def test_write_in_flight_when_the_leader_stops_is_finished_by_the_next(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path, raftElectionTimeoutMs="500") as group:
            await group.ready()
            leader = group.leader()
            follower = group.at(group.followers()[0])
            deadline = asyncio.get_running_loop().time() + CONDITION_S  # elections may come in between

            def put(prefix: str) -> list[asyncio.Future[Answer]]:
                requests = [put_kv(f"{prefix}{i}", "v") for i in range(50)]
                return [asyncio.ensure_future(follower.execute(r, ONE, deadline=deadline)) for r in requests]

            writes = put("k")
            await group.stop(leader)
            more = put("l")
            answers = await asyncio.gather(*writes, *more)
            assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
            await group.equal()
            values = follower.view(Freshness.STALE).kv("n")
            assert values is not None
            assert len(values) == 100

    run(body)


# -- restarts -----------------------------------------------------------------------------------------------


def test_whole_group_restarts_with_its_table_and_without_effects(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path, notifyMinBrokerIdChanged="true") as group:
            await group.ready()
            await group.everywhere(register())
            await ask(group.running[0], put_kv("k", "v"))
            await group.equal()
            revision = group.running[0].view(Freshness.STALE).revision
            for number in range(3):
                await group.stop(number)
            for number in range(3):
                await group.start(number)
            await group.ready()
            for member in group.running:
                assert member.view(Freshness.DEFAULT).topics() == ["T", "U"]
                assert member.view(Freshness.STALE).revision == revision
            assert all(not effects.closed and not effects.notices for effects in group.effects)
            assert all(member.history.of_broker(BROKER) == () for member in group.running), "of this process"
            assert codes(await group.everywhere(register(), ONE)) == [0, 0, 0]

    run(body)


def test_broken_side_effect_does_not_keep_the_rest_of_an_entry_from_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with group_of(tmp_path, size=1) as group:
            await group.ready()
            (member,) = group.running
            await ask(member, register())
            record = member.view(Freshness.STALE).record(BROKER)
            assert record is not None

            def fail(origin: ConnectionId) -> None:
                raise RuntimeError("no such connection")

            monkeypatch.setattr(group.effects[0], "close_connection", fail)
            evict = Evict(
                cluster_name=BROKER.cluster_name,
                broker_addr=BROKER.broker_addr,
                revision=record.revision,
                reason=LeaveReason.LEASE_EXPIRED,
            )
            put = PutKv(namespace="n", key="k", value="v", key_revision=record.revision)
            proposals = (
                Proposal(boot_id=7, sequence=1, command=encode_command(evict)),
                Proposal(boot_id=7, sequence=2, command=encode_command(put)),
            )
            payload = encode_batch(Batch(proposals=proposals))
            member.apply(payload, index=member.status().applied_index + 1, term=1, live=True)
            assert member.view(Freshness.STALE).record(BROKER) is None
            assert member.view(Freshness.STALE).kv_value("n", "k") is not None

    run(body)
    assert "no such connection" in caplog.text


@pytest.mark.parametrize(
    "command", [b"\x03\x00\x90", b"\x01\x00\x92\x63\x01"], ids=["newer format", "unknown kind"]
)
def test_member_stops_at_what_it_does_not_understand_and_applies_none_of_it(
    tmp_path: Path, command: bytes
) -> None:
    async def body() -> None:
        async with group_of(tmp_path, size=1) as group:
            await group.ready()
            (member,) = group.running
            put = encode_command(PutKv(namespace="n", key="k", value="v", key_revision=0))
            proposals = (
                Proposal(boot_id=7, sequence=1, command=put),
                Proposal(boot_id=7, sequence=2, command=command),
            )
            payload = encode_batch(Batch(proposals=proposals))
            with pytest.raises(StopMember, match="install the release"):
                member.apply(payload, index=9, term=1, live=True)
            assert member.view(Freshness.STALE).revision == 0

    run(body)


def test_member_that_was_away_catches_up(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            away = group.followers()[0]
            await group.stop(away)
            for i in range(20):
                assert (await ask(group.running[i % 2], put_kv(f"k{i}", "v"))).code == ResponseCode.SUCCESS
            await group.start(away)
            await group.ready()
            await group.equal()

    run(body)


@pytest.mark.parametrize("durability", ["memory", "fsync"])
def test_group_with_a_secret_works_in_every_durability(tmp_path: Path, durability: str) -> None:
    async def body() -> None:
        secret = tmp_path / "secret"
        secret.write_bytes(secrets.token_hex(32).encode() + b"\n")
        async with group_of(tmp_path, raftDurability=durability, raftSecretFile=str(secret)) as group:
            await group.ready()
            assert codes(await group.everywhere(register())) == [0, 0, 0]
            away = group.followers()[0]
            await group.stop(away)
            assert (await ask(group.running[0], put_kv("k", "v"))).code == ResponseCode.SUCCESS
            member = await group.start(away)
            await until(lambda: member.view(Freshness.STALE).kv_value("n", "k") is not None, "caught up")
            assert member.status().durability == durability
            await group.equal()

    run(body)


def test_state_image_restores_the_table_and_the_last_leaders_term(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path / "a", size=1) as first, group_of(tmp_path / "b", size=1) as second:
            await first.ready()
            await second.ready()
            source, target = first.running[0], second.running[0]
            await ask(source, register())
            await ask(source, put_kv("k", "v"))
            waiting = asyncio.ensure_future(
                target.changed("T", 0, deadline=asyncio.get_running_loop().time() + 5.0)
            )
            await asyncio.sleep(0)
            target.prepare(await asyncio.to_thread(source.snapshot()))()
            assert target.status().state_digest == source.status().state_digest
            assert await waiting == source.view(Freshness.STALE).topic_revision("T")
            assert target.snapshot()() == source.snapshot()()

    run(body)


# -- watching, settings, KV files ------------------------------------------------------------


def test_watcher_of_a_topic_is_woken_by_its_change_only(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            await group.everywhere(register())
            await group.equal()
            member = group.at(group.followers()[0])
            now = asyncio.get_running_loop().time()
            view = member.view(Freshness.STALE)
            before = {topic: view.topic_revision(topic) for topic in ("T", "U")}
            both = [
                asyncio.ensure_future(member.changed(topic, before[topic], deadline=now + seconds))
                for topic, seconds in (("T", CONDITION_S), ("U", 1.0))
            ]
            await asyncio.sleep(0)
            delete = Request(code=RequestCode.DELETE_TOPIC_IN_NAMESRV, ext_fields={"topic": "T"})
            await ask(group.at(group.leader()), delete)
            changed, unchanged = await asyncio.gather(*both)
            assert changed > before["T"]
            assert unchanged == before["U"]

    run(body)


def test_settings_stay_with_their_nameserver(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            await group.ready()
            body = b"orderMessageEnable=true"
            request = Request(code=RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
            assert (await ask(group.running[0], request)).code == ResponseCode.SUCCESS
            stored = load_settings_file(tmp_path / "0" / "namesrv.properties")
            assert stored == {"orderMessageEnable": "true"}
            assert [m.settings.current.order_message_enable for m in group.running] == [True, False, False]

    run(body)


def test_kv_file_is_imported_once_and_then_only_exported(tmp_path: Path) -> None:
    async def body() -> None:
        paths = [tmp_path / str(number) / "kvConfig.json" for number in range(3)]
        save_kv_file(paths[0], {"old": {"a": "1"}})
        async with group_of(tmp_path) as group:
            await group.ready()
            await until(
                lambda: all(m.view(Freshness.STALE).kv_value("old", "a") for m in group.running), "imported"
            )
            await ask(group.running[1], put_kv("k", "v"))
            kept = {"old": {"a": "1"}, "n": {"k": "v"}}
            await until(
                lambda: all(path.exists() and load_kv_file(path) == kept for path in paths), "exported"
            )
            for number in range(3):
                await group.stop(number)
            save_kv_file(paths[2], {"other": {"x": "y"}})
            for number in range(3):
                await group.start(number)
            await group.ready()
            await until(lambda: load_kv_file(paths[2]) == kept, "exported over a file found later")
            assert group.running[0].view(Freshness.STALE).kv("other") is None

    run(body)


def test_kv_file_that_could_not_be_written_is_written_later_without_another_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_file, "EXPORT_RETRY_S", 0.05)

    async def body() -> None:
        path = tmp_path / "0" / "kvConfig.json"
        async with group_of(tmp_path, size=1) as group:
            await group.ready()
            path.with_name("kvConfig.json.tmp").mkdir()  # refuses the write, as a full disk does
            await ask(group.running[0], put_kv("k", "v"))
            await until(lambda: "not exported" in caplog.text, "refused")
            assert not path.exists()
            await asyncio.sleep(0.2)
            assert caplog.text.count("not exported") == 1, "each new try is no news"
            path.with_name("kvConfig.json.tmp").rmdir()
            await until(lambda: load_kv_file(path) == {"n": {"k": "v"}}, "written once it can be")

    with caplog.at_level(logging.INFO):
        run(body)
    assert "exported again" in caplog.text


def test_unreadable_secret_is_one_line(tmp_path: Path) -> None:
    async def body() -> None:
        with pytest.raises(RaftStartError, match="No such file") as error:
            async with group_of(tmp_path, size=1, raftSecretFile=str(tmp_path / "none")):
                pass
        assert "\n" not in str(error.value)

    run(body)


def test_nothing_is_logged_above_info_in_a_quiet_life(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with group_of(tmp_path, raftDurability="memory") as group:  # a slow disk is named
            await group.ready()
            await group.everywhere(register())

    with caplog.at_level(logging.INFO):
        run(body)
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []
