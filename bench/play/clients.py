"""The clients of one design, in one process: ``python -m routekeeper.bench.play.clients CONFIG``.

A design is independent mode, raft mode or ZooKeeper.

Each client asks for the route of a topic at fixed intervals, over its own connections. When a server does not
answer, the client itself tries the next server. Each client also caches the route, as clients of its design
do. It reads the route into its cache once in each period, or when a watch fires.

The process prints one line for each answer, and for each change of a cached route. It reads commands from
stdin. One command names the topic of later queries. The other command makes one client connect again and ask
a given server first. The process ends when stdin ends.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from routekeeper.bench.arms.interface import Arm, ClientSession, Side, looked_at
from routekeeper.bench.arms.remoting import LastAsked, threaded_arm
from routekeeper.bench.chance import stream
from routekeeper.bench.events import Operation, View
from routekeeper.bench.play.heard import ClientsConfig, Heard, reconnecting
from routekeeper.remoting.output import set_up_logging

READY: Final = "clients ready"
_NS: Final = 1_000_000_000
_LOG = logging.getLogger(__name__)


class Teller:
    """A writer of lines to stdout, which several threads may use at the same time."""

    def __init__(self) -> None:
        self._writing = threading.Lock()

    def tell(self, heard: Heard) -> None:
        self._write(msgspec.json.encode(heard))

    def ready(self) -> None:
        # Do not use print(). It may write a line and its newline separately, and another thread could write
        # between the two.
        self._write(READY.encode())

    def _write(self, line: bytes) -> None:
        with self._writing:
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()


class Asker(threading.Thread):
    """One client. It sends queries at fixed intervals, and caches a route as clients of its design do.

    Attributes:
        topic: Topic of the next queries.
    """

    def __init__(self, number: int, arm: Arm, side: Side, config: ClientsConfig, teller: Teller) -> None:
        super().__init__(name=side.name, daemon=True)
        self.topic = config.topic
        self._number = number
        self._arm = arm
        self._side = side
        self._config = config
        self._teller = teller
        self._session: ClientSession = arm.client(side, number)
        self._first: int | None = None
        self._shown: tuple[str, list[int] | None] | None = None
        self._kept = arm.producer_client(
            side, number, seed=stream(config.seed, f"client {number}").getrandbits(63), hooks=(LastAsked(),)
        )
        self._kept.core.directory.routes.use(self.topic)
        self._kept.core.directory.watchers.append(self.look)

    def run(self) -> None:
        """Send queries for ever.

        After an error, end the whole process. Otherwise the page would show a slow client, although the
        client sends no queries any more.
        """
        try:
            self._ask_always()
        except Exception:
            _LOG.exception("%s has ended", self.name)
            # Flush the log, because another thread writes it, and os._exit() ends this other thread at once.
            logging.shutdown()
            os._exit(1)

    def _ask_always(self) -> None:
        every_ns = round(self._config.every_s * _NS)
        # Let clients begin at different instants, so that their queries do not coincide.
        due_ns = time.monotonic_ns() + every_ns * self._number // len(self._config.arm.sides)
        threading.Thread(target=self._keep, daemon=True).start()
        while True:
            time.sleep(max(0, due_ns - time.monotonic_ns()) / _NS)
            first, self._first = self._first, None
            if first is not None:
                # Close the session in another thread, because closing takes seconds if the session's link is
                # cut.
                threading.Thread(target=self._session.close, daemon=True).start()
                self._session = self._arm.starting_client(self._side, first)
            self._teller.tell(Heard(operation=self._ask(due_ns)))
            due_ns = max(due_ns + every_ns, time.monotonic_ns())

    def _keep(self) -> None:
        """Wait for a random part of a period, then begin to refresh the cached route once a period."""
        phase = stream(self._config.seed, f"phase of client {self._number}").random()
        time.sleep(phase * self._config.arm.refresh_ms / 1000)
        self._kept.run(self._kept.core.directory.refresh_quietly(self.topic))
        self._kept.start()

    def use(self, topic: str) -> None:
        """Change the topic of this client's queries, and read the new topic's route into the cache."""
        self.topic = topic
        self._kept.core.directory.routes.use(topic)
        self._kept.run(self._kept.core.directory.refresh_quietly(topic))

    def reconnect(self, first: int) -> None:
        """Open a new connection for the next query, and send this query to the server at index ``first``."""
        self._first = first

    def _ask(self, due_ns: int) -> Operation:
        topic = self.topic
        sent_ns = time.monotonic_ns()
        found = self._session.look_up(topic)
        return Operation(
            op="lookup",
            user=self._number,
            target=found.target,
            due_ns=due_ns,
            sent_ns=sent_ns,
            done_ns=time.monotonic_ns(),
            outcome=found.outcome,
            code=found.code,
            remark=found.remark,
            topic=topic,
            brokers=found.brokers,
            attempts=found.attempts,
            client_side=self._side.name,
        )

    def look(self) -> None:
        """Write the cached route as one line on stdout, if the route has changed."""
        now_ns = time.monotonic_ns()
        topic = self.topic
        route = self._kept.core.directory.routes.route(topic)
        brokers = None if route is None else looked_at(route, target=None).brokers
        if (topic, brokers) == self._shown:
            return
        known = self._shown is not None and self._shown[0] == topic
        self._shown = topic, brokers
        view = View(
            observer="client",
            index=self._number,
            topic=topic,
            state="absent" if brokers is None else "routed",
            brokers=brokers,
            unseen_ns=now_ns if known else None,
            seen_ns=now_ns,
        )
        self._teller.tell(Heard(view=view))


def serve(config: ClientsConfig) -> None:
    """Start all clients, and execute the commands on stdin until stdin ends."""
    arm, teller = threaded_arm(config.arm), Teller()
    askers = [Asker(number, arm, side, config, teller) for number, side in enumerate(config.arm.sides)]
    for asker in askers:
        asker.start()
    teller.ready()
    for line in sys.stdin:
        anew = reconnecting(line)
        for asker in askers:
            if anew is None:
                threading.Thread(target=asker.use, args=(line.strip(),), daemon=True).start()
            elif asker.name == anew[0]:
                asker.reconnect(anew[1])
    os._exit(0)  # exit at once, without a wait for threads whose queries are not answered yet


def main() -> None:
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ClientsConfig)
    set_up_logging(level="ERROR")
    serve(config)


if __name__ == "__main__":
    main()
