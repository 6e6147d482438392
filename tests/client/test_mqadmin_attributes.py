"""``-a`` of updateTopic: values that no broker accepts are refused before anything is sent."""

from __future__ import annotations

from typing import Final

import pytest

from tests.client.mqadmin import mqadmin

NOBODY: Final = "127.0.0.1:1"
"""Address at which no server listens. mqadmin must refuse a wrong value before it connects to a server."""


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ("+message.type", "'+message.type'"),
        ("+message.type=", "'+message.type='"),
        ("-message.type=DELAY", "'-message.type=DELAY'"),
        ("+=DELAY", "'+=DELAY'"),
        ("-", "'-'"),
        ("+message.type=DELAY,+message.type=NORMAL", "message.type is given twice"),
        ("+message.type=DELAY,-message.type", "message.type is given twice"),
    ],
)
def test_half_an_attribute_is_refused_with_its_text(attributes: str, named: str) -> None:
    code, _, err = mqadmin("updateTopic", "-b", NOBODY, "-t", "T", "-a", attributes, namesrv=NOBODY)
    assert code != 0
    assert named in err
