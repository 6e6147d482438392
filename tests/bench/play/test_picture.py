"""The first state in the playground's log, plus all changes in the log, gives the present state."""

from __future__ import annotations

import msgspec

from routekeeper.bench.play.model import Change, Counters, Design, Link, Mark, Server, State
from routekeeper.bench.play.picture import ChangeLog, apply, copied_state


def begin() -> State:
    return State(
        session="s",
        id=0,
        at_ms=0,
        started_at="2026-01-01T00:00:00+00:00",
        divisor=10.0,
        divisors=[1.0, 10.0],
        designs=[Design(name="raft", servers=[Server(name="nameserver-0", addr="a", life="up")])],
    )


def server(number: int) -> Change:
    named = Server(name=f"nameserver-{number % 3}", addr="a", life="down" if number % 2 else "up", pid=number)
    return Change(id=number, at_ms=10 * number, design="raft", server=named)


def test_a_change_replaces_the_value_of_its_name_and_counters_begin_again_with_a_fault() -> None:
    state = begin()
    apply(state, server(1))
    apply(state, server(3))
    assert [(each.name, each.pid) for each in state.designs[0].servers] == [
        ("nameserver-0", 3),
        ("nameserver-1", 1),
    ]
    apply(state, Change(id=4, at_ms=40, design="raft", counters=Counters(wrong=3)))
    apply(state, Change(id=5, at_ms=50, mark=Mark(action=5, at_ms=45, text="kill nameserver-0")))
    assert state.designs[0].counters == Counters(since_ms=45)
    link = Link(dialler="client-0", acceptor="nameserver-0", forward="cut", back="open")
    apply(state, Change(id=6, at_ms=60, design="raft", links=[link]))
    healed = msgspec.structs.replace(link, forward="open")
    apply(state, Change(id=7, at_ms=70, design="raft", links=[healed]))
    assert state.designs[0].links == [healed]
    assert (state.id, state.at_ms) == (7, 70)


def test_new_timers_leave_no_fault_to_count_from() -> None:
    state = begin()
    apply(state, Change(id=1, at_ms=10, mark=Mark(action=1, at_ms=10, text="kill nameserver-0")))
    apply(state, Change(id=2, at_ms=20, designs=[Design(name="raft", phase="running")]))
    assert state.mark is not None, "another design that is ready now changes nothing for the others"
    apply(state, Change(id=3, at_ms=30, designs=[Design(name="raft")], divisor=1.0))
    assert state.divisor == 1.0
    assert state.mark is None


def test_base_and_kept_changes_make_the_present_picture_however_many_were_folded() -> None:
    log = ChangeLog(begin(), kept_max=10)
    for number in range(1, 101):
        log.add(server(number))
    kept = log.log()
    assert len(kept.changes) == 10
    assert not kept.whole
    again = copied_state(kept.base)
    for change in kept.changes:
        apply(again, change)
    assert again == log.now


def test_missed_changes_are_had_only_while_all_of_them_are_kept() -> None:
    log = ChangeLog(begin(), kept_max=3)
    for number in range(1, 6):
        log.add(server(number))
    missed = log.after(3)
    assert missed is not None
    assert [change.id for change in missed] == [4, 5]
    assert log.after(5) == []
    assert log.after(1) is None
    assert log.after(6) is None


def test_a_copy_of_the_picture_is_not_altered_by_later_changes() -> None:
    log = ChangeLog(begin())
    before = log.log().base
    log.add(server(1))
    assert len(before.designs[0].servers) == 1
    assert len(log.now.designs[0].servers) == 2
