"""Settings that give our client the same long timeouts as Java's producer has in these tests.

The tests must also pass on a busy, slow machine. With a short timeout, the client would repeat a call whose
first attempt may still succeed. A message could then be stored twice, but the tests expect it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from routekeeper.client.config import ClientConfig, ProducerConfig

PATIENCE_S: Final = 20.0


def patient(namesrvs: Sequence[str], **values: Any) -> ClientConfig:
    """Return the settings of a client with long timeouts; ``values`` are further settings."""
    return ClientConfig(
        nameservers=tuple(namesrvs), call_timeout_s=PATIENCE_S, connect_timeout_s=PATIENCE_S, **values
    )


def sender(group: str) -> ProducerConfig:
    """Return the settings of a producer with long timeouts in the group ``group``."""
    return ProducerConfig(group=group, send_timeout_s=PATIENCE_S, try_timeout_s=PATIENCE_S)
