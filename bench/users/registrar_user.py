"""A Locust user that simulates a broker.

In each operation, the broker changes one of its topics and registers with all nameservers concurrently.
"""

from __future__ import annotations

import time
from typing import Final

from routekeeper.bench.arms.interface import ArmConfig, Listing, Side
from routekeeper.bench.arms.remoting import RemotingArm
from routekeeper.bench.events import SIMULATED_FROM
from routekeeper.bench.generator_config import changing_topic, sim_addr
from routekeeper.bench.timers import DOCUMENTED_MS
from routekeeper.bench.users._common import NS_PER_MS, Failed, ScheduledUser
from routekeeper.bench.waiting import at_once

#: Largest number of users in one process. It is also the number of broker numbers that each process may use.
_PER_PROCESS: Final = 1_000
_ADDRS: Final = 20_000
_STEADY_TOPICS: Final = 9


class RegistrarUser(ScheduledUser):
    """A simulated broker that stays registered while its connections are open.

    When the user stops, it unregisters the broker and closes the connections.
    """

    name = "register"
    needs_topics = False

    def rate(self) -> float:
        return float(self.options.registrar_rate)

    def begin(self) -> None:
        process = getattr(self.environment.runner, "worker_index", 0)
        self.index = SIMULATED_FROM + process * _PER_PROCESS + self.number
        self.version = 0
        self.stamp = time.time_ns() // NS_PER_MS
        side = Side(name="locust", servers=self.servers)
        arm = RemotingArm(
            ArmConfig(
                kind="remoting",
                sides=[side],
                lease_ms=round(DOCUMENTED_MS["brokerLease"]),
                refresh_ms=round(DOCUMENTED_MS["pollNameServerInterval"]),
                heartbeat_ms=round(DOCUMENTED_MS["registerNameServerPeriod"]),
                divisor=1.0,
                timeout_s=self.options.request_timeout_s,
            ),
            at_once,
        )
        self.session = arm.broker(side)

    def end(self) -> None:
        self.session.withdraw()
        self.session.close()

    def operate(self, topic: str, due_ns: int) -> int:
        self.version = self.version % 8 + 1
        steady = {f"sim-{self.index}-{number}": 4 for number in range(_STEADY_TOPICS)}
        told = self.session.announce(
            Listing(
                index=self.index,
                addr=sim_addr(self.index % _ADDRS),
                topics=steady | {changing_topic(self.index): self.version},
                version=self.version,
                stamp=time.time_ns() // NS_PER_MS,
            )
        )
        refused = [one for one in told if one.outcome != "ok"]
        if refused:
            raise Failed(
                f"{len(refused)} of {len(told)} nameservers: {refused[0].outcome}, {refused[0].remark}"
            )
        return 0
