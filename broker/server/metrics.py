"""Metrics of a broker (``/metrics``), under the names and labels of RocketMQ's own exporter.

This module accesses files only through the store. Rates are means over the last minute, as in the exporter.
The metrics that the exporter gets from clients are missing. Metrics of things that this broker does not have
are also missing, such as put latencies and sizes of thread pools. Clients can create any number of topics and
groups. Therefore a family of metrics lists only the topics and groups with the greatest values.

Source: RMQMetricsCollector and MetricsCollectTask, rocketmq-exporter.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from routekeeper.broker.errors import DiskState, Refused
from routekeeper.broker.requests.admin import VERSION_TEXT
from routekeeper.broker.server.lag import PAIRS_MAX, QUEUES_MAX, Behind, behind_in, most_behind
from routekeeper.broker.tables.state import BrokerState
from routekeeper.broker.tables.stats import (
    BROKER_GET_NUMS,
    BROKER_PUT_NUMS,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    SNDBCK_PUT_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    WINDOWS_S,
)
from routekeeper.remoting.codes import DLQ_PREFIX, RETRY_PREFIX, VERSION, ResponseCode
from routekeeper.remoting.http.exposition import histograms
from routekeeper.remoting.output import lines_dropped, lines_left_out
from routekeeper.remoting.transport.limits import ServerStats
from routekeeper.remoting.transport.server_hooks import ServerHooks, hook_figures

#: Kinds of connections, by their client. A ``consumer`` may also produce. A ``client`` has sent requests, but
#: no heartbeat. A client of the kind ``other`` has sent no request.
CONNECTION_KINDS: Final = ("consumer", "producer", "client", "other")
#: Largest number of series in a family of metrics whose labels clients choose.
SERIES_MAX: Final = 1_000
#: Number of queues that one step of :func:`gather` reads. Other tasks can run between two steps.
_TURN: Final = 500
#: Names of metrics, by name of the statistic. The statistics in _TOPIC_RATES are kept for each topic. The
#: statistics in _GROUP_RATES are kept for each pair of a topic and a group.
_TOPIC_RATES: Final = {
    TOPIC_PUT_NUMS: "rocketmq_producer_tps",
    TOPIC_PUT_SIZE: "rocketmq_producer_message_size",
}
_GROUP_RATES: Final = {
    GROUP_GET_NUMS: "rocketmq_consumer_tps",
    GROUP_GET_SIZE: "rocketmq_consumer_message_size",
    SNDBCK_PUT_NUMS: "rocketmq_send_back_nums",
}
_BROKER_RATES: Final = {BROKER_PUT_NUMS: "rocketmq_broker_tps", BROKER_GET_NUMS: "rocketmq_broker_qps"}
_RUNTIME: Final = "rocketmq_brokeruntime_"
#: Largest number of group members that a label lists. Clients choose their ids, so the label needs a bound.
_NAMED_MAX: Final = 16
_HELP: Final = {
    "rocketmq_broker_tps": "Messages stored per second.",
    "rocketmq_broker_qps": "Messages handed out per second.",
    "rocketmq_producer_tps": "Messages stored per second.",
    "rocketmq_producer_message_size": "Bytes stored per second.",
    "rocketmq_producer_offset": "Sum of the ends of a topic's queues.",
    "rocketmq_topic_retry_offset": "Sum of the ends of a retry topic's queues.",
    "rocketmq_topic_dlq_offset": "Sum of the ends of a dead letter topic's queues.",
    "rocketmq_consumer_tps": "Messages handed out to a group per second.",
    "rocketmq_consumer_message_size": "Bytes handed out to a group per second.",
    "rocketmq_consumer_offset": "Sum of the offsets that a group stored.",
    "rocketmq_send_back_nums": "Messages that a group sent back per second.",
    "rocketmq_group_diff": "Messages that a group has not consumed yet.",
    "rocketmq_group_retrydiff": "Messages of its retry topic that a group has not consumed yet.",
    "rocketmq_group_dlqdiff": "Messages of its dead letter topic that a group has not consumed.",
    "rocketmq_group_count": "Members of a group.",
    "rocketmq_producer_count": "Members of a producer group.",
}


class Samples(Collector):
    """Families of metrics with their samples. Each family has one help text.

    Attributes:
        runtime: Labels of the metrics of the broker itself.
        behind: Groups with the greatest lag.
        histograms: Metrics of type histogram.
    """

    def __init__(self, runtime: Mapping[str, str]) -> None:
        self.runtime = runtime
        self.behind: list[Behind] = []
        self.histograms: list[Metric] = []
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        self._many: dict[str, list[tuple[float, int, Mapping[str, str]]]] = {}  # for each name: a heap
        self._counts: Counter[str] = Counter()

    def add_one_of_many(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Add a sample whose labels clients choose. Keep only the greatest samples of a name."""
        self._counts[name] += 1
        _keep_greatest(self._many.setdefault(name, []), (value, -self._counts[name], labels), SERIES_MAX)

    def choose(self) -> Iterable[None]:
        """Call :meth:`add` for the samples that :meth:`add_one_of_many` has kept.

        Other tasks can run after each family.
        """
        for name, samples in self._many.items():
            for value, _, labels in sorted(samples, reverse=True):
                self.add(name, value, labels)
            left_out = float(self._counts[name] - len(samples))
            help_ = f"Series that a family omits: of more than {SERIES_MAX}, the greatest are shown."
            self.add("mqbroker_series_left_out", left_out, {"family": name}, help_=help_)
            yield
        self._many.clear()

    def add(self, name: str, value: float, labels: Mapping[str, str], *, help_: str = "") -> None:
        """Add a sample to a counter if the name ends in ``_total``, otherwise to a gauge."""
        family = self._families.get(name)
        if family is None:
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = self._families[name] = kind(name, help_ or _HELP[name], labels=tuple(labels))
        family.add_metric(tuple(labels.values()), value)

    def collect(self) -> Iterable[Metric]:
        return (*self._families.values(), *self.histograms)


