"""Tests that the search of :mod:`.words` finds nothing in docstrings, comments and pages."""

from __future__ import annotations

from .words import HEADLESS, METAPHORS, candidates


def test_no_docstring_or_comment_is_headless_and_no_metaphor_is_private() -> None:
    assert [str(each) for each in candidates()] == []


def test_the_search_finds_what_it_is_for() -> None:
    assert HEADLESS.match("What a member said last.")
    assert HEADLESS.match("Whoever holds the lock.")
    assert not HEADLESS.match("Who asks?")
    assert not HEADLESS.match("Return the age of the last contact in seconds.")
    assert METAPHORS.search("A disk that stands still")
    assert METAPHORS.search("who is told of it")
