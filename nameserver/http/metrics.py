"""``/metrics``: this process's counters and a raft group's status figures, in Prometheus' text format."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import prometheus_client
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from routekeeper.nameserver.modes.group import GroupStatus
from routekeeper.nameserver.modes.interface import Consistency, Freshness
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.types import ConnectionId, LeaveReason
from routekeeper.nameserver.wire.server import NameServer
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.http.exposition import histograms
from routekeeper.remoting.output import lines_dropped, lines_left_out
from routekeeper.remoting.transport.server_hooks import hook_figures

# Without this call, each counter and histogram would also have a series with the time of its creation, which
# nobody reads.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

#: Upper bounds of the histogram of HTTP answer times, in seconds. A blocking query takes up to 60 s.
BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class Metrics(Collector):
    """All metrics of one nameserver, collected anew for each request of ``/metrics``."""

    def __init__(self, consistency: Consistency, server: NameServer, *, version: str) -> None:
        self._consistency = consistency
        self._server = server
        self._version = version
        self._requests: Counter[tuple[str, int]] = Counter()
        self._registry = prometheus_client.CollectorRegistry()
        # On systems without /proc, this collector yields no metrics.
        prometheus_client.ProcessCollector(registry=self._registry)
        self._seconds = prometheus_client.Histogram(
            "mqnamesrv_http_request_seconds",
            "Time from a request's header to its answer.",
            ["path"],
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        self._registry.register(self)

    def answered(self, path: str, code: int, seconds: float) -> None:
        """Count one HTTP request. ``path`` must be a served path, so that clients cannot create labels."""
        self._requests[path, code] += 1
        self._seconds.labels(path).observe(seconds)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format 0.0.4."""
        return prometheus_client.generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics that other parts of the server count."""
        status, view = self._consistency.status(), self._consistency.view(Freshness.STALE)
        wire, cache, stats = self._server.wire, self._server.cache, self._server.wire.stats
        is_what = {"mode": status.mode, "role": status.role, "version": self._version}
        yield family("mqnamesrv_info", "Constant 1.", [(is_what, 1)])
        requests = Counter(stats.requests)
        requests[105] += cache.hits
        # Count all codes that no handler serves under one label. Otherwise any client could create any number
        # of series.
        counted = (*sorted(requests.items()), ("unknown", stats.requests_unknown))
        by_code = [({"code": str(code)}, count) for code, count in counted]
        yield family("mqnamesrv_requests_total", "Requests by code.", by_code)
        for name, help_, value in (
            ("route_cache_hits_total", "Routes served encoded.", cache.hits),
            ("route_cache_entries", "Requests known.", cache.entries),
            ("route_cache_bytes", "Answers and requests in memory.", cache.held_bytes),
            ("connections", "Open connections.", len(wire.connections)),
            ("connections_accepted_total", "Accepted.", stats.connections_accepted),
            ("connections_refused_total", "Refused: full.", stats.connections_refused),
            ("connections_shed_total", _SHED, stats.connections_shed),
            ("log_lines_suppressed_total", _SUPPRESSED, stats.lines_suppressed + lines_left_out()),
            (
                "log_lines_dropped_total",
                "Lines of stderr that were lost because no program read them in time.",
                lines_dropped(),
            ),
            ("bad_frames_total", "Connections broken off.", stats.bad_frames),
            ("topics", "Topics listed.", view.topic_count),
            ("topic_pairs", "Pairs of topic and broker name listed.", view.held.pairs),
            ("table_bytes", "Bytes of names, addresses and static mappings.", view.held.size),
            ("broker_names", "Broker names listed.", len(view.names())),
            ("brokers", "Brokers listed.", len(view.records())),
            ("table_revision", "Changes applied to the table.", view.revision),
            ("reads_ready", "Default reads are served.", status.reads_ready),
            ("writes_ready", "Writes are served.", status.writes_ready),
            (
                "unwritten_files",
                "Files that lack changes because a write to the disk failed.",
                status.unwritten_files,
            ),
        ):
            yield family(f"mqnamesrv_{name}", help_, [({}, value)])
        parts = hook_figures(self._server.hooks)
        if (production := self._server.production) is not None:
            parts += production.figures()
        for name, help_, figures in parts:
            yield family(f"mqnamesrv_{name}", help_, figures)
        yield from self._wire_families()
        yield from self._broker_families(view)
        left_s = {port: s for port, left in self._server.expirations.items() if (s := left()) < math.inf}
        if (operations := self._consistency.operations) is not None:
            raft = operations.raft_status()
            yield from raft_families(raft)
            for step, times in operations.times.items():
                yield histograms(f"mqnamesrv_raft_{step}_seconds", _STEPS[step], [({}, times)])
            if isinstance(raft.certificate_left_s, float):
                left_s = {"raft": raft.certificate_left_s, **left_s}
        if left_s:
            ends = [({"port": port}, seconds) for port, seconds in left_s.items()]
            yield family("mqnamesrv_certificate_left_seconds", _CERTIFICATE, ends)
        if self._requests:
            answered = [
                ({"path": path, "code": str(code)}, count)
                for (path, code), count in sorted(self._requests.items())
            ]
            yield family("mqnamesrv_http_requests_total", "HTTP requests.", answered)

    def _wire_families(self) -> Iterable[Metric]:
        """Yield metrics of requests and connections of RocketMQ's protocol."""
        wire, cache, stats = self._server.wire, self._server.cache, self._server.wire.stats
        groups = stats.times | {"route": stats.times["route"].plus(cache.times)}
        by_group = [({"group": group}, times) for group, times in sorted(groups.items())]
        yield histograms("mqnamesrv_request_seconds", _REQUEST, by_group)
        yield histograms("mqnamesrv_loop_late_seconds", _LATE, [({}, stats.late)])
        answers = Counter(stats.answers)
        answers[ResponseCode.SUCCESS] += cache.hits - cache.misses
        answers[ResponseCode.TOPIC_NOT_EXIST] += cache.misses
        by_code = [
            ({"code": str(int(code))}, count)
            for code, count in sorted(answers.items())
            if count or code in _ALWAYS_SHOWN
        ]
        by_code.append(({"code": "other"}, stats.answers_other))
        yield family("mqnamesrv_answers_total", "Answers by code.", by_code)
        kinds = Counter({"broker": 0, "client": 0, "other": 0})
        carries_broker = self._consistency.carries_broker
        for connection in wire.connections.values():
            is_broker = carries_broker(ConnectionId(connection.id))
            kinds["broker" if is_broker else "client" if connection.has_asked else "other"] += 1
        by_kind = [({"kind": kind}, count) for kind, count in kinds.items()]
        yield family("mqnamesrv_connections_by_kind", _KINDS, by_kind)

    def _broker_families(self, view: RouteView) -> Iterable[Metric]:
        """Yield metrics about brokers that left the table and about silent brokers."""
        departures = self._consistency.departures
        by_reason = [({"reason": reason.value}, departures.get(reason, 0)) for reason in _REASONS]
        yield family("mqnamesrv_brokers_gone_total", "Brokers that left the table, by reason.", by_reason)
        ages = (self._consistency.last_seen_s(record.broker) for record in view.records())
        known = [age for age in ages if age is not None]
        if known:
            yield family("mqnamesrv_broker_last_seen_oldest_seconds", _OLDEST, [({}, max(known))])


