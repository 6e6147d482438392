"""The playground's page explains its symbols to a new reader, and says if a module was not loaded."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from routekeeper.bench.play.model import DESIGNS
from tests.bench.play.sessions import Session
from tests.bench.play_page.shown import shown
from tests.browser import page_of

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

NOT_LOADED = "A part of this page was not loaded. Reload the page."
ANSWERS = ("right", "stale", "wrong", "refused", "no answer", "unclear")


def test_page_says_at_once_how_to_break_something_and_how_to_read_it(opened: Browser, quiet: Session) -> None:
    with shown(opened, quiet) as page:
        assert page.see("#hint").inner_text() == "Click a box or a line in a drawing to break it."
        told = page.see("#reading").inner_text()
        for sign in ("Box:", "Line:", "Sign and seconds", "Squares:"):
            assert sign in told
        assert "its last answer, and the age of that" in told
        page.page.click('[data-lesson="silence"]')
        page.page.locator("#reading p").wait_for(state="hidden")
        page.see("#hint")
        page.page.click("#reading summary")
        page.see("#reading p")
        assert page.page.get_by_text(NOT_LOADED).count() == 0


@pytest.mark.parametrize("module", ["web/page.js", "web/lessons.js", "drawings/timeline.js"])
def test_page_whose_modules_fail_says_so(module: str, opened: Browser, quiet: Session) -> None:
    with page_of(opened) as (page, _):  # do not check errors: the browser logs the failed load
        page.route(f"**/{module}", lambda route: route.abort())
        page.goto(f"http://{quiet.addr}/")
        page.locator("main").get_by_text(NOT_LOADED).wait_for()


def test_bands_of_the_strip_and_lines_of_the_drawings_are_explained(opened: Browser, quiet: Session) -> None:
    with shown(opened, quiet) as page:
        strip = page.see("#time .bands").inner_text()
        assert all(word in strip for word in ANSWERS)
        drawn = page.page.locator("#time .bands path").all()
        assert len({path.get_attribute("d") for path in drawn}) == len(ANSWERS)
        page.page.click("#signs")
        dialog = page.see("dialog[open]")
        assert all(word in dialog.locator(".bands").inner_text() for word in ANSWERS)
        assert "Something passed in the last half second." in dialog.inner_text()
        assert dialog.locator(".cl-asks path").count() == 1


def test_zookeeper_is_drawn_as_a_system_of_its_own_and_raft_as_one_group(
    opened: Browser, quiet: Session
) -> None:
    with shown(opened, quiet) as page:
        page.there('[data-design="zookeeper"] .cl-around.cl-foreign')
        found = page.page.evaluate(
            """(names) => Object.fromEntries(names.map((name) => {
              const panel = document.querySelector(`[data-design="${name}"]`);
              const around = panel.querySelector(".cl-around");
              const box = around.getBoundingClientRect();
              const servers = [...panel.querySelectorAll(".cl-server")]
                .map((one) => one.getBoundingClientRect());
              return [name, {
                isDrawn: box.height > 0,
                isForeign: around.classList.contains("cl-foreign"),
                name: panel.querySelector(".cl-around-name").textContent,
                about: panel.querySelector(".about").textContent,
                holds: servers.map((one) => box.top < one.top && box.bottom > one.bottom),
              }];
            }))""",
            list(DESIGNS),
        )
        zookeeper, raft, independent = found["zookeeper"], found["raft"], found["independent"]
        assert (zookeeper["isForeign"], zookeeper["name"]) == (True, "ensemble of ZooKeeper")
        assert zookeeper["holds"] == [True] * 3, "the frame is around the servers"
        assert "No nameserver runs here" in zookeeper["about"]
        assert (raft["isForeign"], raft["name"]) == (False, "nameservers, one group")
        assert raft["holds"] == [True] * 3
        assert not independent["isDrawn"]
