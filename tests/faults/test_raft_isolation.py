"""A leader and a follower that are cut off from the majority together must refuse requests in time.

``RAFT_FAULT_CYCLES`` is the number of repetitions (default: a few).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from routekeeper.nameserver.raft.types import ELECTION_TIMEOUT_MS
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.registrations import registration
from tests.waiting import wait_until

from .brokers import PATIENCE_S, Writers, ask, route_query
from .cluster import Cluster, Member, cycles, hold
from .proxy import running_behind_proxy

ELECTION_TIMEOUT_S = ELECTION_TIMEOUT_MS / 1000
HEARTBEAT_S = ELECTION_TIMEOUT_S / 6

pytestmark = [pytest.mark.faults, pytest.mark.alone, pytest.mark.timeout(300 + 90 * cycles(0))]


class Probe:
    """A client that sends the same request to one member again and again.

    It records when it sent the granted and the refused requests.
    """

    def __init__(self, member: Member, what: str) -> None:
        self.member = member
        self.what = what
        self.granted: list[float] = []
        self.refused: list[float] = []
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._counter = 0

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.what} at member {self.member.number} hangs"

    def _run(self) -> None:
        try:
            with BlockingClient() as client:
                grants = self._question(client)
                while not self._stop.is_set():
                    sent = time.monotonic()
                    (self.granted if grants() else self.refused).append(sent)
                    self._stop.wait(0.003)
        except BaseException as error:  # check() raises this exception again
            self.error = error

    def _question(self, client: BlockingClient) -> Callable[[], bool]:
        number, addr = self.member.number, self.member.listen
        match self.what:
            case "change":
                return lambda: self._change(client)
            case "no change":
                # Repeat the same registration. A member that is in contact with a leader answers a repeated
                # registration without a log entry (rule 3 in docs/raft-rules.md).
                same = registration(f"same-{number}", f"10.3.0.{number}:10911", ("S", "shared"), counter=1)
                return lambda: ask(client, addr, same) == "applied"
            case "read":
                return lambda: self._read(client)
            case "http read":
                return lambda: self.member.get("/v1/topics/shared/route", timeout_s=PATIENCE_S)[0] == 200
            case _:
                raise AssertionError(self.what)

    def _change(self, client: BlockingClient) -> bool:
        self._counter += 1
        number = self.member.number
        request = registration(
            f"new-{number}", f"10.4.0.{number}:10911", ("N", "shared"), counter=self._counter
        )
        return ask(client, self.member.listen, request) == "applied"

    def _read(self, client: BlockingClient) -> bool:
        try:
            answer = client.invoke(self.member.listen, route_query("shared"), timeout_s=PATIENCE_S)
        except RemotingError:
            return False  # the nameserver closed the connection, as it does after a refusal
        if answer.code != ResponseCode.SUCCESS:
            assert answer.remark is not None
            assert answer.remark.startswith("[NO_QUORUM] "), answer
        return answer.code == ResponseCode.SUCCESS

    def wait_until_granted(self) -> None:
        wait_until(lambda: self.granted or self.error, f"{self.what} granted at member {self.member.number}")

    def check(self, cut_at: float) -> float:
        """Wait for a refusal, and return the seconds from the cut until the last granted request was sent."""
        wait_until(
            lambda: self.error or (self.refused and self.refused[-1] > cut_at),
            f"{self.what} refused at member {self.member.number}",
        )
        if self.error is not None:
            raise self.error
        return max([0.0, *(sent - cut_at for sent in self.granted)])


def wait_for_topic(member: Member, topic: str) -> None:
    wait_until(lambda: topic in (member.topics() or ()), f"member {member.number} has {topic}")


WHAT = ("change", "no change", "read", "http read")


def test_leader_and_listener_cut_off_from_the_majority_go_silent_in_time(tmp_path: Path) -> None:
    longest = dict.fromkeys(WHAT, 0.0)
    with running_behind_proxy(tmp_path, size=5) as (cluster, network):
        for _ in range(cycles(1)):
            leader = cluster.leader()
            cut_off = [leader, cluster.others(leader)[0]]
            majority = cluster.others(*cut_off)
            probes = [Probe(member, what) for member in cut_off for what in WHAT]
            with Writers(Cluster(majority)) as writers:
                writers.wait_for_progress(majority)
                for member in cut_off:
                    wait_for_topic(member, "shared")
                with ExitStack() as stack:
                    for probe in probes:
                        stack.enter_context(probe)
                    for probe in probes:
                        probe.wait_until_granted()
                    begun = time.monotonic()
                    cut_at = network.cut_between([m.raft for m in cut_off], [m.raft for m in majority])
                    for probe in probes:
                        longest[probe.what] = max(longest[probe.what], probe.check(cut_at))
                    took = writers.wait_for_progress(majority, since=begun)
                    print(f"the majority went on after {took:.3f} s")
                    # The cut-off members must refuse requests as long as the cut lasts.
                    hold(cut_at + 2.0)
                    for probe in probes:
                        longest[probe.what] = max(longest[probe.what], probe.check(cut_at))
                    network.heal(reset=False)
                cluster.wait_ready()
                cluster.wait_equal()
    print("granted after the cut, latest, s:", {what: round(s, 3) for what, s in longest.items()})
    assert max(longest.values()) < ELECTION_TIMEOUT_S + HEARTBEAT_S
