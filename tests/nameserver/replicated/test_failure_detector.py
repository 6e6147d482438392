"""Tests of the members' reports about brokers, and of the evictions that the leader derives from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from routekeeper.nameserver.commands import Evict
from routekeeper.nameserver.liveness import Liveness
from routekeeper.nameserver.replicated import failure_detector
from routekeeper.nameserver.replicated.failure_detector import FORGET_S, FailureDetector, judge
from routekeeper.nameserver.replicated.peer_messages import (
    Acknowledgement,
    BrokerContact,
    Hearing,
    PeerMessageError,
    Report,
    decode,
    encode,
)
from routekeeper.nameserver.replicated.reporter import Reporter
from routekeeper.nameserver.routes.entries import Record
from routekeeper.nameserver.types import (
    BrokerAddr,
    BrokerKey,
    BrokerName,
    ClusterName,
    ConnectionId,
    LeaveReason,
)
from routekeeper.remoting.route import DataVersion
from tests.nameserver.contacts import check

A = BrokerKey(ClusterName("c"), BrokerAddr("10.0.0.1:10911"))
B = BrokerKey(ClusterName("c"), BrokerAddr("10.0.0.2:10911"))
ONE, TWO = ConnectionId(1), ConnectionId(2)
MEMBERS = ("m1", "m2", "m3")
JUDGE_AFTER_S = 1.2


def record(broker: BrokerKey = A, *, revision: int = 7, lease_ms: int = 120_000) -> Record:
    return Record(
        broker=broker,
        broker_name=BrokerName("broker-a"),
        broker_id=0,
        ha_server_addr="",
        data_version=DataVersion(),
        complete=True,
        lease_ms=lease_ms,
        filter_servers=(),
        revision=revision,
    )


def line(
    *,
    heard_at: float = 0.0,
    connected: bool = False,
    closed_at: float | None = None,
    closed_revision: int | None = None,
    unregistered: bool = False,
) -> BrokerContact:
    return BrokerContact(
        cluster_name=A.cluster_name,
        broker_addr=A.broker_addr,
        heard_at=heard_at,
        connected=connected,
        closed_at=closed_at,
        closed_revision=closed_revision,
        unregistered=unregistered,
    )


CLOSED = line(closed_at=0.0, closed_revision=7)
CONNECTED = line(connected=True)


# -- impossible numbers in reports ---------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300], ids=str)
@pytest.mark.parametrize("where", ["clock", "heard_at", "closed_at"])
def test_an_instant_beyond_all_clocks_is_no_message(where: str, value: float) -> None:
    """A leader must refuse a report with an impossible last-seen time.

    With a time in the far future, the leader would never evict the broker.
    """
    clock = value if where == "clock" else 0.0
    lines = () if where == "clock" else (msgspec.structs.replace(CLOSED, **{where: value}),)
    data = encode(Report(term=1, boot_id=1, base=0, version=1, clock=clock, contacts=lines))
    with pytest.raises(PeerMessageError):
        decode(data)


def test_nobody_hears_a_broker_in_the_future() -> None:
    evidence = FailureDetector(term=1, members=("m1",), prior_term=0, clock=0.0, judge_after_s=JUDGE_AFTER_S)
    told = Report(
        term=1,
        boot_id=1,
        base=0,
        version=1,
        clock=10.0,
        contacts=(line(heard_at=1e9),),
        handed=(Hearing(cluster_name=B.cluster_name, broker_addr=B.broker_addr, heard_at=1e9),),
    )
    assert evidence.receive("m1", told, clock=5.0) is not None
    records = [record(A), record(B)]
    assert evidence.judge(records, in_contact=("m1",), clock=124.9) == ()
    judged = evidence.judge(records, in_contact=("m1",), clock=125.1)
    assert [one.reason for one in judged] == [LeaveReason.LEASE_EXPIRED] * 2


# -- the brokers that a leader evicts ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([CLOSED, CLOSED, CLOSED], LeaveReason.CONNECTION_CLOSED),
        ([CLOSED, None, None], LeaveReason.CONNECTION_CLOSED),
        ([CLOSED, line(), None], LeaveReason.CONNECTION_CLOSED),
        ([CLOSED, CONNECTED, None], None),
        ([CONNECTED, CLOSED, CLOSED], None),
        ([None, None, None], None),
        ([line(closed_at=0.0, closed_revision=6)], None),
        ([line(closed_at=0.0, closed_revision=8)], None),
        ([line(closed_at=0.0, closed_revision=None)], None),
        ([line(closed_at=-121.0, closed_revision=7)], None),
        ([line(closed_at=0.0, closed_revision=7, unregistered=True), CLOSED], LeaveReason.UNREGISTERED),
        (None, None),
    ],
    ids=[
        "closed everywhere",
        "closed at one, unknown elsewhere",
        "closed at one, heard elsewhere without a connection",
        "closed at one, connected elsewhere",
        "connected at the first",
        "nobody knows it",
        "closed at an older revision",
        "closed at a younger revision",
        "closed before there was a record",
        "closed longer ago than the lease",
        "said goodbye",
        "somebody in contact has yet to report",
    ],
)
def test_gone_is_judged_by_connections(
    lines: list[BrokerContact | None] | None, reason: LeaveReason | None
) -> None:
    assert judge(record(), lines, heard_at=0.0, clock=0.0) is reason


@pytest.mark.parametrize(
    ("heard_at", "reason"), [(880.0, None), (879.9, LeaveReason.LEASE_EXPIRED)], ids=["within", "beyond"]
)
def test_silent_is_judged_by_the_records_own_lease(heard_at: float, reason: LeaveReason | None) -> None:
    for lines in ([CONNECTED], None):
        assert judge(record(), lines, heard_at=heard_at, clock=1000.0) is reason
    assert judge(record(lease_ms=10_000), [], heard_at=995.0, clock=1000.0) is None
    assert judge(record(lease_ms=10_000), [], heard_at=989.0, clock=1000.0) is LeaveReason.LEASE_EXPIRED


# -- members and a leader ---------------------------------------------------------------------------------


@dataclass
class Process:
    """One member's data about brokers, its reporter, and a clock that no other member shares."""

    boot_id: int
    now: float
    liveness: Liveness = field(default_factory=Liveness)

    def __post_init__(self) -> None:
        self.liveness.advance(self.now)
        self.reporter = Reporter(self.liveness, boot_id=self.boot_id)

    def pass_time(self, seconds: float) -> None:
        whole, rest = divmod(seconds, 1.0)
        for step in [1.0] * int(whole) + [rest]:
            self.now += step
            self.liveness.advance(self.now)

    def tell(self, evidence: FailureDetector, name: str, *, clock: float) -> bool:
        """Send a report to the leader's failure detector, and pass the answer to this member's reporter.

        Return True if the leader has missed a report, so that a new report must be sent.
        """
        report = decode(encode(self.reporter.reports()[0]))
        assert isinstance(report, Report)
        answer = evidence.receive(name, report, clock=clock)
        assert answer is not None
        received = decode(encode(answer))
        assert isinstance(received, Acknowledgement)
        return self.reporter.acknowledged(received)


