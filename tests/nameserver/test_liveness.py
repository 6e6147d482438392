"""Tests of class Liveness, which knows the connections and leases of a nameserver's brokers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from routekeeper.nameserver import liveness as liveness_module
from routekeeper.nameserver.liveness import Closing, Contact, Liveness, Ownership
from routekeeper.nameserver.types import BrokerAddr, BrokerKey, ClusterName, ConnectionId
from routekeeper.remoting.route import DataVersion
from tests.nameserver.contacts import check

A = BrokerKey(ClusterName("c"), BrokerAddr("10.0.0.1:10911"))
B = BrokerKey(ClusterName("c"), BrokerAddr("10.0.0.2:10911"))
ONE, TWO, THREE = ConnectionId(1), ConnectionId(2), ConnectionId(3)
OLD, LISTED = DataVersion(timestamp=10, counter=1), DataVersion(timestamp=20, counter=2)


def at_revision(revision: int | None):  # type: ignore[no-untyped-def]
    return lambda broker: revision


def contact_of(liveness: Liveness) -> Contact:
    """Return the contact of broker A; fail if Liveness has none."""
    contact = liveness.contact(A)
    assert contact is not None
    return contact


def run(liveness: Liveness, seconds: float, *, start: float = 1000.0) -> float:
    """Advance the clock by `seconds` in steps of 0.25 s; return the time of the last step."""
    now = start
    liveness.advance(now)
    while now < start + seconds:
        now += 0.25
        liveness.advance(now)
    return now


def test_clock_counts_what_the_timer_counts() -> None:
    liveness = Liveness()
    run(liveness, 10.0)
    assert liveness.clock == pytest.approx(10.0)


def test_pause_of_an_hour_counts_one_second() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE, lease_s=3.0)
    now = run(liveness, 1.0)
    liveness.advance(now + 3600.0)
    assert liveness.clock == pytest.approx(2.0)
    assert liveness.silent() == ()


def test_clock_never_runs_backwards() -> None:
    liveness = Liveness()
    now = run(liveness, 1.0)
    liveness.advance(now - 0.5)
    assert liveness.clock == pytest.approx(1.0)
    liveness.advance(now + 0.25)
    assert liveness.clock == pytest.approx(1.25), "no time counts twice"


def test_broker_is_silent_once_its_own_lease_has_passed() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE, lease_s=10.0)
    liveness.registering(B, TWO, lease_s=20.0)
    now = run(liveness, 10.0)
    assert liveness.silent() == (), "the lease is as long as it says, not shorter"
    now = run(liveness, 0.25, start=now)
    assert liveness.silent() == (A,)
    run(liveness, 15.0, start=now)
    assert liveness.silent() == (A, B)


def test_hearing_renews_the_lease() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE, lease_s=10.0)
    now = run(liveness, 9.0)
    liveness.heard(A, ONE)
    run(liveness, 9.0, start=now)
    assert liveness.silent() == ()


def test_heartbeat_may_change_the_lease() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE, lease_s=120.0)
    liveness.heard(A, ONE, lease_s=1.0)
    run(liveness, 2.0)
    assert liveness.silent() == (A,)


def test_close_by_the_peer_is_evidence_for_every_broker_of_the_connection() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    liveness.registering(B, ONE)
    assert liveness.closed(ONE, by_us=False, revision_of=at_revision(7)) == (A, B)
    contact = contact_of(liveness)
    assert contact.closing == Closing(at=0.0, origin=ONE, revision=7)
    assert not contact.connected


def test_own_close_is_no_evidence() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    assert liveness.closed(ONE, by_us=True, revision_of=at_revision(7)) == ()
    contact = contact_of(liveness)
    assert contact.closing is None
    assert not contact.connected


def test_close_of_an_older_connection_changes_nothing() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    liveness.registering(A, TWO)
    assert liveness.ownership(A, TWO) is Ownership.OWNER
    assert liveness.closed(ONE, by_us=False, revision_of=at_revision(7)) == ()
    assert contact_of(liveness).connected


def test_older_connection_never_takes_over() -> None:
    liveness = Liveness()
    liveness.registering(A, TWO)
    liveness.registering(A, ONE)
    assert liveness.ownership(A, ONE) is Ownership.OLDER
    assert liveness.closed(ONE, by_us=False, revision_of=at_revision(7)) == ()
    assert liveness.closed(TWO, by_us=False, revision_of=at_revision(7)) == (A,)


def test_late_copy_over_an_older_connection_does_not_undo_the_evidence() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    liveness.registering(A, TWO)
    liveness.closed(TWO, by_us=False, revision_of=at_revision(7))
    liveness.registering(A, ONE)
    liveness.heard(A, ONE)
    contact = contact_of(liveness)
    assert contact.closing is not None
    assert not contact.connected


@pytest.mark.parametrize("ends_first", [False, True], ids=["decided at once", "decided after its end"])
def test_record_that_a_former_process_left_goes_with_its_older_connection(*, ends_first: bool) -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    liveness.registering(A, TWO)
    liveness.closed(TWO, by_us=False, revision_of=at_revision(7))
    liveness.registering(A, ONE)  # a late message of the broker's former process
    if ends_first:
        assert liveness.closed(ONE, by_us=False, revision_of=at_revision(None)) == ()
        liveness.registered(A, ONE, revision=9)
    else:
        liveness.registered(A, ONE, revision=9)
        assert liveness.closed(ONE, by_us=False, revision_of=at_revision(9)) == (A,)
    contact = contact_of(liveness)
    assert contact.closing is not None
    assert contact.closing.revision == 9


@pytest.mark.parametrize("by_us", [False, True], ids=["by the peer", "by us"])
def test_older_connection_is_no_evidence_for_a_record_it_did_not_make(*, by_us: bool) -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    liveness.registered(A, ONE, revision=9 if by_us else 6)
    liveness.registering(A, TWO)
    liveness.closed(TWO, by_us=False, revision_of=at_revision(7))
    assert liveness.closed(ONE, by_us=by_us, revision_of=at_revision(7)) == ()
    contact = contact_of(liveness)
    assert contact.closing is not None
    assert contact.closing.revision == 7


def test_reconnected_broker_is_no_longer_closing() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    liveness.closed(ONE, by_us=False, revision_of=at_revision(7))
    liveness.registering(A, TWO)
    contact = contact_of(liveness)
    assert (contact.closing, contact.connected, contact.confirmed) == (None, True, False)


def test_question_over_a_younger_connection_shows_that_the_broker_lives() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    liveness.closed(ONE, by_us=False, revision_of=at_revision(7))
    liveness.heard(A, TWO)
    contact = contact_of(liveness)
    assert (contact.closing, contact.connected) == (None, False)


def test_registration_that_arrives_after_its_connection_closed_moves_the_evidence() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    liveness.closed(ONE, by_us=False, revision_of=at_revision(None))
    liveness.registered(A, ONE, revision=9)
    contact = contact_of(liveness)
    assert contact.closing == Closing(at=0.0, origin=ONE, revision=9)
    assert not contact.confirmed


def test_registration_over_another_connection_leaves_the_evidence() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    liveness.closed(ONE, by_us=False, revision_of=at_revision(7))
    liveness.registered(A, TWO, revision=9)
    contact = contact_of(liveness)
    assert contact.closing is not None
    assert contact.closing.revision == 7


def test_only_success_over_the_owner_confirms_it() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    liveness.registering(A, TWO)
    liveness.registered(A, ONE, revision=3)
    assert not contact_of(liveness).confirmed
    liveness.registered(A, TWO, revision=3)
    liveness.registering(A, TWO)
    assert contact_of(liveness).confirmed


@pytest.mark.parametrize(
    ("origin", "ownership"),
    [(TWO, Ownership.OWNER), (ONE, Ownership.OLDER), (THREE, Ownership.STRANGER)],
    ids=["own connection", "older connection", "admin tool"],
)
def test_unregistration_is_evidence_only_over_the_owner(origin: ConnectionId, ownership: Ownership) -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    liveness.registering(A, TWO)
    assert liveness.ownership(A, origin) is ownership
    liveness.withdrawn(A, origin, revision=5)
    assert (contact_of(liveness).closing is not None) is (ownership is Ownership.OWNER)


def test_broker_returns_over_the_connection_it_said_goodbye_on() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    liveness.withdrawn(A, ONE, revision=5)
    liveness.registering(A, ONE)
    assert liveness.ownership(A, ONE) is Ownership.OWNER
    contact = contact_of(liveness)
    assert (contact.connected, contact.closing) == (True, None)


def test_close_after_goodbye_says_nothing_new() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    liveness.withdrawn(A, ONE, revision=5)
    assert liveness.closed(ONE, by_us=False, revision_of=at_revision(9)) == ()
    contact = contact_of(liveness)
    assert contact.closing is not None
    assert contact.closing.revision == 5


def test_eviction_closes_only_connections_of_that_or_an_older_revision() -> None:
    liveness = Liveness()
    for origin, revision in ((ONE, 3), (TWO, 4), (THREE, 6)):
        liveness.registering(A, origin)
        liveness.registered(A, origin, revision=revision)
    assert liveness.connections_of(A, up_to_revision=4) == (ONE, TWO)


def test_connection_without_a_successful_registration_is_not_closed_by_an_eviction() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    assert liveness.connections_of(A, up_to_revision=99) == ()


def test_changes_since_a_report_are_the_changed_brokers_only() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    liveness.registering(B, TWO)
    reported = liveness.version
    assert liveness.changes_since(reported) == ()
    liveness.heard(A, ONE)
    assert [broker for broker, _ in liveness.changes_since(reported)] == [A]
    assert [broker for broker, _ in liveness.changes_since(0)] == [A, B]


def test_closed_contact_is_kept_for_one_lease() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE, lease_s=5.0)
    liveness.closed(ONE, by_us=False, revision_of=at_revision(1))
    now = run(liveness, 5.0)
    liveness.prune()
    assert liveness.contact(A) is not None
    run(liveness, 0.25, start=now)
    liveness.prune()
    assert liveness.contact(A) is None


def test_connected_broker_is_never_pruned() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE, lease_s=5.0)
    run(liveness, 60.0)
    liveness.prune()
    assert liveness.contact(A) is not None


def test_forgotten_broker_starts_anew_over_any_open_connection() -> None:
    liveness = Liveness()
    liveness.registering(A, TWO)
    liveness.forget(A)
    assert not liveness.carries_broker(TWO)
    liveness.registering(A, ONE)
    assert liveness.ownership(A, ONE) is Ownership.OWNER


def known(liveness: Liveness) -> list[BrokerKey]:
    """Return the brokers that Liveness knows.

    They are in the order of their latest change, oldest first.
    """
    return [broker for broker, _ in reversed(liveness.changes_since(0))]


def test_what_is_remembered_of_brokers_that_went_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness_module, "CLOSED_MAX", 3)
    liveness = Liveness()
    keys = [BrokerKey(ClusterName("c"), BrokerAddr(f"10.0.1.{number}:10911")) for number in range(5)]
    liveness.registering(A, ONE)
    for key in keys:
        liveness.registering(key, TWO)
    liveness.closed(TWO, by_us=False, revision_of=at_revision(7))
    check(liveness)
    assert known(liveness) == [A, *keys[2:]]
    liveness.heard(B, THREE)  # a broker without a connection counts towards the limit, too
    check(liveness)
    assert known(liveness) == [A, *keys[3:], B]
    liveness.forget(B)
    run(liveness, 130.0)
    liveness.prune()
    check(liveness)
    assert known(liveness) == [A]


class LivenessMachine(RuleBasedStateMachine):
    """A model-based test of Liveness, with events in any order.

    The invariants must hold, and each broker must have the same connection as in a simple model.
    """

    def __init__(self) -> None:
        super().__init__()
        self.liveness = Liveness()
        self.now = 0.0
        self.next_origin = 1
        self.open: list[ConnectionId] = []
        self.youngest: dict[BrokerKey, ConnectionId] = {}

    @rule()
    def accept(self) -> None:
        self.open.append(ConnectionId(self.next_origin))
        self.next_origin += 1

    @rule(broker=st.sampled_from([A, B]), pick=st.integers(0, 5))
    def register(self, broker: BrokerKey, pick: int) -> None:
        if self.open:
            origin = self.open[pick % len(self.open)]
            self.liveness.registering(broker, origin, lease_s=3.0)
            self.liveness.registered(broker, origin, revision=self.next_origin)
            self.youngest[broker] = max(origin, self.youngest.get(broker, origin))

    @rule(broker=st.sampled_from([A, B]), pick=st.integers(0, 5))
    def heartbeat(self, broker: BrokerKey, pick: int) -> None:
        if self.open:
            self.liveness.heard(broker, self.open[pick % len(self.open)])

    @rule(broker=st.sampled_from([A, B]), pick=st.integers(0, 5))
    def withdraw(self, broker: BrokerKey, pick: int) -> None:
        if self.open:
            self.liveness.withdrawn(broker, self.open[pick % len(self.open)], revision=1)

    @rule(pick=st.integers(0, 5), by_us=st.booleans())
    def close(self, pick: int, by_us: bool) -> None:
        if self.open:
            origin = self.open.pop(pick % len(self.open))
            before = dict(self.liveness.changes_since(0))
            gone = self.liveness.closed(origin, by_us=by_us, revision_of=at_revision(1))
            for broker in gone:
                assert self.youngest[broker] == origin or before[broker].closing is not None
            assert not (by_us and gone)

    @rule(seconds=st.sampled_from([0.25, 1.0, 100.0]))
    def wait(self, seconds: float) -> None:
        before = self.liveness.clock
        self.now += seconds
        self.liveness.advance(self.now)
        assert self.liveness.clock - before <= 1.0

    @rule()
    def prune(self) -> None:
        self.liveness.prune()
        for broker in [b for b in self.youngest if self.liveness.contact(b) is None]:
            del self.youngest[broker]

    @invariant()
    def consistent(self) -> None:
        check(self.liveness)
        for broker, contact in self.liveness.changes_since(0):
            if contact.owner is not None:
                assert contact.owner == self.youngest[broker]


LivenessMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLivenessMachine = pytest.mark.slow(LivenessMachine.TestCase)


# Late copies: delayed registrations whose data version is older than that of the broker's record.


@pytest.mark.parametrize(
    ("version", "late"),
    [
        (LISTED, False),
        (OLD, True),
        (DataVersion(timestamp=20, counter=1), True),
        (DataVersion(timestamp=10, counter=2), True),
        (DataVersion(timestamp=30, counter=3), False),
        (DataVersion(timestamp=30, counter=1), False),
        (DataVersion(timestamp=10, counter=3), False),
        (DataVersion(state_version=1, timestamp=10, counter=1), False),
        (DataVersion(), True),
    ],
    ids=str,
)
def test_a_registration_is_a_late_copy_if_its_version_is_contained_in_the_listed_one(
    version: DataVersion, late: bool
) -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    assert liveness.is_late(A, ONE, version=version, listed=LISTED) is late


# Each case has a list of registrations, and True if the last registration is a late copy. A registration is a
# tuple: seconds since the previous registration, connection, version.
@pytest.mark.parametrize(
    ("steps", "late"),
    [
        ([(0, ONE, OLD), (30, ONE, OLD)], False),
        ([(0, ONE, OLD), (5, ONE, OLD)], False),
        ([(0, ONE, OLD), (4.75, ONE, OLD)], True),
        ([(0, ONE, OLD), (2, ONE, OLD), (2, ONE, OLD), (2, ONE, OLD)], False),
        ([(0, ONE, OLD), (30, TWO, OLD)], False),  # each arrives over the broker's newest connection
        ([(0, ONE, OLD), (10, TWO, LISTED), (30, ONE, OLD)], True),
        ([(0, ONE, OLD), (10, ONE, LISTED), (30, ONE, OLD)], True),
        ([(0, ONE, OLD), (10, ONE, LISTED), (30, ONE, OLD), (30, ONE, OLD)], False),
        ([(0, TWO, OLD), (30, ONE, OLD)], True),
        ([(0, TWO, OLD), (30, ONE, OLD), (1, TWO, OLD)], False),
        ([(0, TWO, LISTED), (0, ONE, OLD), (30, TWO, OLD)], True),
        # A registration of a third version arrives between two registrations of the version OLD.
        ([(0, ONE, OLD), (10, ONE, DataVersion(counter=1)), (10, ONE, OLD)], True),
        ([(0, ONE, OLD), (10, ONE, DataVersion(counter=9)), (10, ONE, OLD)], True),
    ],
)
def test_a_broker_that_repeats_an_older_version_has_gone_back(
    steps: list[tuple[float, ConnectionId, DataVersion]], late: bool
) -> None:
    liveness, now = Liveness(), 1000.0
    for wait, origin, version in steps:
        now = run(liveness, wait, start=now)
        liveness.registering(A, origin)
        result = liveness.is_late(A, origin, version=version, listed=LISTED)
    assert result is late


def test_an_older_version_counts_against_the_listed_one_of_its_time() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    assert liveness.is_late(A, ONE, version=OLD, listed=LISTED)
    now = run(liveness, 30.0)
    newer = DataVersion(timestamp=30, counter=3)
    assert liveness.is_late(A, ONE, version=OLD, listed=newer), "another change came over another member"
    run(liveness, 30.0, start=now)
    assert not liveness.is_late(A, ONE, version=OLD, listed=newer)


def test_a_process_that_stood_still_takes_late_copies_for_what_they_are() -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    now = run(liveness, 1.0)
    assert liveness.is_late(A, ONE, version=OLD, listed=LISTED)
    liveness.advance(now + 3600.0)
    assert liveness.is_late(A, ONE, version=OLD, listed=LISTED)


@pytest.mark.parametrize("ends", [Liveness.forget, Liveness.removed], ids=["independent", "raft"])
def test_an_older_version_is_forgotten_with_the_record(ends: Callable[[Liveness, BrokerKey], None]) -> None:
    liveness = Liveness()
    liveness.registering(A, ONE)
    assert liveness.is_late(A, ONE, version=OLD, listed=LISTED)
    now = run(liveness, 30.0)
    ends(liveness, A)
    liveness.registering(A, ONE)
    assert liveness.is_late(A, ONE, version=OLD, listed=LISTED)
    run(liveness, 30.0, start=now)
    liveness.table_replaced()
    assert liveness.is_late(A, ONE, version=OLD, listed=LISTED)
