"""A pytest plugin that prints the duration and the CPU time of the tests in each directory.

If the duration is much longer than the CPU time, the tests wait most of the time. Then more of them could run
in parallel.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

_STARTED: pytest.StashKey[tuple[float, float]] = pytest.StashKey()


@dataclass(slots=True)
class Sum:
    """The times in seconds of one directory's tests, with their fixtures.

    Attributes:
        cpu_s: CPU time of the process that runs the tests, and of the child processes that it waited for.
    """

    tests: int = 0
    time_s: float = 0.0
    cpu_s: float = 0.0


def _cpu_s() -> float:
    return sum(os.times()[:4])


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers of pytest-xdist print no sums
        config.pluginmanager.register(Summary())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_STARTED] = time.perf_counter(), _cpu_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        started, cpu_s = item.stash[_STARTED]
        # Put the times into the report, because the main process gets only reports from workers.
        report.user_properties.append(("spent", (time.perf_counter() - started, _cpu_s() - cpu_s)))
    return report


class Summary:
    """The part of the plugin that adds up the times in reports and prints the sums, in the main process."""

    def __init__(self) -> None:
        self._sums: dict[str, Sum] = defaultdict(Sum)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, spent in report.user_properties:
            if name != "spent":
                continue
            time_s, cpu_s = cast(tuple[float, float], spent)
            found = self._sums[Path(report.location[0]).parent.as_posix()]
            found.tests += 1
            found.time_s += time_s
            found.cpu_s += cpu_s

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("time per directory")
        for folder, found in sorted(self._sums.items(), key=lambda pair: -pair[1].time_s):
            terminalreporter.write_line(
                f"{found.time_s:8.1f} s {found.cpu_s:8.1f} s of CPU {found.tests:5d} tests  {folder}"
            )
