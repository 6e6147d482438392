"""Text on a terminal of any encoding, and arguments that are not UTF-8 text."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence


def print_any_text() -> None:
    """Escape characters that the encoding of standard output and error lacks, instead of failing at them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def unreadable_argument(argv: Sequence[str]) -> str | None:
    """Return a line about the first argument that is not UTF-8 text, None if all are."""
    for argument in argv:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            shown = ascii(argument[:100])
            return f"argument {shown} is not UTF-8 text; give names as UTF-8"
    return None