Members = dict[str, Process]


@pytest.fixture
def members() -> Members:
    return {name: Process(boot_id=i, now=1000.0 * i) for i, name in enumerate(MEMBERS, start=1)}


def begin_leading(
    members: Members, *, term: int = 2, prior_term: int = 0, clock: float = 0.0
) -> FailureDetector:
    evidence = FailureDetector(
        term=term, members=MEMBERS, prior_term=prior_term, clock=clock, judge_after_s=JUDGE_AFTER_S
    )
    for process in members.values():
        process.reporter.lead_by(term)
    return evidence


def register_everywhere(members: Members) -> None:
    for process in members.values():
        process.liveness.registering(A, ONE)
        process.liveness.registered(A, ONE, revision=7)


def tell_all(members: Members, evidence: FailureDetector, *, clock: float) -> None:
    for name, process in members.items():
        process.tell(evidence, name, clock=clock)


def close(process: Process, revision: int = 7) -> None:
    process.liveness.closed(ONE, by_us=False, revision_of=lambda broker: revision)


def test_broker_closed_everywhere_is_gone_and_judged_once(members: Members) -> None:
    evidence = begin_leading(members)
    register_everywhere(members)
    tell_all(members, evidence, clock=0.0)
    assert evidence.judge([record()], in_contact=MEMBERS, clock=0.0) == ()
    for name, process in members.items():
        close(process)
        process.tell(evidence, name, clock=0.1)
    gone = Evict(
        cluster_name=A.cluster_name,
        broker_addr=A.broker_addr,
        revision=7,
        reason=LeaveReason.CONNECTION_CLOSED,
    )
    assert evidence.judge([record()], in_contact=MEMBERS, clock=0.1) == (gone,)
    assert evidence.judge([record()], in_contact=MEMBERS, clock=0.1) == ()


def test_dead_nameserver_keeps_no_dead_broker_alive(members: Members) -> None:
    evidence = begin_leading(members)
    register_everywhere(members)
    tell_all(members, evidence, clock=0.0)
    for name in ("m1", "m2"):
        close(members[name])
        members[name].tell(evidence, name, clock=0.1)
    assert evidence.judge([record()], in_contact=MEMBERS, clock=0.1) == ()
    evidence.out_of_contact(["m3"])
    assert len(evidence.judge([record()], in_contact=("m1", "m2"), clock=0.1)) == 1