_Item = TypeVar("_Item", bound=tuple[Any, ...])


def _keep_greatest(heap: list[_Item], item: _Item, count_max: int) -> None:
    """Add an item to a heap. If the heap is full, remove its smallest item."""
    if len(heap) < count_max:
        heapq.heappush(heap, item)
    else:
        heapq.heappushpop(heap, item)


class _Ends:
    """Ends of the queues that have messages, as one scrape has read them.

    Attributes:
        of_topic: Sum of the ends of a topic's queues.
        readable: For each topic, the end of each queue that consumers read.
        of_readable: Sum of these ends for each topic.
    """

    def __init__(self) -> None:
        self.of_topic: Counter[str] = Counter()
        self.readable: dict[str, dict[int, int]] = {}
        self.of_readable: Counter[str] = Counter()

    def read(self, state: BrokerState) -> Generator[None, None, None]:
        """Read the ends in steps."""
        # Read only queues that have messages. Clients may create topics with any number of other queues.
        for index, (topic, queue_id) in enumerate(state.store.queue_keys()):
            config = state.topics.get(topic)
            if config is not None and queue_id < max(config.read_queue_nums, config.write_queue_nums):
                end = state.store.bounds(topic, queue_id)[1]
                self.of_topic[topic] += end
                if queue_id < config.read_queue_nums:
                    self.readable.setdefault(topic, {})[queue_id] = end
                    self.of_readable[topic] += end
            if index % _TURN == 0:
                yield


def gather(state: BrokerState, *, now: float | None = None) -> Generator[None, None, Samples]:
    """Return all samples. The generator yields between steps, so that other tasks can run.

    Args:
        now: Time in seconds of the event loop's clock. None stands for the time of the last sample of the
            statistics, and is right only if nothing was counted since then.
    """
    broker = {"cluster": state.config.cluster_name, "broker": state.config.broker_name}
    samples = Samples(
        {
            "cluster": state.config.cluster_name,
            "brokerIP": str(state.advertise),
            "brokerHost": "",  # the exporter never sets this value
            "des": VERSION_TEXT,
            "boottime": str(state.stats.started_ms),
            "broker_version": str(VERSION),
        }
    )
    # Read the rates before the first yield, because they are right only at the time ``now``.
    _add_rates(samples, state, broker, state.stats.now if now is None else now)
    members = yield from _add_broker(samples, state, broker)
    for index, ((name, key), item) in enumerate(list(state.stats.items.items())):
        rate = item.growth(0).per_second
        topic, _, group = key.partition("@")
        if name in _TOPIC_RATES:
            samples.add_one_of_many(_TOPIC_RATES[name], rate, {**broker, "topic": key})
        elif name in _GROUP_RATES:
            samples.add_one_of_many(_GROUP_RATES[name], rate, {**broker, "topic": topic, "group": group})
        if index % _TURN == 0:
            yield
    ends = _Ends()
    yield from ends.read(state)
    for index, config in enumerate(list(state.topics)):
        topic = config.topic_name
        end = float(ends.of_topic[topic])
        if topic.startswith(DLQ_PREFIX):
            dead = {**broker, "group": topic[len(DLQ_PREFIX) :]}
            samples.add_one_of_many("rocketmq_topic_dlq_offset", end, dead)
        elif topic.startswith(RETRY_PREFIX):
            samples.add_one_of_many("rocketmq_topic_retry_offset", end, {**broker, "topic": topic})
        else:
            samples.add_one_of_many("rocketmq_producer_offset", end, {**broker, "topic": topic})
        if index % _TURN == 0:
            yield
    yield from _add_lags(samples, state, broker, ends, members)
    return samples


