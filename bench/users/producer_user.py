"""A Locust user that sends messages, with the two retries that RocketMQ's producers have."""

from __future__ import annotations

import time

from routekeeper.bench.users._common import NS_PER_MS, ScheduledUser
from routekeeper.client.config import ProducerConfig
from routekeeper.client.producer import Message

#: Message property with the planned send time, in Unix ms. Response times of consumers begin at this time.
DUE: str = "locustDue"


class ProducerUser(ScheduledUser):
    """A producer with its own client, which refreshes its routes in the background."""

    name = "send"

    def begin(self) -> None:
        self.client = self.new_client()
        self.client.start()
        self.producer = self.client.producer(
            ProducerConfig(group=self.options.group, send_timeout_s=self.options.request_timeout_s)
        )
        self.body = self.chance.randbytes(self.options.message_bytes)

    def end(self) -> None:
        self.client.close()

    def operate(self, topic: str, due_ns: int) -> int:
        due_ms = time.time() * 1000 - (time.monotonic_ns() - due_ns) / NS_PER_MS
        self.producer.send(Message(topic=topic, body=self.body, properties={DUE: f"{due_ms:.3f}"}))
        return 0
