"""Fixtures that run Apache RocketMQ's own programs next to ours.

Without Java (or without Maven while the cache is cold) the tests are skipped with one line that says so;
where the environment has ``CI=true`` a missing tool is a failure instead, so that CI never skips silently.

All intervals are the shortest that Apache's programs accept. ``ROUTEKEEPER_INTEROP_FULL=1`` leaves them at
their defaults and has routes watched for five minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .apache import RELEASES, Apache, ToolMissing, jars_ready
from .ours import MODES, ApacheDeployment, Fleet, OurDeployment

HERE = Path(__file__).parent
COLD_S = 1200
#: A busy machine with two cores has needed 125 s for one test and its JVMs.
WARM_S = 500
FULL = os.environ.get("ROUTEKEEPER_INTEROP_FULL") == "1"


def _open(release: str, folder: Path) -> Iterator[Apache]:
    try:
        apache = Apache.open(release, folder)
    except ToolMissing as error:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"CI must not skip: {error}", pytrace=False)
        pytest.skip(str(error))
    try:
        yield apache
    finally:
        apache.kill()


@pytest.fixture(scope="session")
def apache_4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    """Apache RocketMQ 4.9.7; everything started by it ends with the session."""
    yield from _open("4.9.7", tmp_path_factory.mktemp("apache-4"))


@pytest.fixture(scope="session")
def apache_5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    """Apache RocketMQ 5.3.3; everything started by it ends with the session."""
    yield from _open("5.3.3", tmp_path_factory.mktemp("apache-5"))


@pytest.fixture(scope="session")
def apaches(apache_4: Apache, apache_5: Apache) -> dict[str, Apache]:
    """Both releases by version."""
    return {"4.9.7": apache_4, "5.3.3": apache_5}


@pytest.fixture(scope="session")
def fleet(apaches: dict[str, Apache], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """All deployments; each starts when a test first asks for it, or for another one of its kind."""
    fleet = Fleet(apaches, tmp_path_factory.mktemp("fleet"), FULL)
    try:
        yield fleet
    finally:
        fleet.close()


def begin(fleet: Fleet, request: pytest.FixtureRequest, argument: str) -> None:
    """Begin to start every deployment that the collected tests ask for by this argument.

    Another worker has the tests of the other kind.
    """
    for item in request.session.items:
        callspec = getattr(item, "callspec", None)
        if callspec and argument in callspec.params and item.path.is_relative_to(HERE):
            fleet.begin(callspec.params[argument])


@pytest.fixture(params=MODES)
def deployment(fleet: Fleet, request: pytest.FixtureRequest) -> OurDeployment:
    """Our three nameservers in each mode, with brokers."""
    begin(fleet, request, "deployment")
    return fleet.ours(request.param)


@pytest.fixture(params=RELEASES)
def apache_deployment(fleet: Fleet, request: pytest.FixtureRequest) -> ApacheDeployment:
    """Apache's nameserver and broker of each release, with our broker."""
    begin(fleet, request, "apache_deployment")
    return fleet.apache(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put these tests last, because Apache's programs go on using the machine until the session ends.

    Of them those that look back on a long time come at the end, so that the time passes with the others.
    While the cache is cold, the first test includes Maven's downloads.
    """
    patience_s = WARM_S if all(map(jars_ready, RELEASES)) else COLD_S
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(patience_s))
    items.sort(
        key=lambda item: (item.path.is_relative_to(HERE), "patience" in getattr(item, "fixturenames", ()))
    )


@pytest.fixture
def patience() -> float:
    """Seconds for which routes must have been kept: three registrations of each broker, or five minutes."""
    return 300.0 if FULL else 35.0
