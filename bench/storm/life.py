"""One run of a design's servers (such as raft mode or ZooKeeper), with storms of registrations.

In a storm, many brokers register, leave or return at the same time. Every figure is computed from recorded
rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Self, TypeVar

import msgspec

from routekeeper.bench.arms.layout import topic_child, topic_path
from routekeeper.bench.figures import percentile
from routekeeper.bench.group import Group, Unhealthy, cpu_s, heap_kept, largest_memory_mb, log_tails
from routekeeper.bench.processes import ClusterError, sample_machine, sample_process
from routekeeper.bench.storm import brokers, bystander
from routekeeper.bench.storm.blocking import make_nodes
from routekeeper.bench.storm.brokers import RESIDENT_TOPICS
from routekeeper.bench.storm.frames import QUEUES, broker_name, topic_name
from routekeeper.bench.storm.rightness import Watch
from routekeeper.bench.storm.sessions import lasting_nodes

#: Largest allowed duration of a storm in seconds; a longer storm counts as failed. The limit is high because
#: a storm can take minutes on a busy machine.
STORM_S: Final = 300.0
CONNECT_S: Final = 60.0
#: Pause in seconds before the measurement at rest. In this time, the servers finish the work of the storm.
SETTLE_S: Final = 5.0
BEFORE_S: Final = 0.5
#: Pause in seconds between two samples of the servers' CPU and memory.
SAMPLE_S: Final = 0.5
MINUTE_S: Final = 60.0
EPOCH_S: Final = 30.0
_MS: Final = 1e6
_S: Final = 1e9

Record = Callable[[dict[str, Any]], None]
_T = TypeVar("_T")


class Child:
    """A child process that reads commands as lines, and answers each command with a line.

    It ends when its standard input ends.
    """

    def __init__(self, module: str, plan: msgspec.Struct) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self._process.pid
        self.tell(msgspec.json.encode(plan))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        # Ignore this error, which means that the process has ended: hear() will raise ClusterError.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def hear(self) -> Any:
        """Return the next answer of the process.

        Raises:
            ClusterError: If the process has ended, because it is a part of the harness and not of a design.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ClusterError(f"{self._module} ended with {self._process.wait()}")
        return json.loads(line)

    def ask(self, line: bytes) -> Any:
        self.tell(line)
        return self.hear()


