"""A ZooKeeper client that finds no server pauses between its tries, and the pause does not grow."""

from __future__ import annotations

import threading

from kazoo.handlers.threading import SequentialThreadingHandler

from routekeeper.bench.arms.servers import wait_until
from routekeeper.bench.arms.zookeeper import RECONNECT_S, Waits, connect
from tests.ports import free_addresses

TRIES = 50


class Pauses:
    """A recorder of a client's pauses. It ends the first ``TRIES`` pauses at once."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.enough = threading.Event()
        self._ended = threading.Event()

    def handler(self) -> SequentialThreadingHandler:
        made = SequentialThreadingHandler()
        made.sleep_func = self._note
        return made

    def _note(self, seconds: float) -> None:
        if len(self.seen) < TRIES:
            self.seen.append(seconds)
            return
        self.enough.set()
        self._ended.wait()

    def end(self) -> None:
        self._ended.set()


def test_the_pause_before_the_fiftieth_attempt_is_as_long_as_before_the_first() -> None:
    pauses = Pauses()
    client = connect(free_addresses(1), session_s=2.0, waits=Waits(pauses.handler, ()))
    client.start_async()
    try:
        wait_until(pauses.enough.is_set, "the client does not try again", [], 60)
    finally:
        pauses.end()
        client.stop()
        client.close()
    assert len(pauses.seen) == TRIES
    assert all(RECONNECT_S <= pause <= 2 * RECONNECT_S for pause in pauses.seen), pauses.seen
    assert len(set(pauses.seen)) > TRIES / 2, "drawn anew each time, so that clients do not stay in step"
