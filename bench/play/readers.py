"""Readers of a server's state: over HTTP for our nameservers, by kazoo for ZooKeeper.

Readers use connections of their own, which no command can cut.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Sequence
from typing import Any, Final

from routekeeper.bench.arms.interface import broker_name
from routekeeper.bench.arms.layout import IDS, child_index, topic_path
from routekeeper.bench.arms.servers import four_letters
from routekeeper.bench.play.model import TopicKnown
from routekeeper.bench.play.scene import Reading

#: Seconds without an answer after which a server counts as silent.
SILENT_S: Final = 0.4
#: Pause in seconds before a lost ZooKeeper session is opened again. With a shorter pause, the attempts would
#: use a tenth of a CPU core.
RECONNECT_S: Final = 0.5
_ZXID: Final = re.compile(r"^Zxid: 0x([0-9a-f]+)", re.MULTILINE)
_MODE: Final = re.compile(r"^Mode: (\w+)", re.MULTILINE)
_OK: Final = 200
_NOT_FOUND: Final = 404


class Silent(Exception):
    """A nameserver answered with an HTTP status other than 200 (OK) and 404 (not found)."""


class NameserverReader:
    """Reader that asks one nameserver over a connection that stays open. The answers describe this server."""

    def __init__(self, addr: str) -> None:
        self._addr = addr
        self._connection: http.client.HTTPConnection | None = None

    def read(self, topics: Sequence[str]) -> Reading:
        """Return the server's present state. Each request waits ``SILENT_S`` seconds at most."""
        sent_ns = time.monotonic_ns()
        try:
            status = self._get("/v1/status")
            brokers = self._get("/v1/brokers?consistency=stale")
            routes = [(topic, self._get(f"/v1/topics/{topic}/route?consistency=stale")) for topic in topics]
            return Reading(
                answered=True,
                role=str(status["role"]),
                serves=bool(status["reads_ready"] and status["writes_ready"]),
                term=int(status["term"]),
                brokers=[str(each["broker_name"]) for each in brokers["brokers"]],
                topics=[
                    TopicKnown(
                        topic=topic,
                        queues={
                            str(each["brokerName"]): int(each["writeQueueNums"])
                            for each in answer["route"]["queueDatas"]
                        },
                    )
                    for topic, answer in routes
                    if answer
                ],
                sent_ns=sent_ns,
                seen_ns=time.monotonic_ns(),
            )
        except (OSError, http.client.HTTPException, Silent, ValueError, KeyError, TypeError):
            self.close()
            return Reading(answered=False, sent_ns=sent_ns, seen_ns=time.monotonic_ns())

    def _get(self, path: str) -> dict[str, Any]:
        """Return the decoded body of an answer, or an empty mapping if the server answers 404 (not found)."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._addr, timeout=SILENT_S)
        self._connection.request("GET", path)
        reply = self._connection.getresponse()
        body = reply.read()
        if reply.status == _NOT_FOUND:
            return {}
        if reply.status != _OK:
            raise Silent(f"HTTP {reply.status}")
        found: dict[str, Any] = json.loads(body)
        return found

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ZooKeeperReader:
    """Reader that keeps a session with one ZooKeeper server, and asks this server only."""

    def __init__(self, addr: str, *, session_s: float) -> None:
        from routekeeper.bench.arms.zookeeper import connect  # only this reader needs kazoo

        self._addr = addr
        self._client = connect([addr], session_s=session_s, reconnect_s=RECONNECT_S)
        self._client.start_async()

    def read(self, topics: Sequence[str]) -> Reading:
        sent_ns = time.monotonic_ns()
        said = four_letters(self._addr, b"srvr", timeout_s=SILENT_S)
        if not said:
            return Reading(answered=False, sent_ns=sent_ns, seen_ns=time.monotonic_ns())
        mode, zxid = _MODE.search(said), _ZXID.search(said)
        known = self._known(topics) if mode is not None else None
        brokers, listed = known or ([], [])
        return Reading(
            answered=True,
            role=mode[1] if mode is not None else "not serving",
            serves=known is not None,
            term=int(zxid[1], 16) >> 32 if zxid is not None else None,
            brokers=brokers,
            topics=listed,
            sent_ns=sent_ns,
            seen_ns=time.monotonic_ns(),
        )

    def _known(self, topics: Sequence[str]) -> tuple[list[str], list[TopicKnown]] | None:
        """Return ZooKeeper's brokers and topics, or None without a session or after ``SILENT_S`` seconds."""
        from kazoo.exceptions import KazooException, NoNodeError

        deadline = time.monotonic() + SILENT_S

        def wait(result: Any) -> Any:
            try:
                return result.get(timeout=max(0.001, deadline - time.monotonic()))
            except NoNodeError:
                return None

        try:
            if not self._client.connected:
                return None
            ids = wait(self._client.get_children_async(IDS)) or []
            masters = [(name, self._client.get_children_async(f"{IDS}/{name}")) for name in ids]
            children = [(topic, self._client.get_children_async(topic_path(topic))) for topic in topics]
            brokers = sorted(broker_name(int(name)) for name, found in masters if wait(found))
            data = [
                (topic, index, self._client.get_async(f"{topic_path(topic)}/{name}"))
                for topic, found in children
                for name in wait(found) or []
                if (index := child_index(name)) is not None
            ]
            queues: dict[str, dict[str, int]] = {}
            for topic, index, found in data:
                if (value := wait(found)) is not None:
                    queues.setdefault(topic, {})[broker_name(index)] = int(value[0])
        except (KazooException, self._client.handler.timeout_exception):
            return None
        return brokers, [TopicKnown(topic=topic, queues=each) for topic, each in queues.items()]

    def close(self) -> None:
        self._client.stop()
        self._client.close()
