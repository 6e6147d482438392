"""When a broker ends, it logs the nameservers from which it unregistered."""

from __future__ import annotations

import contextlib

import pytest

from routekeeper.remoting.command import RemotingCommand
from tests.broker.conftest import RecordingNameserver, StartBroker


@pytest.mark.slow
@pytest.mark.faults
def test_a_refused_unregistration_is_no_success(
    start_broker: StartBroker, nameserver: RecordingNameserver
) -> None:
    with contextlib.closing(RecordingNameserver()) as refusing:
        refusing.answers[104] = RemotingCommand(code=1, ext_fields={})
        broker = start_broker(namesrv=f"{nameserver.addr};{refusing.addr}")
        for each in (nameserver, refusing):
            each.expect(103)
        assert broker.stop() == 0
    lines = [line for line in broker.log.read_text().splitlines() if " unregist" in line]
    assert len(lines) == 2, lines
    (success,) = (line for line in lines if f"broker unregistered nameserver={nameserver.addr}" in line)
    (failure,) = (line for line in lines if line != success)
    assert "WARNING" in failure
    assert f"unregistration refused nameserver={refusing.addr} code=1" in failure
