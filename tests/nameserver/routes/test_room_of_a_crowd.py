"""The default limits permit 300 brokers with the same 10,000 topics (RocketMQ's issue 4245)."""

from __future__ import annotations

import pytest

from routekeeper.nameserver.handlers import table_limits
from routekeeper.nameserver.routes.room import Held, Ledger, excess
from routekeeper.nameserver.settings.declared import NamesrvSettings

BROKERS, TOPICS, NAME_BYTES = 300, 10_000, 13


@pytest.mark.parametrize("host", ["", "10.0.0.{}"], ids=["loopback", "300 hosts"])
def test_300_brokers_with_10_000_topics_have_room(host: str) -> None:
    ledger, settings = Ledger(), NamesrvSettings()
    for number in range(BROKERS):
        topics = TOPICS if number == 0 else 0  # the later brokers have the same topics, so they add no names
        more = Held(topics=topics, pairs=TOPICS, brokers=1, size=topics * NAME_BYTES + 100)
        limits = table_limits(settings, host.format(number))
        assert excess(ledger, limits, more, moved=Held()) is None, number
        ledger.add(limits.host, topics=more.topics, pairs=more.pairs, brokers=1, size=more.size)
    assert ledger.whole.pairs == 3_000_000
