"""The playground's page works in a real browser.

The tests check faults and repairs, earlier states, saved sessions, accessibility, and a playground that has
ended.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from routekeeper.bench.play.model import Change, Life
from tests.bench.play.sessions import Session, at_once, server, session
from tests.bench.play_page import written
from tests.bench.play_page.shown import Shown, shown
from tests.browser import faults, page_of
from tests.ports import free_addresses

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

LISTS_ALL = '[data-lists="broker-0 broker-1 broker-2"]'


def repair(page: Shown) -> None:
    """Heal all links and start all processes with the page's buttons.

    Then wait until the page shows no fault.
    """
    page.press("repair", "heal")
    for state in ("cut", "slow"):
        expect(page.page.locator(f'[data-link][data-state="{state}"]')).to_have_count(0)
    if page.page.locator('.cl-node[data-state="down"]').count():
        page.press("repair", "start")
    repaired(page)


def repaired(page: Shown) -> None:
    """Wait until the page shows all links open, all processes running, and right answers to all clients."""
    for state in ("cut", "slow"):
        expect(page.page.locator(f'[data-link][data-state="{state}"]')).to_have_count(0)
    for name in ("broker-0", "broker-1", "broker-2"):
        page.sees(name, "up")
    for name in ("nameserver-0", "nameserver-1", "nameserver-2"):
        page.see(page.node(name, state="up") + LISTS_ALL)
    for name in ("client-0", "client-1", "client-2", "client-3"):
        page.see(page.node(name, state="right") + LISTS_ALL)


def test_each_fault_button_hits_and_the_repair_mends(opened: Browser, one: Session) -> None:
    with shown(opened, one) as page:
        page.press("server", "kill", target="nameserver-1")
        page.sees("nameserver-1", "down")
        page.press("server", "pause", target="nameserver-2")
        page.sees("nameserver-2", "paused")
        page.press("broker", "kill", target="broker-0")
        page.sees("broker-0", "down")
        page.press("broker", "pause", target="broker-1")
        page.sees("broker-1", "paused")
        page.press("broker", "stop", target="broker-2")
        page.sees("broker-2", "down")
        repair(page)

        before = server(one.design("independent"), "nameserver-0").pid
        page.press("server", "restart-empty", target="nameserver-0")
        one.shows(
            "independent", lambda d: server(d, "nameserver-0").pid not in (None, before), "another process"
        )
        repair(page)

        page.press("server", "part", target="nameserver-2")
        page.there(page.link("broker-0", "nameserver-0", "cut"))
        page.there(page.link("broker-1", "nameserver-2", "cut"))
        repair(page)

        page.press("cable", "cut", **{"from": "broker-1", "to": "nameserver-0"})
        page.there(page.link("broker-1", "nameserver-0", "cut") + '[data-way="both"]')
        page.page.check("#cable-oneway")
        page.press("cable", "cut", **{"from": "nameserver-0", "to": "broker-2"})
        page.there(page.link("broker-2", "nameserver-0", "cut") + '[data-way="back"]')
        page.press("cable", "slow", **{"from": "client-3", "to": "", "delay": "200"})
        page.there(page.link("client-3", "nameserver-0", "slow"))
        repair(page)

        page.page.fill("#topic", "Payments")
        page.press("topic", "make-topic")
        one.shows("independent", lambda d: "Payments" in d.topics, "the topic")


def test_squares_of_a_client_are_the_route_of_the_topic_that_it_uses_now(
    opened: Browser, one: Session
) -> None:
    with shown(opened, one) as page:
        # clients use the newest topic, even if its name is the first in the alphabet
        page.page.fill("#topic", "Alpha")
        page.press("topic", "make-topic")
        one.shows("independent", lambda d: d.topics[-1] == "Alpha", "the topic")
        page.press("broker", "stop", target="broker-2")
        page.see(page.node("client-1") + '[data-lists="broker-0 broker-1"]')
        # a stopped broker first unregisters and then ends, so wait until it has ended, too
        page.sees("broker-2", "down")
        repair(page)


def test_one_button_repairs_everything_and_says_so_before(opened: Browser, one: Session) -> None:
    with shown(opened, one) as page:
        page.press("server", "kill", target="nameserver-0")
        page.press("broker", "pause", target="broker-1")
        page.press("cable", "cut", **{"from": "client-2", "to": ""})
        page.sees("nameserver-0", "down")
        page.sees("broker-1", "paused")
        page.there(page.link("client-2", "nameserver-1", "cut"))
        page.page.hover('#faults [data-do="repair"]')
        meaning = "All cuts and delays end, paused processes go on, and what is down starts."
        expect(page.page.locator("#faults .meaning")).to_have_text(meaning)
        page.press("repair", "repair")
        repaired(page)


def test_the_menu_of_a_process_hits_it_and_gives_the_focus_back(opened: Browser, one: Session) -> None:
    with shown(opened, one) as page:
        page.focus_by_tab(".cl-node")
        for _ in range(4):
            page.page.keyboard.press("ArrowRight")
        assert page.page.evaluate("document.activeElement.dataset.id") == "nameserver-1"
        page.page.keyboard.press("Enter")
        page.see('#menu [data-do="pause"]')
        expect(page.page.locator("#menu .meaning")).to_contain_text("ends at once")
        page.page.keyboard.press("Escape")
        expect(page.page.locator("#menu")).to_be_hidden()
        assert page.page.evaluate("document.activeElement.dataset.id") == "nameserver-1"
        page.page.keyboard.press("Enter")
        page.page.keyboard.press("ArrowDown")
        page.page.keyboard.press("Enter")
        page.sees("nameserver-1", "paused")
        repair(page)


def test_the_past_is_shown_as_past_and_left_again(opened: Browser, one: Session) -> None:
    with shown(opened, one) as page:
        page.press("server", "kill", target="nameserver-0")
        page.sees("nameserver-0", "down")
        page.page.focus(".tl-slider")
        # The session goes on while the test presses keys. So press the key until the page shows a state in
        # which the server runs.
        for _ in range(60):
            page.page.keyboard.press("ArrowLeft")
            page.drawn()
            if page.page.locator(page.node("nameserver-0", state="up")).count():
                break
        page.sees("nameserver-0", "up")
        assert "You see the past" in page.see("#past").inner_text()
        assert page.page.locator('#faults button[data-of="server"]').first.is_disabled()
        assert "ago" in (page.page.get_attribute(".tl-slider", "aria-valuetext") or "")
        page.page.keyboard.press("End")
        page.sees("nameserver-0", "down")
        expect(page.page.locator("#past")).to_be_hidden()

        page.page.click("#events summary")
        page.see("#events li").click()
        page.see("#past")
        page.page.click("#past button")
        expect(page.page.locator("#past")).to_be_hidden()
        repair(page)


def test_the_difference_counter_tells_what_clients_were_answered(opened: Browser, one: Session) -> None:
    with shown(opened, one) as page:
        # A cut link lasts until it is healed. A paused broker would be listed for only two seconds, which is
        # too short on a busy machine.
        page.press("cable", "cut", **{"from": "client-0", "to": "broker-1"})
        wrong = page.see('[data-design="independent"] .counts [data-verdict="wrong"]')
        assert int(wrong.get_attribute("data-count") or 0) > 0
        expect(page.page.locator("#difference")).to_contain_text("Since the fault")
        expect(page.page.locator("#difference")).to_contain_text("wrong")
        page.there('[data-lane="independent client-0"][data-state="wrong"]')
        repair(page)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_serious_fault(opened: Browser, one: Session, dark: bool) -> None:
    with shown(opened, one, dark=dark) as page:
        assert faults(page.page) == []
        page.page.click('[data-lesson="leader-dies"]')
        page.page.click("#events summary")
        assert page.page.evaluate("document.documentElement.scrollWidth") == 1280
        assert faults(page.page) == []
        page.page.focus(page.node("client-1"))
        page.page.keyboard.press("Enter")
        page.see("#menu button")
        assert faults(page.page) == []
        page.page.keyboard.press("Escape")
        page.page.focus(".tl-slider")
        page.page.keyboard.press("Home")
        page.see("#past")
        assert faults(page.page) == []
        page.page.click("#signs")
        page.see("dialog[open]")
        assert faults(page.page) == []


# Test only one colour scheme with each width, because the style rules for a width do not change the colours.
@pytest.mark.parametrize(("width", "dark"), [(360, True), (768, False), (1920, True)])
def test_the_page_is_as_wide_as_its_window_and_axe_finds_no_serious_fault(
    opened: Browser, one: Session, width: int, dark: bool
) -> None:
    with shown(opened, one, width=width, dark=dark) as page:
        page.page.click('[data-lesson="silence"]')
        assert page.page.evaluate("document.documentElement.scrollWidth") == width
        assert faults(page.page) == []


def test_a_saved_session_is_played_again_and_nothing_can_be_done_to_it(
    opened: Browser, one: Session, tmp_path: Path
) -> None:
    with shown(opened, one) as page:
        page.press("server", "pause", target="nameserver-1")
        page.sees("nameserver-1", "paused")
        repair(page)
        page.page.click("#save")
        folder = page.see("#notice code").inner_text()
    at_once(Path(folder))  # so that the replay shows all changes at once
    with session("--replay", folder, out=tmp_path) as again, shown(opened, again) as page:
        expect(page.page.locator("#live")).to_have_text("A saved session, played again")
        assert page.page.locator('#faults button[data-of="server"]').first.is_disabled()
        assert page.page.locator("#save").is_disabled()


def test_a_page_whose_program_went_says_so_and_comes_back(opened: Browser, tmp_path: Path) -> None:
    # Use a reserved port. If the system chose the port, another process could get this port before the
    # playground starts again.
    (addr,) = free_addresses(1)
    lives: tuple[Life, ...] = ("down", "up")
    first, second = (
        written.write(
            tmp_path / life,
            [
                Change(
                    id=0,
                    at_ms=1,
                    design="independent",
                    server=written.server("nameserver-1", "independent", life=life),
                )
            ],
            session=life,
        )
        for life in lives
    )
    with session("--replay", str(first), "--listen", addr, out=tmp_path) as made:
        assert made.addr == addr
        with shown(opened, made) as page:
            page.sees("nameserver-1", "down")
            made.end()
            page.see('#live[data-live="no"]')
            with session("--replay", str(second), "--listen", addr, out=tmp_path) as again:
                assert again.addr == addr
                page.see('#live[data-live="yes"]')
                page.sees("nameserver-1", "up")
            page.see('#live[data-live="no"]')
            # The browser logs each failed attempt to connect to the ended playground.
            assert all("ERR_" in error for error in page.errors)
            page.errors.clear()


def test_a_page_that_did_not_get_the_log_asks_for_it_again(opened: Browser, quiet: Session) -> None:
    asked = 0

    def fail_once(route: Route) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            route.abort()
        else:
            route.continue_()

    with page_of(opened) as (page, errors):
        page.route("**/v1/log", fail_once)
        seen = Shown(page, errors, quiet.addr)
        seen.sees("client-3", "right", "raft")
    assert asked >= 2
    assert [error for error in errors if "ERR_FAILED" not in error] == []


def test_of_two_requests_for_the_log_only_the_later_one_counts(opened: Browser, quiet: Session) -> None:
    with shown(opened, quiet) as page:
        seen = page.page.evaluate(
            """async (base) => {
              const { EventSource: source, fetch } = window;
              const asked = [];
              const hear = {};
              window.EventSource = class {
                addEventListener(name, act) { hear[name] = (body) => act({ data: JSON.stringify(body) }); }
                close() {}
              };
              window.fetch = () => new Promise((resolve) => {
                asked.push((log) => resolve(new Response(JSON.stringify(log))));
              });
              const { Program } = await import("/web/link.js");
              const begun = [];
              const program = new Program({
                onBegin: ({ history }) => begun.push(history.last.id),
                onChange() {}, onTick() {}, onLink() {},
              });
              program.open();
              hear.state(base);
              hear.change({ id: 1, at_ms: 1 });
              hear.state({ ...base, id: 1 });
              hear.change({ id: 2, at_ms: 2 });
              const [first, second] = asked;
              first({ base: { ...base, id: 0 }, changes: [] });
              second({ base: { ...base, id: 1 }, changes: [] });
              const end = performance.now() + 10000;
              while (!begun.length && performance.now() < end) await new Promise((go) => setTimeout(go, 10));
              Object.assign(window, { EventSource: source, fetch });
              return begun;
            }""",
            json.loads(quiet.ask("GET", "/v1/log")[1])["base"],
        )
        assert seen == [2]


def test_a_saved_session_shows_no_ages_of_answers(opened: Browser, quiet: Session) -> None:
    # a saved session lacks the instants of right answers that were equal to the answer before
    with shown(opened, quiet) as page:
        page.drawn()
        expect(page.page.locator('[data-design="raft"] .cl-client .cl-age')).to_have_text([""] * 4)


def test_style_and_script_that_stand_in_markup_do_nothing(opened: Browser, one: Session) -> None:
    with shown(opened, one) as page:
        seen = page.page.evaluate(
            """() => {
              const made = document.createElement("div");
              made.innerHTML = '<p style="display: none">x</p><style>p { visibility: hidden }</style>'
                + '<img src="/nowhere" onerror="document.title = 1">';
              document.body.append(made);
              const { display, visibility } = getComputedStyle(made.firstChild);
              return new Promise((resolve) => {
                const answer = () => resolve([display, visibility, document.title]);
                made.lastChild.addEventListener("error", answer);
              });
            }"""
        )
        assert seen == ["block", "visible", "RouteKeeper playground"]
        page.errors.clear()  # the browser logs each style and script that it blocked
