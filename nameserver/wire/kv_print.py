"""A print of the KV configuration to the log, every ten minutes.

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

#: Seconds from the start of the nameserver to the first print (FIRST_S), and between prints (PERIOD_S).
FIRST_S: Final = 60.0
PERIOD_S: Final = 600.0
#: Largest number of entries in one print, in total and per namespace. More lines would exceed the log's limit
#: for one event.
ENTRIES_MAX: Final = 200
ENTRIES_PER_NAMESPACE_MAX: Final = EVENT_LINES_PER_SUBJECT
_SECRET: Final = re.compile(r"secret|passw|pwd|token|credential|private|(access|api)[._-]?key", re.IGNORECASE)


class KvPrint:
    """Timer that prints the KV configuration to the log every ten minutes.

    Args:
        view: Function that returns the view of this process's table, even without contact with a leader.
        call_later: The event loop's ``call_later``.
    """

    def __init__(self, view: Callable[[], RouteView], call_later: Callable[..., Any]) -> None:
        self._view = view
        self._call_later = call_later
        self._timer = call_later(FIRST_S, self._print)

    def close(self) -> None:
        self._timer.cancel()

    def _print(self) -> None:
        # Schedule the next print first, so that printing continues even if this print fails.
        self._timer = self._call_later(PERIOD_S, self._print)
        for message, *values in kv_lines(self._view()):
            log.info(message, *values)


def kv_lines(view: RouteView) -> Iterator[tuple[object, ...]]:
    """Yield the log lines of one print, each as a message with its values; at most ENTRIES_MAX entries."""
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
