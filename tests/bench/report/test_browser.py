"""The browser of the tests opens pages, and its accessibility check finds a planted fault."""

from __future__ import annotations

import pytest

from tests.browser import chromium, faults, page_of

pytestmark = pytest.mark.bench


def test_a_picture_without_words_is_a_serious_fault() -> None:
    text = '<!doctype html><html lang="en"><title>t</title><main><h1>h</h1>{}</main>'
    with chromium() as opened, page_of(opened) as (page, errors):
        page.set_content(text.format('<img src="data:,">'))
        assert any(fault.startswith("image-alt (critical)") for fault in faults(page))
        page.set_content(text.format('<img src="data:," alt="words">'))
        assert faults(page) == []
        page.evaluate("console.error('a failure')")
        assert errors == ["a failure"]
