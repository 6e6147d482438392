"""Tests of a test environment's requests to production nameservers: limits, stored answers and addresses."""

from __future__ import annotations

import pytest

from routekeeper.nameserver.production.kept import (
    ASKING_MAX,
    BYTES_MAX,
    ENTRIES_MAX,
    KEPT_S,
    QUESTIONS_PER_HOST_S,
    QUESTIONS_PER_S,
    KeptAnswers,
    QuestionLimit,
)
from routekeeper.remoting.address_server import addresses_in, url_of, wrong_address
from routekeeper.remoting.route import TopicRouteData

ROUTE = TopicRouteData()


def test_an_answer_and_an_absence_are_kept_for_as_long_as_a_client_waits_to_ask_again() -> None:
    kept = KeptAnswers()
    kept.keep("there", ROUTE, 100.0, size=50)
    kept.keep("nowhere", None, 100.0)
    just_before = 100.0 + KEPT_S - 0.001
    there, nowhere = kept.find("there", just_before), kept.find("nowhere", just_before)
    assert there is not None
    assert there.route is ROUTE
    assert nowhere is not None
    assert nowhere.route is None
    assert kept.find("there", 100.0 + KEPT_S) is None
    assert kept.find("unasked", 100.0) is None


def test_names_without_end_are_kept_up_to_a_number_and_the_oldest_goes() -> None:
    kept = KeptAnswers()
    for number in range(ENTRIES_MAX + 100):
        kept.keep(f"t{number}", None, 0.0)
    assert len(kept) == ENTRIES_MAX
    assert kept.find("t99", 0.0) is None
    assert kept.find("t100", 0.0) is not None


def test_large_answers_are_kept_up_to_a_number_of_bytes_and_counted_down_again() -> None:
    kept = KeptAnswers()
    for number in range(20):
        kept.keep(f"t{number}", ROUTE, 0.0, size=4 * 1024 * 1024)
    assert 0 < kept.held_bytes <= BYTES_MAX
    assert kept.find("t19", 0.0) is not None
    for _ in range(3):  # each answer replaces the one before, so the bytes count once
        kept.keep("t19", ROUTE, 0.0, size=4 * 1024 * 1024)
    assert kept.held_bytes <= BYTES_MAX
    kept.keep("later", None, KEPT_S)
    assert len(kept) == 1
    kept.clear()
    assert kept.held_bytes == 0


def test_one_host_has_a_number_of_questions_asked_in_a_second_and_leaves_others_theirs() -> None:
    limit = QuestionLimit()
    asked = [limit.allow("192.0.2.1", 10.0, asking=0) for _ in range(QUESTIONS_PER_HOST_S + 10)]
    assert asked.count(True) == QUESTIONS_PER_HOST_S
    assert limit.allow("192.0.2.2", 10.5, asking=0)
    assert limit.allow("192.0.2.1", 11.0, asking=0), "a new second"


def test_all_hosts_have_a_number_of_questions_asked_in_a_second() -> None:
    limit = QuestionLimit()
    asked = [limit.allow(f"192.0.2.{number % 250}", 10.0, asking=0) for number in range(2 * QUESTIONS_PER_S)]
    assert asked.count(True) == QUESTIONS_PER_S
    assert not limit.allow("", 10.9, asking=0), "loopback is a host like others here"


def test_no_more_is_asked_while_enough_questions_are_under_way() -> None:
    limit = QuestionLimit()
    assert limit.allow("", 0.0, asking=ASKING_MAX - 1)
    assert not limit.allow("", 0.0, asking=ASKING_MAX)


@pytest.mark.parametrize(
    ("domain", "subgroup", "environment", "url"),
    [
        (
            "jmenv.tbsite.net",
            "nsaddr",
            "center",
            "http://jmenv.tbsite.net:8080/rocketmq/nsaddr-center?nofix=1",
        ),
        ("h:80", "nsaddr", "prod", "http://h:80/rocketmq/nsaddr-prod?nofix=1"),
        ("h", "group/a", "prod", "http://h:8080/rocketmq/group/a-prod?nofix=1"),
        ("h", "nsaddr", " ", "http://h:8080/rocketmq/nsaddr"),
        ("[::1]:99", "nsaddr", "a b/?", "http://[::1]:99/rocketmq/nsaddr-a%20b%2F%3F?nofix=1"),
        ("[::1]", "nsaddr", "p", "http://[::1]:8080/rocketmq/nsaddr-p?nofix=1"),
    ],
)
def test_the_url_is_rocketmqs(domain: str, subgroup: str, environment: str, url: str) -> None:
    assert url_of(domain=domain, subgroup=subgroup, environment=environment) == url


@pytest.mark.parametrize(
    ("domain", "subgroup"),
    [("", "nsaddr"), ("a/b", "nsaddr"), ("u@h", "nsaddr"), ("h:x", "nsaddr"), ("h", "a?b"), ("h", "")],
)
def test_what_is_no_part_of_a_url_is_refused_and_named(domain: str, subgroup: str) -> None:
    with pytest.raises(ValueError, match=r"rocketmq\.namesrv\.domain"):
        url_of(domain=domain, subgroup=subgroup, environment="p")


@pytest.mark.parametrize(
    ("text", "addrs"),
    [
        ("a:1;b:2\n", ("a:1", "b:2")),
        (" a:1 ; a:1;\r\nb:2", ("a:1",)),
        ("<html>;c:3", ("c:3",)),
        ("", ()),
        ("\n\n", ()),
        (";".join(f"h:{port}" for port in range(1, 200)), tuple(f"h:{port}" for port in range(1, 65))),
    ],
)
def test_the_first_line_of_an_answer_names_addresses(text: str, addrs: tuple[str, ...]) -> None:
    assert addresses_in(text) == addrs


def test_an_address_of_the_setting_that_is_none_is_named() -> None:
    assert wrong_address("a:1; b:2;") == ""
    assert "'b'" in wrong_address("a:1;b")
