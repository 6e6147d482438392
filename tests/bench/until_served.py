"""A Locust file that ends a test after 8 successful requests (``ENOUGH``) of every wanted kind.

Locust loads this file together with a Locust file of the benchmark.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gevent
from locust import User, events
from locust.runners import WorkerRunner

WANTED = {tuple(kind.split()) for kind in os.environ.get("UNTIL_SERVED", "").split(",")}
PROCESSES = int(os.environ.get("UNTIL_PROCESSES", "0"))
ENOUGH = 8


class NobodyUser(User):
    """A user that does nothing. Locust needs a user class in every file."""

    fixed_count = 0
    weight = 0


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def watch(environment: Any, **_: Any) -> None:
    if not isinstance(environment.runner, WorkerRunner):
        gevent.spawn(quit_when_served, environment)


def quit_when_served(environment: Any) -> None:
    while True:
        entries = environment.stats.entries.values()
        # Count successes only. Users without servers fail again and again, and must not end the test.
        served = {
            (entry.method, entry.name)
            for entry in entries
            if entry.num_requests - entry.num_failures >= ENOUGH
        }
        workers = [client.user_count for client in getattr(environment.runner, "clients", {}).values()]
        if served >= WANTED and len([users for users in workers if users]) == PROCESSES:
            Path(os.environ["UNTIL_FILE"]).write_text(json.dumps(environment.stats.serialize_stats()))
            environment.runner.quit()
            return
        gevent.sleep(0.05)
