"""Log lines of every program: one line an event, UTC, as text or JSON; what a stranger sent cannot forge one.

Pure: the instant is the record's. Names, addresses, remarks and paths come from any peer of a port, so
everything that could end a line or steer a terminal is escaped, and a line has a bound.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Final, Literal, get_args

from routekeeper.remoting.wall_clock import calendar

Style = Literal["text", "json"]
STYLES: Final[tuple[str, ...]] = get_args(Style)

LINE_CHARACTERS_MAX: Final = 4_096
"""Characters of a message that are written; what is longer is cut, and the line says how much is missing."""

TEXT_CHARACTERS_MAX: Final = 200
"""Characters of a text of a stranger's making that stand within a message."""

ERROR_HEAD: Final = 900
ERROR_TAIL: Final = 300
"""Characters at the beginning and at the end of a program's last line that are written."""

TRACE_CHARACTERS_MAX: Final = 65_536
"""The same for a traceback: its own lines are ours, but the error's text may be anybody's."""

_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """Return text with control characters, line ends and marks of writing direction as visible escapes.

    For one line of a log or one cell of a table. Text that has none is returned as it is.
    """
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def shortened(text: str, limit: int = TEXT_CHARACTERS_MAX) -> str:
    """Return text with at most ``limit`` characters, and behind it how many were left out, if any were."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} more characters)"


def in_one_line(error: object) -> str:
    """Return an error's text as the one line that ends a program, cut in its middle if it is far too long.

    Its beginning says what was wrong, its end what is allowed; a value of somebody's making stands between.
    """
    text = printable(str(error))
    left = len(text) - ERROR_HEAD - ERROR_TAIL
    return text if left <= 0 else f"{text[:ERROR_HEAD]}... ({left} more characters) ...{text[-ERROR_TAIL:]}"


class LineFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.000Z INFO nameserver.wire.server broker registered ...``, or that as JSON.

    A traceback follows on lines of its own that begin with a bar, so that none of them passes for an event;
    in JSON it is a member of the object.
    """

    def __init__(self, style: Style = "text") -> None:
        super().__init__()
        self._json = style == "json"

    def format(self, record: logging.LogRecord) -> str:
        instant = calendar(record.created)
        at = f"{instant:%Y-%m-%dT%H:%M:%S}.{instant.microsecond // 1000:03d}Z"
        message = shortened(record.getMessage(), LINE_CHARACTERS_MAX)
        trace = self._trace(record)
        if self._json:
            line: dict[str, object] = {"at": at, "level": record.levelname, "logger": record.name}
            line["message"] = message
            if trace:
                line["traceback"] = trace
            return json.dumps(line)
        head = f"{at} {record.levelname} {record.name} {printable(message)}"
        return "\n  | ".join([head, *map(printable, trace)])

    def _trace(self, record: logging.LogRecord) -> list[str]:
        parts = []
        if record.exc_info:
            parts.append(self.formatException(record.exc_info))
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        text = shortened("\n".join(parts), TRACE_CHARACTERS_MAX)
        return text.split("\n") if text else []