def _add_lags(
    samples: Samples,
    state: BrokerState,
    broker: Mapping[str, str],
    ends: _Ends,
    members: Mapping[str, int],
) -> Generator[None, None, None]:
    """Add the progress and the lag of each group in each topic, and choose the samples to show.

    Args:
        members: Number of members of each group.
    """
    behind: list[Behind] = []  # a heap with the greatest lags so far
    behind_all = looked_at = 0
    for topic, group in state.offsets.pairs():
        queues = dict(state.offsets.queues(topic, group))
        lag = None
        if queues:  # without any offset, the pair was removed during this scrape
            labels = {**broker, "topic": topic, "group": group}
            samples.add_one_of_many("rocketmq_consumer_offset", float(sum(queues.values())), labels)
            lag = yield from _add_lag(samples, state, (topic, group), queues, ends, members.get(group, 0))
        if lag is not None and lag.messages:
            behind_all += lag.messages
            _keep_greatest(behind, lag, PAIRS_MAX)
        looked_at += 1 + len(queues)
        if looked_at >= _TURN:
            looked_at = 0
            yield
    yield from samples.choose()
    samples.behind = yield from _with_queues_without_offset(state, most_behind(behind), ends)
    samples.add(
        "mqbroker_consumer_lag_all_messages",
        float(behind_all),
        {},
        help_="Messages that groups have not consumed yet, of all groups and topics.",
    )
    for lag in samples.behind:
        labels = {"topic": lag.topic, "group": lag.group}
        samples.add("mqbroker_consumer_lag_messages", float(lag.messages), labels, help_=_LAG_MESSAGES)


def _add_rates(samples: Samples, state: BrokerState, broker: Mapping[str, str], now: float) -> None:
    """Add the broker's rates in the last seconds and minutes."""
    stats = state.stats
    address = {"cluster": broker["cluster"], "brokerIP": str(state.advertise), "broker": broker["broker"]}
    for name, rate_name in _BROKER_RATES.items():
        item = stats.items.get((name, state.config.cluster_name))
        samples.add(rate_name, 0.0 if item is None else item.growth(0).per_second, address)
    for window in map(int, WINDOWS_S):
        for name, rate, help_ in (
            ("put", stats.put, "Messages stored"),
            ("getfound", stats.get_found, "Pulls that found messages"),
            ("gettotal", stats.pulls, "Pulls that found messages, and pulls that found none"),
            ("getmiss", stats.get_missed, "Pulls that found none"),
            ("gettransfered", stats.got, "Messages handed out"),
        ):
            samples.add(
                f"{_RUNTIME}{name}_tps{window}",
                rate.per_second(window, now),
                samples.runtime,
                help_=f"{help_} per second of the last {window} s.",
            )


def _add_broker(
    samples: Samples, state: BrokerState, broker: Mapping[str, str]
) -> Generator[None, None, dict[str, int]]:
    """Add the samples of the broker itself and of groups, and return the number of members of each group."""
    stats, store = state.stats, state.store
    for reason in Refused:
        refused = float(stats.refused[reason])
        samples.add("mqbroker_sends_refused_total", refused, {"reason": reason}, help_="Refused sends.")
    samples.add(
        "mqbroker_queue_entries_damaged_total",
        float(store.damaged_entries),
        {},
        help_="Damaged entries that were found in files of queues.",
    )
    members: dict[str, int] = {}
    looked_at = 0
    for group in state.clients.consumer_groups():
        named = tuple(islice(group.members.values(), _NAMED_MAX))
        if named:  # empty if all members have left since this loop began
            labels = {
                "caddr": ",".join(client.client_addr for client in named),
                "localaddr": ",".join(client.client_id for client in named),
                "group": group.name,
            }
            members[group.name] = len(group.client_ids())
            samples.add_one_of_many("rocketmq_group_count", float(members[group.name]), labels)
        looked_at += 1 + len(group.members)
        if looked_at >= _TURN:
            looked_at = 0
            yield
    for name in state.clients.producer_group_names():
        count = len(state.clients.producers(name))
        if count:
            samples.add_one_of_many("rocketmq_producer_count", float(count), {**broker, "group": name})
        looked_at += 1 + count
        if looked_at >= _TURN:
            looked_at = 0
            yield
    (put_yesterday, got_yesterday), (put_today, got_today) = stats.mornings
    for name, value, help_ in (
        ("msg_puttotal_yesterdaymorning", put_yesterday, "Messages stored until yesterday began."),
        ("msg_gettotal_yesterdaymorning", got_yesterday, "Messages handed out until yesterday began."),
        ("msg_puttotal_todaymorning", put_today, "Messages stored until today began."),
        ("msg_gettotal_todaymorning", got_today, "Messages handed out until today began."),
        ("putmessage_times_total", stats.put.total, "Messages stored since the start."),
        ("msg_put_total_today_now", stats.put.total, "Messages stored since the start."),
        ("msg_gettotal_today_now", stats.got.total, "Messages handed out since the start."),
        ("commitlog_minoffset", store.log.min_offset, "Offset at which the log begins."),
        ("commitlog_maxoffset", store.log.max_offset, "Offset at which the log ends."),
        (
            "remain_howmanydata_toflush",
            store.log.max_offset - store.log.flushed_offset,
            "Bytes of the log that are not synced.",
        ),
    ):
        samples.add(f"{_RUNTIME}{name}", float(value), samples.runtime, help_=help_)
    return members


