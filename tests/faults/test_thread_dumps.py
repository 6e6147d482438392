"""At SIGQUIT, which ``kill -3`` sends, a server prints its stacks as Java does, and continues to serve."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from .servers import SERVERS, server

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@SERVERS
def test_a_server_prints_the_stacks_of_its_threads_and_goes_on(kind: str, tmp_path: Path) -> None:
    with server(kind, tmp_path) as running:
        for _ in range(2):
            os.kill(running.pid, signal.SIGQUIT)
        running.says("(most recent call first):")
        running.says(f'{kind}/__main__.py", line ')
        running.says(" in main\n")
        assert running.works()
