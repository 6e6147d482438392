"""Output to terminals of any encoding, and recognition of command-line arguments that are not UTF-8."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence


def print_any_text() -> None:
    """Let stdout and stderr escape characters that their encoding lacks, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def unreadable_argument(argv: Sequence[str]) -> str | None:
    """Return an error line about the first argument that is not UTF-8; None if there is no such argument."""
    for argument in argv:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            shown = ascii(argument[:100])
            return f"argument {shown} is not UTF-8 text; give names as UTF-8"
    return None
