"""Run folders with invented events, from which the report must compute exactly the known results.

The events have the harness's format. Their numbers are no measurements of RouteKeeper and only test the
report's computation.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from routekeeper.bench.events import (
    Delivery,
    DiskSample,
    Event,
    Fault,
    LinkSample,
    Operation,
    ProcessSample,
    Truth,
    View,
)
from routekeeper.bench.plan import CASES
from routekeeper.bench.recorder import EventLog
from routekeeper.bench.runfolder import (
    Arm,
    Line,
    Links,
    Machine,
    Manifest,
    Series,
    Timer,
    event_sums,
    run_folder,
    write_manifest,
)

SECOND = 1_000_000_000
BEGIN = 5_000 * SECOND  # not 0: CLOCK_MONOTONIC is far above 0 on a machine that has run for some time


def ns(at_s: float) -> int:
    """Convert a time in seconds since measuring began into an instant of CLOCK_MONOTONIC in ns."""
    return BEGIN + round(at_s * SECOND)


class PlantedRun:
    """A writer of one run folder. Every instant is in seconds since measuring began."""

    def __init__(
        self,
        out: Path,
        *,
        scenario: str,
        arm: Arm = "raft",
        series: Series = "equal",
        block: int = 1,
        seconds: float = 20.0,
        divisor: float = 10.0,
        lines: list[Line] | None = None,
        lost: str | None = None,
        void: str | None = None,
        ended: bool = True,
        attempt: int = 1,
        session: str | None = None,
        begin_s: float = 0.0,
        seed: int = 7,
        servers: int = 3,
        brokers: int = 3,
        links: Links | Literal["none"] = "proxy",
        listed: bool = False,
        consumers: int = 0,
    ) -> None:
        """Create the run folder.

        Args:
            consumers: Number of consumers in the plan. They form one group.
            listed: True if the manifest lists the event files with checksums, like manifests of the harness.
        """
        self.listed = listed
        self.folder = run_folder(out, series=series, scenario=scenario, block=block, arm=arm)
        self.folder.mkdir(parents=True)
        self.manifest = Manifest(
            arm=arm,
            series=series,
            scenario=scenario,
            block=block,
            order_in_block=block % 3,
            attempt=attempt,
            session=session or scenario,
            profile="planted, invented numbers",
            seed=seed + block,
            durability=None if arm == "independent" else "fsync",
            servers=servers,
            brokers=brokers,
            sim_brokers=4,
            clients=2,
            divisor=divisor,
            timers={
                "registerNameServerPeriod": Timer(used_ms=30000 / divisor, documented_ms=30000, scaled=True),
                "electionTimeout": Timer(used_ms=300, documented_ms=300, scaled=False),
            },
            watches=arm == "zookeeper",
            links=links,
            workload={"load": {"lookup_per_s": 50, "send_per_s": 20, "consumers": consumers}},
            lines=lines or [],
            machine=Machine(cpu="planted processor", cores=2, memory_bytes=24 << 30, system="planted"),
            versions={"routekeeper": "0.1.0", "python": "3.11.2", "zookeeper": "3.9"},
            commit="0000000",
            command=["mqbench", "compare", "--out", "planted"],
            started_at=f"2026-01-01T00:{block:02}:00Z",
            started_ns=BEGIN - 3 * SECOND,
            measure_begin_ns=ns(begin_s),
            measure_end_ns=ns(begin_s + seconds),
            ended_ns=ns(begin_s + seconds + 2) if ended else None,
            void=void,
            lost=lost,
        )
        self._log = EventLog(self.folder, "planted")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.close()
        files = event_sums(self.folder) if self.listed else None
        self.manifest = msgspec.structs.replace(self.manifest, files=files)
        write_manifest(self.folder, self.manifest)

    def add(self, event: Event) -> None:
        self._log.record(event)

    def op(self, op: str, due: float, took: float, outcome: str = "ok", **fields: Any) -> None:
        """Add an operation. The field ``late`` is the time in s from the due instant to the sending."""
        late = fields.pop("late", 0.0)
        if op in ("lookup", "newcomer"):
            fields.setdefault("topic", "t")
            fields.setdefault("brokers", [0, 1, 2] if outcome == "ok" else None)
            fields.setdefault("target", 0)
        if op.startswith("send") or op == "announce":
            fields.setdefault("target", 0)
        if op == "announce":  # an announcement without a `change` is a heartbeat, not a registration
            fields.setdefault("change", round(due * 1000))
        self.add(
            Operation(
                op=op,  # type: ignore[arg-type] # tests may pass other words
                user=fields.pop("user", 0),
                due_ns=ns(due),
                sent_ns=ns(due + late),
                done_ns=ns(due + took),
                outcome=outcome,  # type: ignore[arg-type]
                **fields,
            )
        )

    def broker(self, index: int, what: str, at: float) -> None:
        self.add(Truth(subject="broker", broker=index, what=what, t_ns=ns(at)))  # type: ignore[arg-type]

    def change(self, topic: str, version: int, at: float, acked: float | None = None) -> None:
        common: Any = {
            "subject": "topic",
            "broker": 100,
            "topic": topic,
            "version": version,
            "change": version,
        }
        self.add(Truth(what="changing", t_ns=ns(at), **common))
        if acked is not None:
            self.add(Truth(what="changed", t_ns=ns(acked), **common))

    def view(
        self, at: float, state: str = "routed", *, index: int = 0, unseen: float | None = None, **fields: Any
    ) -> None:
        """Add the route list that a nameserver shows from ``at`` on.

        With ``observer="client"``, add the route list that a client has. ``unseen`` is the time of the last
        reading without this list.
        """
        if state == "routed":
            fields.setdefault("brokers", [0, 1, 2])
        self.add(
            View(
                observer=fields.pop("observer", "nameserver"),
                index=index,
                topic=fields.pop("topic", "t"),
                state=state,  # type: ignore[arg-type]
                unseen_ns=None if unseen is None else ns(unseen),
                seen_ns=ns(at),
                **fields,
            )
        )

    def fault(self, begin: float, until: float, *, healed: float | None = None, **fields: Any) -> None:
        fields.setdefault("case", "kill")
        kinds = {case: kind for cases in CASES.values() for case, kind in cases.items()}
        fields.setdefault("kind", kinds.get(fields["case"], fields["case"]))
        fields.setdefault("targets", ["nameserver-0"])
        self.add(
            Fault(
                n=fields.pop("n", 0),
                from_ns=ns(fields.pop("since", max(begin - 2, 0))),
                begin_ns=ns(begin),
                healed_ns=None if healed is None else ns(healed),
                end_ns=None if healed is None else ns(healed),
                until_ns=ns(until),
                **fields,
            )
        )

    def used(self, role: str, index: int, at: float, cpu: float, *, pid: int = 0, **fields: Any) -> None:
        fields.setdefault("rss_bytes", 50 << 20)
        self.add(
            ProcessSample(
                role=role,  # type: ignore[arg-type]
                index=index,
                pid=pid or 100 + index,
                t_ns=ns(at),
                cpu_ns=round(cpu * SECOND),
                **fields,
            )
        )

    def disk(self, index: int, at: float, **fields: Any) -> None:
        """Add a sample of a nameserver's totals so far, for example of written bytes and of syncs.

        With ``role="machine"``, add a sample of the disk device's totals.
        """
        role = fields.pop("role", "nameserver")
        self.add(DiskSample(role=role, index=index, t_ns=ns(at), **fields))

    def link(self, dialler: str, acceptor: str, at: float, forward: int, back: int) -> None:
        self.add(
            LinkSample(
                dialler=dialler, acceptor=acceptor, t_ns=ns(at), forward_bytes=forward, back_bytes=back
            )
        )

    def delivered(self, message: int, at: float) -> None:
        self.add(Delivery(message=message, user=0, t_ns=ns(at)))
