"""Registrations that the network delayed must not overwrite newer registrations of the same broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from routekeeper.nameserver.liveness import REPEATED_AFTER_S
from routekeeper.nameserver.modes.interface import Freshness
from routekeeper.nameserver.replicated import Replicated
from routekeeper.nameserver.types import ConnectionId
from routekeeper.remoting.steps import Steps
from tests.nameserver.replicated.group import (
    ONE,
    TWO,
    Group,
    ask,
    codes,
    group_of,
    query_version,
    register,
    unregister,
)
from tests.waiting import until

THREE, NOBODY = ConnectionId(3), ConnectionId(9)
FIRST, SECOND = register(counter=1, queues=4), register(counter=2, queues=8)


def queues_of(member: Replicated, topic: str = "T") -> int:
    """Return the number of queues that a member lists for the broker's topic.

    Return 0 if it lists no such topic.
    """
    entry = member.view(Freshness.STALE).topic(topic)
    return 0 if entry is None else entry.queues["broker-a"].write_queue_nums


async def shown(group: Group, topic: str = "T") -> list[int]:
    await group.equal()
    return [queues_of(member, topic) for member in group.running]


async def registered_with_all(group: Group) -> None:
    """Register the broker with all members, so that the table contains its second data version.

    The function sends the first version (FIRST) to the first member. Then it sends the second version (SECOND
    with 8 queues) to the second member.
    """
    assert codes(await group.everywhere(register(counter=0, queues=2))) == [0, 0, 0]
    one, two, _ = group.running
    assert (await ask(one, FIRST)).code == 0
    assert (await ask(two, SECOND)).code == 0
    assert await shown(group) == [8, 8, 8]


def later(group: Group, seconds: float = REPEATED_AFTER_S) -> None:
    """Advance the clocks by which all members measure leases."""
    for member in group.running:
        member.liveness.clock += seconds


async def vouched_for(member: Replicated) -> None:
    """Repeat the broker's registration until the member answers it from its table, without a log entry."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 30.0
    while True:
        before = member.view(Freshness.STALE).revision
        assert (await ask(member, SECOND)).code == 0
        if member.view(Freshness.STALE).revision == before:
            return
        assert loop.time() < deadline, "the leader acknowledges no hearing"
        await asyncio.sleep(0.02)


async def test_a_late_copy_takes_no_member_back(tmp_path: Path) -> None:
    async with group_of(tmp_path) as group:
        await registered_with_all(group)
        assert (await ask(group.running[2], FIRST)).code == 0
        assert await shown(group) == [8, 8, 8]
        assert await shown(group, "U") == [8, 8, 8]


async def test_a_late_increment_takes_no_member_back(tmp_path: Path) -> None:
    async with group_of(tmp_path) as group:
        assert codes(await group.everywhere(register(counter=0, queues=2))) == [0, 0, 0]
        one, two, three = group.running
        assert (await ask(one, register(counter=1, queues=4, topics=("T",)))).code == 0
        assert (await ask(two, register(counter=2, queues=8, topics=("T",)))).code == 0
        assert (await ask(three, register(counter=1, queues=4, topics=("T",)))).code == 0
        assert await shown(group) == [8, 8, 8]


async def test_a_copy_that_was_under_way_when_the_newer_one_came_is_late(tmp_path: Path) -> None:
    """An older registration that is on its way when the newer one is applied must not overwrite it.

    The newer registration (SECOND) reaches one member, while the older registration (FIRST) reaches two other
    members. These two members compute commands for FIRST before SECOND is applied. Afterwards, the commands
    are outdated, so the members compute them again from the new table.
    """
    async with group_of(tmp_path) as group:
        assert codes(await group.everywhere(register(counter=0, queues=2))) == [0, 0, 0]
        one, two, three = group.running
        asked = ask(one, SECOND), ask(two, FIRST), ask(three, FIRST)
        assert codes(list(await asyncio.gather(*asked))) == [0, 0, 0]
        assert await shown(group) == [8, 8, 8]


async def test_a_broker_whose_store_was_restored_is_shown_with_its_second_heartbeat(tmp_path: Path) -> None:
    """Members apply only the second registration of a broker whose store was restored from a backup.

    The restored broker has a lower data version than its record in the table, so its first registration may
    be a late copy. It uses new connections, and no member has noticed that its former connections are gone.
    """
    async with group_of(tmp_path) as group:
        await registered_with_all(group)
        assert codes(await group.everywhere(FIRST, TWO)) == [0, 0, 0]
        assert await shown(group) == [8, 8, 8]
        later(group)
        assert codes(await group.everywhere(FIRST, TWO)) == [0, 0, 0]
        assert await shown(group) == [4, 4, 4]


