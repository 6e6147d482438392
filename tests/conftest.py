"""Settings for every test."""

import gc
import os
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler.loadscope import LoadScopeScheduling

pytest_plugins = ("tests.sums",)

# A proxy that the environment names does not lead to a test's own servers.
_LOOPBACK = "127.0.0.1,localhost,::1"
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = ",".join(filter(None, (os.environ.get(_name), _LOOPBACK)))

# Use the same examples every time, so that a failure is caused by the change. ROUTEKEEPER_EXPLORE=1 searches
# new ones. There are no deadlines, because an example's time depends more on the machine than on the code.
settings.register_profile(
    "routekeeper",
    deadline=None,
    derandomize=not os.environ.get("ROUTEKEEPER_EXPLORE"),
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("routekeeper")

#: Files of tests/interop whose tests share our nameservers; those of the other files share Apache's.
OURS: Final = tuple(
    f"tests/interop/test_{name}.py"
    for name in ("apache_brokers", "apache_mqadmin", "java_messages", "masters_and_slaves")
)
#: Files there that start their own processes, so that any worker may run them.
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


#: Files that take a minute or more: if one begins last, the other workers wait for it.
LONGEST: Final = (
    *(f"tests/bench/test_{name}.py" for name in ("every_scenario", "real", "kernel", "scale_live", "locust")),
    *("tests/bench/play_page/test_lessons.py", "tests/bench/play_page/test_page.py"),
    *("tests/bench/costs/test_run.py", "tests/bench/micro/test_storm_live.py"),
    *("tests/bench/play/test_played.py", "tests/bench/report/test_pictures.py"),
    *("tests/bench/report/test_surroundings.py", "tests/nameserver/http/test_document.py"),
    *("tests/client/test_procedures.py", "tests/client/test_mqadmin_daily.py"),
    *("tests/faults/test_members.py", "tests/fuzz/test_fuzz.py"),
)

#: Files whose tests share one Spark session, which takes a gigabyte. Its first tables take the longest.
ON_SPARK: Final = (
    *(f"tests/bench/report/test_{n}.py" for n in ("csv", "files", "page", "planted", "read", "silver")),
    *("tests/bench/test_clusters.py", "tests/bench/test_session.py", "tests/bench/test_attached.py"),
    "tests/bench/play/test_report.py",
)


def shared_by(nodeid: str) -> str | None:
    """Return a name for the expensive servers or session that a test shares with others, or None.

    In a file that uses both kinds of deployment, the parameter says which one a test needs.
    """
    file, _, test = nodeid.partition("::")
    if file in ON_SPARK:
        return "Spark"
    if not file.startswith("tests/interop/") or file in APART:
        return None
    return "our nameservers" if file in OURS or "[independent" in test or "[raft" in test else "Apache's"


def pytest_collection() -> None:
    """Turn garbage collection off while thousands of tests are made: it would take a quarter of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Turn garbage collection on again, for new objects only, because tests live until the end."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests that share servers, and the longest files, first where several workers run.

    A single process keeps the order: tests with Apache's programs come last, because these use the machine
    until the end (tests/interop/conftest.py).
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: shared_by(item.nodeid) is None and item.location[0] not in LONGEST)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Keep tests together that share fixtures, when several workers run: by file, or by shared servers."""
    config.option.loadscopereorder = False  # keep the order of first appearance
    return ByFile(config, log)


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist publishes no types
    """Gives a worker whole files, or all tests that share servers."""

    def _split_scope(self, nodeid: str) -> str:
        return shared_by(nodeid) or nodeid.partition("::")[0]
