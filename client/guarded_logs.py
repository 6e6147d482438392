"""Protection of the client against exceptions of log handlers and log filters, which are the user's code."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import Final

#: The loggers of this package, and of the connections below it.
_GUARDED: Final = ("routekeeper.client.", "routekeeper.remoting.")
_stderr: Final = logging.NullHandler()


def guard_loggers() -> None:
    """Write exceptions of log handlers and filters to stderr, so that they do not reach the code that logs.

    Such an exception would end the operation that logs, for example a consumer's loop. This function changes
    only loggers that exist already.
    """
    for name, logger in tuple(logging.root.manager.loggerDict.items()):
        if name.startswith(_GUARDED) and isinstance(logger, logging.Logger) and "handle" not in vars(logger):
            logger.handle = partial(_handle, logger)  # type: ignore[method-assign]


def _handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    try:
        type(logger).handle(logger, record)
    except Exception:
        with suppress(Exception):  # stderr may be closed
            _stderr.handleError(record)  # as handlers of Python's library do; see logging.raiseExceptions
