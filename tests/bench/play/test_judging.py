"""The playground judges each answer by facts about brokers and links.

The verdicts are right, stale, wrong, refused, none and uncounted.
"""

from __future__ import annotations

import pytest

from routekeeper.bench.events import Outcome
from routekeeper.bench.play.judging import Truth
from routekeeper.bench.play.model import Verdict

BROKERS = ("broker-0", "broker-1", "broker-2")


def three_brokers() -> Truth:
    """Return facts about one topic: three brokers have it from 1 ns on, and a server lists them from 2 ns."""
    truth = Truth()
    for broker in BROKERS:
        truth.made("Orders", broker, begun_ns=0, acked_ns=1)
    truth.lists("nameserver-0", "Orders", BROKERS, 2)
    return truth


def verdict(
    truth: Truth,
    brokers: tuple[str, ...] | None,
    *,
    sent: int,
    done: int,
    outcome: Outcome = "ok",
    server: str = "nameserver-0",
    client: str = "client-0",
) -> Verdict:
    return truth.judge(client, server, "Orders", outcome, brokers, sent_ns=sent, done_ns=done)[0]


def test_all_brokers_are_right_and_one_left_out_is_wrong() -> None:
    assert verdict(three_brokers(), BROKERS, sent=10, done=11) == "right"
    assert verdict(three_brokers(), BROKERS[:2], sent=10, done=11) == "wrong"
    assert verdict(three_brokers(), None, sent=10, done=11, outcome="absent") == "wrong"


@pytest.mark.parametrize(
    ("brokers", "sent", "expected"),
    [
        (BROKERS, 21, "wrong"),
        (BROKERS[:2], 21, "right"),
        (BROKERS, 15, "uncounted"),
        (BROKERS[:2], 15, "uncounted"),
        (BROKERS[:1], 15, "wrong"),
        (BROKERS, 5, "right"),
    ],
    ids=[
        "lists a dead one",
        "leaves out a dead one",
        "lists one that may have died meanwhile",
        "leaves out one that may have died meanwhile",
        "leaves out another one, too",
        "before it died",
    ],
)
def test_a_broker_that_dies_between_two_looks_counts_only_when_both_agree(
    brokers: tuple[str, ...], sent: int, expected: Verdict
) -> None:
    truth = three_brokers()
    truth.broker("broker-2", gone=False, before_ns=0, now_ns=10)
    assert truth.broker("broker-2", gone=True, before_ns=10, now_ns=20)
    assert verdict(truth, brokers, sent=sent, done=sent + 1) == expected


def test_a_broker_that_is_back_is_news_until_the_server_has_listed_it_again() -> None:
    truth = three_brokers()
    truth.broker("broker-2", gone=True, before_ns=10, now_ns=20)
    truth.broker_starts("broker-2", 30)
    assert verdict(truth, BROKERS[:2], sent=25, done=26) == "right"
    assert verdict(truth, BROKERS, sent=31, done=32) == "uncounted"
    truth.broker("broker-2", gone=False, before_ns=35, now_ns=40)
    assert verdict(truth, BROKERS[:2], sent=41, done=42) == "stale"
    assert verdict(truth, BROKERS, sent=43, done=44) == "right"
    assert verdict(truth, BROKERS[:2], sent=45, done=46) == "wrong"
    assert verdict(truth, BROKERS[:2], sent=45, done=46, server="nameserver-1") == "stale"


def test_an_answer_knows_what_this_client_can_reach() -> None:
    truth = three_brokers()
    truth.direction(("client-0", "broker-2"), cut=True, before_ns=10, now_ns=20)
    assert verdict(truth, BROKERS[:2], sent=21, done=22) == "right"
    assert verdict(truth, BROKERS, sent=21, done=22) == "wrong"
    assert verdict(truth, BROKERS[:2], sent=21, done=22, client="client-1") == "wrong"
    assert verdict(truth, BROKERS, sent=21, done=22, client="client-1") == "right"
    truth.direction(("client-0", "broker-2"), cut=False, before_ns=30, now_ns=40)
    assert verdict(truth, BROKERS, sent=29, done=35) == "uncounted"
    assert verdict(truth, BROKERS, sent=41, done=42) == "right"


def test_one_direction_is_enough_to_be_out_of_reach() -> None:
    truth = three_brokers()
    truth.direction(("broker-2", "client-0"), cut=True, before_ns=10, now_ns=20)
    assert verdict(truth, BROKERS[:2], sent=21, done=22) == "right"


def test_a_topic_is_stale_where_it_has_not_arrived_since_it_was_made() -> None:
    truth = Truth()
    truth.made("Orders", "broker-0", begun_ns=10, acked_ns=20)
    assert verdict(truth, None, sent=5, done=6, outcome="absent") == "right", "nobody had made it"
    assert verdict(truth, None, sent=15, done=16, outcome="absent") == "uncounted"
    assert verdict(truth, None, sent=21, done=22, outcome="absent") == "stale"
    assert verdict(truth, ("broker-0",), sent=23, done=24) == "right"
    assert verdict(truth, None, sent=25, done=26, outcome="absent") == "wrong"


@pytest.mark.parametrize(
    ("outcome", "expected"), [("refused", "refused"), ("error", "none"), ("unknown", "none")]
)
def test_what_is_no_route_is_refused_or_no_answer(outcome: Outcome, expected: Verdict) -> None:
    assert verdict(three_brokers(), None, sent=10, done=11, outcome=outcome) == expected


def test_a_kept_route_is_stale_as_soon_as_a_right_answer_would_differ() -> None:
    truth = three_brokers()
    assert truth.judge_cached("client-0", "Orders", BROKERS, 10) == "right"
    truth.broker("broker-1", gone=True, before_ns=10, now_ns=20)
    assert truth.judge_cached("client-0", "Orders", BROKERS, 21) == "stale"
    assert truth.judge_cached("client-0", "Orders", ("broker-0", "broker-2"), 21) == "right"


def test_why_an_answer_is_not_right_is_said_in_words() -> None:
    truth = three_brokers()
    truth.broker("broker-1", gone=True, before_ns=10, now_ns=20)
    said = truth.judge("client-0", "nameserver-0", "Orders", "ok", BROKERS, sent_ns=21, done_ns=22)
    assert said == ("wrong", "lists broker-1, which does not run")
