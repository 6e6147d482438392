"""Our client as patient as Java's producer is here (``Producer.java``): a busy machine is not what is judged.

A call that is given up and made again may do twice what a test counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from routekeeper.client.config import ClientConfig, ProducerConfig

PATIENCE_S: Final = 20.0


def patient(namesrvs: Sequence[str], **values: Any) -> ClientConfig:
    """Return the settings of a client; ``values`` are what else is set."""
    return ClientConfig(
        nameservers=tuple(namesrvs), call_timeout_s=PATIENCE_S, connect_timeout_s=PATIENCE_S, **values
    )


def sender(group: str) -> ProducerConfig:
    """Return the settings of a producer."""
    return ProducerConfig(group=group, send_timeout_s=PATIENCE_S, try_timeout_s=PATIENCE_S)
