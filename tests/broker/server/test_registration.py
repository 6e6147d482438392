from __future__ import annotations

import pytest

from routekeeper.broker.server.registration import (
    RegistrationSchedule,
    Trigger,
    VersionAnswer,
    asks_first,
    is_needed,
    registration_body,
)
from routekeeper.remoting.route import DataVersion, TopicConfig

OWN = DataVersion(timestamp=7, counter=3)


def test_first_periodic_registration_follows_the_start_after_the_short_delay() -> None:
    schedule = RegistrationSchedule(delay_s=10, period_s=30)
    schedule.started(100.0)
    assert schedule.until_due(100.0) == 10
    schedule.fired(110.0)
    assert schedule.until_due(110.0) == 30
    schedule.fired(140.5)
    assert schedule.until_due(140.5) == 29.5


def test_late_registration_is_not_made_up_for() -> None:
    schedule = RegistrationSchedule(delay_s=10, period_s=30)
    schedule.started(0.0)
    schedule.fired(200.0)
    assert schedule.until_due(200.0) == 30


@pytest.mark.parametrize(
    ("trigger", "force", "asks"),
    [
        (Trigger.PERIOD, True, False),
        (Trigger.PERIOD, False, True),
        (Trigger.START, False, False),
        (Trigger.TOPIC, False, False),
    ],
)
def test_only_the_period_asks_first_and_only_unforced(trigger: Trigger, force: bool, asks: bool) -> None:
    assert asks_first(trigger, force_register=force) is asks


@pytest.mark.parametrize(
    ("answers", "needed"),
    [
        ([VersionAnswer(stored=OWN)], False),
        ([VersionAnswer()], False),
        ([VersionAnswer(stored=OWN), VersionAnswer(failed=True)], True),
        ([VersionAnswer(changed=True, stored=OWN)], True),
        ([VersionAnswer(stored=DataVersion(timestamp=7, counter=2))], True),
    ],
    ids=["equal", "no-body", "one-failed", "says-changed", "other-version"],
)
def test_registration_is_needed_when_any_nameserver_needs_it(
    answers: list[VersionAnswer], needed: bool
) -> None:
    assert is_needed(answers, OWN) is needed


def test_broker_permission_limits_that_of_topics() -> None:
    topics = [TopicConfig(topic_name="T", perm=7, order=True)]
    assert registration_body(topics, OWN, broker_permission=6).topic_configs[0].perm == 7
    limited = registration_body(topics, OWN, broker_permission=4).topic_configs[0]
    assert (limited.perm, limited.order) == (4, True)
