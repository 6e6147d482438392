"""``/metrics``: what this process counted, and what a raft group's status says, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nameserver.modes.group import GroupStatus
from nameserver.modes.interface import Consistency, Freshness
from nameserver.wire.server import NameServer

disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series for each, and nobody asks for it

#: Upper bounds of the buckets of HTTP's answering times, in seconds; a blocking query takes up to a minute.
BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class Metrics(Collector):
    """All metrics of one nameserver, gathered when somebody asks."""

    def __init__(self, consistency: Consistency, server: NameServer, *, version: str) -> None:
        self._consistency = consistency
        self._server = server
        self._version = version
        self._requests: dict[tuple[str, int], int] = {}
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)  # nothing where there is no /proc
        self._seconds = Histogram(
            "mqnamesrv_http_request_seconds",
            "Time from a request's header to its answer.",
            ["path"],
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        self._registry.register(self)

    def answered(self, path: str, code: int, seconds: float) -> None:
        """Count one HTTP request; ``path`` is one of those that are served, not what was asked for."""
        key = path, code
        self._requests[key] = self._requests.get(key, 0) + 1
        self._seconds.labels(path).observe(seconds)

    def exposition(self) -> bytes:
        """Return everything in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registering must not gather."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return what is counted elsewhere."""
        status, view = self._consistency.status(), self._consistency.view(Freshness.STALE)
        wire, cache = self._server.wire, self._server.cache
        samples = Samples()
        counter, gauge = "counter", "gauge"
        samples.add(
            "mqnamesrv_info",
            gauge,
            "Constant 1.",
            1,
            mode=status.mode,
            role=status.role,
            version=self._version,
        )
        requests = dict(wire.stats.requests)
        requests[105] = requests.get(105, 0) + cache.hits
        for code, count in sorted(requests.items()):
            samples.add("mqnamesrv_requests_total", counter, "Requests by code.", count, code=str(code))
        # Strangers choose codes that nobody serves: together they are one.
        unknown = wire.stats.requests_unknown
        samples.add("mqnamesrv_requests_total", counter, "Requests by code.", unknown, code="unknown")
        samples.add("mqnamesrv_route_cache_hits_total", counter, "Routes served encoded.", cache.hits)
        samples.add("mqnamesrv_route_cache_entries", gauge, "Requests known.", cache.entries)
        samples.add("mqnamesrv_route_cache_bytes", gauge, "Answers and requests held.", cache.held_bytes)
        samples.add("mqnamesrv_connections", gauge, "Open connections.", len(wire.connections))
        samples.add(
            "mqnamesrv_connections_accepted_total", counter, "Accepted.", wire.stats.connections_accepted
        )
        samples.add(
            "mqnamesrv_connections_refused_total", counter, "Refused: full.", wire.stats.connections_refused
        )
        samples.add(
            "mqnamesrv_connections_shed_total",
            counter,
            "Closed because all connections together held too much.",
            wire.stats.connections_shed,
        )
        samples.add(
            "mqnamesrv_log_lines_suppressed_total",
            counter,
            "Lines about peers that were not written.",
            wire.stats.lines_suppressed,
        )
        samples.add("mqnamesrv_bad_frames_total", counter, "Connections broken off.", wire.stats.bad_frames)
        samples.add("mqnamesrv_topics", gauge, "Topics listed.", view.topic_count)
        samples.add("mqnamesrv_broker_names", gauge, "Broker names listed.", view.name_count)
        samples.add("mqnamesrv_brokers", gauge, "Brokers listed.", len(view.records()))
        samples.add("mqnamesrv_table_revision", gauge, "Changes applied to the table.", view.revision)
        samples.add("mqnamesrv_reads_ready", gauge, "Default reads are served.", int(status.reads_ready))
        samples.add("mqnamesrv_writes_ready", gauge, "Writes are served.", int(status.writes_ready))
        operations = self._consistency.operations
        if operations is not None:
            add_raft_figures(samples, operations.raft_status())
        for (path, code), count in sorted(self._requests.items()):
            samples.add(
                "mqnamesrv_http_requests_total", counter, "HTTP requests.", count, path=path, code=str(code)
            )
        return samples.collect()


class Samples(Collector):
    """Collects samples; each family is described once and stands together."""

    def __init__(self) -> None:
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}

    def add(self, name: str, kind: str, help_: str, value: float, /, **labels: str) -> None:
        family = self._families.get(name)
        if family is None:
            made = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = self._families[name] = made(name, help_, labels=list(labels))
        family.add_metric(list(labels.values()), value)

    def collect(self) -> Iterable[Metric]:
        """Return what was added, a family with all its samples."""
        return self._families.values()


@dataclass(frozen=True, slots=True)
class _Figure:
    """A figure of ``raft_status`` and the metric it becomes; ``scale`` brings it to base units."""

    key: str
    name: str
    kind: str
    help: str
    scale: float = 1


