"""Java's ``Properties`` text: RocketMQ's ``-c`` files, and bodies of the request codes 25, 26, 318, 319."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

#: Largest properties text in a request, in bytes. Reading a text of this size takes a few ms. A text with all
#: settings of a broker is shorter.
REQUEST_SIZE_MAX: Final = 16 * 1024
#: Log line for a setting of :func:`outranked`: key, value in the file, value in force, file of the changes.
OUTRANKED: Final = (
    "setting in the file not in force key=%s value=%s in_force=%s changed_in=%s"
    " hint=a change by mqadmin outranks the file; change it by mqadmin again"
)
_BLANKS: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LETTERS: Final = {char: letter for letter, char in _ESCAPES.items()}
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_COMMENT: Final = re.compile(r"[ \t\f]+#")
_UNICODE: Final = re.compile(r"[0-9A-Fa-f]{4}")


def parse_properties(text: str) -> dict[str, str]:
    r"""Return the keys and values of a properties text; if a key occurs twice, its last value wins.

    - ``#`` and ``!`` at the beginning of a line start a comment.
    - ``=``, ``:`` or a blank ends the key.
    - A backslash at the end of a line continues the line.
    - ``\uXXXX`` and the usual escapes are decoded.
    - Blanks after a value belong to the value.

    Raises:
        ValueError: If a ``\u`` is not followed by four hexadecimal digits; the message names the line.

    Source: java.util.Properties.load. Java reads files as ISO-8859-1; request bodies are UTF-8.
    """
    values: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key, value = _split(line)
        try:
            values[_unescape(key)] = _unescape(value)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return values


#: Settings that demand a protection. This program lacks the protection, or another option switches it on. For
#: each setting, the tuple has the value that must be refused, and the text of the refusal.
_DOORS: Final = {
    "tls.server.mode": ("enforcing", "a line for the file of --tls-config, or use --tls-mode enforcing"),
    "authenticationEnabled": ("true", "ACL 2.0 of RocketMQ 5.3 is not served, allowed is false"),
    "authorizationEnabled": ("true", "ACL 2.0 of RocketMQ 5.3 is not served, allowed is false"),
    "useTLS": ("true", "connections to other servers are not encrypted, allowed is false"),
}
#: Largest number of unknown settings that get one log line each. A file with more unknown settings was
#: probably written by a program that wrote all settings.
_LINES_MAX: Final = 10
#: Largest number of names in one log line if there are more unknown settings than :data:`_LINES_MAX`.
_NAMES_MAX: Final = 100


def closed_door(key: str, value: str) -> str | None:
    """Return the reason why a setting must be refused; None if ignoring the setting is harmless.

    A setting must be refused if ignoring it would silently weaken security.

    Args:
        value: Value in lower case, without blanks at its ends.
    """
    closing, reason = _DOORS.get(key, (None, ""))
    return reason if _COMMENT.split(value)[0] == closing else None


def commented(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys whose values seem to contain a comment, which Java reads as part of the value."""
    return tuple(key for key, value in values.items() if _COMMENT.search(value))


def explain_comments(refusal: str, values: Mapping[str, str]) -> str:
    """Return the text of a refusal, with the rule for comments if a refused value contains a comment."""
    if any(key in refusal for key in commented(values)):
        return f"{refusal}; a comment behind a value is part of the value: put it on a line of its own"
    return refusal


def outranked(
    file: Mapping[str, str], changes: Mapping[str, str], flags: Collection[str]
) -> tuple[tuple[str, str, str], ...]:
    """Return the settings in a ``-c`` file that are not in force, because a change at run time outranks them.

    Args:
        file: Settings in the file.
        changes: Settings that were changed at run time, in this run or in an earlier one.
        flags: Keys of the settings that flags give. A flag outranks both.

    Returns:
        For each setting: its key, the value in the file, and the value in force.
    """
    return tuple(
        (key, file[key].strip(), value)
        for key, value in changes.items()
        if key in file and key not in flags and file[key].strip().lower() != value.strip().lower()
    )


def name_unknown(keys: Collection[str]) -> tuple[str, ...]:
    """Return the texts for the log lines about unknown settings, one for each line.

    Each text is the name of one setting. If there are more than :data:`_LINES_MAX` names, each text contains
    up to :data:`_NAMES_MAX` names.
    """
    names = list(keys)
    if len(names) <= _LINES_MAX:
        return tuple(names)
    return tuple(", ".join(names[at : at + _NAMES_MAX]) for at in range(0, len(names), _NAMES_MAX))


def format_properties(values: Mapping[str, str]) -> str:
    """Return ``key=value`` lines, sorted by key and without escapes.

    ``-p`` prints this text, and the answers to the request codes 26 and 319 contain it.

    Source: MixAll.properties2String, RocketMQ 5.3.
    """
    return "".join(f"{key}={value}\n" for key, value in sorted(values.items()))


def split_properties(body: bytes) -> dict[str, str]:
    """Read a text that :func:`format_properties` made.

    The text has no escapes, so no setting may contain special characters.
    """
    settings = {}
    for line in body.decode("utf-8", "replace").splitlines():
        name, mark, value = line.partition("=")
        if mark and name.strip():
            settings[name.strip()] = value.strip()
    return settings


def escape_properties(values: Mapping[str, str]) -> bytes:
    """Return ``key=value`` lines in ASCII, sorted by key, with escapes; :func:`parse_properties` reads them.

    Source: java.util.Properties.store.
    """
    lines = [
        f"{_escape(key, key=True)}={_escape(value, key=False)}\n" for key, value in sorted(values.items())
    ]
    return "".join(lines).encode("ascii")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each logical line and the number of its first line; join continued lines, omit comments."""
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
    # Java's escapes are UTF-16 units, and two units may form one character.
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
