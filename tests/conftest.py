"""Settings for every test."""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler.loadscope import LoadScopeScheduling

pytest_plugins = ("tests.sums",)

# A proxy that the environment names does not lead to a test's own servers.
_LOOPBACK = "127.0.0.1,localhost,::1"
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = ",".join(filter(None, (os.environ.get(_name), _LOOPBACK)))

# The same examples every time: a red run is the change's fault. ROUTEKEEPER_EXPLORE=1 looks for new ones.
# No deadlines: how long an example takes says more about the machine than about the code.
settings.register_profile(
    "routekeeper",
    deadline=None,
    derandomize=not os.environ.get("ROUTEKEEPER_EXPLORE"),
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("routekeeper")

#: Directories whose tests share what is dear to start (Apache's programs, a Spark session).
TOGETHER = ("tests/interop", "tests/bench/report")
#: Files in them that start what they need for themselves, and may be anybody's.
APART = tuple(
    f"tests/interop/test_{name}.py"
    for name in ("apache_alone", "losing_a_nameserver", "replacing_apache", "secured", "watchdog")
)


def shared_by(file: str) -> str | None:
    """Return the directory whose tests have to stay with this file's, or None."""
    return None if file in APART else next((each for each in TOGETHER if file.startswith(f"{each}/")), None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put directories of TOGETHER first where several workers run: one of them needs minutes for the longest.

    A single process keeps the order: what runs Apache's programs comes last, since they use the machine until
    the end (tests/interop/conftest.py).
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: shared_by(item.location[0]) is None)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Keep tests together that share fixtures, when several workers run: by file, or by directory."""
    config.option.loadscopereorder = False  # what comes first stays first
    return ByFile(config, log)


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist publishes no types
    """Gives a worker whole files, or whole directories of TOGETHER."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return shared_by(file) or file
