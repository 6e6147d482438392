"""Java ``Properties`` text: RocketMQ's ``-c`` files, and the bodies of requests 25, 26, 318 and 319."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

#: Largest properties text of a request in bytes: to read this many takes some ms, and all settings are
#: shorter.
REQUEST_SIZE_MAX: Final = 16 * 1024
_BLANKS: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LETTERS: Final = {char: letter for letter, char in _ESCAPES.items()}
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_COMMENT: Final = re.compile(r"[ \t\f]+#")
_UNICODE: Final = re.compile(r"[0-9A-Fa-f]{4}")


def parse_properties(text: str) -> dict[str, str]:
    r"""Return the keys and values of a properties text; of equal keys the last wins.

    ``#`` and ``!`` start comments; ``=``, ``:`` or a blank ends the key; a trailing backslash continues the
    line; ``\uXXXX`` and the usual escapes are read. Blanks after a value belong to it.

    Raises:
        ValueError: If a ``\u`` is not followed by four hexadecimal digits; the message names the line.

    Source: java.util.Properties.load; it reads files as ISO-8859-1, request bodies come in UTF-8.
    """
    values: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key, value = _split(line)
        try:
            values[_unescape(key)] = _unescape(value)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return values


#: Values that request authentication or encryption which the servers lack, or which other settings turn on.
_DOORS: Final = {
    "tls.server.mode": ("enforcing", "a line for the file of --tls-config, or use --tls-mode enforcing"),
    "authenticationEnabled": ("true", "ACL 2.0 of RocketMQ 5.3 is not served, allowed is false"),
    "authorizationEnabled": ("true", "ACL 2.0 of RocketMQ 5.3 is not served, allowed is false"),
    "useTLS": ("true", "connections to other servers are not encrypted, allowed is false"),
}
#: Bound of the unknown settings with a line each. More of them mean that the file is a dump of all settings.
_LINES_MAX: Final = 10
#: Names in one line if there are more.
_NAMES_MAX: Final = 100


def closed_door(key: str, value: str) -> str | None:
    """Return why a setting must not be ignored, because that would weaken security; None for other settings.

    Args:
        value: Value in lower case, without blanks around it.
    """
    closing, reason = _DOORS.get(key, (None, ""))
    return reason if _COMMENT.split(value)[0] == closing else None


def commented(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys whose values seem to hold a comment. Java's properties have none behind a value."""
    return tuple(key for key, value in values.items() if _COMMENT.search(value))


def explain_comments(refusal: str, values: Mapping[str, str]) -> str:
    """Return why a value is refused; if a comment follows it in the file, add the rule on comments."""
    if any(key in refusal for key in commented(values)):
        return f"{refusal}; a comment behind a value is part of the value: put it on a line of its own"
    return refusal


def name_unknown(keys: Collection[str]) -> tuple[str, ...]:
    """Return the names of unknown settings for log lines: one a line, or a hundred if there are many."""
    names = list(keys)
    if len(names) <= _LINES_MAX:
        return tuple(names)
    return tuple(", ".join(names[at : at + _NAMES_MAX]) for at in range(0, len(names), _NAMES_MAX))


def format_properties(values: Mapping[str, str]) -> str:
    """Return ``key=value`` lines sorted by key, unescaped, as ``-p`` prints and 26 and 319 answer them.

    Source: MixAll.properties2String, RocketMQ 5.3.
    """
    return "".join(f"{key}={value}\n" for key, value in sorted(values.items()))


def split_properties(body: bytes) -> dict[str, str]:
    """Read the text of :func:`format_properties`, if it needed no escapes."""
    settings = {}
    for line in body.decode("utf-8", "replace").splitlines():
        name, mark, value = line.partition("=")
        if mark and name.strip():
            settings[name.strip()] = value.strip()
    return settings


def escape_properties(values: Mapping[str, str]) -> bytes:
    """Return ``key=value`` lines sorted by key that :func:`parse_properties` reads back; ASCII, for files.

    Source: java.util.Properties.store.
    """
    lines = [
        f"{_escape(key, key=True)}={_escape(value, key=False)}\n" for key, value in sorted(values.items())
    ]
    return "".join(lines).encode("ascii")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of its first line, line) with continuations joined and comments left out."""
    lines = enumerate(_LINE_END.split(text), start=1)
    for number, first in lines:
        line = first.lstrip(_BLANKS)
        if not line or line[0] in "#!":
            continue
        while _continues(line):
            _, following = next(lines, (0, ""))
            line = line[:-1] + following.lstrip(_BLANKS)
        yield number, line


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANKS:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return line[:end], rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\":
            parts.append(char)
            continue
        char = text[position : position + 1]
        position += 1
        if char == "u":
            digits = text[position : position + 4]
            if not _UNICODE.fullmatch(digits):
                raise ValueError(f"\\u is followed by {digits!r}, not by four hexadecimal digits")
            parts.append(chr(int(digits, 16)))
            position += 4
        else:
            parts.append(_ESCAPES.get(char, char))
    # Java's escapes are UTF-16 units: two of them may be one character.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape(text: str, *, key: bool) -> str:
    parts = []
    for position, char in enumerate(text):
        if char in "\\=:#!" or (char == " " and (key or position == 0)):
            parts.append("\\" + char)
        elif char in _LETTERS:
            parts.append("\\" + _LETTERS[char])
        elif " " <= char <= "~":
            parts.append(char)
        else:
            units = char.encode("utf-16-be", "surrogatepass")
            parts.extend(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
    return "".join(parts)
