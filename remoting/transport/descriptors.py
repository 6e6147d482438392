"""How many connections fit the descriptors that the system grants this process."""

from __future__ import annotations

import logging
import resource
from dataclasses import replace
from typing import Final

from routekeeper.remoting.transport.limits import ServerLimits

log = logging.getLogger(__name__)

#: Descriptors kept for other use than connections: listeners, files, the loop's own, HTTP, peers.
DESCRIPTORS_RESERVED: Final = 256


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
    fitting = max(1, soft - DESCRIPTORS_RESERVED if soft > 2 * DESCRIPTORS_RESERVED else soft // 2)
    if fitting >= limits.connections_max:
        return limits
    log.warning(
        "descriptor limit is short allowed=%s wanted=%s connections_max=%s",
        soft,
        limits.connections_max + DESCRIPTORS_RESERVED,
        fitting,
    )
    return replace(limits, connections_max=fitting)
