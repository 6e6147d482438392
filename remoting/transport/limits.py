"""Limits of the memory that peers may make a server hold, and its counters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from routekeeper.remoting.frame import FRAME_SIZE_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of the memory that peers may make a server hold.

    Attributes:
        connections_max: Open connections; further ones are closed at once.
        frame_size_max: Bytes of one frame, length word included.
        large_frames_max: Bytes of large frames that are read at once, over all connections; a single one may
            have more. Connections with further ones are not read meanwhile.
        large_frame_s: Seconds after which a connection whose large frame is not complete gives way to others
            that wait; at most twice as many.
        received_max: Bytes that were received and not looked at yet, over all connections: unfinished frames,
            and what waits for its turn. Above it the largest are cut off.
        unanswered_max: Requests of one connection whose answers are still being worked on.
        unread_max: Bytes of answers that one peer may leave unread before its connection is closed.
        unread_all_max: The same over all connections. Above it the largest are cut off.
        idle_s: Seconds without a byte in either direction after which a connection is closed.
    """

    connections_max: int = 16_384
    frame_size_max: int = FRAME_SIZE_MAX
    large_frames_max: int = 32 * 1024 * 1024
    large_frame_s: float = 0.1
    received_max: int = 256 * 1024 * 1024
    unanswered_max: int = 4096
    unread_max: int = 64 * 1024 * 1024
    unread_all_max: int = 256 * 1024 * 1024
    idle_s: float = 120.0


class ServerStats:
    """Counters of one server, for its metrics.

    Attributes:
        requests: By code; only codes that are served, as strangers choose the others.
        requests_unknown: All others.
        connections_shed: Cut off because all together held too much.
        lines_suppressed: Log lines about peers that were not written.
    """

    __slots__ = (
        "bad_frames",
        "connections_accepted",
        "connections_refused",
        "connections_shed",
        "lines_suppressed",
        "requests",
        "requests_unknown",
        "tasks_abandoned",
    )

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()
        self.requests_unknown = 0
        self.bad_frames = 0
        self.connections_accepted = 0
        self.connections_refused = 0
        self.connections_shed = 0
        self.lines_suppressed = 0
        self.tasks_abandoned = 0
