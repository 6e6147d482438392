"""Changes by mqadmin: broker settings that must not be changed, and group settings that a broker stores."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.client.mqadmin import mqadmin as run


@pytest.mark.parametrize(
    ("key", "words"),
    [
        pytest.param(
            *("noSuchKey", "no such setting: noSuchKey; allowed are autoCreateSubscriptionGroup, "),
            id="unknown",
        ),
        pytest.param(
            *(
                "brokerName",
                " brokerName may only be set at start; allowed are autoCreateSubscriptionGroup, ",
            ),
            id="fixed",
        ),
    ],
)
def test_a_setting_that_cannot_be_changed_is_named_with_those_that_can(
    key: str, words: str, broker: Any
) -> None:
    code, out, err = run("updateBrokerConfig", "-b", broker.addr, "-k", key, "-v", "1")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert words in err
    assert ", traceOn" in err


def test_a_group_for_messages_in_order_is_made_and_shown(broker: Any, nameserver: Any) -> None:
    asked = ("updateSubGroup", "-b", broker.addr, "-g", "InOrder")
    code, out, err = run(*asked, "-o", "true")
    assert (code, err) == (0, "")
    assert "consumeMessageOrderly=true" in out
    shown = ("getConsumerConfig", "-n", nameserver.addr, "-g", "InOrder")
    lines = run(*shown)[1].splitlines()
    assert "consumeMessageOrderly                   =  true" in lines
    assert run(*asked)[0] == 0
    assert "consumeMessageOrderly                   =  false" in run(*shown)[1].splitlines()
    code, out, _ = run(*shown, "-o", "json")
    assert (code, json.loads(out)[0]["groupName"]) == (0, "InOrder")