def test_member_added_later_counts_and_is_waited_for_until_it_reports(members: Members) -> None:
    """A leader must wait for the report of a new member, because a broker may be connected only to it."""
    evidence = begin_leading(members)
    register_everywhere(members)
    for name, process in members.items():
        close(process)
        process.tell(evidence, name, clock=0.0)
    newcomer = members["m4"] = Process(boot_id=4, now=4000.0)
    newcomer.reporter.lead_by(2)
    newcomer.liveness.registering(A, ONE)
    evidence.members_are(tuple(members))
    assert evidence.judge([record()], in_contact=tuple(members), clock=0.0) == ()
    newcomer.tell(evidence, "m4", clock=0.1)
    assert evidence.judge([record()], in_contact=tuple(members), clock=0.1) == ()


def test_reports_of_a_removed_member_go_with_it(members: Members) -> None:
    evidence = begin_leading(members)
    register_everywhere(members)
    for name, process in members.items():
        if name != "m3":
            close(process)
        process.tell(evidence, name, clock=0.0)
    assert evidence.judge([record()], in_contact=MEMBERS, clock=0.1) == ()
    evidence.members_are(("m1", "m2"))
    assert len(evidence.judge([record()], in_contact=("m1", "m2"), clock=0.1)) == 1
    report = decode(encode(members["m3"].reporter.reports()[0]))
    assert isinstance(report, Report)
    assert evidence.receive("m3", report, clock=0.2) is None


def test_member_out_of_contact_counts_again_with_its_next_report_only(members: Members) -> None:
    evidence = begin_leading(members)
    register_everywhere(members)
    tell_all(members, evidence, clock=0.0)
    for name in ("m1", "m2"):
        close(members[name])
        members[name].tell(evidence, name, clock=0.1)
    evidence.out_of_contact(["m3"])
    assert evidence.judge([record()], in_contact=MEMBERS, clock=0.1) == (), "it is back and may have anyone"
    members["m3"].tell(evidence, "m3", clock=0.1)
    assert evidence.judge([record()], in_contact=MEMBERS, clock=0.1) == (), "it has a connection"


def test_what_a_member_said_before_it_was_cut_off_is_not_held_against_a_broker(members: Members) -> None:
    evidence = begin_leading(members)
    for name in ("m1", "m2"):
        members[name].liveness.registering(A, ONE)
        members[name].liveness.registered(A, ONE, revision=7)
    close(members["m1"])
    tell_all(members, evidence, clock=0.0)
    evidence.out_of_contact(["m3"])
    members["m3"].liveness.registering(A, ONE)
    close(members["m2"])
    members["m2"].tell(evidence, "m2", clock=0.1)
    assert evidence.judge([record()], in_contact=MEMBERS, clock=0.1) == (), "m3 has yet to say whom it has"
    members["m3"].tell(evidence, "m3", clock=0.1)
    assert evidence.judge([record()], in_contact=MEMBERS, clock=0.1) == ()


def test_leader_waits_for_every_member_or_two_longest_elections(members: Members) -> None:
    evidence = begin_leading(members, clock=50.0)
    register_everywhere(members)
    for name in ("m1", "m2"):
        close(members[name])
        members[name].tell(evidence, name, clock=50.0)
    assert evidence.judge([record()], in_contact=("m1", "m2"), clock=50.0 + JUDGE_AFTER_S - 0.01) == ()
    assert len(evidence.judge([record()], in_contact=("m1", "m2"), clock=50.0 + JUDGE_AFTER_S)) == 1


def test_registration_that_applied_after_its_connection_closed_is_evidence(members: Members) -> None:
    evidence = begin_leading(members)
    process = members["m1"]
    process.liveness.registering(A, ONE)
    process.liveness.closed(ONE, by_us=False, revision_of=lambda broker: None)
    for name, member in members.items():
        member.tell(evidence, name, clock=0.0)
    assert evidence.judge([record(revision=9)], in_contact=MEMBERS, clock=0.0) == ()
    process.liveness.registered(A, ONE, revision=9)
    process.tell(evidence, "m1", clock=0.0)
    assert len(evidence.judge([record(revision=9)], in_contact=MEMBERS, clock=0.0)) == 1


def test_unknown_broker_counts_from_the_election(members: Members) -> None:
    evidence = begin_leading(members, clock=500.0)
    tell_all(members, evidence, clock=500.0)
    assert evidence.judge([record()], in_contact=MEMBERS, clock=619.9) == ()
    judged = evidence.judge([record()], in_contact=MEMBERS, clock=620.1)
    assert [j.reason for j in judged] == [LeaveReason.LEASE_EXPIRED]


