"""Limits of the memory that peers may make a server hold, and its counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.frame import FRAME_SIZE_MAX
from routekeeper.remoting.histogram import Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of the memory that peers may make a server hold.

    Attributes:
        connections_max: Open connections; further ones are closed at once.
        frame_size_max: Bytes of one frame, length word included.
        large_frames_max: Bytes of large frames that may be read at once, over all connections. A single
            frame may be larger; connections with further large frames are not read meanwhile.
        large_frame_s: Seconds after which a connection with an incomplete large frame gives way to others
            that wait; twice as many at most.
        received_max: Received bytes that are not answered, over all connections: unfinished frames, frames
            that wait for their turn, and requests whose answers come later. Above it the largest connections
            are cut off.
        under_way_max: Bytes of requests of one connection whose answers come later. Above it none of its
            requests is handled until half of them are answered; one request may be larger.
        unanswered_max: Requests of one connection that may be under way.
        unread_max: Bytes of answers that one peer may leave unread before its connection is closed.
        unread_all_max: The same over all connections. Above it the largest connections are cut off.
        idle_s: Seconds without a byte in either direction after which a connection is closed.
    """

    connections_max: int = 16_384
    frame_size_max: int = FRAME_SIZE_MAX
    large_frames_max: int = 32 * 1024 * 1024
    large_frame_s: float = 0.1
    received_max: int = 256 * 1024 * 1024
    under_way_max: int = 8 * 1024 * 1024
    unanswered_max: int = 4096
    unread_max: int = 64 * 1024 * 1024
    unread_all_max: int = 256 * 1024 * 1024
    idle_s: float = 120.0


class ServerStats:
    """Counters of one server, for its metrics.

    Attributes:
        requests: By code, for codes that are served; peers can choose any other code.
        requests_unknown: All other requests.
        answers: By code, for codes that our programs send.
        answers_other: All other answers: those of a client to a request that was forwarded to it.
        times: Time from a request's arrival, or the beginning of its wait for a turn, to its answer; by
            group.
        late: Lateness of the loop.
        connections_shed: Connections cut off because all together held too much.
        lines_suppressed: Log lines about peers that were not written.
    """

    __slots__ = (
        "_time_of",
        "answers",
        "answers_other",
        "bad_frames",
        "connections_accepted",
        "connections_refused",
        "connections_shed",
        "late",
        "lines_suppressed",
        "requests",
        "requests_unknown",
        "tasks_abandoned",
        "times",
    )

    def __init__(self, groups: Mapping[int, str] | None = None) -> None:
        """Begin to count.

        Args:
            groups: Maps a request code to the group in which it is timed; other requests are not timed.
        """
        self.requests: Counter[int] = Counter()
        self.requests_unknown = 0
        self.answers = dict.fromkeys(map(int, ResponseCode), 0)
        self.answers_other = 0
        groups = groups or {}
        self.times = {group: Histogram() for group in groups.values()}
        self._time_of = {int(code): self.times[group] for code, group in groups.items()}
        self.late = Histogram()
        self.bad_frames = 0
        self.connections_accepted = 0
        self.connections_refused = 0
        self.connections_shed = 0
        self.lines_suppressed = 0
        self.tasks_abandoned = 0

    def answered(self, code: int) -> None:
        """Count an answer."""
        if code in self.answers:
            self.answers[code] += 1
        else:
            self.answers_other += 1

    def took(self, code: int, seconds: float) -> None:
        """Record how long a request with this code has waited for its answer."""
        histogram = self._time_of.get(code)
        if histogram is not None:
            histogram.observe(seconds)
