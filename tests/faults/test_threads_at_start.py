"""A server refuses to start, with one line on stderr, if the system does not let it start a thread.

The limit on threads does not apply to root. So root starts the servers as user nobody. Without root, the
test is skipped.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import pytest

from routekeeper.remoting.threads import LIMITS_HINT, TRY_AGAIN

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")


def as_nobody(processes: int) -> Callable[[], None]:
    """Return a function that makes its process run as user nobody, with at most ``processes`` threads."""

    def become() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    return become


@pytest.fixture
def folder() -> Iterator[str]:
    """Yield a folder of user nobody, who cannot enter the folders of pytest."""
    with tempfile.TemporaryDirectory() as found:
        os.chown(found, NOBODY, NOBODY)
        yield found


@pytest.mark.parametrize("processes", [1, 10], ids=["no thread", "too few threads for a server"])
@pytest.mark.parametrize("kind", ["nameserver", "broker"])
def test_a_server_that_can_start_no_thread_says_so_and_ends(kind: str, processes: int, folder: str) -> None:
    store = ["--store", f"{folder}/store", "--name", "b"] if kind == "broker" else []
    ended = subprocess.run(
        [sys.executable, "-m", f"routekeeper.{kind}", "--listen", "127.0.0.1:0", "--http", "off", *store],
        preexec_fn=as_nobody(processes),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    program = "mqnamesrv" if kind == "nameserver" else "mqbroker"
    needed = 12 if kind == "nameserver" else 24
    assert ended.stderr == f"{program}: can't start new thread ({needed} are needed); {LIMITS_HINT}\n"
    assert (ended.returncode, ended.stdout) == (TRY_AGAIN, "")