_LAG_MESSAGES: Final = "Messages that a group has not consumed yet; for the 100 pairs with most."
_LAG_SECONDS: Final = "Age of the oldest message that a group has not consumed; for the same pairs."


def _add_lag(
    samples: Samples,
    state: BrokerState,
    pair: tuple[str, str],
    queues: Mapping[int, int],
    ends: _Ends,
    members: int,
) -> Generator[None, None, Behind | None]:
    """Add the lag of a group in a topic, and return this lag.

    Return None for a broadcasting group. The broker does not know its lag, because members keep the offsets.

    Args:
        pair: The topic and the group.
        queues: Offsets of the group in the topic, by queue.
        members: Number of the group's members.
    """
    topic, group = pair
    online = state.clients.consumer_group(group)
    if online is not None and online.is_broadcasting:
        return None
    name = "rocketmq_group_diff"
    if topic.startswith(RETRY_PREFIX):
        name = "rocketmq_group_retrydiff"
    elif topic.startswith(DLQ_PREFIX):
        name = "rocketmq_group_dlqdiff"
    lag = yield from _behind_in_steps(state, topic, group, queues, ends)
    labels = {
        "group": group,
        "topic": topic,
        "countOfOnlineConsumers": str(members),
        "msgModel": "1",  # number of CLUSTERING in Java's enum MessageModel
    }
    samples.add_one_of_many(name, float(lag.messages), labels)
    return lag


def _behind_in_steps(
    state: BrokerState, topic: str, group: str, queues: Mapping[int, int], ends: _Ends
) -> Generator[None, None, Behind]:
    """Return the lag of a group in a topic. Each step reads ``_TURN`` queues.

    The number of messages includes the queues without an offset of the group, counted from offset 0 as in
    request 208. :func:`_with_queues_without_offset` adds these queues themselves, but only for the greatest
    lags: a topic may have many queues, and many groups have offsets in some of them.
    """
    offsets = iter(queues.items())
    readable = ends.readable.get(topic, {})
    lag = Behind(ends.of_readable[topic], topic, group, ())
    while some := dict(islice(offsets, _TURN)):
        more = behind_in(state.store, topic, group, some, queues_max=QUEUES_MAX - len(lag.queues))
        messages = lag.messages + more.messages - sum(readable.get(queue_id, 0) for queue_id in some)
        lag = Behind(messages, topic, group, lag.queues + more.queues)
        if len(queues) > _TURN:
            yield
    return lag


def _with_queues_without_offset(
    state: BrokerState, lags: Iterable[Behind], ends: _Ends
) -> Generator[None, None, list[Behind]]:
    """Return lags together with the queues in which their groups have no offset.

    Add only queues whose oldest message would be read, because the number of these queues is bounded.
    """
    found, room = [], QUEUES_MAX
    for lag in lags:
        room -= len(lag.queues)
        offsets = state.offsets.queues(lag.topic, lag.group)
        if room > 0 and offsets:  # without any offset, the pair was removed during this scrape
            without = (each for each in ends.readable.get(lag.topic, ()) if each not in offsets)
            added = tuple((each, state.store.bounds(lag.topic, each)[0]) for each in islice(without, room))
            room -= len(added)
            lag = lag._replace(queues=lag.queues + added)
            yield
        found.append(lag)
    return found


