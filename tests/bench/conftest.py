"""One Spark session and one browser for all tests of the report."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.bench.report.comparison import Compared
    from tests.bench.report.in_browser import Tab


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """Yield the Spark session that all tests share. It has the settings for a report on few events."""
    from routekeeper.bench.report.session import open_session

    session = open_session(small=True)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> "Compared":
    """Return an invented comparison and its report.

    The folder's name has brackets, because Spark reads brackets in a path as a pattern. The report must find
    the files nevertheless.
    """
    from tests.bench.report import comparison

    return comparison.compared(tmp_path_factory.mktemp("runs of a [report]"), tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Tab"]:
    """Yield the browser tab that all tests share, because a browser takes seconds to start.

    Each test loads its page anew.
    """
    from tests.bench.report.in_browser import Tab

    with Tab(tmp_path_factory.mktemp("browser")) as opened:
        yield opened
