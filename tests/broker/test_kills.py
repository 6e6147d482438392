"""A broker that is killed while clients send and consume loses nothing that it acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from .kills import kill_again_and_again

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


def test_acknowledged_messages_are_read_back_and_consumed_across_kills(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, kills=3, flush="SYNC_FLUSH", seed=7)
