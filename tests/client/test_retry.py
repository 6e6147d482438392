"""Choice of a nameserver, choice of a queue, and outcomes of failed sends."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.client.retry import (
    NameserverChoice,
    Outcome,
    QueueTurn,
    classify_answer,
    classify_failure,
    merge_outcomes,
    tries_next_nameserver,
)
from routekeeper.client.route_cache import MessageQueue, PublishInfo
from routekeeper.remoting.errors import (
    ConnectionLost,
    LocalProtocolError,
    RemotingError,
    RequestTimeout,
    TooManyRequests,
)

ADDRS = ("a:1", "b:1", "c:1")


def choice(*addrs: str, seed: int = 0) -> NameserverChoice:
    return NameserverChoice(addrs, avoid_s=10.0, rng=random.Random(seed))


@pytest.mark.parametrize(
    ("code", "remark", "outcome", "retry"),
    [
        pytest.param(0, None, Outcome.APPLIED, False, id="stored"),
        pytest.param(10, None, Outcome.APPLIED, False, id="stored, flush timed out"),
        pytest.param(11, None, Outcome.APPLIED, False, id="stored, no slave"),
        pytest.param(12, None, Outcome.APPLIED, False, id="stored, slave timed out"),
        pytest.param(
            1, "java.lang.NullPointerException", Outcome.UNKNOWN, True, id="failed somewhere inside"
        ),
        pytest.param(1, "[NO_QUORUM] 1 of 3", Outcome.NOT_APPLIED, True, id="no quorum"),
        pytest.param(1, "request queueId[9] is illegal", Outcome.NOT_APPLIED, True, id="queue refused"),
        pytest.param(
            1,
            "org.apache.rocketmq.acl.common.AclException: No acl config for nobody, validate(...)",
            Outcome.NOT_APPLIED,
            True,
            id="refused by 4.9's ACL",
        ),
        pytest.param(
            1,
            "invoke consumer <c> Exception: org.apache.rocketmq.acl.common.AclException: x",
            Outcome.UNKNOWN,
            True,
            id="refused by another's ACL",
        ),
        pytest.param(2, "[TIMEOUT_CLEAN_QUEUE]", Outcome.NOT_APPLIED, True, id="busy"),
        pytest.param(13, "too large", Outcome.NOT_APPLIED, False, id="illegal message"),
        pytest.param(14, None, Outcome.NOT_APPLIED, True, id="not available"),
        pytest.param(16, None, Outcome.NOT_APPLIED, True, id="no permission"),
        pytest.param(17, None, Outcome.NOT_APPLIED, True, id="topic unknown there"),
        pytest.param(204, None, Outcome.NOT_APPLIED, True, id="no buyer id"),
        pytest.param(205, None, Outcome.NOT_APPLIED, True, id="not in unit"),
        pytest.param(26, None, Outcome.NOT_APPLIED, False, id="group unknown"),
        pytest.param(1500, None, Outcome.NOT_APPLIED, True, id="go away"),
    ],
)
def test_answers_to_a_send_are_judged(code: int, remark: str | None, outcome: Outcome, retry: bool) -> None:
    verdict = classify_answer(code, remark)
    assert (verdict.outcome, verdict.retry) == (outcome, retry)


@pytest.mark.parametrize(
    ("error", "outcome", "retry"),
    [
        pytest.param(ConnectionLost("refused", sent=False), Outcome.NOT_APPLIED, True, id="never left"),
        pytest.param(ConnectionLost("reset", sent=True), Outcome.UNKNOWN, True, id="left, then reset"),
        pytest.param(RequestTimeout("3 s"), Outcome.UNKNOWN, True, id="no answer"),
        pytest.param(TooManyRequests("64"), Outcome.NOT_APPLIED, True, id="local limit"),
        pytest.param(LocalProtocolError("17 MiB"), Outcome.NOT_APPLIED, False, id="cannot be sent at all"),
    ],
)
def test_failures_of_a_send_are_judged(error: RemotingError, outcome: Outcome, retry: bool) -> None:
    verdict = classify_failure(error)
    assert (verdict.outcome, verdict.retry) == (outcome, retry)


@given(st.lists(st.sampled_from(Outcome)))
def test_one_unknown_try_leaves_doubt_unless_one_was_applied(tries: list[Outcome]) -> None:
    merged = merge_outcomes(tries)
    if Outcome.APPLIED in tries:
        assert merged is Outcome.APPLIED
    else:
        assert (merged is Outcome.UNKNOWN) == (Outcome.UNKNOWN in tries)


@pytest.mark.parametrize(
    ("code", "remark", "next_one"),
    [
        (0, None, False),
        (17, "No topic route info", False),
        (1, "[NO_QUORUM] no leader", True),
        (1, "name server not ready", True),
        (1, "some exception", False),
        (2, "[OVERLOAD]system busy", True),
    ],
)
def test_only_refusals_lead_to_the_next_nameserver(code: int, remark: str | None, next_one: bool) -> None:
    assert tries_next_nameserver(code, remark) is next_one


def test_the_nameserver_that_answers_stays_chosen() -> None:
    servers = choice(*ADDRS)
    first = servers.order(0.0)[0]
    servers.answered(first)
    assert servers.order(1.0)[0] == first


def test_after_a_failure_the_next_in_turn_is_chosen_and_the_failed_one_is_asked_last() -> None:
    servers = choice(*ADDRS)
    first, second, third = servers.order(0.0)
    servers.failed(first, 0.0)
    assert servers.order(1.0) == (second, third, first)
    servers.answered(second)
    assert servers.order(10.5)[0] == second, "sticky: the former one is not preferred when its time is over"
    assert set(servers.order(10.5)) == set(ADDRS)


def test_when_all_failed_all_are_still_asked() -> None:
    servers = choice(*ADDRS)
    for addr in ADDRS:
        servers.failed(addr, 0.0)
    assert set(servers.order(0.1)) == set(ADDRS)


def test_clients_spread_over_the_nameservers() -> None:
    firsts = {choice(*ADDRS, seed=seed).order(0.0)[0] for seed in range(30)}
    assert firsts == set(ADDRS)


def test_replacing_the_list_keeps_the_current_one_if_it_is_still_listed() -> None:
    servers = choice(*ADDRS)
    current = servers.order(0.0)[0]
    assert servers.replace([*ADDRS, "d:1"])
    assert servers.order(0.0)[0] == current
    assert not servers.replace(["d:1", *ADDRS])
    assert servers.replace(["e:1"])
    assert servers.order(0.0) == ("e:1",)


@given(
    st.lists(
        st.tuples(st.sampled_from(["fail", "answer"]), st.sampled_from(ADDRS), st.floats(0, 30)), max_size=30
    ),
    st.integers(0, 99),
)
def test_order_is_always_a_permutation(steps: list[tuple[str, str, float]], seed: int) -> None:
    servers = choice(*ADDRS, seed=seed)
    now_s = 0.0
    for kind, addr, passed in steps:
        now_s += passed
        if kind == "fail":
            servers.failed(addr, now_s)
        else:
            servers.answered(addr)
        assert sorted(servers.order(now_s)) == sorted(ADDRS)


def info(*queues: tuple[str, int]) -> PublishInfo:
    return PublishInfo(
        topic="T",
        queues=tuple(
            MessageQueue(topic="T", broker_name=broker, queue_id=number) for broker, number in queues
        ),
    )


def test_queues_take_turns_from_a_random_start() -> None:
    turn = QueueTurn(random.Random(1))
    route = info(("a", 0), ("a", 1), ("b", 0), ("b", 1))
    picks = [turn.pick(route) for _ in range(8)]
    assert sorted(picks[:4]) == sorted(route.queues)
    assert picks[:4] == picks[4:]
    starts = {QueueTurn(random.Random(seed)).pick(route) for seed in range(40)}
    assert starts == set(route.queues)


def test_a_retry_goes_to_another_broker_if_there_is_one() -> None:
    turn = QueueTurn(random.Random(1))
    both = info(("a", 0), ("a", 1), ("b", 0))
    assert all(turn.pick(both, last_broker="a").broker_name == "b" for _ in range(5))
    alone = info(("a", 0), ("a", 1))
    assert turn.pick(alone, last_broker="a").broker_name == "a"
