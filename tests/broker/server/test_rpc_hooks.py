"""An operator's hooks in a broker.

The hooks see requests that the broker answers at once, after a sync of the disk, and after a long wait.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.conftest import StartBroker
from tests.nameserver.wire.test_rpc_hooks import HOOKS
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.one_core]

GUARD = """
class GuardSends(Guard):
    def before_request(self, remote, request):
        if request.ext_fields.get("b") == "Forbidden":
            raise RequestRefused(16, "nobody may send there")
        return request
"""


def test_a_hook_of_a_broker_sees_refuses_and_is_shown_late_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_broker: StartBroker
) -> None:
    (tmp_path / "operators_hooks.py").write_text(HOOKS + GUARD)
    notes = tmp_path / "notes.txt"
    notes.touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HOOK_NOTES", str(notes))
    flags = ("--rpc-hook", "operators_hooks:GuardSends", "--set", "flushDiskType=SYNC_FLUSH")
    broker = start_broker(*flags)
    wire, waiting = broker.wire(), broker.wire()
    refused = wire.send_message("Forbidden", b"x")
    assert (refused.code, refused.remark) == (16, "nobody may send there")
    assert wire.send_message("T", b"first").code == 0  # SYNC_FLUSH: the answer comes after the sync
    asked = waiting.pull("T", 1, suspend_ms=30_000, sys_flag=6)
    assert wire.call(34, body=b'{"clientID":"c","producerDataSet":[],"consumerDataSet":[]}').code == 0
    assert "after 11" not in notes.read_text(), "the pull is parked"
    assert wire.send_message("T", b"second").code == 0
    assert waiting.answer(asked).code == 0
    lines = notes.read_text().splitlines()
    assert [line for line in lines if " 310 " in line] == ["after 310 16", "after 310 0", "after 310 0"]
    assert [line for line in lines if " 11 " in line] == ["after 11 0"]
    assert "Forbidden" not in str(wire.call(21).body)
    wait_until(lambda: "Traceback" not in broker.log.read_text(), "no hook failed")
