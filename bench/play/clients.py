"""The clients of one design, in one process: ``python -m routekeeper.bench.play.clients CONFIG``.

Each client asks for the route of a topic at fixed intervals, over its own connections, and changes to the
next server by itself. It also keeps a route, as clients of its design do: it reads the route again each
period, or when a watch fires. Each answer and each change of a kept route is one line on stdout. A line on
stdin names the topic for later requests, or a client that connects anew and its first server; the process
ends when stdin ends.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from routekeeper.bench.arms.interface import Arm, ArmConfig, ClientSession, Side, looked_at
from routekeeper.bench.arms.remoting import LastAsked, RemotingArm
from routekeeper.bench.chance import stream
from routekeeper.bench.events import Operation, View
from routekeeper.bench.play.heard import ClientsConfig, Heard, reconnecting
from routekeeper.remoting.output import set_up_logging

READY: Final = "clients ready"
_NS: Final = 1_000_000_000
_LOG = logging.getLogger(__name__)


def arm_of(config: ArmConfig) -> Arm:
    """Return the users' side of a design, with threads."""
    if config.kind == "zookeeper":
        from routekeeper.bench.arms.zookeeper import ZooKeeperArm  # kazoo is loaded for this design only

        return ZooKeeperArm(config)
    return RemotingArm(config)


class Teller:
    """Writes lines to stdout, each in one piece."""

    def __init__(self) -> None:
        self._writing = threading.Lock()

    def tell(self, heard: Heard) -> None:
        self._write(msgspec.json.encode(heard))

    def ready(self) -> None:
        self._write(READY.encode())  # print() would write the line's end separately if Python does not buffer

    def _write(self, line: bytes) -> None:
        with self._writing:
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()


class Asker(threading.Thread):
    """One client: sends a query when one is due, and keeps a route.

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
        """Send queries for ever; an error ends the process, so that nobody takes it for a slow client."""
        try:
            self._ask_always()
        except Exception:
            _LOG.exception("%s has ended", self.name)
            logging.shutdown()  # another thread writes the log; it would end with the process before it has
            os._exit(1)

    def _ask_always(self) -> None:
        every_ns = round(self._config.every_s * _NS)
        # Clients begin one after the other, so that their queries do not coincide.
        due_ns = time.monotonic_ns() + every_ns * self._number // len(self._config.arm.sides)
        threading.Thread(target=self._keep, daemon=True).start()
        while True:
            time.sleep(max(0, due_ns - time.monotonic_ns()) / _NS)
            first, self._first = self._first, None
            if first is not None:
                # A session behind a cut takes seconds to close.
                threading.Thread(target=self._session.close, daemon=True).start()
                self._session = self._arm.starting_client(self._side, first)
            self._teller.tell(Heard(operation=self._ask(due_ns)))
            due_ns = max(due_ns + every_ns, time.monotonic_ns())

    def _keep(self) -> None:
        """Read the kept route, and again once each period, at an instant of its own."""
        phase = stream(self._config.seed, f"phase of client {self._number}").random()
        time.sleep(phase * self._config.arm.refresh_ms / 1000)
        self._kept.run(self._kept.core.directory.refresh_quietly(self.topic))
        self._kept.start()

    def use(self, topic: str) -> None:
        """Ask for another topic from now on, as a program does that begins to use it."""
        self.topic = topic
        self._kept.core.directory.routes.use(topic)
        self._kept.run(self._kept.core.directory.refresh_quietly(topic))

    def reconnect(self, first: int) -> None:
        """Ask over a new connection from the next question on, this server first."""
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
        """Write a line about the kept route if it has changed."""
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
    """Ask until stdin ends."""
    arm, teller = arm_of(config.arm), Teller()
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
    os._exit(0)  # threads wait for answers that are not needed any more


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m routekeeper.bench.play.clients", description=__doc__)
    parser.add_argument("config", type=Path, help="JSON file written by mqbench")
    config = msgspec.json.decode(parser.parse_args().config.read_bytes(), type=ClientsConfig)
    set_up_logging(level="ERROR")
    serve(config)


if __name__ == "__main__":
    main()