_SHED: Final = "Closed because all connections together held too many bytes."
_SUPPRESSED: Final = "Log lines about peers, or about too frequent events, that were not written."


_REQUEST: Final = "Time from a request's arrival to its answer; of 64 cached routes, one is timed."
_LATE: Final = "Lateness of the event loop, measured ten times a second."
_KINDS: Final = "Open connections: of brokers, of clients that sent a request, of clients that did not."
_OLDEST: Final = (
    "Age of the last message from the listed broker that has been silent for longest, if any sent one here."
)
_CERTIFICATE: Final = (
    "Time until the certificate of a port, or the last authority that signs its peers' certificates, "
    "expires; ports with TLS only."
)
_STEPS: Final = {
    "commit": "Time from a proposal of this member until it is committed and applied here.",
    "fsync": "Time of one write of the journal, its sync included where durability asks for one.",
    "apply": "Time in which an entry was applied, including other work in between.",
}
#: Answer codes whose counter is shown even while it is 0.
_ALWAYS_SHOWN: Final = frozenset(
    {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, ResponseCode.TOPIC_NOT_EXIST}
)
#: Reasons for which a broker may leave the table. All other reasons concern topics only.
_REASONS: Final = (
    LeaveReason.CONNECTION_CLOSED,
    LeaveReason.LEASE_EXPIRED,
    LeaveReason.UNREGISTERED,
    LeaveReason.DISPLACED,
    LeaveReason.MOVED,
    LeaveReason.FENCED,
)


