"""The number of connections for which this process has descriptors; further ones are refused."""

from __future__ import annotations

import logging
import resource
from dataclasses import replace
from typing import Final

from routekeeper.remoting.transport.limits import ServerLimits

log = logging.getLogger(__name__)

#: Descriptors kept for other uses than connections: listeners, files, the loop's own, links to members, and
#: connections that have not proved to be a member's (64 at most).
DESCRIPTORS_RESERVED: Final = 192
#: HTTP connections: the places of the HTTP listener. With few descriptors, a quarter of those that are left.
HTTP_CONNECTIONS: Final = 2_112


def share_descriptors(granted: int) -> tuple[int, int]:
    """Return how many of ``granted`` descriptors the protocol's connections get, and how many HTTP's.
    Pure.
    """
    left = granted - min(DESCRIPTORS_RESERVED, granted // 4)
    http = min(HTTP_CONNECTIONS, left // 4)
    return max(1, left - http), max(1, http)


def http_connections() -> int:
    """Return the possible number of HTTP connections, after :func:`fit_descriptors` has raised the limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HTTP_CONNECTIONS if soft == resource.RLIM_INFINITY else share_descriptors(soft)[1]


def fit_descriptors(limits: ServerLimits) -> ServerLimits:
    """Raise the soft limit on open descriptors to the hard one; lower ``connections_max`` to the number that
    fits.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError) as error:  # some systems state a hard limit that they do not grant
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
