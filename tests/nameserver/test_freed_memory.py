"""A nameserver reuses its memory for each of many large requests, and needs no new pages from the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.remoting.transport.blocking import BlockingClient
from tests.nameserver.test_main import started
from tests.registrations import registration

TOPICS = tuple(f"orders-of-customers-{number:05d}" for number in range(10_000))


def pages_taken(pid: int) -> int:
    """Return the number of minor page faults of a process.

    The kernel counts a minor fault whenever it gives the process a new page of memory. The number is the
    field "minflt" of /proc/PID/stat.
    """
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


@pytest.mark.slow
def test_repeated_registrations_of_10_000_topics_take_no_new_pages(tmp_path: Path) -> None:
    with started(tmp_path, "--http", "off") as (process, ready), BlockingClient() as broker:
        request = registration("broker-a", "10.0.0.1:10911", TOPICS, counter=1)
        for _ in range(5):
            assert broker.invoke(ready["listen"], request, timeout_s=30).code == 0
        before = pages_taken(process.pid)
        for _ in range(20):
            assert broker.invoke(ready["listen"], request, timeout_s=30).code == 0
        assert pages_taken(process.pid) - before < 20 * 50  # without reuse, each request took 1,300 pages
