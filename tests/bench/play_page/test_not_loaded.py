"""If a module of the playground's page fails to load, one line on the page says so."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from tests.bench.play.sessions import Session
from tests.bench.play_page.shown import shown
from tests.browser import page_of

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

NOT_LOADED = "A part of this page was not loaded. Reload the page."


@pytest.mark.parametrize("module", ["web/page.js", "web/lessons.js", "drawings/timeline.js"])
def test_page_whose_modules_fail_says_so(module: str, opened: Browser, one: Session) -> None:
    with page_of(opened) as (page, _):  # do not check errors: the browser logs the failed load
        page.route(f"**/{module}", lambda route: route.abort())
        page.goto(f"http://{one.addr}/")
        page.locator("main").get_by_text(NOT_LOADED).wait_for()


def test_whole_page_never_says_that_a_part_is_missing(opened: Browser, one: Session) -> None:
    with shown(opened, one) as page:
        assert page.page.get_by_text(NOT_LOADED).count() == 0
