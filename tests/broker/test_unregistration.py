"""When a broker ends, it logs the nameservers from which it unregistered."""

from __future__ import annotations

import pytest

from routekeeper.remoting.command import RemotingCommand
from tests.broker.conftest import RecordingNameserver, StartBroker


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("is_refused", [False, True], ids=["let go", "refused"])
def test_a_refused_unregistration_is_no_success(
    start_broker: StartBroker, nameserver: RecordingNameserver, *, is_refused: bool
) -> None:
    if is_refused:
        nameserver.answers[104] = RemotingCommand(code=1, ext_fields={})
    broker = start_broker(namesrv=nameserver.addr)
    nameserver.expect(103)
    assert broker.stop() == 0
    nameserver.expect(104)
    (line,) = (line for line in broker.log.read_text().splitlines() if "unregist" in line)
    if is_refused:
        assert "WARNING" in line
        assert f"unregistration refused nameserver={nameserver.addr} code=1" in line
    else:
        assert f"broker unregistered nameserver={nameserver.addr}" in line
