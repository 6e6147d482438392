"""Threads that query each server for topics of a storm, until all answers of the server are right."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from routekeeper.bench.arms.layout import topic_path
from routekeeper.bench.storm.blocking import Blocking
from routekeeper.bench.storm.frames import topic_name
from routekeeper.bench.storm.sessions import Session
from routekeeper.bench.wires.client import Kind
from routekeeper.bench.wires.wire import WireError
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.route import decode_route
from routekeeper.remoting.transport.blocking import BlockingClient

#: Pause in seconds after a wrong answer. With this pause, the queries add only little load to the storm.
PAUSE_S: Final = 0.05
ANSWER_S: Final = 60.0
#: Number of topics to query. They are spread over all topics, and include the first and the last.
TOPICS_ASKED: Final = 16


class RouteReader:
    """Reader that sends route queries (105) to a nameserver."""

    def __init__(self, addr: str, *, answer_s: float = ANSWER_S) -> None:
        self._addr = addr
        self._answer_s = answer_s
        self._client = BlockingClient()

    def count(self, topic: str) -> int | None:
        """Return the number of brokers that the server lists for a topic; None if the answer is not valid."""
        query = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        try:
            answer = self._client.invoke(self._addr, query, timeout_s=self._answer_s)
        except RemotingError:
            return None
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return 0
        if answer.code != ResponseCode.SUCCESS:
            return None
        route = decode_route(answer.body)
        listed = {queues.broker_name for queues in route.queue_datas}
        return len(listed & {broker.broker_name for broker in route.broker_datas})

    def close(self) -> None:
        self._client.close()


class ChildrenReader:
    """Reader that counts the children of a topic's node in ZooKeeper."""

    def __init__(self, addr: str, *, answer_s: float = ANSWER_S) -> None:
        self._addr = addr
        self._answer_s = answer_s
        self._session: Blocking[Session] | None = None

    def count(self, topic: str) -> int | None:
        try:
            if self._session is None:
                self._session = Blocking(self._addr, Session(), timeout_s=self._answer_s)
            answer = self._session.ask(self._session.wire.children(topic_path(topic)))
        except (OSError, WireError):
            self.close()
            return None
        return None if answer.error else int.from_bytes(answer.body[:4], "big")

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


Reader = RouteReader | ChildrenReader


class Watch:
    """Queries to every server until it lists ``brokers`` brokers for all queried topics.

    Attributes:
        rows: Every answer, and every query without an answer.
        first_ns: For each server, the instant of the first right answer.
        right_ns: For each server, the instant from which all answers were right.
    """

    def __init__(self, kind: Kind, servers: list[str], *, topics: int, brokers: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self.first_ns: list[int | None] = [None] * len(servers)
        self.right_ns: list[int | None] = [None] * len(servers)
        self._topics = [topic_name(number) for number in spread(topics, TOPICS_ASKED)]
        self._brokers = brokers
        self._over = threading.Event()
        reader: Callable[[str], Reader] = ChildrenReader if kind == "jute" else RouteReader
        self._threads = [
            threading.Thread(target=self._ask, args=(index, reader(addr)), daemon=True)
            for index, addr in enumerate(servers)
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until all servers answer right, for at most ``seconds``; return True if all of them do."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.stop()
        return all(at is not None for at in self.right_ns)

    def stop(self) -> None:
        """Tell the threads to end after their present queries."""
        self._over.set()

    def _ask(self, index: int, reader: Reader) -> None:
        turn, unbroken = 0, 0
        since_ns: int | None = None
        while unbroken < len(self._topics) and not self._over.is_set():
            topic = self._topics[turn % len(self._topics)]
            asked_ns = time.monotonic_ns()
            found = reader.count(topic)
            now_ns = time.monotonic_ns()
            self.rows.append(
                {
                    "kind": "check",
                    "server": index,
                    "topic": topic,
                    "asked_ns": asked_ns,
                    "answered_ns": now_ns,
                    "brokers": found,
                }
            )
            turn += 1
            if found != self._brokers:
                unbroken, since_ns = 0, None
                self._over.wait(PAUSE_S)
                continue
            unbroken += 1
            since_ns = since_ns or now_ns
            self.first_ns[index] = self.first_ns[index] or now_ns
        if unbroken == len(self._topics):
            self.right_ns[index] = since_ns
        reader.close()


def spread(count: int, wanted: int) -> list[int]:
    """Return ``wanted`` numbers below ``count``, evenly spread. The first and the last number are included.

    If ``count`` is not larger than ``wanted``, return all numbers below ``count``.
    """
    if count <= wanted:
        return list(range(count))
    return [number * (count - 1) // (wanted - 1) for number in range(wanted)]
