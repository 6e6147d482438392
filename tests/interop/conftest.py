"""Fixtures that run Apache RocketMQ's own programs next to ours.

Without Java, pytest skips the tests and gives the reason in one line. The same holds without Maven, while the
cache lacks the jars. With ``CI=true`` in the environment a missing tool makes the tests fail, so that CI
never skips them silently.

All intervals are the shortest that Apache's programs accept. With ``ROUTEKEEPER_INTEROP_FULL=1``, programs
use their default intervals, and the tests watch routes for five minutes.
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
#: Time limit of one test, in seconds. One test with its JVMs took 125 s on a busy machine with two cores.
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
    """Yield Apache RocketMQ 4.9.7; its processes end with the test session."""
    yield from _open("4.9.7", tmp_path_factory.mktemp("apache-4"))


@pytest.fixture(scope="session")
def apache_5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    """Yield Apache RocketMQ 5.3.3; its processes end with the test session."""
    yield from _open("5.3.3", tmp_path_factory.mktemp("apache-5"))


@pytest.fixture(scope="session")
def apaches(apache_4: Apache, apache_5: Apache) -> dict[str, Apache]:
    """Return the objects of both Apache releases, by version."""
    return {"4.9.7": apache_4, "5.3.3": apache_5}


@pytest.fixture(scope="session")
def fleet(apaches: dict[str, Apache], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Yield the object that owns all deployments; each deployment starts when a test first needs it.

    There are two kinds of deployments: with our nameservers, and with Apache's nameserver.
    """
    fleet = Fleet(apaches, tmp_path_factory.mktemp("fleet"), FULL)
    try:
        yield fleet
    finally:
        fleet.close()


def begin(fleet: Fleet, request: pytest.FixtureRequest, argument: str) -> None:
    """Start, in the background, every deployment that the collected tests name in the parameter ``argument``.

    The parameter belongs to one kind of deployments: with our nameservers, or with Apache's nameserver. Do
    not start deployments of the other kind: another pytest worker runs the tests that need them.
    """
    for item in request.session.items:
        callspec = getattr(item, "callspec", None)
        if callspec and argument in callspec.params and item.path.is_relative_to(HERE):
            fleet.begin(callspec.params[argument])


@pytest.fixture(params=MODES)
def deployment(fleet: Fleet, request: pytest.FixtureRequest) -> OurDeployment:
    """Return the deployment with brokers and three nameservers of ours in the requested mode."""
    begin(fleet, request, "deployment")
    return fleet.ours(request.param)


@pytest.fixture(params=RELEASES)
def apache_deployment(fleet: Fleet, request: pytest.FixtureRequest) -> ApacheDeployment:
    """Return the deployment of our broker with Apache's nameserver and broker of the requested release."""
    begin(fleet, request, "apache_deployment")
    return fleet.apache(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run these tests after all other tests, because Apache's programs use the CPU until the session ends.

    Tests with the fixture ``patience`` come last of all. They check that routes were kept for a long time,
    and a part of this time passes while other tests run. If jars must still be downloaded, each test has a
    longer time limit, because the first test includes the downloads.
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
    """Return the time in seconds for which a test checks that the nameservers keep the routes.

    35 s are enough for three registrations of each broker. In a full run, the time is 300 s.
    """
    return 300.0 if FULL else 35.0