def test_ages_are_carried_between_clocks_of_different_origin(members: Members) -> None:
    evidence = begin_leading(members, clock=0.0)
    members["m3"].liveness.registering(A, ONE)
    members["m3"].pass_time(100.0)
    tell_all(members, evidence, clock=40.0)
    assert evidence.judge([record()], in_contact=MEMBERS, clock=59.0) == ()
    assert len(evidence.judge([record()], in_contact=MEMBERS, clock=61.0)) == 1


def test_new_leader_does_not_prolong_a_ghost(members: Members) -> None:
    first = begin_leading(members, term=2)
    members["m1"].liveness.registering(A, ONE)
    tell_all(members, first, clock=0.0)
    tell_all(members, first, clock=0.0)
    for process in members.values():
        process.pass_time(100.0)
    # Only m1 received messages of the broker, and m1 is dead. The other members report the broker's last-seen
    # time, which they got from the old leader.
    del members["m1"]
    second = begin_leading(members, term=3, prior_term=2, clock=9000.0)
    tell_all(members, second, clock=9000.0)
    late = second.judge([record()], in_contact=("m2", "m3"), clock=9000.0 + 19.0)
    assert late == ()
    late = second.judge([record()], in_contact=("m2", "m3"), clock=9000.0 + 21.0)
    assert [j.reason for j in late] == [LeaveReason.LEASE_EXPIRED]


def test_hearings_of_a_term_before_the_last_leader_are_worth_nothing(members: Members) -> None:
    first = begin_leading(members, term=2)
    members["m1"].liveness.registering(A, ONE)
    for name, process in members.items():
        process.tell(first, name, clock=0.0)
        process.tell(first, name, clock=0.0)
    members["m2"].pass_time(500.0)
    # While the leader of term 5 got reports about the broker, m2 was cut off. So m2 only has an older
    # last-seen time, which does not prove that the broker is silent. The members that sent the reports have
    # restarted.
    later = FailureDetector(term=6, members=MEMBERS, prior_term=5, clock=0.0, judge_after_s=JUDGE_AFTER_S)
    members["m2"].reporter.lead_by(6)
    members["m2"].tell(later, "m2", clock=0.0)
    assert later.judge([record()], in_contact=("m2",), clock=JUDGE_AFTER_S) == ()


def test_hearing_of_a_record_that_is_gone_says_nothing_of_the_next(members: Members) -> None:
    first = begin_leading(members, term=2)
    for name in ("m1", "m2"):
        members[name].liveness.registering(A, ONE)
    for name, process in members.items():
        process.tell(first, name, clock=0.0)
        process.tell(first, name, clock=0.0)
    for process in members.values():
        process.pass_time(130.0)
        process.liveness.removed(A)
        process.reporter.removed(A)
    # The broker registers again with m1, and m1 dies before it reports this registration to another member.
    second = begin_leading(members, term=3, prior_term=2)
    for name in ("m2", "m3"):
        members[name].tell(second, name, clock=0.0)
    assert second.judge([record(revision=9)], in_contact=("m2", "m3"), clock=119.0) == ()


def test_new_record_is_not_judged_by_the_time_before_it(members: Members) -> None:
    evidence = begin_leading(members)
    tell_all(members, evidence, clock=0.0)
    evidence.removed(A)
    evidence.note(A, 500.0)  # the broker registers again, but no report about it has arrived yet
    assert evidence.judge([record()], in_contact=MEMBERS, clock=500.1) == ()
    assert evidence.judge([record()], in_contact=MEMBERS, clock=619.9) == ()
    assert len(evidence.judge([record()], in_contact=MEMBERS, clock=620.1)) == 1


def test_leaders_that_follow_one_another_do_not_prolong_a_ghost_that_nobody_knows(members: Members) -> None:
    first = begin_leading(members, term=2)
    for clock in (0.0, 1.0):
        assert first.judge([record()], in_contact=MEMBERS, clock=clock) == ()
        for name, process in members.items():
            process.tell(first, name, clock=clock)
            process.tell(first, name, clock=clock)
            process.pass_time(1.0)
    assert first.judge([record()], in_contact=MEMBERS, clock=2.0) == ()
    for name, process in members.items():
        process.tell(first, name, clock=2.0)
        process.pass_time(68.0)
    second = begin_leading(members, term=3, prior_term=2, clock=9000.0)
    tell_all(members, second, clock=9000.0)
    assert second.judge([record()], in_contact=MEMBERS, clock=9000.0 + 49.0) == ()
    judged = second.judge([record()], in_contact=MEMBERS, clock=9000.0 + 51.0)
    assert [j.reason for j in judged] == [LeaveReason.LEASE_EXPIRED]