class Life:
    """Started servers, the process of all brokers, and the bystander (a process that asks for routes)."""

    def __init__(self, system: Group, *, plan: brokers.Plan, record: Record) -> None:
        self.system = system
        self.plan = plan
        self._record = record
        self._phase = ""
        self._brokers: Child
        self.bystander: Child
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        system, plan = self.system, self.plan
        with self._stack:
            self._stack.callback(system.stop)
            system.start()
            if system.kind == "jute":
                names = [*map(topic_name, range(plan.topics)), *RESIDENT_TOPICS]
                make_nodes(system.clients[0], lasting_nodes(range(plan.brokers + 1), names))
            self._brokers = self._stack.enter_context(Child(brokers.__name__, plan))
            self._do("connect", CONNECT_S)
            self.bystander = self._stack.enter_context(Child(bystander.__name__, self._asked()))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _asked(self) -> bystander.Plan:
        key = self.plan.brokers
        if self.system.kind == "jute":
            paths = [f"{topic_path(topic)}/{topic_child(key)}" for topic in RESIDENT_TOPICS]
            return bystander.Plan(kind="jute", servers=self.system.clients, paths=paths, expected=str(QUEUES))
        return bystander.Plan(
            kind=self.system.kind,
            servers=self.system.clients,
            topics=RESIDENT_TOPICS,
            expected=broker_name(key),
        )

    # -- storms, and brokers at rest -----------------------------------------------------------------

    def register(self) -> dict[str, Any]:
        """Let all brokers register at the same time; return the figures.

        Meanwhile, the bystander (a process that only asks for routes) sends its queries.
        """
        with self._measuring("register") as found, self.asking(found):
            watch = self._watch(self.plan.brokers)
            found |= self._storm(self._do("register"), watch)
        return found

    def change(self) -> dict[str, Any]:
        """Let one broker register with all its topics changed; return the figures.

        Meanwhile, the bystander (a process that only asks for routes) sends its queries.
        """
        with self._measuring("change") as found, self.asking(found):
            answer = self._do("change", STORM_S)
            found |= self._counted(answer["rows"]) | {"took_s": answer["took_ns"] / _S}
        return found

    def leave(self) -> dict[str, Any]:
        """Let all brokers leave at the same time; return the figures.

        Meanwhile, the bystander (a process that only asks for routes) sends its queries.
        """
        with self._measuring("leave") as found, self.asking(found):
            watch = self._watch(0)
            began = self._do("leave")
            found |= self._ended(watch, began["t_ns"], "gone everywhere")
        return found

    def restart(self, *, spread_s: float = 0.0) -> dict[str, Any]:
        """Kill all servers and start them again; the brokers connect and register again by themselves.

        Args:
            spread_s: Seconds after the kill over which the brokers' return is evenly spread; 0 if all return
                at the same time, :data:`brokers.AGAIN_S` after the kill.
        """
        self.returning(spread_s)
        phase = "restart-spread" if spread_s else "restart"
        with self._measuring(phase, restarts=True) as found, self.asking(found):
            began = {"t_ns": time.monotonic_ns()}
            self.system.kill_and_restart()
            watch = self._watch(self.plan.brokers)
            found |= self._storm(began, watch)
        return found

    def settle(self) -> None:
        """Wait until all brokers are connected, and until the servers list them."""
        self._do("settle", STORM_S)

    def returning(self, spread_s: float) -> None:
        """From now on, spread the return of brokers that lose their connection over ``spread_s`` seconds."""
        self._do("returning", spread_s)

    def rest(self, seconds: float) -> dict[str, Any]:
        """Measure the cost of brokers that only repeat their registration every 30 s.

        The first repetition is not measured. Our nameserver decodes it, but recognises later repetitions by
        their bytes and does not decode them.
        """
        time.sleep(SETTLE_S)
        self._do("rest", brokers.PERIOD_S)
        with self._measuring("rest") as found:
            answer = self._do("rest", seconds)
            counted = self._counted(answer["rows"])
        found |= counted | {"cpu_s_a_minute": found["cpu_s"] * MINUTE_S / found["seconds"]}
        return found

    # -- steps of a storm, and their measurement ------------------------------------------------------

    def _do(self, word: str, seconds: float = 0.0) -> dict[str, Any]:
        command = brokers.Command(do=word, seconds=seconds)
        answer: dict[str, Any] = self._brokers.ask(msgspec.json.encode(command))
        for row in answer["rows"]:
            self._record({"phase": self._phase, **row})
        if "failure" in answer:
            tails = log_tails(self.system)
            raise Unhealthy(f"{self.system.name}, {self._phase}: {answer['failure']}\n{tails}")
        return answer

    def _watch(self, count: int) -> Watch:
        watch = Watch(self.system.kind, self.system.clients, topics=self.plan.topics, brokers=count)
        self._stack.callback(watch.stop)
        return watch

    def _storm(self, began: dict[str, Any], watch: Watch) -> dict[str, Any]:
        found = self._ended(watch, began["t_ns"], "right everywhere")
        answer = self._do("settle", STORM_S)
        return found | self._counted(answer["rows"]) | {"brokers_pause_ms": answer["longest_pause_ns"] / _MS}

    def _ended(self, watch: Watch, t_ns: int, aim: str) -> dict[str, Any]:
        """Wait until all servers answer right; return two times, in seconds after ``t_ns``.

        - ``first_right_s``: time at which every server had given a right answer
        - ``right_s``: time from which on all answers of all servers were right

        Args:
            aim: Words for the error if the servers do not answer right in time.
        """
        right = watch.wait(STORM_S)
        for row in watch.rows:
            self._record({"phase": self._phase, **row})
        if not right:
            with contextlib.suppress(Unhealthy):
                self._do("settle")  # so that the rows have the result of every registration
            tails = log_tails(self.system)
            raise Unhealthy(f"{self.system.name}: {aim}: not within {STORM_S:g} s\n{tails}")
        first_s = [(at - t_ns) / _S for at in watch.first_ns if at is not None]
        right_s = [(at - t_ns) / _S for at in watch.right_ns if at is not None]
        return {"first_right_s": max(first_s), "right_s": max(right_s)}

    def _counted(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        sent = [row for row in rows if row["kind"] == "registration"]
        return {
            "registrations": len(sent),
            "failures": sum(row["outcome"] != "ok" for row in sent),
            "cut": sum(row["kind"] == "cut" for row in rows),
        }

    @contextlib.contextmanager
    def _measuring(self, phase: str, *, restarts: bool = False) -> Iterator[dict[str, Any]]:
        """Measure CPU time, memory and leader changes during an action.

        Args:
            phase: Name of the action in the recorded rows.
            restarts: True if the action restarts all servers. The CPU time of the new processes begins at 0.
        """
        self._phase = phase
        found: dict[str, Any] = {}
        terms = self._epoch()
        own = self._own_s()
        machine, used = sample_machine().cpu_ns / _S, 0.0 if restarts else self._servers_s()
        self._record_terms()
        began = time.monotonic()
        with sampled(self._sample) as samples:
            yield found
        found["seconds"] = time.monotonic() - began
        for sample in samples:
            self._record({"kind": "server", "phase": phase, **sample})
        found["cpu_s"] = self._servers_s() - used
        others = sample_machine().cpu_ns / _S - machine - (self._own_s() - own) - found["cpu_s"]
        found["other_programs_cores"] = max(0.0, others / found["seconds"])
        found["memory_mb"] = max(largest_memory_mb(self.system))
        after = self._epoch()
        self._record_terms()
        if phase in ("register", "restart"):
            found |= heap_kept(self.system)
        found["leader_changes"] = None if terms is None or after is None else after - terms
        self._record({"kind": "figures", "phase": phase, **found})

    def _sample(self) -> list[dict[str, float]]:
        """Return the CPU time and the memory of each server now."""
        t_ns = time.monotonic_ns()
        pids = enumerate(self.system.pids)
        found = [sample_process(pid, role="nameserver", index=index) for index, pid in pids]
        return [
            {
                "server": each.index,
                "t_ns": t_ns,
                "pid": each.pid,
                "cpu_s": each.cpu_ns / _S,
                "memory_mb": each.rss_bytes / 1e6,
            }
            for each in found
            if each is not None
        ]

    def _record_terms(self) -> None:
        """Record the newest term (raft) or epoch (ZooKeeper) that a server knows."""
        self._record(
            {"kind": "term", "phase": self._phase, "t_ns": time.monotonic_ns(), "term": self.system.epoch()}
        )

    @contextlib.contextmanager
    def asking(self, found: dict[str, Any]) -> Iterator[None]:
        """Let the bystander process query the servers shortly before an action, and during it.

        At the end, add the figures on the bystander's waiting times to ``found``; see :func:`waits`.
        """
        self.bystander.ask(b"start")
        time.sleep(BEFORE_S)
        yield
        self.bystander.tell(b"stop")
        samples = [bystander.Sample(*fields) for fields in self.bystander.hear()]
        for sample in samples:  # record the samples unchanged; waits() joins some of them
            self._record({"kind": "query", "phase": self._phase, **msgspec.structs.asdict(sample)})
        found |= waits(samples)

    def _epoch(self) -> int | None:
        """Return the newest term or epoch; ask repeatedly, because a busy server may not answer at once."""
        if self.system.leader() is None and self.system.epoch() is None:
            return None
        deadline = time.monotonic() + EPOCH_S
        while (found := self.system.epoch()) is None and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _servers_s(self) -> float:
        return sum(map(cpu_s, self.system.pids))

    def _own_s(self) -> float:
        return time.process_time() + sum(cpu_s(child.pid) for child in (self._brokers, self.bystander))


def waits(samples: list[bystander.Sample]) -> dict[str, Any]:
    """Return figures, in ms, on the time for which the bystander process waited for answers of the servers.

    - A wait ends as described in :func:`until_right`.
    - A wait is counted without the time in which the bystander may have overlooked the answer.
    - The percentiles are computed for an imagined client. It sends a query every
      :data:`bystander.PAUSE_NS`, even while it waits for an answer. During one long wait of the bystander,
      this client would have sent many queries, which all get their answers when the wait ends. With a query
      every 2 ms, a wait of 6 ms counts as three waits of 6, 4 and 2 ms. Otherwise a server's pause of one
      second would count as a single query.
    """
    took: list[int] = []
    longest_ns, own_ns = -1, 0
    for sample in until_right(samples):
        wait_ns = max(0, sample.wait_ns - sample.own_ns)
        took += range(wait_ns, 0, -bystander.PAUSE_NS) or (0,)
        if wait_ns > longest_ns:
            longest_ns, own_ns = wait_ns, sample.own_ns
    took.sort()
    return {
        "queries": len(samples),
        "queries_failed": sum(sample.outcome != "ok" for sample in samples),
        "wait_ms_p50": percentile(took, 0.5) / _MS,
        "wait_ms_p99": percentile(took, 0.99) / _MS,
        "wait_ms_longest": longest_ns / _MS,
        "wait_ms_longest_own": own_ns / _MS,
    }


def until_right(samples: list[bystander.Sample]) -> list[bystander.Sample]:
    """Return samples of waits, each until a right answer, from samples of single queries.

    A client that is refused, or that gets a wrong route, still has no route. So its wait goes on until the
    server gives a right answer, including the pauses between the queries. If no right answer follows, the
    wait ends with the last query.
    """
    found: list[bystander.Sample] = []
    waiting: dict[int, bystander.Sample] = {}
    for sample in sorted(samples, key=lambda sample: sample.sent_ns):
        first = waiting.pop(sample.server, None)
        if first is not None:
            wait_ns = sample.sent_ns + sample.wait_ns - first.sent_ns
            own_ns = first.own_ns + sample.own_ns
            sample = bystander.Sample(sample.server, first.sent_ns, wait_ns, own_ns, sample.outcome)
        if sample.outcome == "ok":
            found.append(sample)
        else:
            waiting[sample.server] = sample
    return [*found, *waiting.values()]


@contextlib.contextmanager
def sampled(sample: Callable[[], list[_T]]) -> Iterator[list[_T]]:
    """Take samples while the context is open: at its start, then every :data:`SAMPLE_S`, and at its end.

    Yield the list to which the samples are added.
    """
    taken = sample()
    over = threading.Event()

    def run() -> None:
        while not over.wait(SAMPLE_S):
            taken.extend(sample())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join()
        taken += sample()


def load_now() -> float:
    return os.getloadavg()[0]
