"""Two measurements: frequent changes by one broker, and queries for missing topics."""

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
#: Warm-up in s before the first measurement: a JVM needs this time to compile its code.
MISSES_WARM_S: Final = {"rocketmq": 12.0}


class Life(life.Life):
    """The measurements that are made between a start and a stop of the servers.

    This class adds two measurements to its base class, ``routekeeper.bench.storm.life.Life``.
    """

    system: System

    def stranger(self, seconds: float) -> dict[str, Any]:
        """Let the only broker change all its topics again and again, while another client sends queries.

        The broker acts like a stranger: a process on the network that is not part of the installation.
        """
        # Make the bodies of the requests before the measurement: making them uses CPU time that the servers
        # need.
        self._do("prepare")
        with self._measuring("stranger") as found, self.asking(found):
            answer = self._do("repeat", seconds)
            found |= self._counted(answer["rows"]) | {"repeated": answer["count"]}
        return found

    def misses(self, seconds: float) -> dict[str, Any]:
        """Query one server for topics that no broker has, and for an existing topic.

        The server is the leader, if the design has one. There are two cases with missing topics: the same
        names again and again, and a new name in each query. The second case is measured because anybody on
        the network can invent any number of names.
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
    """Start a design's servers in a new folder, and processes that simulate brokers and clients."""
    with tempfile.TemporaryDirectory(dir=data) as root:
        system = make(Path(root) / "servers", plan["brokers"] * plan["topics"])
        made = brokers.Plan(kind=system.kind, servers=system.clients, **plan)
        with Life(system, plan=made, record=record) as started:
            yield started
