"""The number of connections that fit this process's descriptors: strangers get no others."""

from __future__ import annotations

import logging
import resource
from dataclasses import replace
from typing import Final

from routekeeper.remoting.transport.limits import ServerLimits

log = logging.getLogger(__name__)

#: Descriptors kept for other use than connections: listeners, files, the loop's own, members of a group and
#: who has not proved to be one (64 at most).
DESCRIPTORS_RESERVED: Final = 192
#: Connections of HTTP, as many as its listener has places for; with few descriptors a quarter of the rest.
HTTP_CONNECTIONS: Final = 2_112


def share_descriptors(granted: int) -> tuple[int, int]:
    """Return how many of so many descriptors connections of the protocol get, and those of HTTP. Pure."""
    left = granted - min(DESCRIPTORS_RESERVED, granted // 4)
    http = min(HTTP_CONNECTIONS, left // 4)
    return max(1, left - http), max(1, http)


def http_connections() -> int:
    """Return how many connections of HTTP fit, once :func:`fit_descriptors` has raised the limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HTTP_CONNECTIONS if soft == resource.RLIM_INFINITY else share_descriptors(soft)[1]


def fit_descriptors(limits: ServerLimits) -> ServerLimits:
    """Raise the limit on open descriptors to the hard one; lower ``connections_max`` to what fits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError) as error:  # some systems name a hard limit they do not grant
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
