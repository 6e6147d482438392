"""Counters of one broker and their rates (pure). Instants are loop times in seconds."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

#: Windows of the rates that request 28 answers, in seconds.
WINDOWS_S: Final = (10.0, 60.0, 600.0)
#: Interval between calls of :meth:`Rate.sample`, in seconds.
SAMPLE_INTERVAL_S: Final = 5.0

#: Names of statistics that request 315 answers. Source: BrokerStatsManager.
TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
#: Bound of the statistics: each costs memory and a sample every 10 s. Further ones are not counted.
ITEMS_MAX: Final = 20_000
#: Seconds between samples, and samples kept, for the last minute, hour and day. Source: StatsItem.
_SPANS: Final = ((10.0, 7), (600.0, 7), (3600.0, 25))
#: Number of items that one step samples.
_TURN: Final = 500


class Rate:
    """A growing total, and its recent rate."""

    def __init__(self) -> None:
        self.total = 0
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float) -> None:
        self._samples.append((now, self.total))
        while self._samples and now - self._samples[0][0] > WINDOWS_S[-1] + SAMPLE_INTERVAL_S:
            self._samples.popleft()

    def per_second(self, window_s: float, now: float) -> float:
        """Return the mean growth per second since the oldest sample within the window."""
        for at, total in self._samples:
            if now - at <= window_s and now > at:
                return (self.total - total) / (now - at)
        return 0.0

    def spell(self, now: float) -> str:
        """Return the rates of all windows as request 28 answers them: three numbers with blanks between."""
        return " ".join(str(self.per_second(window, now)) for window in WINDOWS_S)


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of a counter between its first and its last sample of a span.

    Attributes:
        times: Number of additions.
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
    """One statistic: a counter with samples of the last minute, hour and day. Source: StatsItem."""

    __slots__ = ("_samples", "times", "value")

    def __init__(self, now: float) -> None:
        self.value = self.times = 0
        # Take the first sample at creation, so that all later counts are growth.
        self._samples = tuple(deque([(now, 0, 0)], maxlen=kept) for _, kept in _SPANS)

    def sample(self, now: float) -> None:
        """Take the samples that are due."""
        for samples, (interval_s, _) in zip(self._samples, _SPANS, strict=True):
            if now - samples[-1][0] >= interval_s:
                samples.append((now, self.value, self.times))

    def growth(self, span: int) -> Growth:
        """Return the growth in the last minute (0), hour (1) or day (2), as far as it was sampled."""
        samples = self._samples[span]
        (first_at, first, first_times), (last_at, last, last_times) = samples[0], samples[-1]
        return Growth(last - first, last_times - first_times, last_at - first_at)


@dataclass(slots=True)
class Stats:
    """Counters of this broker since its start.

    Attributes:
        cluster_name: Key of the statistics of the whole broker, as in RocketMQ.
        refused: Number of refused sends, by :class:`routekeeper.broker.errors.Refused`.
        put_bytes: Bytes of the messages of ``put`` in the log.
        now: Loop time of the last sample, which dates later counts.
    """

    started_ms: int = 0
    cluster_name: str = ""
    put: Rate = field(default_factory=Rate)
    put_bytes: int = 0
    got: Rate = field(default_factory=Rate)
    get_found: Rate = field(default_factory=Rate)
    get_missed: Rate = field(default_factory=Rate)
    items: dict[tuple[str, str], Item] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    now: float = 0.0
    day: int = 0
    mornings: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))

    def count(self, name: str, key: str, value: int) -> None:
        """Add to a statistic; create it if it is new, unless there are too many."""
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
        """Count messages that went to a consumer."""
        self.got.total += count
        self.count(BROKER_GET_NUMS, self.cluster_name, count)
        key = f"{topic}@{group}"
        self.count(GROUP_GET_NUMS, key, count)
        self.count(GROUP_GET_SIZE, key, size)

    def sent_back(self, topic: str, group: str) -> None:
        """Count a message that a consumer sent back."""
        self.count(SNDBCK_PUT_NUMS, f"{topic}@{group}", 1)

    def consume_tps(self, topic: str, group: str) -> float:
        """Return how many messages of a topic went to a group per second of the last minute."""
        item = self.items.get((GROUP_GET_NUMS, f"{topic}@{group}"))
        return 0.0 if item is None else item.growth(0).per_second

    def drop_topic(self, topic: str) -> None:
        """Forget the statistics of a topic that is deleted."""
        begin = f"{topic}@"
        for name, key in [pair for pair in self.items if pair[1] == topic or pair[1].startswith(begin)]:
            del self.items[name, key]

    def sample(self, now: float) -> None:
        self.now = now
        for rate in (self.put, self.got, self.get_found, self.get_missed):
            rate.sample(now)

    def sample_items(self, now: float) -> Iterator[None]:
        """Sample all statistics, in steps, so that other work has its turn."""
        items = list(self.items.values())
        for begin in range(0, len(items), _TURN):
            for item in items[begin : begin + _TURN]:
                item.sample(now)
            yield

    def begin_day(self, day: int) -> None:
        """Note the totals of the morning when a new local day has begun. Source: BrokerStats.record."""
        if day != self.day:
            if self.day:
                self.mornings = (self.mornings[1], (self.put.total, self.got.total))
            self.day = day
