"""One Spark session for all tests of the report."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """One session, as a report of few events opens it."""
    from routekeeper.bench.report.session import open_session

    session = open_session(small=True)
    yield session
    session.stop()
