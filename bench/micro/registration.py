"""Measures the CPU time for decoding a registration (request 103), and compares this tree with another.

    python -m routekeeper.bench.micro.registration [--against TREE] [--pairs 40] [--processes 4]

The benchmark times ``decode_registration``. As in a nameserver, the benchmark first reads each request from a
frame, so that all its strings are new objects. Without ``--against`` the benchmark prints the CPU time of one
registration in microseconds.

With ``--against`` (a checkout of another commit), each tree has a process of its own. The two processes work
in turn, and the smaller time of two batches counts. Each pair of measurements yields one ratio: the other
tree's time divided by this tree's time. Other programs slow both trees alike, so they hardly change this
ratio. The benchmark prints the median of all ratios and its 95 % confidence interval (order statistics). It
replaces the processes from time to time, because the memory addresses of a process change its speed by some
percent.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Final, Self

from routekeeper.bench import interpreter

#: Maps the name of a case to three values: the number of topics, a flag for compressed bodies, and the number
#: of registrations in one batch. A batch takes some ms of CPU time.
CASES: Final = {
    f"{topics:,} topic{'s' * (topics > 1)}{', compressed' * compressed}": (topics, compressed, count)
    for topics, count in ((1, 1000), (10, 400), (100, 100), (1000, 15))
    for compressed in (False, True)
}
BROKERS: Final = 32
VERSION: Final = 479
_LENGTH_SIZE: Final = 4


def frames(topics: int, *, compressed: bool) -> list[bytes]:
    """Return frames as a nameserver receives them, with one registration of each broker."""
    from routekeeper.remoting.codes import RequestCode
    from routekeeper.remoting.command import RemotingCommand
    from routekeeper.remoting.fields import RegisterBrokerFields
    from routekeeper.remoting.registration import RegisterBody, body_crc32, encode_register_body
    from routekeeper.remoting.route import DataVersion, TopicConfig

    made = []
    for broker in range(BROKERS):
        names = (f"orders-of-region-{broker:02d}-{number:04d}" for number in range(topics))
        content = RegisterBody(
            data_version=DataVersion(counter=broker + 1, timestamp=1_700_000_000_000),
            topic_configs=tuple(TopicConfig(topic_name=name, read_queue_nums=8) for name in names),
            filter_servers=(),
        )
        body = encode_register_body(content, compressed=compressed, version=VERSION)
        fields = RegisterBrokerFields(
            broker_name=f"broker-{broker}",
            broker_addr=f"10.0.0.{broker + 1}:10911",
            cluster_name="bench",
            ha_server_addr=f"10.0.0.{broker + 1}:10912",
            broker_id=0,
            compressed=compressed,
            body_crc32=body_crc32(body),
        )
        command = RemotingCommand(
            code=RequestCode.REGISTER_BROKER, version=VERSION, ext_fields=fields.to_ext(), body=body
        )
        made.append(command.encode())
    return made


def work() -> None:
    """Run the process of one tree: read names of cases from stdin, print the CPU time of each in µs."""
    import gc

    tree = Path(sys.argv[3])
    types, read_command = (
        imported(tree, "nameserver/types.py"),
        imported(tree, "remoting/command.py").read_command,
    )
    # Also try nameserver/handlers.py: older trees have decode_registration there.
    decode = imported(tree, "nameserver/registration.py", "nameserver/handlers.py").decode_registration
    # The argument of decode_registration is a Request in some trees, and the command itself in other trees.
    as_asked = getattr(types.Request, "of", lambda command: command)

    cases: dict[str, tuple[list[str], int]] = json.loads(Path(sys.argv[2]).read_text())
    for line in sys.stdin:
        digits, count = cases[line.strip()]
        sent = [bytes.fromhex(frame) for frame in digits]
        print(_batch(decode, as_asked, read_command, sent, count, gc.collect), flush=True)


def imported(tree: Path, *files: str) -> Any:
    """Import the first of these files that exists in the tree; return the module.

    In older trees, modules are not in a package ``routekeeper``. If the benchmark's own tree is installed as
    editable, Python may import a module from there. Therefore check that the module comes from the file that
    was found in ``tree``.
    """
    below = "routekeeper." if "from routekeeper." in (tree / "nameserver" / "__main__.py").read_text() else ""
    for file in files:
        path = tree / file
        if path.is_file():
            module = import_module(below + file.removesuffix(".py").replace("/", "."))
            if Path(str(module.__file__)).resolve() != path.resolve():
                raise SystemExit(f"{module.__name__} comes from {module.__file__}, expected {path}")
            return module
    raise SystemExit(f"{tree} has none of the files {', '.join(files)}")


def _batch(
    decode: Callable[[Any], Any],
    as_asked: Callable[[Any], Any],
    read: Callable[..., Any],
    sent: Sequence[bytes],
    count: int,
    collect: Callable[[], object],
) -> float:
    asked = [
        as_asked(read(frame, 0, len(frame) - _LENGTH_SIZE))
        for frame in (sent[number % len(sent)] for number in range(count))
    ]
    collect()
    began = time.thread_time_ns()
    for one in asked:
        decoded = decode(one)
    took = time.thread_time_ns() - began
    assert decoded.table, decoded
    return took / count / 1e3


class Worker:
    """A process that imports the modules of one tree, and measures the CPU time of cases."""

    def __init__(self, tree: Path, cases: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve()), "--worker", str(cases), str(tree)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tree)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=10)

    def time(self, case: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{case}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def compare(cases: Path, other: Path, *, pairs: int, processes: int) -> None:
    from routekeeper.bench.figures import interval

    here = Path(__file__).resolve().parents[2]
    took: dict[str, list[tuple[float, float]]] = {case: [] for case in CASES}
    for _ in range(processes):
        with Worker(other, cases) as old, Worker(here, cases) as new:
            for number in range(-1, pairs // processes):
                for case in CASES:
                    first, second = (old, new) if number % 2 else (new, old)
                    a, b, c, d = first.time(case), second.time(case), second.time(case), first.time(case)
                    figures = min(a, d), min(b, c)
                    if number >= 0:
                        took[case].append(figures if number % 2 else figures[::-1])
    print(f"{'':24} {'other us':>9} {'this us':>9}   other / this")
    for case, figure in took.items():
        ratios = [before / after for before, after in figure]
        low, high = interval(ratios)
        old_us, new_us = (median(column) for column in zip(*figure, strict=True))
        print(
            f"{case:24} {old_us:9.2f} {new_us:9.2f}   {median(ratios):.3f} ({low:.3f} to {high:.3f}), "
            f"{len(ratios)} pairs"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m routekeeper.bench.micro.registration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--against", type=Path, help="checkout of another commit to compare with")
    parser.add_argument(
        "--pairs", type=int, default=40, help="pairs of batches in each case (default %(default)s)"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=4,
        help="pairs of processes, one after the other (default %(default)s)",
    )
    arguments = parser.parse_args()
    print(interpreter.said(), flush=True)
    with tempfile.TemporaryDirectory() as directory:
        cases = Path(directory) / "cases"
        cases.write_text(
            json.dumps(
                {
                    case: ([frame.hex() for frame in frames(topics, compressed=compressed)], count)
                    for case, (topics, compressed, count) in CASES.items()
                }
            )
        )
        if arguments.against is not None:
            compare(cases, arguments.against.resolve(), pairs=arguments.pairs, processes=arguments.processes)
            return
        with Worker(Path(__file__).resolve().parents[2], cases) as worker:
            for case in CASES:
                print(f"{case:24} {min(worker.time(case) for _ in range(arguments.pairs)):9.2f} us")


if __name__ == "__main__":
    work() if sys.argv[1:2] == ["--worker"] else main()