def family(name: str, help_: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> Metric:
    """Return a metric with its labelled samples. A name that ends in ``_total`` makes a counter."""
    kind = "counter" if name.endswith("_total") else "gauge"
    made = Metric(name.removesuffix("_total"), help_, kind)
    for labels, value in samples:
        made.add_sample(name, dict(labels), value)
    return made


#: Figures of ``raft_status``. Each becomes the metric mqnamesrv_raft_NAME. Times are converted to seconds.
_FIGURES: Final = (
    ("term", "Current term."),
    ("commit_index", "Committed."),
    ("applied_index", "Applied here."),
    ("apply_lag", "Entries committed and not yet applied here."),
    ("last_index", "Index of the last entry in the log here."),
    ("last_term", "Term of the last entry in the log here."),
    ("durable_index", "Index of the last entry in the journal."),
    ("last_contact_ms", "Age of the contact with a majority; absent if there never was one."),
    ("contact_limit_ms", "Age of contact above which default reads are refused."),
    ("leader_changes_total", "Changes of leader that this member saw."),
    ("elections_total", "Elections in which this member was a candidate."),
    ("journal_bytes", "Journal on disk."),
    ("log_bytes", "Log entries in memory."),
    ("snapshot_index", "Index of the last entry in the snapshot."),
    ("snapshot_bytes", "Size of the newest snapshot."),
    ("snapshot_age_s", "Age of the newest snapshot, if any."),
    (
        "certificate_left_s",
        "Time until this member's certificate, or the last authority in --raft-tls-ca, expires; with TLS "
        "only.",
    ),
    ("snapshot_failures_total", "Snapshots not stored."),
    ("storage_stalled", "1 while a journal write hangs."),
    ("storage_stalls_total", "Journal writes above one second."),
    (
        "refused_truncations_total",
        "Refused orders of a leader to drop committed entries. Must stay 0: else the group has two "
        "histories.",
    ),
    ("refused_reads_total", "Reads refused because the requested freshness could not be given."),
    (
        "refused_writes_total",
        "Writes refused before anything was sent: no leader was known, or none was in contact.",
    ),
    ("unknown_outcomes_total", "Writes whose outcome was not known in time."),
    ("proposals", "Writes of this member without an outcome yet."),
    ("barriers_total", "Barriers sent for linearizable reads here."),
    ("barrier_rounds_total", "Rounds of heartbeats for read barriers, as leader."),
)


def raft_families(status: GroupStatus) -> Iterable[Metric]:
    """Yield the figures of ``raft_status`` as metrics. Skip figures that are absent or None."""
    for figure, help_ in _FIGURES:
        value = getattr(status, figure.removesuffix("_total"))
        if isinstance(value, (int, float)):  # A bool is an int in Python, so flags become 0 or 1.
            name, _, unit = figure.rpartition("_")
            if unit in ("ms", "s"):
                figure, value = f"{name}_seconds", value * (0.001 if unit == "ms" else 1)
            yield family(f"mqnamesrv_raft_{figure}", help_, [({}, value)])
    yield family("mqnamesrv_raft_is_leader", "1 while leading.", [({}, status.role == "leader")])
    yield family("mqnamesrv_raft_leader_known", "1 while a leader is known.", [({}, bool(status.leader))])
    members, learners, linked = status.members or (), status.learners or (), status.linked or ()
    kinds = [({"kind": "voter"}, len(members) - len(learners)), ({"kind": "learner"}, len(learners))]
    yield family("mqnamesrv_raft_members", "Members by kind, as known here.", kinds)
    links = [({"peer": member}, member in linked) for member in members if member != status.me]
    if links:
        up = "1 while the authenticated link to a member is up."
        yield family("mqnamesrv_raft_link_up", up, links)
