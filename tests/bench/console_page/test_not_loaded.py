"""If a module of the console fails to load, one line on the page says so. All other parts still work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser import chromium, page_of
from tests.nameserver.http.consoles import Server, servers

pytestmark = pytest.mark.bench

NOT_LOADED = "A part of this page was not loaded. Reload the page."


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"), "--console-peers", "off")
    with servers(server):
        yield server


@pytest.mark.parametrize("module", ["app.js", "cluster.js", "drawings/states.js"])
def test_page_whose_first_modules_fail_says_so(module: str, opened: Browser, server: Server) -> None:
    with page_of(opened) as (page, _):  # do not check `errors`: the browser logs the failed load
        page.route(f"**/{module}", lambda route: route.abort())
        page.goto(f"http://{server.http}/")
        page.locator("main").get_by_text(NOT_LOADED).wait_for()


def test_other_part_that_fails_says_so_in_its_place_and_the_others_open(
    opened: Browser, server: Server
) -> None:
    with page_of(opened) as (page, _):
        page.route("**/topics.js", lambda route: route.abort())
        page.goto(f"http://{server.http}/")
        page.locator(".verdict").wait_for()
        page.get_by_role("link", name="Topics").click()
        page.locator("main").get_by_text(NOT_LOADED).wait_for()
        assert page.locator(".verdict").count() == 0
        assert page.locator("nav [aria-current]").inner_text() == "Topics"
        page.get_by_role("link", name="Cluster").click()
        page.locator(".verdict").wait_for()
        assert page.get_by_text(NOT_LOADED).count() == 0


def test_whole_page_never_says_that_a_part_is_missing(opened: Browser, server: Server) -> None:
    with page_of(opened) as (page, errors):
        page.goto(f"http://{server.http}/")
        page.locator(".verdict").wait_for()
        assert page.get_by_text(NOT_LOADED).count() == 0
        assert errors == []
