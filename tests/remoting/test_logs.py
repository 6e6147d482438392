"""Tests of log lines: each event gives one line, even if a client chose its values."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from routekeeper.remoting.logs import (
    LINE_CHARACTERS_MAX,
    TRACE_CHARACTERS_MAX,
    LineFormatter,
    printable,
    shortened,
)


def line_of(
    formatter: LineFormatter, message: str, *arguments: object, error: Exception | None = None
) -> str:
    trace = None
    if error is not None:
        try:
            raise error
        except Exception:
            trace = sys.exc_info()
    return formatter.format(
        logging.LogRecord("routekeeper.nameserver.wire", logging.INFO, __file__, 1, message, arguments, trace)
    )


HOSTILE = [
    pytest.param("a\r\n2026-01-01T00:00:00.000Z INFO nameserver all is well", id="line end"),
    pytest.param("\x1b[2J\x1b]0;owned\x07", id="terminal"),
    pytest.param("a\u2028b\u2029c\x85d", id="line ends of unicode"),
    pytest.param("a\u202eb\u2066c", id="direction"),
    pytest.param("\ud800", id="half a character"),
    pytest.param("\x00\x7f\x9b31m", id="controls"),
]


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_stranger_sends_neither_ends_a_line_nor_reaches_the_terminal(name: str) -> None:
    line = line_of(LineFormatter(), "bad frame broker=%s", name)
    assert line.isprintable()
    assert len(line.splitlines()) == 1
    line.encode()


@pytest.mark.parametrize("name", HOSTILE)
def test_json_line_gives_back_what_was_sent(name: str) -> None:
    line = line_of(LineFormatter("json"), "bad frame broker=%s", name)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["message"] == f"bad frame broker={name}"


def test_text_of_every_script_is_left_as_it_is() -> None:
    assert printable("Bestellungen für 注文 заказы 🙂") == "Bestellungen für 注文 заказы 🙂"


def test_line_begins_with_the_instant_in_utc() -> None:
    record = logging.LogRecord("n", logging.INFO, __file__, 1, "x", (), None)
    record.created = 1_769_860_800.25
    assert LineFormatter().format(record) == "2026-01-31T12:00:00.250Z INFO n x"
    assert json.loads(LineFormatter("json").format(record)) == {
        "at": "2026-01-31T12:00:00.250Z",
        "level": "INFO",
        "logger": "n",
        "event": "x",
        "message": "x",
    }


def test_long_message_is_cut_and_says_how_much_is_missing() -> None:
    line = line_of(LineFormatter(), "path=%s", "x" * 8_000_000)
    assert len(line) < LINE_CHARACTERS_MAX + 200
    assert line.endswith(f"... ({8_000_005 - LINE_CHARACTERS_MAX} more characters)")
    assert shortened("abc", 3) == "abc"


def test_traceback_cannot_pass_for_an_event() -> None:
    forged = "2026-01-01T00:00:00.000Z INFO nameserver all is well"
    lines = line_of(LineFormatter(), "failed", error=ValueError(f"x\n{forged}\r\n{forged}")).split("\n")
    assert [line for line in lines[1:] if not line.startswith("  | ")] == []
    assert any("Traceback" in line for line in lines)
    entry = json.loads(line_of(LineFormatter("json"), "failed", error=ValueError("boom")))
    assert entry["traceback"][-1] == "ValueError: boom"


def test_traceback_is_bounded() -> None:
    line = line_of(LineFormatter(), "failed", error=ValueError("x" * 8_000_000))
    assert len(line) < TRACE_CHARACTERS_MAX + 1_000


@pytest.mark.parametrize(
    ("program", "arguments", "environment", "style"),
    [
        ("nameserver", ["--http", "off"], {"MQNAMESRV_LOG_FORMAT": "json"}, "json"),
        ("broker", ["-n", "127.0.0.1:9", "--log-format", "text"], {}, "text"),
    ],
    ids=["mqnamesrv", "mqbroker"],
)
def test_programs_log_so(
    program: str, arguments: list[str], environment: dict[str, str], style: str, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", f"routekeeper.{program}", "--listen", "127.0.0.1:0"),
            *arguments,
        ],
        env=os.environ | environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert "ready" in process.stdout.readline()
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    lines = errors.splitlines()
    assert lines
    for line in lines:
        if style == "json":
            assert json.loads(line)["at"].endswith("Z")
        else:
            assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ [a-z.]+ ", line), line
