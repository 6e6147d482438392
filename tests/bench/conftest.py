"""One Spark session and one browser for all tests of the report."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.bench.report.in_browser import Tab


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """Yield the one Spark session of all tests, with settings for a report of few events."""
    from routekeeper.bench.report.session import open_session

    session = open_session(small=True)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Tab"]:
    """Yield the one browser tab of all tests, because a browser takes seconds to start.

    Each test loads its page anew.
    """
    from tests.bench.report.in_browser import Tab

    with Tab(tmp_path_factory.mktemp("browser")) as opened:
        yield opened
