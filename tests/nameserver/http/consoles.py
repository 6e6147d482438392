"""Nameserver processes with given options, and brokers that answer request 26 (get broker settings)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.registration import RegisterBody, body_crc32, encode_register_body
from routekeeper.remoting.route import DataVersion, TopicConfig
from tests.waiting import WITHIN_S, wait_until


class Server:
    """A nameserver that runs as a separate process."""

    def __init__(
        self, folder: Path, *flags: str, wire: str = "127.0.0.1:0", http: str = "127.0.0.1:0"
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "stderr.txt").open("a") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "routekeeper.nameserver", "--listen", wire, "--http", http),
                    *("--data", str(folder / "data"), *flags),
                    # Keep idle connections open, because brokers of the tests register once and then send
                    # nothing.
                    *("--serverChannelMaxIdleTimeSeconds", "3600"),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        words = dict(word.split("=") for word in line.split() if "=" in word)
        assert words, (folder / "stderr.txt").read_text()
        self.wire, self.http = words["listen"], words["http"]

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=WITHIN_S) as answer:
            return json.load(answer)

    def await_ready(self) -> None:
        def is_ready() -> bool:
            try:
                with urllib.request.urlopen(f"http://{self.http}/readyz", timeout=WITHIN_S) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        wait_until(is_ready, "readiness")

    def end(self) -> None:
        """Kill the process. A second call is harmless."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def servers(*started: Server) -> Iterator[None]:
    """End these servers when the context ends."""
    try:
        yield
    finally:
        for server in started:
            server.end()


def registered(
    name: str,
    *topics: str,
    addr: str = "",
    counter: int = 1,
    cluster: str = "C",
    broker_id: int = 0,
    queues: int = 8,
) -> RemotingCommand:
    """Return a registration request of a broker.

    Args:
        addr: Address of the broker; if empty, it is made from the name.
    """
    body = encode_register_body(
        RegisterBody(
            data_version=DataVersion(counter=counter, timestamp=1_700_000_000_000 + counter),
            topic_configs=tuple(
                TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
                for topic in topics
            ),
        ),
        compressed=False,
        version=479,
    )
    fields = {
        "brokerName": name,
        "brokerAddr": addr or f"{name}.test:10911",
        "clusterName": cluster,
        "haServerAddr": f"{name if name.replace('-', '').isalnum() else 'odd'}.test:10912",
        "brokerId": str(broker_id),
        "bodyCrc32": str(body_crc32(body)),
        "heartbeatTimeoutMillis": "3600000",  # the lease is long, because the broker registers only once
    }
    return RemotingCommand.request(103, fields, body)
