"""Signals that end a broker. The first signal ends it cleanly. A repeat within a second has no effect."""

from __future__ import annotations

import signal
import time

import pytest

from tests.broker.conftest import StartBroker
from tests.signals import IN_TERMINAL, inherited

pytestmark = [pytest.mark.faults, pytest.mark.slow]


ATTEMPTS = 5


def test_a_repeat_of_the_signal_within_a_second_changes_nothing(start_broker: StartBroker) -> None:
    """A second signal within a second of the first signal must do nothing.

    Some supervisors signal a process and then its process group, so one stop request arrives as two signals.
    """
    for _ in range(ATTEMPTS):
        broker = start_broker()
        begun = time.monotonic()
        broker.process.send_signal(signal.SIGTERM)
        broker.process.send_signal(signal.SIGINT)
        code = broker.process.wait(40)
        if code == 0 or time.monotonic() - begun < 1.0:
            break  # otherwise this machine was busy: more than 1 s may lie between the signals, so try again
    assert code == 0
    assert "exiting at once" not in broker.log.read_text()


def test_a_closed_terminal_ends_it_in_order_with_code_129(start_broker: StartBroker) -> None:
    with inherited(signal.SIGHUP, signal.SIG_DFL):
        broker = start_broker(prefix=IN_TERMINAL)
    assert broker.wire().send_message("T", b"stored").code == 0
    broker.process.send_signal(signal.SIGHUP)
    assert broker.process.wait(40) == 128 + signal.SIGHUP
    assert "exiting at once" not in broker.log.read_text()
