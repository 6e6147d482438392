"""Protection of the client against exceptions that the user's log handlers and log filters raise."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import Final

#: Prefixes of the names of the protected loggers: this package, and the package of the connections.
_GUARDED: Final = ("routekeeper.client.", "routekeeper.remoting.")
_stderr: Final = logging.NullHandler()


def guard_loggers() -> None:
    """Write exceptions of log handlers and filters to stderr, so that they do not reach the code that logs.

    An exception of a log handler would end the operation that logs, for example a consumer's loop. This
    function changes only loggers that exist already.
    """
    for name, logger in tuple(logging.root.manager.loggerDict.items()):
        if name.startswith(_GUARDED) and isinstance(logger, logging.Logger) and "handle" not in vars(logger):
            logger.handle = partial(_handle, logger)  # type: ignore[method-assign]


def _handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    try:
        type(logger).handle(logger, record)
    except Exception:
        with suppress(Exception):  # stderr may be closed
            _stderr.handleError(record)  # prints the exception, as Python's own handlers do
