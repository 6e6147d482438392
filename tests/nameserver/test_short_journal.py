"""A member's journal stays short.

A restarted member first applies its whole journal, so a long journal would delay its first answers.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from routekeeper.remoting.transport.blocking import BlockingClient
from tests.nameserver.test_main import started
from tests.ports import free_addresses
from tests.registrations import registration

JOURNAL_MAX = 3 * 1024 * 1024
SNAPSHOT_S = 30.0


def files(folder: Path, begin: str) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith(begin)]


@pytest.mark.slow
def test_a_storm_of_registrations_leaves_at_most_3_MiB_of_journal(tmp_path: Path) -> None:
    chance = random.Random(1)
    (raft,) = free_addresses(1)
    group = ("--mode", "raft", "--raft", raft, "--peers", raft, "--http", "off")
    with started(tmp_path, *group) as (_, ready), BlockingClient() as client:
        for number in range(20):  # each entry has about 0.2 MB after compression
            topics = tuple(f"{chance.getrandbits(128):032x}" for _ in range(10_000))
            request = registration(f"broker-{number}", f"10.0.0.{number}:10911", topics, counter=1)
            assert client.invoke(ready["listen"], request, timeout_s=30).code == 0
        folder = tmp_path / "data" / "raft"
        deadline = time.monotonic() + SNAPSHOT_S
        while (size := sum(path.stat().st_size for path in files(folder, "journal"))) > JOURNAL_MAX:
            assert time.monotonic() < deadline, f"{size} bytes of journal"
            time.sleep(0.02)
        assert files(folder, "snapshot")
