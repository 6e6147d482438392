"""Tests that docs/client-reference.md agrees with the code and has every public name."""

from __future__ import annotations

from routekeeper.client import public

from .client_reference import PAGE, reference


def test_the_page_is_made_from_this_code() -> None:
    assert PAGE.read_text() == reference(), "python -m tests.tidy.client_reference"


def test_each_public_name_is_on_the_page() -> None:
    text = PAGE.read_text()
    missing = [name for name in public.__all__ if f"### {name}" not in text and not name.startswith("Async")]
    assert missing == []
    assert "`route_refresh_s`" in text
    assert "SendOutcomeUnknown" in text


def test_each_field_is_explained() -> None:
    unexplained = [line for line in PAGE.read_text().splitlines() if line.endswith("|  |")]
    assert unexplained == []
