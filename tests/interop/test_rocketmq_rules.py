"""Test that Apache's nameserver 5.3.3 follows the rules in tests/model.

Other tests compare our route table with these rules.
"""

from __future__ import annotations

import itertools
import socket

import pytest
from hypothesis import Phase, given, settings

from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.route import TopicRouteData, decode_route
from tests.model.rocketmq_rules import TOPICS, RocketMQ, Seen, Step, request_of, seen, sequences

from .apache import Apache, ask_over

pytestmark = pytest.mark.interop


class Apaches:
    """Apache's nameserver; all requests of one sequence of steps use the same connection.

    The nameserver removes a broker when the broker's connection closes, so the connection stays open during
    the sequence.

    Args:
        suffix: Appended to all names, so that two sequences never use the same name.
    """

    def __init__(self, connection: socket.socket, suffix: str) -> None:
        self.connection, self.suffix = connection, suffix

    def take(self, step: Step) -> Seen:
        request = request_of(step, self.suffix)
        code, header, _ = ask_over(self.connection, request.code, request.ext_fields, request.body)
        routes = [self.route(topic + self.suffix) for topic in TOPICS]
        return seen(code, header.get("extFields", {}), routes, self.suffix)

    def route(self, topic: str) -> TopicRouteData | None:
        code, _, body = ask_over(
            self.connection,
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            {"topic": topic, "acceptStandardJsonOnly": "true"},
        )
        if code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        assert code == ResponseCode.SUCCESS, code
        return decode_route(body)


def test_apaches_nameserver_follows_the_rules_of_the_model(apache_5: Apache) -> None:
    namesrv = apache_5.namesrv()
    host, _, port = namesrv.addr.rpartition(":")
    numbers = itertools.count()

    @settings(max_examples=100, phases=[Phase.generate])
    @given(sequences())
    def run(steps: list[Step]) -> None:
        # Open a new connection for each sequence: the nameserver closes the connection of a broker that was
        # silent for two minutes.
        with socket.create_connection((host, int(port)), 15.0) as connection:
            apaches, rules = Apaches(connection, f"-{next(numbers)}"), RocketMQ()
            for number, step in enumerate(steps):
                expected, found = rules.take(step), apaches.take(step)
                assert found == expected, f"step {number} of {steps}"

    run()
    assert next(numbers) >= 100
    namesrv.stop()
