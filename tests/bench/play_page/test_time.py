"""On the playground's page, a user can go from event to event and see earlier states.

The page also says when the machine is slow, and a lesson and the time strip fit on one screen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, expect

from routekeeper.bench.play.model import Change, Life, Verdict
from routekeeper.bench.play.orders import SERVERS
from tests.bench.play.sessions import Session, session
from tests.bench.play_page import written
from tests.bench.play_page.shown import Shown, shown
from tests.browser import WITHIN_MS

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

MOVED_MIN = 6.0
"""Least distance in pixels by which a step must move the time strip's head, so that people see the step."""
EARLY_MS, FAULT_MS, END_MS = 1_500, 3_000, 6_000
HEIGHT = 900


def client(at_ms: int, verdict: Verdict, name: str = "client-0") -> Change:
    return Change(id=0, at_ms=at_ms, design="raft", client=written.client(name, at_ms, verdict))


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Yield a replayed session with several changes at almost the same time, and with failed answers.

    Answers fail both before and after the fault.
    """
    bursts: list[tuple[int, Life]] = [(800, "paused"), (1_000, "up"), (FAULT_MS, "down")]
    changes = [
        *(
            Change(
                id=0,
                at_ms=begin_ms + number,
                design="independent",
                server=written.server(name, "independent", life=life),
            )
            for begin_ms, life in bursts
            for number, name in enumerate(SERVERS)
        ),
        client(EARLY_MS, "none"),
        client(EARLY_MS + 300, "right"),
        written.fault(FAULT_MS + 10, "kill", "nameserver-0"),
        client(FAULT_MS + 200, "none"),
        client(FAULT_MS + 500, "right"),
        # This change sets the session's end. The time strip has no mark for it.
        client(END_MS, "stale", "client-3"),
    ]
    changes.sort(key=lambda change: change.at_ms)
    out: Path = tmp_path_factory.mktemp("again")
    folder = written.write(out / "session", changes)
    with session("--replay", str(folder), out=out) as made:
        yield made


def whole(page: Shown) -> None:
    """Wait until the page shows the session's last change."""
    page.sees("client-3", "stale", "raft")
    since = f"Since the fault {(END_MS - FAULT_MS - 10) / 1000:.1f} s ago"
    expect(page.page.locator("#difference")).to_contain_text(since, timeout=WITHIN_MS)


def head_of(page: Shown) -> float:
    """Return the x position in pixels of the time strip's head, which marks the shown instant."""
    found = re.match(r"M([\d.]+) ", page.page.get_attribute(".tl-head", "d") or "")
    assert found is not None
    return float(found[1])


def near(pixels: float) -> object:
    """Return a position with a tolerance, because the page draws the strip again while time passes."""
    return pytest.approx(pixels, abs=MOVED_MIN / 2)


def test_a_step_to_the_event_before_or_after_moves_the_head_visibly(opened: Browser, again: Session) -> None:
    with shown(opened, again) as page:
        whole(page)
        heads = [head_of(page)]
        for _ in range(3):
            page.page.click("#earlier")
            heads.append(head_of(page))
        # All events are close to one of three instants. Each step must move the head to another of these
        # instants.
        assert all(one - other >= MOVED_MIN for one, other in pairwise(heads)), heads
        page.page.click("#earlier")
        assert head_of(page) == near(heads[-1]), "there is no earlier event"
        for wanted in (heads[2], heads[1], heads[0]):
            page.page.click("#later")
            assert head_of(page) == near(wanted)
        expect(page.page.locator("#past")).to_be_hidden(timeout=WITHIN_MS)


