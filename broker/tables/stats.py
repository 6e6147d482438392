"""Counters of one broker and their rates. Callers pass instants, in seconds of the event loop's clock.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

#: Time windows in seconds for which request 28 (GET_BROKER_RUNTIME_INFO) returns rates.
WINDOWS_S: Final = (10.0, 60.0, 600.0)
#: Seconds between two calls of :meth:`Rate.sample`.
SAMPLE_INTERVAL_S: Final = 5.0

#: Names of the statistics that request 315 (VIEW_BROKER_STATS_DATA) returns. Source: BrokerStatsManager.
TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
#: Largest number of statistics. Each statistic takes memory and is sampled every 10 s, so the number is
#: bounded. Statistics with further names are ignored.
ITEMS_MAX: Final = 20_000
#: Three time spans: the last minute, hour and day. For each span: seconds between two samples, and number of
#: samples that are kept. Source: StatsItem.
_SPANS: Final = ((10.0, 7), (600.0, 7), (3600.0, 25))
#: Number of statistics that one step samples. Between two steps the event loop may run other work.
_TURN: Final = 500


class Rate:
    """A total that only grows, with samples that show its growth in the last seconds or minutes."""

    def __init__(self) -> None:
        self.total = 0
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float) -> None:
        self._samples.append((now, self.total))
        while self._samples and now - self._samples[0][0] > WINDOWS_S[-1] + SAMPLE_INTERVAL_S:
            self._samples.popleft()

    def per_second(self, window_s: float, now: float) -> float:
        """Return the mean growth per second since the oldest sample of the last ``window_s`` seconds.

        Return 0 if there is no such sample.
        """
        for at, total in self._samples:
            if now - at <= window_s and now > at:
                return (self.total - total) / (now - at)
        return 0.0

    def spell(self, now: float) -> str:
        """Return the rates of all windows in the form of request 28: three numbers separated by blanks."""
        return " ".join(str(self.per_second(window, now)) for window in WINDOWS_S)


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of a counter between the first and the last sample of a time span.

    Attributes:
        times: Number of additions to the counter in that span.
    """

    sum: int = 0
    times: int = 0
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return self.sum / self.seconds if self.seconds else 0.0

    @property
    def per_time(self) -> float:
        return self.sum / self.times if self.times else 0.0


class Item:
    """A counter with samples of its value in the last minute, hour and day. Source: StatsItem."""

    __slots__ = ("_samples", "times", "value")

    def __init__(self, now: float) -> None:
        self.value = self.times = 0
        # Take a first sample of 0 when the counter is created. Additions before the second sample then count
        # as growth.
        self._samples = tuple(deque([(now, 0, 0)], maxlen=kept) for _, kept in _SPANS)

    def sample(self, now: float) -> None:
        """Take a sample for each time span whose interval has passed."""
        for samples, (interval_s, _) in zip(self._samples, _SPANS, strict=True):
            if now - samples[-1][0] >= interval_s:
                samples.append((now, self.value, self.times))

    def growth(self, span: int) -> Growth:
        """Return the growth between the samples of the last minute (``span`` 0), hour (1) or day (2)."""
        samples = self._samples[span]
        (first_at, first, first_times), (last_at, last, last_times) = samples[0], samples[-1]
        return Growth(last - first, last_times - first_times, last_at - first_at)


@dataclass(slots=True)
class Stats:
    """Counters of this broker since its start.

    Attributes:
        cluster_name: Name under which the statistics of the whole broker are stored, as in RocketMQ.
        refused: Number of refused sends, by reason (:class:`routekeeper.broker.errors.Refused`).
        put_bytes: Size in bytes, in the log, of the messages that ``put`` counts.
        now: Time of the last sample in seconds of the event loop's clock. A new counter uses this time for
            its first sample.
    """

    started_ms: int = 0
    cluster_name: str = ""
    put: Rate = field(default_factory=Rate)
    put_bytes: int = 0
    got: Rate = field(default_factory=Rate)
    pulls: Rate = field(default_factory=Rate)
    get_found: Rate = field(default_factory=Rate)
    get_missed: Rate = field(default_factory=Rate)
    items: dict[tuple[str, str], Item] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    now: float = 0.0
    day: int = 0
    mornings: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))

    def count(self, name: str, key: str, value: int) -> None:
        """Add a value to a counter. Create a new counter, unless :data:`ITEMS_MAX` counters exist."""
        item = self.items.get((name, key))
        if item is None:
            if len(self.items) >= ITEMS_MAX:
                return
            item = self.items[name, key] = Item(self.now)
        item.value += value
        item.times += 1

    def stored(self, topic: str, count: int, size: int) -> None:
        """Count stored messages of one topic."""
        self.put.total += count
        self.put_bytes += size
        self.count(BROKER_PUT_NUMS, self.cluster_name, count)
        self.count(TOPIC_PUT_NUMS, topic, count)
        self.count(TOPIC_PUT_SIZE, topic, size)

    def handed_out(self, topic: str, group: str, count: int, size: int) -> None:
        """Count messages that the broker sent to a consumer."""
        self.got.total += count
        self.count(BROKER_GET_NUMS, self.cluster_name, count)
        key = f"{topic}@{group}"
        self.count(GROUP_GET_NUMS, key, count)
        self.count(GROUP_GET_SIZE, key, size)

    def sent_back(self, topic: str, group: str) -> None:
        """Count a message that a consumer sent back."""
        self.count(SNDBCK_PUT_NUMS, f"{topic}@{group}", 1)

    def consume_tps(self, topic: str, group: str) -> float:
        """Return a group's mean rate in the last minute: messages of a topic that it received, per second."""
        item = self.items.get((GROUP_GET_NUMS, f"{topic}@{group}"))
        return 0.0 if item is None else item.growth(0).per_second

    def drop_topic(self, topic: str) -> None:
        """Remove the statistics of a deleted topic."""
        begin = f"{topic}@"
        for name, key in [pair for pair in self.items if pair[1] == topic or pair[1].startswith(begin)]:
            del self.items[name, key]

    def sample(self, now: float) -> None:
        self.now = now
        for rate in (self.put, self.got, self.pulls, self.get_found, self.get_missed):
            rate.sample(now)

    def sample_items(self, now: float) -> Iterator[None]:
        """Sample all counters, :data:`_TURN` in each step. Other work may run between two steps."""
        items = list(self.items.values())
        for begin in range(0, len(items), _TURN):
            for item in items[begin : begin + _TURN]:
                item.sample(now)
            yield

    def begin_day(self, day: int) -> None:
        """If a new local day has begun, store the current totals as the totals at the start of this day.

        Source: BrokerStats.record.
        """
        if day != self.day:
            if self.day:
                self.mornings = (self.mornings[1], (self.put.total, self.got.total))
            self.day = day