def test_hearings_are_handed_over_once(members: Members) -> None:
    first = begin_leading(members, term=2)
    members["m1"].liveness.registering(A, ONE)
    for name, process in members.items():
        process.tell(first, name, clock=0.0)
        process.tell(first, name, clock=0.0)
    second = begin_leading(members, term=3, prior_term=2)
    reporter = members["m2"].reporter
    report = reporter.reports()[0]
    assert [hearing.broker for hearing in report.handed] == [A]
    answer = second.receive("m2", report, clock=0.0)
    assert answer is not None
    reporter.acknowledged(answer)
    assert reporter.reports()[0].handed == ()


def test_report_is_full_after_a_leader_change_then_only_what_changed(members: Members) -> None:
    evidence = begin_leading(members, term=2)
    process = members["m1"]
    process.liveness.registering(A, ONE)
    process.liveness.registering(B, TWO)
    report = process.reporter.reports()[0]
    assert {told.broker for told in report.contacts} == {A, B}
    process.tell(evidence, "m1", clock=0.0)
    assert process.reporter.reports()[0].contacts == ()
    process.liveness.heard(A, ONE)
    assert [told.broker for told in process.reporter.reports()[0].contacts] == [A]
    assert [told.broker for told in process.reporter.reports()[0].contacts] == [A], "not yet acknowledged"
    process.reporter.lead_by(3)
    assert {told.broker for told in process.reporter.reports()[0].contacts} == {A, B}


def test_leader_that_lacks_the_base_asks_for_it(members: Members) -> None:
    evidence = begin_leading(members)
    process = members["m1"]
    process.liveness.registering(A, ONE)
    process.tell(evidence, "m1", clock=0.0)
    fresh = begin_leading({}, term=2)
    process.liveness.registering(B, TWO)
    assert process.tell(fresh, "m1", clock=0.0), "the answer names what the leader holds"
    assert not process.tell(fresh, "m1", clock=0.0)
    assert not process.tell(fresh, "m1", clock=0.0)
    close(process)
    assert {told.broker for told in process.reporter.reports()[0].contacts} == {A}


def test_restarted_member_replaces_what_it_said_before(members: Members) -> None:
    evidence = begin_leading(members)
    members["m1"].liveness.registering(A, ONE)
    for name in ("m2", "m3"):
        members[name].liveness.registering(A, ONE)
        close(members[name])
    tell_all(members, evidence, clock=0.0)
    assert evidence.judge([record()], in_contact=MEMBERS, clock=0.0) == ()
    restarted = Process(boot_id=99, now=0.0)
    restarted.reporter.lead_by(2)
    restarted.tell(evidence, "m1", clock=0.0)
    assert len(evidence.judge([record()], in_contact=MEMBERS, clock=0.0)) == 1


def test_report_of_another_term_or_a_stranger_is_ignored(members: Members) -> None:
    evidence = begin_leading(members, term=2)
    report = members["m1"].reporter.reports()[0]
    assert evidence.receive("stranger", report, clock=0.0) is None
    members["m1"].reporter.lead_by(3)
    assert evidence.receive("m1", members["m1"].reporter.reports()[0], clock=0.0) is None


def test_hearing_counts_as_acknowledged_only_once_the_leader_answered(members: Members) -> None:
    evidence = begin_leading(members)
    process = members["m1"]
    process.liveness.registering(A, ONE)
    assert process.reporter.heard_acknowledged.get(A) is None
    report = process.reporter.reports()[0]
    assert process.reporter.heard_acknowledged.get(A) is None
    process.pass_time(5.0)
    process.liveness.heard(A, ONE)
    answer = evidence.receive("m1", report, clock=0.0)
    assert answer is not None
    process.reporter.acknowledged(answer)
    assert process.reporter.heard_acknowledged.get(A) == 0.0, "the later hearing is not acknowledged yet"


def test_reports_are_due_once_a_second_and_at_once_for_a_new_leader() -> None:
    process = Process(boot_id=1, now=0.0)
    process.reporter.lead_by(1)
    assert process.reporter.period_is_over()
    process.reporter.reports()[0]
    assert not process.reporter.period_is_over()
    process.pass_time(1.0)
    assert process.reporter.period_is_over()
    process.reporter.reports()[0]
    process.reporter.lead_by(2)
    assert process.reporter.period_is_over()