def test_the_past_is_marked_at_the_top_at_each_design_and_at_the_strip(
    opened: Browser, again: Session
) -> None:
    with shown(opened, again, width=768) as page:
        whole(page)
        page.page.click("#earlier")
        ago = f"{(END_MS - FAULT_MS) / 1000:.1f} s ago"
        assert f"You see the past: {ago}." in page.see("#past").inner_text()
        expect(page.page.locator(".design .then")).to_have_text([ago] * 3, timeout=WITHIN_MS)
        expect(page.page.locator(".tl-flag")).to_have_text(ago, timeout=WITHIN_MS)
        expect(page.page.locator("#difference")).to_contain_text("kill server 0", timeout=WITHIN_MS)
        expect(page.page.locator("#difference")).to_contain_text("3 events close to it", timeout=WITHIN_MS)
        page.page.mouse.wheel(0, 10_000)
        page.page.locator("footer").scroll_into_view_if_needed()
        box = page.see("#past").bounding_box()
        assert box is not None
        assert 0 <= box["y"] < HEIGHT / 4, "it stays in view at the top, however far the page is scrolled"
        page.page.click("#past button")
        expect(page.page.locator(".design .then").first).to_be_hidden(timeout=WITHIN_MS)
        expect(page.page.locator(".tl-flag")).to_have_text("", timeout=WITHIN_MS)


def test_a_click_on_a_mark_goes_to_its_fault_and_names_it(opened: Browser, again: Session) -> None:
    with shown(opened, again) as page:
        whole(page)
        place = page.page.locator(".tl-event:has(.s-event-fault)").bounding_box()
        slider = page.page.locator(".tl-slider").bounding_box()
        assert place is not None
        assert slider is not None
        page.page.click(".tl-slider", position={"x": place["x"] + 7 - slider["x"], "y": 13})
        expect(page.page.locator("#difference")).to_contain_text("kill server 0", timeout=WITHIN_MS)
        assert page.page.locator("#hint").is_hidden(), "in the past there is nothing to break"
        later = page.page.locator("#difference").inner_text()
        page.page.click(".tl-slider", position={"x": place["x"] + 7 - slider["x"], "y": 60})
        expect(page.page.locator("#difference")).not_to_have_text(later, timeout=WITHIN_MS)


def test_a_slow_machine_is_told_while_it_is_slow(opened: Browser, again: Session) -> None:
    with shown(opened, again) as page:
        whole(page)
        failed = page.page.evaluate(
            """async (log) => {
              const { Calm } = await import("/web/calm.js");
              const { apply } = await import("/web/picture.js");
              const calm = new Calm(log.base);
              let state = log.base;
              for (const change of log.changes) {
                state = apply(state, change);
                calm.add(change, state);
              }
              const { at_ms: end, mark } = state;
              return [calm.noise(end), calm.noise(end + 61_500), calm.later("raft", mark.at_ms, end + 2_000)];
            }""",
            json.loads(again.ask("GET", "/v1/log")[1]),
        )
        assert failed[:2] == [1, 0], (
            "one answer failed while nothing was broken; a minute later that is long ago"
        )
        assert failed[2] == 1, "the last answer failed when all was as before the fault"


def test_answers_that_failed_before_the_fault_stand_beside_those_since(
    opened: Browser, again: Session
) -> None:
    with shown(opened, again) as page:
        whole(page)
        said = page.page.inner_text("#difference")
        quiet = "Before it, although nothing was broken: "
        assert f"{quiet}Raft 1 without an answer in as much time." in said
        assert said.count("in as much time") == 1
        raft = page.page.inner_text('[data-design="raft"] .counts')
        assert "before it: 1 without an answer in as much time" in raft
        assert "before it" not in page.page.inner_text('[data-design="independent"] .counts')


def test_after_new_timers_the_answers_count_since_the_start(opened: Browser, tmp_path: Path) -> None:
    restarted = Change(id=0, at_ms=2, designs=[written.design("raft")], divisor=10.0)
    folder = written.write(tmp_path / "session", [written.fault(1, "kill", "broker-0"), restarted])
    with session("--replay", str(folder), out=tmp_path) as made, shown(opened, made) as page:
        expect(page.page.locator(".design")).to_have_count(1)
        expect(page.page.locator("#difference")).to_contain_text("Since the start: ", timeout=WITHIN_MS)