def encode(
    samples: Samples,
    *,
    disk: tuple[int, int],
    requests: Mapping[int, int],
    connections: Mapping[str, int],
    lines_suppressed: int,
    stats: ServerStats | None = None,
    disk_state: DiskState = DiskState.OK,
    oldest: Mapping[tuple[str, str], int] = MappingProxyType({}),
    now_ms: int = 0,
    expirations: Mapping[str, float] = MappingProxyType({}),
    hooks: ServerHooks,
) -> bytes:
    """Return all metrics in Prometheus' text format 0.0.4. The function may run in any thread.

    Args:
        disk: Size and free bytes of the file system that has the commit log, or zeros if unknown.
        requests: Number of requests by request code.
        connections: Number of open connections by kind.
        lines_suppressed: Number of log lines about peers that the broker suppressed.
        stats: Statistics of requests, answers and the event loop.
        oldest: Store time (Unix ms) of the oldest unconsumed message, by topic and group.
        expirations: Seconds until the certificate of a port expires, by port.
    """
    if stats is not None:
        _add_wire(samples, stats)
    for at_present in DiskState:
        is_so = float(at_present is disk_state)
        samples.add("mqbroker_disk_state", is_so, {"state": at_present}, help_="1 for the state of the disk.")
    for lag in samples.behind:
        stored_ms = oldest.get((lag.topic, lag.group))
        if stored_ms is not None:
            age_s = max(0, now_ms - stored_ms) / 1000
            labels = {"topic": lag.topic, "group": lag.group}
            samples.add("mqbroker_consumer_lag_seconds", age_s, labels, help_=_LAG_SECONDS)
    for port, seconds in expirations.items():
        left = (
            "Time until the certificate of a port, or the last authority that signs its peers' certificates, "
            "expires; ports with TLS only."
        )
        samples.add("mqbroker_certificate_left_seconds", seconds, {"port": port}, help_=left)
    for name, help_, figures in hook_figures(hooks):
        for labels, value in figures:
            samples.add(f"mqbroker_{name}", value, labels, help_=help_)
    for code, count in sorted(requests.items()):
        samples.add("mqbroker_requests_total", float(count), {"code": str(code)}, help_="Requests by code.")
    samples.add("mqbroker_connections", float(sum(connections.values())), {}, help_="Open connections.")
    for kind, count in connections.items():
        samples.add("mqbroker_connections_by_kind", float(count), {"kind": kind}, help_=_KINDS)
    dropped = "Lines of stderr that were lost because no program read them in time."
    samples.add("mqbroker_log_lines_dropped_total", float(lines_dropped()), {}, help_=dropped)
    left_out = "Log lines about peers, or about too frequent events, that were not written."
    suppressed = float(lines_suppressed + lines_left_out())
    samples.add("mqbroker_log_lines_suppressed_total", suppressed, {}, help_=left_out)
    size, free = disk
    if size:
        for name, value, help_ in (
            ("commitlog_disk_ratio", 1 - free / size, "Share of the log's file system in use."),
            ("consumequeue_disk_ratio", 1 - free / size, "Share of the queues' file system in use."),
            ("commitlogdir_capacity_total", float(size), "Bytes of the log's file system."),
            ("commitlogdir_capacity_free", float(free), "Free bytes of the log's file system."),
        ):
            samples.add(f"{_RUNTIME}{name}", value, samples.runtime, help_=help_)
    registry = CollectorRegistry()
    registry.register(samples)
    ProcessCollector(registry=registry)  # without /proc, this collector returns no metrics
    return generate_latest(registry)


def _add_wire(samples: Samples, stats: ServerStats) -> None:
    """Add the response times of requests, the counts of answers, and the lateness of the event loop."""
    help_ = "Time from a request's arrival to its answer, without pulls that wait for messages."
    by_group = [({"group": group}, times) for group, times in sorted(stats.times.items())]
    samples.histograms.append(histograms("mqbroker_request_seconds", help_, by_group))
    late = "Lateness of the event loop, measured ten times a second."
    samples.histograms.append(histograms("mqbroker_loop_late_seconds", late, [({}, stats.late)]))
    for code, count in sorted(stats.answers.items()):
        if count or code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR):
            samples.add("mqbroker_answers_total", float(count), {"code": str(code)}, help_=_ANSWERS)
    samples.add("mqbroker_answers_total", float(stats.answers_other), {"code": "other"}, help_=_ANSWERS)


_ANSWERS: Final = "Answers by code."
_KINDS: Final = (
    "Open connections: of consumers, of producers alone, of other clients that sent a request, of clients "
    "that sent none."
)
