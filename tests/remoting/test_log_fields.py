"""Tests of log lines in JSON: each value is a named field, even if a client chose the value."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from routekeeper.remoting.audit_log import AuditLog
from routekeeper.remoting.logs import LineFormatter


def entry(template: str, *arguments: object) -> dict[str, Any]:
    record = logging.LogRecord("n", logging.INFO, __file__, 1, template, arguments, None)
    found: dict[str, Any] = json.loads(LineFormatter("json").format(record))
    return found


def fields(template: str, *arguments: object) -> dict[str, Any]:
    found = entry(template, *arguments)
    return {name: found[name] for name in found if name not in {"at", "level", "logger", "message"}}


def test_values_are_fields_with_their_names_and_kinds() -> None:
    assert fields("request refused peer=%s code=%d topic=%s after_s=%.1f", "10.0.0.1:7", 17, "T", 2.25) == {
        "event": "request refused",
        "peer": "10.0.0.1:7",
        "code": 17,
        "topic": "T",
        "after_s": 2.25,
    }


def test_a_value_of_a_strangers_making_is_one_field_and_makes_no_other() -> None:
    name = 'T code=0 peer=1.2.3.4:5 event=all is well\n{"level":"DEBUG"}'
    assert fields("bad frame topic=%s code=%s", name, 1) == {"event": "bad frame", "topic": name, "code": 1}


def test_words_around_a_value_belong_to_the_message_alone() -> None:
    found = entry("certificate ends soon file=%s days_left=%.1f: put a new one in its place", "c.pem", 2.55)
    assert (found["event"], found["file"], found["days_left"]) == ("certificate ends soon", "c.pem", 2.55)
    assert found["message"].endswith("days_left=2.5: put a new one in its place")
    assert fields("log has room again, %d bytes", 7) == {"event": "log has room again"}
    assert fields("only this machine reaches it listen=%s hint=bindAddress=0.0.0.0 lets others", "h:1") == {
        "event": "only this machine reaches it",
        "listen": "h:1",
        "hint": "bindAddress=0.0.0.0 lets others",
    }


def test_a_value_of_several_parts_is_one_text() -> None:
    assert fields("moved addr=%s:%d by=%s/%s", "h", 1, "C", "b") == {
        "event": "moved",
        "addr": "h:1",
        "by": "C/b",
    }


def test_a_field_cannot_take_the_place_of_the_lines_own() -> None:
    found = entry("x level=%s at=%s message=%s logger=%s event=%s", "a", "b", "c", "d", "e")
    assert (found["level"], found["logger"], found["event"]) == ("INFO", "n", "x")
    assert [found[f"{name}_"] for name in ("level", "at", "message", "logger", "event")] == [*"abcde"]


def test_fields_are_bounded() -> None:
    line = LineFormatter("json").format(
        logging.LogRecord("n", logging.INFO, __file__, 1, "x path=%s", ("y" * 8_000_000,), None)
    )
    assert len(line) < 6_000
    assert len(json.loads(line)["path"]) < 1_100


def test_what_cannot_be_matched_is_still_a_line() -> None:
    assert entry("50% of the disk used=%s")["message"] == "50% of the disk used=%s"
    record = logging.LogRecord("n", logging.INFO, __file__, 1, "x a=%(a)s", ({"a": 1},), None)
    assert json.loads(LineFormatter("json").format(record))["message"] == "x a=1"
    record = logging.LogRecord("n", logging.INFO, __file__, 1, ValueError("boom a=1"), (), None)
    found = json.loads(LineFormatter("json").format(record))
    assert (found["message"], found["event"]) == ("boom a=1", "boom")


def test_lines_of_the_audit_have_fields_that_nobody_can_forge(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        audit = AuditLog(logging.getLogger("test.audit"))
        audit.note("10.0.0.1:7", "DELETE_TOPIC_IN_NAMESRV", "applied", {"topic": "a b result=refused"})
        audit.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    (record,) = caplog.records
    assert json.loads(LineFormatter("json").format(record)) | {"at": ""} == {
        "at": "",
        "level": "INFO",
        "logger": "test.audit",
        "message": "audit peer=10.0.0.1:7 change=DELETE_TOPIC_IN_NAMESRV"
        ' topic="a b result=refused" result=applied',
        "event": "audit",
        "peer": "10.0.0.1:7",
        "change": "DELETE_TOPIC_IN_NAMESRV",
        "topic": "a b result=refused",
        "result": "applied",
    }
