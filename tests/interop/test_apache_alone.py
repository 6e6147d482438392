"""Tests of the test environment itself, with Apache's programs only."""

from __future__ import annotations

import pytest

from .apache import Apache, ApacheFailure

pytestmark = pytest.mark.interop


def test_jvms_share_an_archive_of_classes(apaches: dict[str, Apache]) -> None:
    assert all(apache.shares_classes() for apache in apaches.values())


def test_a_program_that_ends_early_is_reported_with_its_output(apache_5: Apache) -> None:
    process = apache_5.java("Producer")
    with pytest.raises(ApacheFailure, match="ArrayIndexOutOfBounds"):
        process.wait_for("sent")
