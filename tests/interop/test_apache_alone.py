"""Apache's programs without ours: these tests show that the test environment itself works."""

from __future__ import annotations

from functools import partial

import pytest

from .apache import Apache, ApacheFailure, ask, has_route, wait_until
from .ours import in_parallel

pytestmark = pytest.mark.interop


def test_messages_go_through_apache_alone(apaches: dict[str, Apache]) -> None:
    in_parallel(*(partial(go_through, apache) for apache in apaches.values()))


def go_through(apache: Apache) -> None:
    namesrv = apache.namesrv()
    broker = apache.broker([namesrv.addr], hasten=True)

    listing = apache.mqadmin("clusterList", namesrvs=[namesrv.addr])
    assert listing.returncode == 0
    assert broker.addr in listing.stdout

    sent = apache.produce([namesrv.addr], "Alone", 500)
    assert (sent["status SEND_OK"], sent.get("error")) == ("500", None)
    wait_until(lambda: has_route(namesrv.addr, "Alone", broker.addr), "route of Alone")
    taken = apache.consume([namesrv.addr], "Alone", "alone_group", 500)
    assert taken["distinct"] == "500"

    broker.stop()
    # A 5.x nameserver answers the broker's unregistration before it removes the routes, so wait for the
    # removal.
    wait_until(lambda: ask(namesrv.addr, 105, {"topic": "Alone"})[0] == 17, "the topic gone")
    namesrv.stop()


def test_a_program_that_ends_early_is_reported_with_its_output(apache_5: Apache) -> None:
    process = apache_5.java("Producer")
    with pytest.raises(ApacheFailure, match="ArrayIndexOutOfBounds"):
        process.wait_for("sent")
