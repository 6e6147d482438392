"""Limits of the memory that peers can make a server use, and the server's counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.frame import FRAME_SIZE_MAX
from routekeeper.remoting.histogram import Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of the memory that peers can make a server use.

    Attributes:
        connections_max: Number of open connections; further connections are closed at once.
        frame_size_max: Bytes of one frame, including its length word.
        large_frames_max: Bytes of all large frames that are being read at the same time. A single frame may
            be larger; while it is being read, no other large frame is read.
        large_frame_s: Seconds after which a connection with an incomplete large frame must let waiting
            connections read their frames. The server checks only at this interval, so the real time may be
            up to twice as long.
        received_max: Bytes received on all connections and not answered yet. These are unfinished frames,
            frames that wait for their turn (time slice), and requests whose answers come later. Above this
            limit the largest connections are cut off.
        under_way_max: Bytes of one connection's requests whose answers come later. Above this limit, none of
            its further requests is handled until half of these bytes are answered. A single request may
            exceed this limit.
        unanswered_max: Number of unanswered requests of one connection whose answers come later. Further such
            requests are refused as long as this number is reached.
        unread_max: Bytes of answers that one peer has not read, above which its connection is closed.
        unread_all_max: Bytes of answers that all peers together have not read, above which the largest
            connections are cut off.
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
        requests: Number of requests by code, only for codes that the server handles. Peers can send any code,
            so other codes would let this counter grow without limit.
        requests_unknown: Number of requests with other codes.
        answers: Number of answers by code, for the codes that RouteKeeper's programs send.
        answers_other: Number of answers with other codes. These codes come from clients to which a request
            was forwarded.
        times: Durations by group of requests, in seconds. A duration begins when the request arrives, or when
            the request begins to wait for its turn. It ends with the answer.
        late: Delay of the event loop's timers, in seconds.
        connections_shed: Number of connections that were cut off because all connections together held too
            many bytes.
        lines_suppressed: Number of log lines about peers that were not written.
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
        """Set all counters to 0.

        Args:
            groups: Group of each request code whose requests are timed; other requests are not timed.
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
        """Record the time in seconds from a request's arrival to its answer, if its code is timed."""
        histogram = self._time_of.get(code)
        if histogram is not None:
            histogram.observe(seconds)
