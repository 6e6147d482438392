"""Asks for routes over RocketMQ's protocol, as clients refresh theirs."""

from __future__ import annotations

from routekeeper.bench.users._common import ScheduledUser


class WireUser(ScheduledUser):
    """Keeps its connection and tries the next nameserver by itself."""

    name = "route"

    def begin(self) -> None:
        self.client = self.new_client()

    def end(self) -> None:
        self.client.close()

    def operate(self, topic: str, due_ns: int) -> int:
        return len(self.client.route(topic).queue_datas)
