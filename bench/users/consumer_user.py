"""A Locust user that consumes the producers' messages, as a member of one consumer group.

The response time of a message is the time from its planned send until its receipt.
"""

from __future__ import annotations

import contextlib
import time
from typing import Final

from routekeeper.bench.users._common import LoadUser, topic_names
from routekeeper.bench.users.producer_user import DUE
from routekeeper.client.config import ConsumeFrom, PullConsumerConfig
from routekeeper.remoting.errors import RemotingError

#: Longest wait of one poll, in seconds. A consumer that Locust stops therefore ends after at most this time.
POLL_S: Final = 0.2


class ConsumerUser(LoadUser):
    """A consumer that reads messages as they arrive.

    The user does not count messages whose planned send was before its own start.
    """

    name = "receive"

    def begin(self) -> None:
        self.client = self.new_client()
        try:
            self.client.start()
            self.consumer = self.client.pull_consumer(
                PullConsumerConfig(group=self.options.group, consume_from=ConsumeFrom.LAST_OFFSET),
                dict.fromkeys(topic_names(self.options.topics), "*"),
            )
            self.consumer.start()
        except (RemotingError, OSError):
            with contextlib.suppress(RemotingError, OSError):
                self.client.close()
            raise

    def end(self) -> None:
        self.consumer.close()
        self.client.close()

    def step(self) -> None:
        messages = self.consumer.poll(timeout_s=POLL_S)
        now_ms = time.time() * 1000
        for message in messages:
            due_ms = float(message.properties.get(DUE, message.born_ms))
            if due_ms >= self.spawned_ms:
                self.tell(now_ms - due_ms, len(message.body), None)
