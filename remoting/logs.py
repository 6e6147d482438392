"""Log lines of every program: one line for each event, UTC, as text or JSON; strangers cannot forge a line.

Pure: the record has the time. Names, addresses, remarks and paths come from any peer. So all characters that
could end a line or control a terminal are escaped, and the length of a line is bounded.
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
"""Longest message in characters; a longer one is cut, and the line says how much is missing."""

TEXT_CHARACTERS_MAX: Final = 200
"""Bound in characters of a stranger's text in a message."""

FIELD_CHARACTERS_MAX: Final = 1_024
"""Characters of one field of a line in JSON."""

ERROR_HEAD: Final = 900
ERROR_TAIL: Final = 300
"""Number of characters at the beginning and at the end of a program's last line that are written."""

TRACE_CHARACTERS_MAX: Final = 65_536
"""The same for a traceback: its lines are ours, but a stranger may have chosen the error's text."""

_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """Return text with control characters, line ends and marks of writing direction as visible escapes.

    It is for one line of a log or one cell of a table. Text without such characters is returned unchanged.
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
    """Return an error's text as the one line that ends a program, cut in its middle if it is far too long.

    Its beginning says what was wrong, and its end what is allowed; a stranger's value may be between them.
    """
    text = printable(str(error))
    left = len(text) - ERROR_HEAD - ERROR_TAIL
    return text if left <= 0 else f"{text[:ERROR_HEAD]}... ({left} more characters) ...{text[-ERROR_TAIL:]}"


def apply_log_level(name: str) -> str:
    """Set the level from which on lines are written; return the former level.

    Raises:
        ValueError: If there is no such level; then nothing has changed.
    """
    if name not in LEVELS:
        raise ValueError(f"{name} is none of {', '.join(LEVELS)}")
    before = logging.getLevelName(logging.root.level)
    logging.root.setLevel(name)
    return before


class Quoted(str):
    """A stranger's text: quoted inside a message, and unchanged as a JSON member of its own."""

    __slots__ = ()

    def __str__(self) -> str:
        return json.dumps(str.__str__(self))


_PLACEHOLDER: Final = re.compile(r"%[-#0 +]*\d*(?:\.\d+)?([diouxXeEfFgGcrsa%])")
_FIELD: Final = re.compile(r"(?:^|(?<=[ (]))([A-Za-z_]\w*)=")
#: Members of every line in JSON; a field with such a name gets an underscore after it.
_OWN: Final = frozenset({"at", "level", "logger", "message", "event", "traceback"})


class _Field(NamedTuple):
    """One ``name=value`` of a template.

    Attributes:
        value: Its part of the template.
        first, taken: Index of the first argument that it uses, and their number.
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
    """Split ``event key=%s other=%d``; the event ends before the first value."""
    starts = list(_FIELD.finditer(template))
    ends = [start.start() for start in starts] + [len(template)]
    fields = []
    for start, end in zip(starts, ends[1:], strict=True):
        value = template[start.end() : end].strip()
        if value.startswith("%"):  # words after a value belong to the message, not to the value
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
    """Yield the event and the values of a line by their names.

    Names come from the program's own template, never from inserted values: a stranger's text, with any
    content, is the value of one field. Numbers stay numbers.
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
    """``2026-01-31T12:00:00.000Z INFO nameserver.wire.server broker registered ...``, or that as JSON.

    An object in JSON has the message, and the event and its values once more as members of their own, see
    :func:`fields_of`. A traceback follows on lines of its own that begin with a bar, so that none of them
    passes for an event; in JSON it is a member of the object.
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
