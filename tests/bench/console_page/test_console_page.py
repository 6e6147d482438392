"""The console works in a real browser with real nameservers.

The tests search for topics, leave pages and return, stop the server, measure the traffic, and block parts of
the page.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.browser import chromium, faults, page_of
from tests.nameserver.http.consoles import Server, registered, servers
from tests.ports import free_addresses
from tests.waiting import WITHIN_S, wait_until

pytestmark = [pytest.mark.bench, pytest.mark.timeout(400)]

TOPICS = 5_000
MARKUP = "<img src=x onerror=alert(1)>"
NOT_LOADED = "A part of this page was not loaded. Reload the page."
#: URLs of the data that the first screen needs, and of the code of other screens.
DATA = ("/v1/console/cluster", "/v1/console/pulse")
OTHER_PARTS = ("/broker.js", "/history.js", "/topic.js", "/topics.js")


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Yield two nameservers. The second one lacks broker-c and has an older registration of broker-a."""
    folder, addresses = tmp_path_factory.mktemp("pair"), free_addresses(2)
    one, other = (
        Server(folder / str(number), "--console-peers", ",".join(addresses), http=http)
        for number, http in enumerate(addresses)
    )
    topics = [f"Topic-{number:04}" for number in range(TOPICS)]
    with servers(one, other), BlockingClient() as client:
        order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "Orders", "value": "broker-b:4"}
        for server, request in (
            (one, registered("broker-a", *topics, counter=2)),
            (one, registered("broker-b", "Orders", "%RETRY%group", queues=4)),
            (one, registered("broker-c", "Orders", addr="broker-c.test:10911")),
            (one, registered(MARKUP, "Odd", addr="odd.test:1")),
            (one, RemotingCommand.request(100, order)),
            (other, registered("broker-a", *topics[:-1], counter=1)),
            (other, registered("broker-b", "Orders", "%RETRY%group", queues=4)),
            (other, registered(MARKUP, "Odd", addr="odd.test:1")),
        ):
            assert client.invoke(server.wire, request, timeout_s=WITHIN_S).code == 0
        yield one, other


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a nameserver without peers. A test may register a broker at it."""
    server = Server(tmp_path_factory.mktemp("single"), "--console-peers", "off")
    with servers(server):
        yield server


@pytest.fixture
def page(opened: Browser) -> Iterator[Page]:
    with page_of(opened) as (page, errors):
        yield page
        assert errors == []


def open_at(page: Page, server: Server, address: str = "#/") -> None:
    page.goto(f"http://{server.http}/{address}")
    expect(page.locator("#live")).to_have_text("live")


def row(page: Page, broker: str) -> Page:
    return page.locator("table.matrix tbody tr", has=page.get_by_role("link", name=broker, exact=True))  # type: ignore[return-value]


def test_drift_is_seen_at_once_and_by_what(page: Page, pair: tuple[Server, Server]) -> None:
    open_at(page, pair[0])
    expect(page.locator(".verdict")).to_contain_text("2 of 4 brokers are not the same at all nameservers.")
    expect(row(page, "broker-b").locator("td").nth(1)).to_have_text(re.compile(r"^listed\d+ (s|min)$"))
    expect(row(page, "broker-c").locator("td").nth(1)).to_have_text("not listed")
    older = row(page, "broker-a").locator("td").nth(1)
    expect(older).to_contain_text("older copy: data version, number of topics")
    assert older.locator(".icon").get_attribute("data-sign") == "older"
    page.get_by_role("link", name="broker-a", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("broker-a")
    expect(page.locator("table.sides tr", has_text="data version").locator("td").nth(1)).to_contain_text(
        "counter 1"
    )
    page.goto(f"http://{pair[0].http}/#/")
    # A broker's name that contains HTML must appear as text.
    expect(page.get_by_role("link", name=MARKUP)).to_be_visible()


def test_topic_is_searched_opened_and_left_by_keyboard_alone(page: Page, pair: tuple[Server, Server]) -> None:
    open_at(page, pair[0])
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Topics":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(page.locator(".found")).to_contain_text("The first 100")
    page.keyboard.press("Tab")
    page.keyboard.type("PIC-4711")
    expect(page.locator("ul.topics li")).to_have_text(["Topic-4711"])
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Topic-4711")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(page.locator(".verdict")).to_have_text("It has a route at all nameservers that answer.")
    assert page.evaluate("scrollY") == 0
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Topic-4711")).to_be_focused()
    assert page.locator("#topic-part").input_value() == "PIC-4711"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Topic-4711")
    page.go_back()  # use go_back, because the key Alt+Left does nothing in a headless browser
    expect(page.get_by_role("link", name="Topic-4711")).to_be_focused()
    assert page.locator("#topic-part").input_value() == "PIC-4711"
    page.reload()
    # The URL contains the search text, so the page repeats the search after a reload.
    expect(page.locator("ul.topics li")).to_have_text(["Topic-4711"])


def test_topic_has_an_address_and_is_shown_from_every_nameserver(
    page: Page, pair: tuple[Server, Server]
) -> None:
    open_at(page, pair[0], "#/topics/Orders")
    expect(page.locator(".verdict")).to_contain_text("The routes are not the same.")
    lines = page.locator("table.sides tbody tr")
    expect(lines.nth(0).locator("td").nth(0)).to_contain_text("4 queues, read and write")
    assert lines.nth(0).locator("td").nth(0).locator("rect.writes").count() == 4
    expect(lines.nth(1).locator("td").nth(1)).to_have_text("not listed")
    expect(lines.nth(2).locator("td").nth(0)).to_have_text("broker-b:4")
    expect(page.locator("table.events tbody tr").first).to_contain_text("PUT_KV_CONFIG applied")
    open_at(page, pair[0], "#/topics/%25RETRY%25group")
    expect(page.get_by_role("heading", level=1)).to_have_text("%RETRY%group")
    expect(page.locator(".verdict")).to_have_text("It has a route at all nameservers that answer.")
    open_at(page, pair[0], "#/topics/Nowhere")
    expect(page.locator(".verdict")).to_have_text("It has no route.")
    expect(page.locator(".reasons")).to_contain_text(re.compile("never seen by this nameserver|cold start"))


#: JavaScript that returns the position of a link as JSON. It returns null while the page shows a nameserver
#: as silent, because the longer texts of such a page move the link.
_PLACE = """link => document.querySelector(".verdict [role=status]").textContent.includes("not answer")
  ? null : JSON.stringify(link.getBoundingClientRect())"""


def test_focus_stays_and_no_row_moves_while_it_is_pointed_at(page: Page, pair: tuple[Server, Server]) -> None:
    one, _ = pair
    open_at(page, one)
    link = page.get_by_role("link", name="broker-b", exact=True)
    link.focus()
    link.hover()
    before = wait_until(lambda: link.evaluate(_PLACE), "all nameservers answer")
    with BlockingClient() as client:
        request = registered("aaa", "Orders", addr="aaa.test:1")
        assert client.invoke(one.wire, request, timeout_s=WITHIN_S).code == 0
        waits = page.get_by_role("button", name="Show 1 change of the list")
        expect(waits).to_be_visible()
        expect(link).to_be_focused()
        wait_until(lambda: link.evaluate(_PLACE) == before, "it is where it was")
        waits.click()
        expect(page.get_by_role("link", name="aaa", exact=True)).to_be_visible()
    page.mouse.move(0, 0)
    page.locator("h1").focus()
    expect(page.get_by_role("link", name="aaa", exact=True)).to_have_count(0)


def test_history_shows_events_up_to_an_instant(page: Page, pair: tuple[Server, Server]) -> None:
    one, other = pair
    with BlockingClient() as client:
        request = registered("gone", "G", addr="gone.test:1")
        assert client.invoke(other.wire, request, timeout_s=WITHIN_S).code == 0
    open_at(page, one, "#/history")
    line = page.locator("table.events tbody tr", has_text="broker left").filter(has_text="gone.test:1")
    expect(line).to_contain_text("the broker's connection closed")
    expect(line).to_contain_text(other.wire)
    slider = page.get_by_role("slider")
    slider.focus()
    page.keyboard.press("Home")
    expect(line).to_have_count(0)
    page.keyboard.press("End")
    expect(line).to_have_count(1)
    page.get_by_label("brokers left").uncheck()
    expect(line).to_have_count(0)


# Test only one colour scheme with each width, because the style rules for a width do not change the colours.
@pytest.mark.parametrize(("width", "dark"), [(360, True), (768, False), (1280, False), (1920, True)])
def test_no_page_has_a_serious_fault_of_access_or_is_wider_than_the_screen(
    width: int, dark: bool, opened: Browser, pair: tuple[Server, Server]
) -> None:
    with page_of(opened, width=width, dark=dark) as (page, errors):
        for address, ready in (
            ("#/", "table.matrix tbody td"),
            ("#/topics", "ul.topics a"),
            ("#/topics/Orders", "table.sides tbody td .icon"),
            ("#/history", "table.events tbody td"),
        ):
            open_at(page, pair[0], address)
            expect(page.locator(ready).first).to_be_visible()
            assert faults(page) == [], address
            assert page.evaluate("document.documentElement.scrollWidth") <= width, address
        assert errors == []


def test_page_goes_on_after_its_server_was_gone(opened: Browser, tmp_path: Path) -> None:
    # Use reserved ports. If the system chose the ports, another process could get these ports before the
    # server starts again.
    wire, http = free_addresses(2)
    server = Server(tmp_path, "--console-peers", "off", wire=wire, http=http)
    # ignore the browser's errors, because the page's requests fail while the server is down
    with servers(server), page_of(opened) as (page, _):
        open_at(page, server)
        expect(page.locator(".verdict")).to_contain_text("No broker is registered.")
        server.end()
        expect(page.locator("#live")).to_have_text("no contact, trying again")
        again = Server(tmp_path, "--console-peers", "off", wire=wire, http=http)
        with servers(again), BlockingClient() as client:
            assert client.invoke(wire, registered("back", "T"), timeout_s=WITHIN_S).code == 0
            expect(page.locator("#live")).to_have_text("live")
            expect(page.get_by_role("link", name="back", exact=True)).to_be_visible()


def test_page_whose_requests_failed_is_live_again_although_its_stream_never_broke(
    opened: Browser, single: Server
) -> None:
    with page_of(opened) as (page, _), BlockingClient() as client:
        # In a tab in the background the page requests data only after an event.
        page.add_init_script("Object.defineProperty(document, 'hidden', { value: true })")
        open_at(page, single)
        expect(page.locator(".verdict")).to_contain_text("registered.")
        page.route("**/v1/console/*", lambda route: route.abort())
        assert client.invoke(single.wire, registered("one", "T"), timeout_s=WITHIN_S).code == 0
        expect(page.locator("#live")).to_have_text("not up to date: no contact, trying again")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        assert page.locator("#live").inner_text() == "not up to date: no contact, trying again"
        page.unroute("**/v1/console/*")
        assert client.invoke(single.wire, registered("other", "T"), timeout_s=WITHIN_S).code == 0
        expect(page.get_by_role("link", name="other", exact=True)).to_be_visible()
        expect(page.locator("#live")).to_have_text("live")


def test_page_is_not_live_while_only_heartbeats_are_up_to_date(opened: Browser, single: Server) -> None:
    """The table cannot be read. Requests for the ages of heartbeats succeed, but the table is still old."""
    held: list[Route] = []
    with page_of(opened) as (page, _), BlockingClient() as client:
        open_at(page, single)
        expect(page.locator(".verdict")).to_contain_text("registered.")
        page.route("**/v1/console/cluster", lambda route: route.abort())
        assert client.invoke(single.wire, registered("late", "T"), timeout_s=WITHIN_S).code == 0
        expect(page.locator("#live")).to_have_text("not up to date: no contact, trying again")
        page.unroute("**/v1/console/cluster")
        page.route("**/v1/console/cluster", lambda route: held.append(route))
        with page.expect_request("**/v1/console/cluster"):
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        assert page.locator("#live").inner_text() == "not up to date: no contact, trying again"


def test_page_whose_stream_never_opens_reads_the_data_again_and_again(page: Page, single: Server) -> None:
    page.route("**/v1/watch*", lambda route: None)
    page.goto(f"http://{single.http}/")
    expect(page.locator(".verdict")).to_contain_text("registered.")
    with BlockingClient() as client:
        assert client.invoke(single.wire, registered("unannounced", "T"), timeout_s=WITHIN_S).code == 0
        expect(page.get_by_role("link", name="unannounced", exact=True)).to_be_visible()


@pytest.mark.parametrize(
    ("address", "data", "shows", "status"),
    [
        ("#/topics", "**/v1/topics?*", ".found", None),
        ("#/topics/T", "**/v1/console/topics/T", ".verdict", None),
        ("#/history", "**/v1/console/history", ".found", 503),
    ],
)
def test_part_whose_request_failed_asks_again_although_nothing_changes(
    address: str, data: str, shows: str, status: int | None, opened: Browser, single: Server
) -> None:
    failed: list[str] = []

    def fail(route: Route) -> None:
        failed.append(route.request.url)
        if status is None:
            route.abort()
        else:
            route.fulfill(status=status, json={"detail": "no contact, trying again"})

    with page_of(opened) as (page, _):
        page.route(data, fail)
        open_at(page, single, address)
        expect(page.locator(shows)).to_have_text("no contact, trying again")
        begun = time.monotonic()
        # The first two requests follow the opening of the page and of its stream. Only a retry is the third.
        while len(failed) < 3:
            assert time.monotonic() - begun < WITHIN_S, "the page did not ask again"
            page.wait_for_timeout(100)
        page.unroute(data)
        expect(page.locator(shows)).not_to_contain_text("no contact")


def test_numbers_that_are_no_date_or_not_exact_are_shown(page: Page, pair: tuple[Server, Server]) -> None:
    huge = 9 * 10**18
    with BlockingClient() as client:
        for server, counter, broker_id in ((pair[0], huge, huge), (pair[1], huge + 1, 1)):
            request = registered("huge", "Huge", counter=counter, broker_id=broker_id)
            assert client.invoke(server.wire, request, timeout_s=WITHIN_S).code == 0
        open_at(page, pair[0])
        expect(row(page, "huge").locator("td").first).to_contain_text("older copy")
        page.get_by_role("link", name="huge", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_be_focused()
        expect(page.locator("table.sides tbody tr td:nth-child(2) .words")).to_have_text(
            [
                "older copy",
                re.compile("ago$"),
                "counter about 9000000000000000000, about 9000001700000000000 ms",
                "0",
                "huge",
                "about 9000000000000000000",
                "huge.test:10912",
                "1 h",
            ]
        )
        expect(page.locator("#live")).to_have_text("live")
        page.get_by_role("link", name="All brokers").click()
        page.mouse.move(0, 0)  # no row leaves while the pointer or the focus is in the table
        page.locator("h1").focus()
    expect(page.get_by_role("link", name="huge", exact=True)).to_have_count(0)


def test_page_with_300_brokers_loads_less_than_20_kb_a_minute_while_nothing_changes(
    opened: Browser, tmp_path: Path
) -> None:
    seconds = 11.0  # longer than 10 s, the interval at which the page reads the ages of registrations
    addresses = free_addresses(2)
    pair = [
        Server(tmp_path / str(number), "--console-peers", ",".join(addresses), http=http)
        for number, http in enumerate(addresses)
    ]
    with servers(*pair), BlockingClient() as client, page_of(opened) as (page, errors):
        for number in range(300):
            for server in pair:
                request = registered(f"broker-{number}", "T")
                assert client.invoke(server.wire, request, timeout_s=WITHIN_S).code == 0
        open_at(page, pair[0])
        expect(page.locator(".verdict")).to_contain_text("list the same 300 brokers.")
        for file in (*OTHER_PARTS, "/drawings/timeline.js"):
            page.wait_for_function(  # after the first screen, the page loads the code of all other screens
                "file => performance.getEntriesByName(location.origin + file).length > 0", arg=file
            )
        loaded: list[tuple[str, int]] = []
        tags: list[str] = []
        devtools = page.context.new_cdp_session(page)
        devtools.on("Network.requestWillBeSent", lambda event: loaded.append((event["request"]["url"], 600)))
        devtools.on("Network.loadingFinished", lambda event: loaded.append(("", event["encodedDataLength"])))
        devtools.on(
            "Network.dataReceived", lambda event: loaded.append(("", max(0, event["encodedDataLength"])))
        )
        devtools.on(
            "Network.eventSourceMessageReceived",
            lambda event: tags.append(json.loads(event["data"]).get("tag", "")),
        )
        devtools.send("Network.enable")

        def silence() -> float:
            """Wait for `seconds` and until the page has read the ages, and return the waiting time in s."""
            loaded.clear()
            tags[:] = [pair[0].get("/v1/console/pulse")["tag"]]
            begun = time.monotonic()
            while (passed_s := time.monotonic() - begun) < seconds or not any(url for url, _ in loaded):
                assert passed_s < WITHIN_S, "the ages were not read"
                page.wait_for_timeout(500)
            tags.append(pair[0].get("/v1/console/pulse")["tag"])
            return passed_s

        for _ in range(5):
            passed_s = silence()
            if len(set(tags)) == 1:
                # Both tags are equal, so nothing changed while the test waited, and the measured traffic
                # counts. If the tags differ, a busy machine delayed a nameserver and the page showed it as
                # silent. Then the test waits once more.
                break
        assert len(set(tags)) == 1, "five times something has changed meanwhile"
        bytes_a_minute = sum(size for _, size in loaded) * 60 / passed_s
        assert [url for url, _ in loaded if url and not url.endswith("/v1/console/pulse")] == []
        assert bytes_a_minute < 20_000
        assert errors == []


def test_first_screen_asks_for_data_and_modules_at_once_and_for_other_parts_later(
    page: Page, single: Server
) -> None:
    with BlockingClient() as client:
        assert client.invoke(single.wire, registered("broker-a", "T")).code == 0
        page.goto(f"http://{single.http}/")
        page.get_by_role("link", name="broker-a").wait_for()
        for part in OTHER_PARTS:
            page.wait_for_function(
                "part => performance.getEntriesByName(location.origin + part).length > 0", arg=part
            )
        times = page.evaluate(
            "() => performance.getEntriesByType('resource').map("
            "each => [new URL(each.name).pathname, each.startTime, each.responseEnd])"
        )
        # Use reversed(), because the dict must keep the times of the first request if the page requests a
        # path twice.
        begun = {path: start for path, start, _ in reversed(times)}
        ended = {path: end for path, _, end in reversed(times)}
        for path in DATA:
            assert begun[path] < ended["/app.js"], "the page itself asks for the data"
        for part in OTHER_PARTS:
            assert begun[part] > max(ended[path] for path in DATA), "nothing waits for another part"
        assert page.get_by_text(NOT_LOADED).count() == 0


@pytest.mark.parametrize("module", ["app.js", "cluster.js", "drawings/states.js"])
def test_page_whose_first_modules_fail_says_so(module: str, opened: Browser, single: Server) -> None:
    with page_of(opened) as (page, _):  # do not check `errors`: the browser logs the failed load
        page.route(f"**/{module}", lambda route: route.abort())
        page.goto(f"http://{single.http}/")
        page.locator("main").get_by_text(NOT_LOADED).wait_for()


def test_other_part_that_fails_says_so_in_its_place_and_the_others_open(
    opened: Browser, single: Server
) -> None:
    with page_of(opened) as (page, _):
        page.route("**/topics.js", lambda route: route.abort())
        page.goto(f"http://{single.http}/")
        page.locator(".verdict").wait_for()
        page.get_by_role("link", name="Topics").click()
        page.locator("main").get_by_text(NOT_LOADED).wait_for()
        assert page.locator(".verdict").count() == 0
        assert page.locator("nav [aria-current]").inner_text() == "Topics"
        page.get_by_role("link", name="Cluster").click()
        page.locator(".verdict").wait_for()
        assert page.get_by_text(NOT_LOADED).count() == 0


def test_a_picture_without_words_is_a_serious_fault(opened: Browser) -> None:
    """Check two helpers of these tests: ``faults`` and the list of errors in the browser's console.

    ``faults`` must find an image without an alternative text. The list must contain a logged error.
    """
    text = '<!doctype html><html lang="en"><title>t</title><main><h1>h</h1>{}</main>'
    with page_of(opened) as (page, errors):
        page.set_content(text.format('<img src="data:,">'))
        assert any(fault.startswith("image-alt (critical)") for fault in faults(page))
        page.set_content(text.format('<img src="data:," alt="words">'))
        assert faults(page) == []
        page.evaluate("console.error('a failure')")
        assert errors == ["a failure"]
