"""Java ``Properties`` text: the format of RocketMQ's ``-c`` files and of requests 25 and 26."""

from __future__ import annotations

from collections.abc import Mapping

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"


def parse_properties(text: str) -> dict[str, str]:
    r"""Parse properties as ``java.util.Properties.load`` does.

    ``#`` and ``!`` start comments; ``=``, ``:`` or a blank ends the key; a trailing backslash continues the
    line; ``\uXXXX`` and the usual escapes are read. Of equal keys the last wins. Values are trimmed, as 5.x
    brokers do.

    Raises:
        ValueError: If a ``\u`` escape is malformed; the message names the line.
    """
    values: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key_end, value_start = _split(line)
        try:
            values[_unescape(line[:key_end])] = _unescape(line[value_start:]).strip()
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return values


def format_properties(values: Mapping[str, str]) -> str:
    """Write ``key=value`` lines sorted by key, unescaped, as requests 26 and 319 answer them."""
    return "".join(f"{key}={value}\n" for key, value in sorted(values.items()))


def _logical_lines(text: str) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    pending, pending_number = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.lstrip(_BLANKS)
        if not pending and (not line or line[0] in "#!"):
            continue
        if not pending:
            pending_number = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
            continue
        lines.append((pending_number, pending + line))
        pending = ""
    if pending:
        lines.append((pending_number, pending))
    return lines


def _split(line: str) -> tuple[int, int]:
    """Return where the key ends and where the value starts."""
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANKS:
        position += 2 if line[position] == "\\" else 1
    key_end = min(position, len(line))
    start = key_end
    while start < len(line) and line[start] in _BLANKS:
        start += 1
    if start < len(line) and line[start] in "=:":
        start += 1
        while start < len(line) and line[start] in _BLANKS:
            start += 1
    return key_end, start


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position == len(text):
            out.append(char)
            continue
        char = text[position]
        position += 1
        if char == "u":
            digits = text[position : position + 4]
            if len(digits) != 4:
                raise ValueError(f"escape \\u{digits} needs four hexadecimal digits")
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(char, char))
    return "".join(out)