def test_bands_of_a_design_end_when_it_does_not_run(opened: Browser, quiet: Session) -> None:
    failed = Change(id=0, at_ms=3_000, design="raft", phase="failed", reason="the clients have ended")
    starts = msgspec.structs.replace(written.design("raft"), phase="starting")
    starting = Change(id=0, at_ms=4_000, designs=[starts])
    again = Change(id=0, at_ms=9_000, designs=[written.design("raft")])
    with shown(opened, quiet) as page:
        found = page.page.evaluate(
            """async ([base, ...changes]) => {
              const { Lanes } = await import("/web/story.js");
              const lanes = new Lanes(base);
              const spans = () => lanes.groups()[1].lanes[0].spans;
              const bands = () => spans().map(({ from, to, state }) => [from, to, state]);
              return changes.map((change) => { lanes.add(change); return bands(); });
            }""",
            [
                json.loads(quiet.ask("GET", "/v1/log")[1])["base"],
                *(written.as_json(each) for each in (client(1_000, "none"), failed, starting, again)),
            ],
        )
    ended = [1_000, 3_000, "none"]
    assert found[0][-1] == [1_000, None, "none"]
    assert found[1][-1] == ended
    assert found[2][-1] == ended
    assert found[3][-2:] == [ended, [9_000, None, "right"]]


def test_events_and_bands_from_before_the_oldest_state_are_dropped(opened: Browser, quiet: Session) -> None:
    """Check the strip after so many changes that the page has dropped the oldest ones.

    The page cannot draw the states before its oldest change, so nobody may select such an instant.
    """
    down = written.server("nameserver-1", "follower", life="down")
    early = [
        client(1_000, "none"),
        client(2_000, "right"),
        Change(id=0, at_ms=3_000, design="raft", server=down),
    ]
    late = Change(id=0, at_ms=60_000, design="raft", links=[])
    with shown(opened, quiet) as page:
        found = page.page.evaluate(
            """async ([base, early, late]) => {
              const { Calm } = await import("/web/calm.js");
              const { History } = await import("/web/picture.js");
              const { Strip } = await import("/web/strip.js");
              const host = document.createElement("div");
              document.querySelector("#time").append(host);
              let chosen = "nothing";
              const strip = new Strip(host, (at) => { chosen = at; });
              const history = new History({ base, changes: [] });
              strip.begin(history, new Calm(base));
              let { id } = base;
              const add = (change) => {
                const before = history.last;
                id += 1;
                history.add({ ...change, id });
                strip.add({ ...change, id }, before);
              };
              const kept = () => [strip.events.length, strip.lanes.groups()[1].lanes[0].spans.length];
              for (const change of early) add(change);
              strip.seek(1000);
              strip.show(history.last);
              const before = kept();
              for (let n = 0; n < 20400; n += 1) add({ ...late, at_ms: late.at_ms + 50 * n });
              strip.drawnAt = -Infinity;
              strip.window = Infinity;
              strip.show(history.last);
              const [after, moved] = [kept(), chosen];
              host.querySelector(".tl-slider").dispatchEvent(new KeyboardEvent("keydown", { key: "Home" }));
              host.remove();
              return { before, after, moved, home: chosen, oldest: history.base.at_ms };
            }""",
            [
                json.loads(quiet.ask("GET", "/v1/log")[1])["base"],
                [written.as_json(each) for each in early],
                written.as_json(late),
            ],
        )
        assert found["before"] == [3, 3], "three events, and three bands of client 0"
        assert found["after"] == [0, 1]
        assert found["moved"] is None, "the chosen instant is too old, so the page shows the present again"
        assert found["home"] == found["oldest"] > late.at_ms


@pytest.mark.parametrize("width", [768, 1280])
@pytest.mark.parametrize(
    "lesson", ["restart-empty", "leader-dies", "network-parts", "silence", "poll-or-watch"]
)
def test_a_lesson_and_the_strip_of_time_fit_on_one_screen(
    opened: Browser, again: Session, lesson: str, width: int
) -> None:
    with shown(opened, again, width=width) as page:
        whole(page)
        page.page.click(f'[data-lesson="{lesson}"]')
        for selector in ("#desk", ".tl"):
            box = page.see(selector).bounding_box()
            assert box is not None
            assert box["y"] >= 0, selector
            assert box["y"] + box["height"] <= HEIGHT, selector