async def test_a_repeat_is_seen_where_registrations_are_answered_without_the_log(tmp_path: Path) -> None:
    """A member applies a repeat of an older registration, even if it answered the first copy without the log.

    The repeat has the same bytes as before, and the table still has the same revision. But a repeat shows
    that the registration is no late copy: the broker's store was restored from a backup.
    """
    async with group_of(tmp_path) as group:
        await registered_with_all(group)
        member = group.running[0]
        await vouched_for(member)
        revision = member.view(Freshness.STALE).revision
        assert (await ask(member, FIRST)).code == 0
        assert member.view(Freshness.STALE).revision == revision, "the lease is renewed, without the log"
        later(group)
        assert (await ask(member, FIRST)).code == 0
        assert await shown(group) == [4, 4, 4]


async def test_the_current_version_answered_without_the_log_makes_the_next_repeat_a_first_one(
    tmp_path: Path,
) -> None:
    async with group_of(tmp_path) as group:
        await registered_with_all(group)
        member = group.running[0]
        for current in (SECOND, query_version(counter=2)):
            await vouched_for(member)
            assert (await ask(member, FIRST)).code == 0
            assert (await ask(member, current)).code == 0
            later(group)
            assert (await ask(member, FIRST)).code == 0
            assert await shown(group) == [8, 8, 8]


async def test_a_restored_broker_is_told_to_register(tmp_path: Path) -> None:
    """If a restored broker asks about its data version, the answer must be "changed".

    Only this answer makes the broker send a registration.
    """
    async with group_of(tmp_path) as group:
        await registered_with_all(group)
        for answer in await group.everywhere(query_version(counter=1)):
            assert answer.ext_fields["changed"] == "true"


async def test_a_restored_broker_whose_connections_closed_is_shown_at_once(tmp_path: Path) -> None:
    async with group_of(tmp_path) as group:
        await registered_with_all(group)
        for member in group.running:
            member.closed(ONE, by_us=False)
        await group.empty()
        assert codes(await group.everywhere(FIRST, TWO)) == [0, 0, 0]
        assert await shown(group) == [4, 4, 4]


async def test_what_was_seen_of_a_broker_goes_with_its_record(tmp_path: Path) -> None:
    async with group_of(tmp_path) as group:
        await registered_with_all(group)
        assert codes(await group.everywhere(FIRST)) == [0, 0, 0]
        await group.everywhere(unregister())
        await group.empty()
        one, two, _ = group.running
        assert (await ask(one, SECOND)).code == 0
        assert await shown(group) == [8, 8, 8]
        later(group)
        assert (await ask(two, FIRST)).code == 0
        assert await shown(group) == [8, 8, 8], "it is the first such copy since the record was made"


@pytest.mark.parametrize("busy", [False, True])
async def test_a_registration_is_not_decided_again_after_its_connection_was_closed(
    tmp_path: Path, busy: bool
) -> None:
    """A registration whose connection is closed must not come back behind the removal of a newer one.

    The leader gets the second version and then its removal, while a follower proposes the first version over
    another connection. That proposal is outdated. The connection is closed meanwhile, so the broker no longer
    waits for this registration, and it must not make the broker appear again.
    """
    async with group_of(tmp_path) as group:
        assert codes(await group.everywhere(register(counter=0, queues=2))) == [0, 0, 0]
        leader, follower = group.at(group.leader()), group.at(group.followers()[0])
        asked = asyncio.gather(
            ask(leader, SECOND, TWO), ask(leader, unregister(), NOBODY), ask(follower, FIRST, THREE)
        )
        await asyncio.sleep(0)  # all three have begun
        held = busy

        def hold() -> Steps[bool]:
            while held:
                yield
            return True

        if busy:  # another sender's long work delays what the follower does about the closed connection
            follower.surroundings.line.run(hold(), lambda _: None, sender=NOBODY, host="elsewhere")
        follower.closed(THREE, by_us=False)
        revision = follower.view(Freshness.STALE).revision
        await until(lambda: follower.view(Freshness.STALE).revision >= revision + 2, "both are applied")
        held = False
        await asked
        await group.equal()
        assert await shown(group) == [0, 0, 0]
