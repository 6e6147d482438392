"""The KV configuration as lines of the log, every ten minutes.

Source: NamesrvController.startScheduleService and KVConfigManager.printAllPeriodically, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from routekeeper.nameserver.routes.view import RouteView
from routekeeper.remoting.line_limit import EVENT_LINES_PER_SUBJECT
from routekeeper.remoting.logs import shortened

log = logging.getLogger(__name__)

#: Seconds from the start to the first print, and from one to the next.
FIRST_S: Final = 60.0
PERIOD_S: Final = 600.0
#: Bounds of the printed entries, in all and for one namespace, because the log limits the lines of one event.
ENTRIES_MAX: Final = 200
ENTRIES_PER_NAMESPACE_MAX: Final = EVENT_LINES_PER_SUBJECT
_SECRET: Final = re.compile(r"secret|passw|pwd|token|credential|private|(access|api)[._-]?key", re.IGNORECASE)


class KvPrint:
    """Prints the KV configuration every ten minutes.

    Args:
        view: Returns this process's table, also without contact to a leader.
        call_later: Method of the event loop.
    """

    def __init__(self, view: Callable[[], RouteView], call_later: Callable[..., Any]) -> None:
        self._view = view
        self._call_later = call_later
        self._timer = call_later(FIRST_S, self._print)

    def close(self) -> None:
        self._timer.cancel()

    def _print(self) -> None:
        # schedule the next print even if this one fails
        self._timer = self._call_later(PERIOD_S, self._print)
        for message, *values in kv_lines(self._view()):
            log.info(message, *values)


def kv_lines(view: RouteView) -> Iterator[tuple[object, ...]]:
    """Yield the lines of one print, each a message with its values; only a part of a large table."""
    yield ("-" * 56,)
    namespaces = view.kv_namespaces()
    yield "configTable SIZE: %s", len(namespaces)
    printed = total = 0
    for namespace in sorted(namespaces):
        entries = view.kv_entries(namespace) or {}
        total += len(entries)
        for key, entry in islice(entries.items(), min(ENTRIES_PER_NAMESPACE_MAX, ENTRIES_MAX - printed)):
            printed += 1
            value = "null" if entry.value is None else shortened(entry.value)
            if _SECRET.search(key) or _SECRET.search(namespace):
                value = "***"
            yield "configTable NS: %s Key: %s Value: %s", shortened(namespace), shortened(key), value
    if printed < total:
        yield "configTable: %s more entries are not printed", total - printed