def test_new_command_kinds_wait_for_every_member(members: Members) -> None:
    evidence = begin_leading(members)

    def tell(name: str, understands: int) -> int:
        report = msgspec.structs.replace(members[name].reporter.reports()[0], understands=understands)
        answer = evidence.receive(name, report, clock=0.0)
        assert answer is not None
        members[name].reporter.acknowledged(answer)
        return members[name].reporter.understood

    assert tell("m1", 3) == 1
    assert tell("m2", 3) == 1, "the third has yet to say"
    assert tell("m3", 2) == 2
    assert tell("m3", 3) == 3, "it was replaced by a newer release"
    evidence.members_are(["m1", "m2", "m3", "m4"])
    assert tell("m1", 3) == 1, "a newcomer has yet to say"
    members["m1"].reporter.lead_by(9)
    assert members["m1"].reporter.understood == 1, "another leader may know of an older member"
    assert members["m1"].reporter.leader_reads == 0


def test_nothing_is_remembered_for_ever(members: Members) -> None:
    evidence = begin_leading(members)
    process = members["m1"]
    process.liveness.registering(A, ONE)
    close(process)
    process.tell(evidence, "m1", clock=0.0)
    evidence.prune(lambda broker: False, clock=FORGET_S - 1)
    answer = evidence.receive("m2", members["m2"].reporter.reports()[0], clock=0.0)
    assert answer is not None
    assert [hearing.broker for hearing in answer.hearings] == [A]
    assert A in evidence.members["m1"].contacts
    evidence.prune(lambda broker: False, clock=FORGET_S + 1)
    assert A not in evidence.members["m1"].contacts
    answer = evidence.receive("m2", members["m2"].reporter.reports()[0], clock=0.0)
    assert answer is not None
    assert answer.hearings == ()
    process.pass_time(200.0)
    process.liveness.prune()
    process.reporter.prune(lambda broker: False)
    assert process.reporter.heard_acknowledged.get(A) is None


# -- unchanged registrations, which are answered at once or sent through the log ----------------------------

FRESH = ("registers", "succeeds")
"""Events of a connection over which a broker has registered successfully."""


@pytest.mark.parametrize(
    ("life", "origin", "acknowledged_at", "in_contact", "vouches"),
    [
        (FRESH, ONE, 60.0, True, True),
        (FRESH, ONE, 10.0, True, False),
        (FRESH, ONE, None, True, False),
        (FRESH, ONE, 60.0, False, False),
        (FRESH, TWO, 60.0, True, False),
        ((), ONE, 60.0, True, False),
        (("registers",), ONE, 60.0, True, False),
        (("registers", "succeeds", "says goodbye"), ONE, 60.0, True, False),
    ],
    ids=[
        "fresh",
        "acknowledged hearing older than 3/4 of the lease",
        "no hearing acknowledged",
        "no leader",
        "another connection",
        "unknown here",
        "no registration succeeded over it",
        "said goodbye",
    ],
)
def test_registration_without_change_is_answered_only_while_the_lease_is_known_to_be_fresh(
    life: tuple[str, ...],
    origin: ConnectionId,
    acknowledged_at: float | None,
    in_contact: bool,
    vouches: bool,
) -> None:
    process = Process(boot_id=1, now=0.0)
    process.pass_time(100.0)
    for event in life:
        match event:
            case "registers":
                process.liveness.registering(A, ONE)
            case "succeeds":
                process.liveness.registered(A, ONE, revision=1)
            case "says goodbye":
                process.liveness.withdrawn(A, ONE, revision=1)
    if acknowledged_at is not None:
        process.reporter.heard_acknowledged[A] = acknowledged_at
    assert process.reporter.may_vouch(A, origin, in_contact=in_contact, lease_s=120.0) is vouches


# -- events in any order ------------------------------------------------------------------------------------

LEASE_S = 10.0
BROKERS = (A, B)


