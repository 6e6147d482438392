"""Contact is dated by echoed clocks, counts with its commit index, and only from voters of the own term."""

from __future__ import annotations

import math

from nameserver.raft.contact import Contact


def test_a_leaders_contact_is_that_of_its_majority() -> None:
    contact = Contact(5)
    assert contact.majority_date(100.0) == -math.inf
    contact.accepted_by("b", clock=1.0, echo=90.0, voter=True)
    assert contact.majority_date(100.0) == -math.inf
    contact.accepted_by("c", clock=1.0, echo=80.0, voter=True)
    assert contact.majority_date(100.0) == 80.0
    contact.accepted_by("d", clock=1.0, echo=95.0, voter=True)
    assert contact.majority_date(100.0) == 90.0
    assert contact.member_date("d") == 95.0


def test_the_only_member_is_always_in_contact_with_itself() -> None:
    assert Contact(1).majority_date(5.0) == 5.0


def test_a_learner_does_not_count_but_its_clock_is_echoed() -> None:
    contact = Contact(3)
    contact.accepted_by("b", clock=7.0, echo=90.0, voter=False)
    assert contact.majority_date(100.0) == -math.inf
    assert contact.echo_for("b") == 7.0


def test_an_older_echo_does_not_move_the_date_back() -> None:
    contact = Contact(3)
    contact.accepted_by("b", clock=2.0, echo=90.0, voter=True)
    contact.accepted_by("b", clock=1.0, echo=50.0, voter=True)
    assert contact.member_date("b") == 90.0
    assert contact.echo_for("b") == 2.0


def test_echoes_of_a_former_term_do_not_count_and_are_not_returned() -> None:
    contact = Contact(3)
    contact.accepted_by("b", clock=2.0, echo=90.0, voter=True)
    contact.led(91.0)
    contact.new_term()
    assert contact.majority_date(100.0) == -math.inf
    assert contact.echo_for("b") is None
    assert contact.date == 90.0  # what was true then stays true


def test_a_followers_date_is_its_echo_minus_the_age_its_leader_states() -> None:
    contact = Contact(3)
    contact.stated_by_leader("a", clock=5.0, echo=70.0, age=2.5, commit=10)
    contact.applied(9)
    assert contact.date == -math.inf  # not applied here yet
    contact.applied(10)
    assert contact.date == 67.5
    assert contact.echo_for("a") == 5.0


def test_a_statement_without_age_or_echo_says_nothing() -> None:
    contact = Contact(3)
    contact.stated_by_leader("a", clock=5.0, echo=None, age=1.0, commit=1)
    contact.stated_by_leader("a", clock=6.0, echo=70.0, age=None, commit=1)
    contact.applied(10)
    assert contact.date == -math.inf
    assert contact.echo_for("a") == 6.0


def test_each_statement_waits_for_its_own_commit_index() -> None:
    contact = Contact(3)
    for commit, echo in ((10, 50.0), (20, 60.0), (30, 70.0)):
        contact.stated_by_leader("a", clock=5.0, echo=echo, age=0.0, commit=commit)
    contact.applied(25)
    assert contact.date == 60.0
    contact.applied(30)
    assert contact.date == 70.0


def test_statements_that_wait_are_bounded_and_the_newest_survives() -> None:
    contact = Contact(3)
    for i in range(1000):
        contact.stated_by_leader("a", clock=float(i), echo=float(i), age=0.0, commit=i)
    contact.applied(999)
    assert contact.date == 999.0


def test_a_new_link_forgets_the_clock_of_the_former_process() -> None:
    contact = Contact(3)
    contact.accepted_by("b", clock=2.0, echo=90.0, voter=True)
    contact.forget("b")
    assert contact.echo_for("b") is None
    assert contact.majority_date(100.0) == -math.inf
