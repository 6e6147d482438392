"""A run of one design's servers, with the rows about strangers and about topics that no broker has."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from routekeeper.bench.micro.load import PLACE
from routekeeper.bench.micro.raft.systems import System
from routekeeper.bench.micro.route_query import Target, Workload, load, per_cpu
from routekeeper.bench.storm import brokers, life
from routekeeper.bench.storm.frames import topic_name
from routekeeper.bench.storm.life import STORM_S, Record

MISSES_DEPTHS: Final = (1, 16)
MISSES_TOPICS: Final = 100
#: A JVM compiles code that runs often, so it gets this time before it is measured.
MISSES_WARM_S: Final = {"rocketmq": 12.0}


class Life(life.Life):
    """See :class:`routekeeper.bench.storm.life.Life`."""

    system: System

    def stranger(self, seconds: float) -> dict[str, Any]:
        """Let the only broker change all its topics again and again, while the bystander sends queries."""
        self._do("prepare")  # make the bodies now: later it would take CPU time from the servers
        with self._measuring("stranger") as found, self.asking(found):
            answer = self._do("repeat", seconds)
            found |= self._counted(answer["rows"]) | {"repeated": answer["count"]}
        return found

    def misses(self, seconds: float) -> dict[str, Any]:
        """Query a server, the leader if there is one, for topics that no broker has, and for an existing one.

        Names are repeated, or each is used once, because strangers can invent any number of names.
        """
        self._do("register")
        self._do("settle", STORM_S)
        names = tuple(f"nobody-has-{number:04d}" for number in range(MISSES_TOPICS))
        workloads = {
            "": Workload(name="misses", topics=names, mixed=False),
            "fresh_": Workload(
                name="fresh", topics=(f"nobody-has-{PLACE.decode()}",), mixed=False, fresh=True
            ),
            "known_": Workload(name="known", topics=(topic_name(0),), mixed=False),
        }
        index = self.system.leader() or 0
        found: dict[str, Any] = {}
        for depth in MISSES_DEPTHS:
            for key, workload in workloads.items():
                target = Target(
                    name=self.system.name,
                    addr=self.system.clients[index],
                    pid=self.system.pids[index],
                    check=key == "known_",
                )
                warm_s = MISSES_WARM_S.get(self.system.name, 1.0)
                sample = load(target, workload, depth, warm_s=warm_s, measure_s=seconds, seed=depth)
                about = {"kind": "misses", "names": workload.name, "depth": depth, "server": index}
                self._record(about | sample)
                found[f"answers_per_cpu_s_{key}{depth}"] = per_cpu(sample)
        return found


@contextlib.contextmanager
def life_of(
    make: Callable[[Path, int], System], *, plan: dict[str, Any], data: Path | None, record: Record
) -> Iterator[Life]:
    """Start the servers of a design in a folder of their own, with everything that belongs to them."""
    with tempfile.TemporaryDirectory(dir=data) as root:
        system = make(Path(root) / "servers", plan["brokers"] * plan["topics"])
        made = brokers.Plan(kind=system.kind, servers=system.clients, **plan)
        with Life(system, plan=made, record=record) as started:
            yield started