class GroupMachine(RuleBasedStateMachine):
    """A model-based test of members, brokers and leaders, with events in any order.

    The model's raft log loses nothing, and its links have no delay. A member is in contact if it is not cut
    off from the leader. These rules must hold:

    - A broker that is connected to a member in contact is not evicted because of closed connections.
    - A broker is not evicted because of its lease if a member in contact received a message of the broker
      within the lease. This rule does not hold if the member has restarted since the message.
    - A dead broker is evicted within two leases and 2 s, even if leaders change or members restart.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.revision = 0
        self.term = 0
        self.next_origin = 1
        self.next_boot = 1
        self.led_term = 0
        self.records: dict[BrokerKey, Record] = {}
        self.members = {name: self.boot() for name in MEMBERS}
        self.connections: dict[tuple[str, BrokerKey], ConnectionId] = {}
        self.heard: dict[tuple[str, BrokerKey], float] = {}
        self.died: dict[BrokerKey, float] = {}
        self.cut: set[str] = set()
        self.missed: list[tuple[str, BrokerKey]] = []
        self.leader = "m1"
        self.failure_detector: FailureDetector
        self.elect("m1")

    def boot(self) -> Process:
        self.next_boot += 1
        return Process(boot_id=self.next_boot, now=self.now)

    def in_contact(self) -> set[str]:
        return set(MEMBERS) - self.cut

    def elect(self, name: str) -> None:
        self.term += 1
        self.leader = name
        self.cut.discard(name)
        self.catch_up(name)
        self.failure_detector = FailureDetector(
            term=self.term,
            members=MEMBERS,
            prior_term=self.led_term,
            clock=self.members[name].liveness.clock,
            judge_after_s=JUDGE_AFTER_S,
        )
        self.led_term = self.term
        for member in self.in_contact():
            self.members[member].reporter.lead_by(self.term)
        for member in sorted(self.in_contact()):
            self.report(member)

    def report(self, name: str) -> None:
        """Send a member's report to the leader, which then evicts all brokers that it finds dead."""
        if name in self.cut:
            return
        process = self.members[name]
        process.reporter.lead_by(self.term)
        clock = self.members[self.leader].liveness.clock
        while process.tell(self.failure_detector, name, clock=clock):
            pass
        self.judge()

    def judge(self) -> None:
        here = self.in_contact()
        self.failure_detector.out_of_contact(set(MEMBERS) - here)
        clock = self.members[self.leader].liveness.clock
        for judgement in self.failure_detector.judge(
            list(self.records.values()), in_contact=here, clock=clock
        ):
            broker = judgement.broker
            if judgement.reason is LeaveReason.LEASE_EXPIRED:
                heard = max((self.heard.get((member, broker), 0.0) for member in here), default=0.0)
                assert self.now - heard > LEASE_S - 0.5, "heard within its lease by one in contact"
            else:
                assert not [m for m in here if (m, broker) in self.connections], (
                    "connected with one in contact"
                )
            del self.records[broker]
            self.failure_detector.removed(broker)
            for name in MEMBERS:
                if name in self.cut:
                    self.missed.append((name, broker))
                else:
                    self.apply_removal(name, broker)

    def apply_removal(self, name: str, broker: BrokerKey) -> None:
        self.members[name].liveness.removed(broker)
        self.members[name].reporter.removed(broker)

    def catch_up(self, name: str) -> None:
        for missed in [mark for mark in self.missed if mark[0] == name]:
            self.missed.remove(missed)
            self.apply_removal(*missed)

    @rule(broker=st.sampled_from(BROKERS), name=st.sampled_from(MEMBERS))
    def register(self, broker: BrokerKey, name: str) -> None:
        if name in self.cut:
            return  # without contact the member cannot commit a registration
        origin = self.connections.get((name, broker))
        if origin is None:
            origin = self.connections[name, broker] = ConnectionId(self.next_origin)
            self.next_origin += 1
        liveness = self.members[name].liveness
        liveness.registering(broker, origin, lease_s=LEASE_S)
        self.heard[name, broker] = self.now
        self.died.pop(broker, None)
        self.report(name)
        self.revision += 1
        self.records[broker] = record(broker, revision=self.revision, lease_ms=int(LEASE_S * 1000))
        liveness.registered(broker, origin, revision=self.revision)
        self.report(name)

    @rule(broker=st.sampled_from(BROKERS), name=st.sampled_from(MEMBERS))
    def link_breaks(self, broker: BrokerKey, name: str) -> None:
        self.close(broker, name)

    def close(self, broker: BrokerKey, name: str) -> None:
        origin = self.connections.pop((name, broker), None)
        if origin is not None:
            held = self.records.get(broker)
            revision = None if held is None else held.revision
            self.members[name].liveness.closed(origin, by_us=False, revision_of=lambda _: revision)
            self.report(name)

    @rule(broker=st.sampled_from(BROKERS))
    def broker_dies(self, broker: BrokerKey) -> None:
        if broker in self.records:
            self.died.setdefault(broker, self.now)
            for name in MEMBERS:
                self.close(broker, name)

    @rule(name=st.sampled_from(MEMBERS))
    def member_restarts(self, name: str) -> None:
        self.members[name] = self.boot()
        for broker in BROKERS:
            self.heard.pop((name, broker), None)
        for mark in [mark for mark in self.connections if mark[0] == name]:
            del self.connections[mark]
        if name == self.leader:
            self.elect(next(m for m in MEMBERS if m != name))
        self.report(name)

    @rule(name=st.sampled_from(MEMBERS))
    def member_is_cut_off(self, name: str) -> None:
        if not self.cut and name != self.leader:
            self.cut.add(name)
            self.judge()

    @rule()
    def members_are_back(self) -> None:
        for name in sorted(self.cut):
            self.cut.discard(name)
            self.catch_up(name)
            self.report(name)

    @rule(name=st.sampled_from(MEMBERS))
    def leader_changes(self, name: str) -> None:
        if name not in self.cut:
            self.elect(name)

    @rule(seconds=st.sampled_from([0.25, 1.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.25)):
            self.now += 0.25
            for process in self.members.values():
                process.pass_time(0.25)
                process.liveness.prune()
            for name in MEMBERS:
                if name not in self.cut and self.members[name].reporter.period_is_over():
                    self.report(name)
            self.judge()
        for broker, died_at in self.died.items():
            if broker in self.records:
                # Two leases, because a new lease begins with the election of a leader if all members that
                # received messages of the broker have restarted.
                assert self.now - died_at <= 2 * LEASE_S + 2.0, "a ghost"

    @invariant()
    def consistent(self) -> None:
        for process in self.members.values():
            check(process.liveness)


GroupMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestGroup = pytest.mark.slow(GroupMachine.TestCase)


# -- reports in several parts -------------------------------------------------------------------------------


MANY = [BrokerKey(ClusterName("c" * 100), BrokerAddr(f"{number:0200d}:10911")) for number in range(40)]
PART_BYTES = 10_000


def test_a_long_report_travels_in_parts_and_counts_with_the_last(members: Members) -> None:
    process = members["m1"]
    before = begin_leading(members, term=2)
    for broker in MANY:
        process.liveness.registering(broker, ONE)
    for part in process.reporter.reports():
        answer = before.receive("m1", part, clock=0.0)
        assert answer is not None
        process.reporter.acknowledged(answer)
    evidence = begin_leading(members, term=3, prior_term=2)
    parts = process.reporter.reports(PART_BYTES)
    assert len(parts) > 5
    assert all(len(encode(part)) <= PART_BYTES for part in parts)
    assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
    assert {hearing.broker for part in parts for hearing in part.handed} == set(MANY)
    for part in parts:
        assert not counts(evidence, "m1"), "what is in the rest is not known yet"
        received = decode(encode(part))
        assert isinstance(received, Report)
        answer = evidence.receive("m1", received, clock=1.0)
        assert answer is not None
        assert not process.reporter.acknowledged(answer), "no gap"
    assert counts(evidence, "m1")
    assert evidence.members["m1"].contacts.keys() == set(MANY)
    assert process.reporter.reports()[0].contacts == (), "all is acknowledged"
    assert process.reporter.reports()[0].handed == ()
    assert all(process.reporter.heard_acknowledged.get(broker) is not None for broker in MANY)


def counts(evidence: FailureDetector, member: str) -> bool:
    return member in evidence.members and evidence.members[member].counts


def test_a_part_that_is_lost_is_sent_again(members: Members) -> None:
    process = members["m1"]
    evidence = begin_leading(members)
    for broker in MANY:
        process.liveness.registering(broker, ONE)
    first, _, third, *_ = process.reporter.reports(PART_BYTES)
    for part in (first, third):
        answer = evidence.receive("m1", part, clock=0.0)
        assert answer is not None
        process.reporter.acknowledged(answer)
    assert not counts(evidence, "m1")
    again = process.reporter.reports()
    assert again[0].base == first.version
    for part in again:
        evidence.receive("m1", part, clock=0.0)
    assert counts(evidence, "m1")
    assert evidence.members["m1"].contacts.keys() == set(MANY)


def test_many_hearings_come_with_several_acknowledgements(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_detector, "HEARINGS_BYTES", PART_BYTES)
    process = members["m1"]
    evidence = begin_leading(members)
    for broker in MANY:
        process.liveness.registering(broker, ONE)
    for _ in range(20):
        for part in process.reporter.reports():
            answer = evidence.receive("m1", part, clock=0.0)
            assert answer is not None
            assert len(encode(answer)) <= PART_BYTES
            process.reporter.acknowledged(answer)
    assert process.reporter.hearings.keys() == set(MANY)


def test_of_brokers_without_a_record_those_heard_last_are_remembered(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_detector, "UNLISTED_MAX", 3, raising=False)
    process = members["m1"]
    evidence = begin_leading(members)
    process.liveness.registering(A, ONE)  # the table lists this broker
    for broker in MANY[:8]:
        process.pass_time(1.0)
        process.liveness.registering(broker, TWO)
    process.pass_time(1.0)
    process.liveness.registering(MANY[0], TWO)  # this broker sends a message again
    process.tell(evidence, "m1", clock=10.0)
    evidence.prune(lambda broker: broker == A, clock=10.0)
    remembered = {A, *MANY[6:8], MANY[0]}
    assert evidence.members["m1"].contacts.keys() == remembered
    answer = evidence.receive("m2", members["m2"].reporter.reports()[0], clock=10.0)
    assert answer is not None
    assert {hearing.broker for hearing in answer.hearings} == remembered
