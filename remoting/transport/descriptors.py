"""Limits of the number of connections, computed from the number of file descriptors of this process."""

from __future__ import annotations

import logging
import resource
from dataclasses import replace
from typing import Final

from routekeeper.remoting.transport.limits import ServerLimits

log = logging.getLogger(__name__)

#: Number of file descriptors that are not available to connections of brokers, clients and HTTP. They are
#: reserved for listeners, files, the event loop, and links to members. They also suffice for 64 links whose
#: peers have not yet proved that they are members.
DESCRIPTORS_RESERVED: Final = 192
#: Largest number of HTTP connections. The HTTP listener reserves a few of them for health and metrics. If
#: there are too few descriptors, HTTP gets only a quarter of the unreserved descriptors.
HTTP_CONNECTIONS: Final = 2_112


def share_descriptors(granted: int) -> tuple[int, int]:
    """Divide ``granted`` file descriptors. This function does no I/O.

    Returns:
        The number of connections of RocketMQ's protocol, and the number of HTTP connections.
    """
    left = granted - min(DESCRIPTORS_RESERVED, granted // 4)
    http = min(HTTP_CONNECTIONS, left // 4)
    return max(1, left - http), max(1, http)


def http_connections() -> int:
    """Return the largest number of HTTP connections.

    Call :func:`fit_descriptors` first, because it raises the limit of descriptors.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HTTP_CONNECTIONS if soft == resource.RLIM_INFINITY else share_descriptors(soft)[1]


def fit_descriptors(limits: ServerLimits) -> ServerLimits:
    """Raise the soft limit on open file descriptors to the hard limit.

    Return the limits with ``connections_max`` lowered to the number of connections for which descriptors
    suffice.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError) as error:  # some systems do not grant the hard limit that they report
            log.warning("descriptor limit stays soft=%s hard=%s error=%s", soft, hard, error)
    if soft == resource.RLIM_INFINITY:
        return limits
    fitting, http = share_descriptors(soft)
    if fitting >= limits.connections_max:
        return limits
    log.warning(
        "descriptor limit is short allowed=%s wanted=%s connections_max=%s",
        soft,
        limits.connections_max + http + DESCRIPTORS_RESERVED,
        fitting,
    )
    return replace(limits, connections_max=fitting)
