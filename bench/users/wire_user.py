"""A Locust user that asks for routes over RocketMQ's protocol, as clients do when they refresh routes."""

from __future__ import annotations

from routekeeper.bench.users._common import ScheduledUser


class WireUser(ScheduledUser):
    """A client that keeps its connection open, and tries the next nameserver if a nameserver fails."""

    name = "route"

    def begin(self) -> None:
        self.client = self.new_client()

    def end(self) -> None:
        self.client.close()

    def operate(self, topic: str, due_ns: int) -> int:
        return len(self.client.route(topic).queue_datas)
