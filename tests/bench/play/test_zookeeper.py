"""The playground shows a ZooKeeper ensemble's leader, its brokers and its watching clients as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.bench.arms.servers import java_missing
from routekeeper.bench.play.model import Design, Order
from tests.bench.play.sessions import broker, client, server, session

pytestmark = [
    pytest.mark.bench,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(java_missing() is not None, reason=f"needs {java_missing()}"),
]


def test_leader_brokers_and_watching_clients_are_shown_as_the_ensemble_has_them(tmp_path: Path) -> None:
    with session("--designs", "zookeeper", "--divisor", "10", out=tmp_path) as made:
        made.await_started()
        roles = made.shows(
            "zookeeper",
            lambda each: (
                sorted(one.role for one in each.servers) == ["follower", "follower", "leader"] and each
            ),
            "one leads",
        )
        assert isinstance(roles, Design)
        term = max(each.term or 0 for each in roles.servers)
        # Kill the leader by its name. With the target "leader", the playground may kill another server if the
        # leader answers late.
        (struck,) = [each.name for each in roles.servers if each.role == "leader"]
        (outcome,) = made.do(Order(do="kill", target=struck)).outcomes
        assert (outcome.target, outcome.result) == (struck, "applied")

        def another_leads(design: Design) -> bool:
            return any(
                each.role == "leader" and each.serves and each.name != struck and (each.term or 0) > term
                for each in design.servers
            )

        made.shows("zookeeper", another_leads, "another one leads in a later term")
        assert server(made.design("zookeeper"), struck).life == "down"
        made.do(Order(do="start", target=struck))
        made.shows("zookeeper", lambda each: server(each, struck).serves, "it serves again")

        made.do(Order(do="stop", target="broker-2"))
        made.shows(
            "zookeeper", lambda each: broker(each, "broker-2").registered == [], "it is listed nowhere"
        )

        def knows(design: Design) -> bool:
            return all(
                [(each.by, each.brokers, each.verdict) for each in one.cached]
                == [("watch", ["broker-0", "broker-1"], "right")]
                for one in design.clients
            )

        made.shows("zookeeper", knows, "every client has heard of it by its watch")
        assert client(made.design("zookeeper"), "client-0").last is not None
        assert made.errors() == "", "a fault that was asked for is no warning"
