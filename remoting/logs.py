"""Log lines of every program: one line for each event, in UTC, as text or JSON.

Names, addresses, remarks and paths may come from any peer. Therefore all characters that could end a line or
control a terminal are escaped, so that no peer can forge a log line. The length of a line is limited.
This module does no I/O and reads no clock: each record carries its time.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, get_args

from routekeeper.remoting.wall_clock import calendar

Style = Literal["text", "json"]
STYLES: Final[tuple[str, ...]] = get_args(Style)

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")

LINE_CHARACTERS_MAX: Final = 4_096
"""Length limit of a message in characters. A longer message is cut, and the line says how much is missing."""

TEXT_CHARACTERS_MAX: Final = 200
"""Largest number of characters that a text from a peer may have in a message."""

FIELD_CHARACTERS_MAX: Final = 1_024
"""Largest number of characters of one field of a line in JSON."""

ERROR_HEAD: Final = 900
ERROR_TAIL: Final = 300
"""Number of characters at the end of a program's last line that are written when the line is too long.

The first :data:`ERROR_HEAD` characters are written, too.
"""

TRACE_CHARACTERS_MAX: Final = 65_536
"""Largest number of characters of a traceback; a peer may have caused an error with a very long text."""

_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """Return text with control characters, line ends and marks of writing direction as visible escapes.

    Use it for one line of a log or for one cell of a table. Text without such characters stays unchanged.
    """
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def shortened(text: str, limit: int = TEXT_CHARACTERS_MAX) -> str:
    """Return text cut to ``limit`` characters, followed by the number of omitted characters."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} more characters)"


def in_one_line(error: object) -> str:
    """Return an error's text as the single line that ends a program; cut out the middle of a very long text.

    The beginning of the text says what was wrong, and the end says what is allowed. The part between them may
    be a long value that a peer sent.
    """
    text = printable(str(error))
    left = len(text) - ERROR_HEAD - ERROR_TAIL
    return text if left <= 0 else f"{text[:ERROR_HEAD]}... ({left} more characters) ...{text[-ERROR_TAIL:]}"


def apply_log_level(name: str) -> str:
    """Set the lowest level whose lines are written; return the former level.

    Raises:
        ValueError: If no level has this name; the level then stays unchanged.
    """
    if name not in LEVELS:
        raise ValueError(f"{name} is none of {', '.join(LEVELS)}")
    before = logging.getLevelName(logging.root.level)
    logging.root.setLevel(name)
    return before


class Quoted(str):
    """Text that a peer sent: quoted inside a message, unchanged as the value of a JSON member."""

    __slots__ = ()

    def __str__(self) -> str:
        return json.dumps(str.__str__(self))


_PLACEHOLDER: Final = re.compile(r"%[-#0 +]*\d*(?:\.\d+)?([diouxXeEfFgGcrsa%])")
_FIELD: Final = re.compile(r"(?:^|(?<=[ (]))([A-Za-z_]\w*)=")
#: Members that every JSON line has. A field with one of these names gets an underscore after its name.
_OWN: Final = frozenset({"at", "level", "logger", "message", "event", "traceback"})


class _Field(NamedTuple):
    """One ``name=value`` of a log line's template.

    Attributes:
        value: Part of the template that makes the value, such as ``%s``.
        first: Index of the first argument that this field uses.
        taken: Number of arguments that this field uses.
    """

    name: str
    value: str
    first: int
    taken: int


class _Template(NamedTuple):
    event: str
    fields: tuple[_Field, ...]
    arguments: int


@functools.lru_cache(maxsize=1024)
def _read_template(template: str) -> _Template:
    """Split a template such as ``event key=%s other=%d``; the event ends before the first value."""
    starts = list(_FIELD.finditer(template))
    ends = [start.start() for start in starts] + [len(template)]
    fields = []
    for start, end in zip(starts, ends[1:], strict=True):
        value = template[start.end() : end].strip()
        # A placeholder ends at the first space: further words belong to the message, not to the value.
        if value.startswith("%"):
            value = value.split(" ", 1)[0].rstrip(":;,.)")
        first = _placeholders(template[: start.end()])
        fields.append(_Field(start[1] + "_" * (start[1] in _OWN), value, first, _placeholders(value)))
    event = template[: ends[0]]
    if (found := _PLACEHOLDER.search(event)) is not None:
        event = event[: found.start()]
    return _Template(event.strip(" :;,(="), tuple(fields), _placeholders(template))


def _placeholders(text: str) -> int:
    return sum(found[1] != "%" for found in _PLACEHOLDER.finditer(text))


def fields_of(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """Yield the event and the named values of a log record.

    The names come from the program's own template, and never from inserted values. Therefore the text of a
    peer, with any content, is the value of one field only. Numbers stay numbers.
    """
    arguments = record.args or ()
    template = _read_template(shortened(str(record.msg)))
    yield "event", template.event or str(record.msg)[:TEXT_CHARACTERS_MAX]
    if not isinstance(arguments, tuple) or (arguments and len(arguments) != template.arguments):
        return
    for name, value, first, count in template.fields:
        taken = arguments[first : first + count]
        if not taken:
            yield name, value
        elif count == 1 and isinstance(taken[0], int | float) and _PLACEHOLDER.fullmatch(value):
            yield name, taken[0]
        elif count == 1 and isinstance(taken[0], Quoted):
            yield name, shortened(str.__str__(taken[0]), FIELD_CHARACTERS_MAX)
        else:
            yield name, shortened(value % taken, FIELD_CHARACTERS_MAX)


class LineFormatter(logging.Formatter):
    """Formatter of log lines: ``2026-01-31T12:00:00.000Z INFO nameserver.wire.server ...``, or as JSON.

    A JSON object contains the whole message. It also contains the event and each value as separate members,
    see :func:`fields_of`. In text style, a traceback follows on separate lines that begin with a bar. So no
    line of a traceback can be mistaken for an event. In JSON, the traceback is a member of the object.
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
            line |= fields_of(record)
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