_FIGURES: Final = (
    _Figure("term", "mqnamesrv_raft_term", "gauge", "Current term."),
    _Figure("commit_index", "mqnamesrv_raft_commit_index", "gauge", "Committed."),
    _Figure("applied_index", "mqnamesrv_raft_applied_index", "gauge", "Applied here."),
    _Figure("apply_lag", "mqnamesrv_raft_apply_lag", "gauge", "Entries committed and not yet applied here."),
    _Figure("last_index", "mqnamesrv_raft_last_index", "gauge", "Last entry in the log here."),
    _Figure("durable_index", "mqnamesrv_raft_durable_index", "gauge", "Last entry that the journal holds."),
    _Figure(
        "last_contact_ms",
        "mqnamesrv_raft_last_contact_seconds",
        "gauge",
        "Age of the contact with a majority; absent if there never was one.",
        0.001,
    ),
    _Figure(
        "contact_limit_ms",
        "mqnamesrv_raft_contact_limit_seconds",
        "gauge",
        "Age of contact above which default reads are refused.",
        0.001,
    ),
    _Figure("leader_changes", "mqnamesrv_raft_leader_changes_total", "counter", "Leaders seen to change."),
    _Figure("elections", "mqnamesrv_raft_elections_total", "counter", "Candidacies begun here."),
    _Figure("journal_bytes", "mqnamesrv_raft_journal_bytes", "gauge", "Journal on disk."),
    _Figure("log_bytes", "mqnamesrv_raft_log_bytes", "gauge", "Log entries in memory."),
    _Figure("snapshot_index", "mqnamesrv_raft_snapshot_index", "gauge", "Last entry in the snapshot."),
    _Figure("snapshot_bytes", "mqnamesrv_raft_snapshot_bytes", "gauge", "Size of the newest snapshot."),
    _Figure(
        "snapshot_age_s",
        "mqnamesrv_raft_snapshot_age_seconds",
        "gauge",
        "Age of the newest snapshot, if any.",
    ),
    _Figure(
        "snapshot_failures", "mqnamesrv_raft_snapshot_failures_total", "counter", "Snapshots not stored."
    ),
    _Figure("storage_stalled", "mqnamesrv_raft_storage_stalled", "gauge", "1 while a journal write hangs."),
    _Figure(
        "storage_stalls", "mqnamesrv_raft_storage_stalls_total", "counter", "Journal writes above one second."
    ),
    _Figure(
        "refused_truncations",
        "mqnamesrv_raft_refused_truncations_total",
        "counter",
        "Orders of a leader to drop committed entries, refused: two histories, never to be seen.",
    ),
    _Figure(
        "refused_reads",
        "mqnamesrv_raft_refused_reads_total",
        "counter",
        "Reads refused because the freshness asked could not be given.",
    ),
    _Figure(
        "refused_writes",
        "mqnamesrv_raft_refused_writes_total",
        "counter",
        "Writes refused without anything sent: no leader, or none in contact.",
    ),
    _Figure(
        "unknown_outcomes",
        "mqnamesrv_raft_unknown_outcomes_total",
        "counter",
        "Writes whose verdict did not come in time.",
    ),
    _Figure("proposals", "mqnamesrv_raft_proposals", "gauge", "Writes of this member without a verdict."),
    _Figure(
        "barriers", "mqnamesrv_raft_barriers_total", "counter", "Barriers sent for linearizable reads here."
    ),
    _Figure(
        "barrier_rounds",
        "mqnamesrv_raft_barrier_rounds_total",
        "counter",
        "Rounds of heartbeats that barriers needed, as leader.",
    ),
)


def add_raft_figures(samples: Samples, status: GroupStatus) -> None:
    """Add what ``raft_status`` says; a figure that is absent or None is left out."""
    for figure in _FIGURES:
        value = getattr(status, figure.key)
        if isinstance(value, (int, float)):  # bool is one
            scaled = int(value) if figure.scale == 1 and value == int(value) else value * figure.scale
            samples.add(figure.name, figure.kind, figure.help, scaled)
    leads = int(status.role == "leader")
    samples.add("mqnamesrv_raft_is_leader", "gauge", "1 while leading.", leads)
    samples.add(
        "mqnamesrv_raft_leader_known", "gauge", "1 while a leader is known.", int(bool(status.leader))
    )
    members, learners = status.members or (), status.learners or ()
    for kind, count in (("voter", len(members) - len(learners)), ("learner", len(learners))):
        samples.add("mqnamesrv_raft_members", "gauge", "Members by kind, as known here.", count, kind=kind)
    linked = status.linked or ()
    for member in members:
        if member != status.me:
            samples.add(
                "mqnamesrv_raft_link_up",
                "gauge",
                "1 while the authenticated link to a member is up.",
                int(member in linked),
                peer=member,
            )
