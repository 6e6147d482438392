"""Program that measures the playground's memory, its CPU time, and the age of the state that it shows.

    python -m routekeeper.bench.micro.playground [--designs ...] [--divisor 10] [--rest 20] [--after 10]

The benchmark starts ``mqbench play`` and reads its stream of events as a web page does. It prints one line
without a fault and one line after each fault. Each line has three figures:

- the memory of all processes: their own pages, and their part of shared pages;
- the number of processor cores in use;
- the age of the shown state at each ``tick`` event: the age of the oldest reading of all servers that answer.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import psutil

READY: Final = "mqbench play ready http="
FAULTS: Final[Sequence[dict[str, Any]]] = (
    {"do": "restart-empty", "target": "nameserver-0"},
    {"do": "kill", "target": "leader"},
    {"do": "part", "target": "leader"},
    {"do": "pause", "target": "broker-0"},
    {"do": "kill", "target": "broker-1"},
)
"""Requests for faults, the same faults as in the lessons of the playground."""


class Watch(threading.Thread):
    """A thread that reads the stream of events, and records the age of the shown state at each ``tick``."""

    def __init__(self, addr: str) -> None:
        super().__init__(daemon=True)
        self._addr = addr
        self._ages: list[float] = []
        self._silent: set[tuple[str, str]] = set()

    def run(self) -> None:
        for kind, data in self._events():
            if kind == "state":
                for design in data["designs"]:
                    self._note(design["name"], design["servers"])
            elif kind == "change":
                for design in data.get("designs") or []:
                    self._note(design["name"], design["servers"])
                if data.get("server") is not None:
                    self._note(data["design"], [data["server"]])
            else:
                ages = [
                    (data["at_ms"] - read_ms) / 1000
                    for design in data["designs"]
                    for name, read_ms in design["read_ms"].items()
                    if (design["design"], name) not in self._silent
                ]
                self._ages.append(max(ages, default=0.0))

    def _note(self, design: str, servers: list[dict[str, Any]]) -> None:
        for server in servers:
            ends = design, server["name"]
            (self._silent.discard if server["answers"] else self._silent.add)(ends)

    def _events(self) -> Iterator[tuple[str, Any]]:
        connection = http.client.HTTPConnection(self._addr)
        connection.request("GET", "/v1/events")
        reply = connection.getresponse()
        kind = ""
        while line := reply.readline():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, json.loads(value)

    def ages(self) -> list[float]:
        """Return the ages of the shown state in seconds, one for each ``tick`` event since the last call."""
        found, self._ages = self._ages, []
        return found


def ask(addr: str, method: str, path: str, body: object = None) -> Any:
    connection = http.client.HTTPConnection(addr, timeout=60)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json"})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def used(process: psutil.Process) -> tuple[int, float]:
    """Return the memory in bytes and the CPU time in s of a process and all of its descendants."""
    memory, cpu_s = 0, 0.0
    for each in [process, *process.children(recursive=True)]:
        try:
            full = each.memory_full_info()
            memory += getattr(full, "pss", full.rss)
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        cpu_s += times.user + times.system
    return memory, cpu_s


def measure(name: str, process: psutil.Process, watch: Watch, seconds: float) -> None:
    """Measure for ``seconds``; print one line that begins with ``name``."""
    _, before_s = used(process)
    begun_s = time.monotonic()
    watch.ages()
    time.sleep(seconds)
    took_s = time.monotonic() - begun_s
    memory, after_s = used(process)
    ages = sorted(watch.ages()) or [float("nan")]
    print(
        f"{name}: memory {memory / 2**20:.0f} MiB, {(after_s - before_s) / took_s:.2f} cores, "
        f"age of the picture p50 {ages[len(ages) // 2]:.2f} s, most {ages[-1]:.2f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m routekeeper.bench.micro.playground")
    parser.add_argument(
        "--designs", default="independent,raft,zookeeper", help="as for mqbench play (default: %(default)s)"
    )
    parser.add_argument("--divisor", default="10", help="as for mqbench play (default: %(default)s)")
    parser.add_argument("--rest", type=float, default=20.0, help="seconds at rest (default: 20)")
    parser.add_argument("--after", type=float, default=10.0, help="seconds after each fault (default: 10)")
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "routekeeper.bench", "play", "--no-open"]
    command += ["--designs", arguments.designs, "--divisor", arguments.divisor]
    begun_s = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        addr = child.stdout.readline().strip().removeprefix(READY)
        while any(each["phase"] == "starting" for each in ask(addr, "GET", "/v1/state")["designs"]):
            time.sleep(0.2)
        print(f"started within {time.monotonic() - begun_s:.1f} s")
        process = psutil.Process(child.pid)
        watch = Watch(addr)
        watch.start()
        measure("at rest", process, watch, arguments.rest)
        for fault in FAULTS:
            done = ask(addr, "POST", "/v1/actions", fault)
            targets = ", ".join(f"{each['design']} {each['target']}" for each in done["outcomes"])
            measure(f"{fault['do']} ({targets})", process, watch, arguments.after)
            ask(addr, "POST", "/v1/actions", {"do": "heal"})
            for each in done["outcomes"]:
                again = {"do": "start", "target": each["target"], "designs": [each["design"]]}
                ask(addr, "POST", "/v1/actions", again)
            time.sleep(arguments.after)
    finally:
        child.terminate()
        child.wait()


if __name__ == "__main__":
    main()
