"""The recorded options and settings of Apache's programs; README.md beside this file describes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent / "starts"
RELEASES: Final = ("4.9.7", "5.3.3")
HOME: Final = "/home/rocketmq"
"""Home directory in the recorded settings; all recorded paths lie below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApacheOption:
    """One option of a program; README.md beside this file describes the fields."""

    program: str
    alias: str
    short: str
    long: str
    argument: bool
    required: bool


def recorded_options(release: str) -> list[ApacheOption]:
    """Return the options of all programs of a release."""
    return [ApacheOption(**row) for row in json.loads((HERE / f"{release}.json").read_text())]


def recorded_settings(release: str, program: str, flag: str = "-p") -> str:
    """Return the settings that a program prints, as the text of a settings file."""
    return (HERE / f"{release}-{program}{flag}.properties").read_text()


def keys_of(text: str) -> set[str]:
    """Return the names of the settings in the text of a settings file."""
    return {line.partition("=")[0] for line in text.splitlines()}
