"""Settings and order of execution for all tests."""

import gc
import os
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler.loadscope import LoadScopeScheduling

pytest_plugins = ("tests.async_tests", "tests.sums")

# Requests to a test's own servers must not go through a proxy that environment variables name.
_LOOPBACK = "127.0.0.1,localhost,::1"
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = ",".join(filter(None, (os.environ.get(_name), _LOOPBACK)))

# Let Hypothesis use the same examples in every run, so that only a change of the code makes a test fail. With
# ROUTEKEEPER_EXPLORE=1, it tries new examples. Examples have no time limit, because their time depends more
# on the machine than on the code.
settings.register_profile(
    "routekeeper",
    deadline=None,
    derandomize=not os.environ.get("ROUTEKEEPER_EXPLORE"),
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("routekeeper")

#: Files of tests/interop whose tests share our nameservers. Files that are neither in OURS nor in APART share
#: Apache's nameservers.
OURS: Final = tuple(
    f"tests/interop/test_{name}.py"
    for name in ("apache_brokers", "apache_mqadmin", "java_messages", "masters_and_slaves")
)
#: Files of tests/interop that start their own processes, so that any worker may run them.
APART: Final = tuple(
    f"tests/interop/test_{name}.py"
    for name in (
        "acl",
        "apache_alone",
        "cluster_test",
        "losing_a_nameserver",
        "replacing_apache",
        "secured",
        "watchdog",
    )
)


#: Files whose tests take a minute or more. If such a file began last, it would delay the end of the session.
LONGEST: Final = (
    *(f"tests/bench/test_{name}.py" for name in ("every_scenario", "real", "kernel", "scale_live", "locust")),
    *("tests/bench/play_page/test_lessons.py", "tests/bench/play_page/test_page.py"),
    *("tests/bench/costs/test_run.py", "tests/bench/micro/test_storm_live.py"),
    *("tests/bench/play/test_played.py", "tests/bench/play/test_zookeeper.py"),
    "tests/bench/report/test_pictures.py",
    *("tests/bench/report/test_surroundings.py", "tests/nameserver/http/test_document.py"),
    *("tests/client/test_procedures.py", "tests/client/test_mqadmin_daily.py"),
    *("tests/faults/test_members.py", "tests/fuzz/test_fuzz.py"),
)

#: Files whose tests share one Spark session. One worker runs them all, because each session needs a gigabyte
#: of memory, and needs much time for its first tables.
ON_SPARK: Final = (
    *(f"tests/bench/report/test_{n}.py" for n in ("csv", "files", "page", "planted", "read", "silver")),
    "tests/bench/test_clusters.py",
)

#: Time limit in s of each test with the marker "computes". It is long, because such a test may get little
#: processor time beside other tests.
COMPUTES_S: Final = 2400


def shared_by(nodeid: str) -> str | None:
    """Return a name for the servers or the Spark session that a test shares with other tests, or None.

    Some files have tests for our nameservers and for Apache's. The parameter in the test's id tells which.
    """
    file, _, test = nodeid.partition("::")
    if file in ON_SPARK:
        return "Spark"
    if not file.startswith("tests/interop/") or file in APART:
        return None
    return "our nameservers" if file in OURS or "[independent" in test or "[raft" in test else "Apache's"


def pytest_collection() -> None:
    """Turn garbage collection off while pytest collects tests, because it would take 25 % of this time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Turn garbage collection on again, but without the collected tests, which exist until the end."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files and the tests that share servers first, if several workers run.

    A single process keeps the order that pytest and tests/interop/conftest.py have chosen.
    """
    for item in items:
        if item.get_closest_marker("computes"):
            item.add_marker(pytest.mark.timeout(COMPUTES_S), append=False)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: shared_by(item.nodeid) is None and item.location[0] not in LONGEST)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Let one of several workers run all tests of a file, or all tests that share servers."""
    # Keep the order of the files, which xdist would sort by their number of tests.
    config.option.loadscopereorder = False
    return ByFile(config, log)


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist publishes no types
    """A scheduler that gives a worker all tests of one file, or all tests that share servers."""

    def _split_scope(self, nodeid: str) -> str:
        return shared_by(nodeid) or nodeid.partition("::")[0]
