"""The sentences at the end of the playground's five lessons agree with the session's log.

Before a lesson runs, its reader chooses the result that the reader expects. After the lesson, the page says
which choice came true.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest
from playwright.sync_api import Browser

from routekeeper.bench.play.model import DESIGNS, Design, Log, State
from routekeeper.bench.play.picture import apply, copied_state
from tests.bench.play.sessions import Session, is_whole, server
from tests.bench.play_page.shown import Shown, shown

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1_200)]

NAMES = {"independent": "Independent", "raft": "Raft", "zookeeper": "ZooKeeper"}
LESSON_MS = 300_000
"""Longest time in ms that a test waits for a lesson with divided timers. All lessons take less time."""
LESSONS = ("restart-empty", "leader-dies", "network-parts", "silence", "poll-or-watch")
PLAYS = 3
"""Highest number of times that a test runs the same lesson.

On a busy machine a lesson may exceed its time limits. The page reports this, and the test runs the lesson
again.
"""


def play_once(page: Shown, lesson: str, choice: str, *, by_keyboard: bool) -> bool:
    """Run a lesson to its end, and return True if all its events happened within the lesson's time limits.

    Args:
        choice: Result of the lesson that the reader expects, selected before the lesson starts.
    """
    assert page.page.locator("#go").is_disabled(), "nothing happens before a choice"
    wanted = f'#desk input[value="{choice}"]'
    if by_keyboard:
        page.focus_by_tab("#desk input")
        page.page.keyboard.press("Space")
        for _ in range(page.page.locator("#desk input").count() - 1):
            if page.page.is_checked(wanted):
                break
            page.page.keyboard.press("ArrowDown")
        assert page.page.is_checked(wanted), "the arrow key reaches each choice"
        page.focus_by_tab("#go")
        page.page.keyboard.press("Enter")
    else:
        page.page.check(wanted)
        page.page.click("#go")
    page.page.wait_for_selector(
        f'#desk[data-lesson="{lesson}"]:is([data-phase="seen"], [data-phase="failed"])', timeout=LESSON_MS
    )
    if page.page.get_attribute("#desk", "data-phase") == "failed":
        assert "The repair took too long." in page.page.inner_text("#desk")
        return False
    if page.page.get_attribute("#desk", "data-within") == "yes":
        return True
    assert page.page.get_attribute("#desk", "data-happened") == "other"
    assert "so it decides nothing." in page.page.inner_text("#desk .outcome")
    return False


def play(page: Shown, lesson: str, choice: str, *, by_keyboard: bool = False) -> str:
    """Run a lesson until its events happen in time, and return the choice that came true.

    The lesson runs at most PLAYS times.
    """
    if by_keyboard:
        page.focus_by_tab(f'[data-lesson="{lesson}"]')
        page.page.keyboard.press("Enter")
    else:
        page.page.click(f'[data-lesson="{lesson}"]')
    for _ in range(PLAYS - 1):
        if play_once(page, lesson, choice, by_keyboard=by_keyboard):
            break
        again = page.page.locator("#desk button", has_text=re.compile("^(Try again|Once more)$"))
        if by_keyboard:
            # The page has set the focus on the lesson's title. In the last lesson, the first button after the
            # title repeats the lesson.
            page.focus_by_tab("#desk button")
            assert again.evaluate("button => button === document.activeElement")
            page.page.keyboard.press("Enter")
        else:
            again.click()
    else:
        assert play_once(page, lesson, choice, by_keyboard=by_keyboard), page.page.inner_text("#desk")
    return page.page.get_attribute("#desk", "data-happened") or ""


def log_of(played: Session, page: Shown) -> Log:
    """Return the session's log up to the last change that the lesson used, without later changes."""
    status, body = played.ask("GET", "/v1/log")
    assert status == 200
    log = msgspec.json.decode(body, type=Log)
    until = int(page.page.get_attribute("#desk", "data-until") or 0)
    known = [each for each in log.changes if each.id <= until]
    assert known, until
    assert known[-1].id == until
    return msgspec.structs.replace(log, changes=known)


def pictures(log: Log) -> list[State]:
    """Return the state that the page shows after each change of the log."""
    state = log.base
    found: list[State] = []
    for change in log.changes:
        apply(state, change)
        found.append(copied_state(state))
    return found


def design_of(state: State, name: str) -> Design:
    return next(each for each in state.designs if each.name == name)


def instant_of(log: Log, do: str) -> int:
    """Return the time in ms at which the playground applied the newest command of a kind."""
    return max(each.done.at_ms for each in log.changes if each.done is not None and each.done.order.do == do)


def settled_ms_of(seen: list[tuple[int, State]], name: str, test: Callable[[Design], bool]) -> int | None:
    """Return the time in ms from the first state until a design meets a condition for good.

    "For good" means that the design meets the condition in all later states, too. Return None if the design
    does not meet the condition in the last state.

    Args:
        seen: Pairs of time in ms and state, in order of time.
        test: Function that returns True if a design's state meets the condition.
    """
    from_ms: int | None = None
    for at_ms, state in seen:
        if not test(design_of(state, name)):
            from_ms = None
        elif from_ms is None:
            from_ms = at_ms - seen[0][0]
    return from_ms


def settled_ms(states: list[State], name: str, broker: str, from_ms: int, until_ms: float) -> int | None:
    """Return the time in ms from `from_ms` until no client's newest answer lists `broker` any more.

    The time counts only if this stays true until `until_ms`. Return None if some client's newest answer
    before `until_ms` still lists the broker.
    """
    since: int | None = None
    within = [each for each in states if each.at_ms <= from_ms][-1:]
    within += [each for each in states if from_ms < each.at_ms < until_ms]
    for state in within:
        lasts = [client.last for client in design_of(state, name).clients]
        left = all(last is not None and last.brokers and broker not in last.brokers for last in lasts)
        since = None if not left else state.at_ms if since is None else since
    return None if since is None else max(0, since - from_ms)


def since(log: Log, from_ms: int, until_ms: float = float("inf")) -> list[tuple[int, State]]:
    """Return pairs of time and state: the state at `from_ms`, and the state after each later change."""
    states = pictures(log)
    begun = [(from_ms, each) for each in states if each.at_ms <= from_ms][-1:]
    return begun + [(each.at_ms, each) for each in states if from_ms < each.at_ms < until_ms]


def held_ms(seen: list[tuple[int, State]], name: str, test: Callable[[Design], bool]) -> int:
    """Return the total time in ms for which a design met a condition."""
    return sum(
        end_ms - begin_ms for (begin_ms, state), (end_ms, _) in pairwise(seen) if test(design_of(state, name))
    )


def first_ms(seen: list[tuple[int, State]], name: str, test: Callable[[Design], bool]) -> int | None:
    """Return the time in ms from the first state until a design met a condition, or None if it never did."""
    return next((at_ms - seen[0][0] for at_ms, state in seen if test(design_of(state, name))), None)


BAD = ("wrong", "stale", "refused", "none")


def bad_answers(log: Log, name: str) -> list[int]:
    """Return the instants in ms of all answers to a design's clients that were not right."""
    found = {
        (each.client.name, each.client.last.done_ms)
        for each in log.changes
        if each.design == name and each.client is not None and each.client.last is not None
        if each.client.last.verdict in BAD
    }
    return sorted(done_ms for _, done_ms in found)


def quiet_since(log: Log, name: str, fault_ms: int) -> int | None:
    """Find the last quiet period (no faults) before a fault, and return the time in ms at which it began.

    Return None if the quiet period lasted less than 2 s until the fault.
    """
    quiet_ms: int | None = None
    for change, state in zip(log.changes, pictures(log), strict=True):
        if change.at_ms >= fault_ms:
            break
        found = design_of(state, name)
        lives = [each.life for each in found.servers] + [each.life for each in found.brokers]
        opened = all(
            "cut" not in (each.forward, each.back) and not each.forward_ms and not each.back_ms
            for each in found.links
        )
        if change.mark is not None or found.phase != "running" or set(lives) != {"up"} or not opened:
            quiet_ms = None
        elif quiet_ms is None and change.design == name and is_whole(found):
            quiet_ms = change.at_ms
    return quiet_ms if quiet_ms is not None and fault_ms - quiet_ms >= 2_000 else None


def lacks_a_broker(design: Design) -> bool:
    """Return True if server 1 gives answers, and its route table lacks a broker that runs."""
    one = server(design, "nameserver-1")
    running = {each.name for each in design.brokers if each.life == "up"}
    return one.life == "up" and one.answers and one.serves and not running <= set(one.brokers)


def first_answer(seen: list[tuple[int, State]], name: str) -> list[str]:
    """Return the brokers in the first answer from server 1 to client 1 after the first state in ``seen``."""
    asked = [last for _, state in seen if (last := design_of(state, name).clients[1].last) is not None]
    of_one = [each for each in asked if each.server == "nameserver-1" and each.brokers is not None]
    later = [each for each in of_one if each.done_ms > seen[0][0]]
    # The log leaves out an answer that equals the client's previous answer. So if ``later`` is empty, all
    # answers after the first state were equal to the last answer before it.
    return (later or of_one[-1:])[0].brokers or []


def tells_of_the_empty_server(log: Log, happened: str, sentences: str) -> None:
    """Check that the session's log confirms the choice that came true and the lesson's two sentences."""
    restart_ms = instant_of(log, "restart-empty")
    seen = since(log, restart_ms)
    first = {name: first_answer(seen, name) for name in DESIGNS}
    found = {name for name, brokers in first.items() if len(brokers) < 3}
    names = {
        frozenset({"independent"}): "independent",
        frozenset(): "all-know",
        frozenset(DESIGNS): "none-knows",
    }
    assert happened == names.get(frozenset(found), "other"), first
    # Server 1 gave its first answer after the restart before any broker registered at it. Server 1 could know
    # brokers only from another server, and independent nameservers do not exchange routes.
    assert first["independent"] == []
    for name in DESIGNS:
        ms = held_ms(seen, name, lacks_a_broker)
        said = f"for {duration(ms)} in {NAMES[name]}" if ms else f"at no time in {NAMES[name]}"
        assert said in sentences
    lasts = [last for _, state in seen if (last := design_of(state, "independent").clients[1].last)]
    wrong = {
        each.done_ms
        for each in lasts
        if (each.server, each.verdict) == ("nameserver-1", "wrong") and each.done_ms > restart_ms
    }
    assert wrong, "client 1 came while the server knew nobody"
    assert f"To client 1 it gave {len(wrong)} wrong" in sentences, wrong


def tells_of_the_new_leader(log: Log, happened: str, sentences: str) -> None:
    """Check that the session's log confirms the choice that came true and the times without a leader."""
    killed_ms = instant_of(log, "kill")
    begun_ms = max(each.mark.at_ms for each in log.changes if each.mark is not None)
    last = since(log, killed_ms)[-1][1]
    bad = {name: bad_answers(log, name) for name in DESIGNS}
    troubled = {name for name in DESIGNS if any(done_ms >= begun_ms for done_ms in bad[name])}
    unclear = set()
    for noisy in troubled:
        quiet_ms = quiet_since(log, noisy, begun_ms)
        if quiet_ms is not None:
            span_ms = min(last.at_ms - begun_ms, begun_ms - quiet_ms)
            before = sum(begun_ms - span_ms <= done_ms < begun_ms for done_ms in bad[noisy])
            later = sum(begun_ms <= done_ms < begun_ms + span_ms for done_ms in bad[noisy])
            if before and later <= 2 * before:
                unclear.add(noisy)
    wanted = (
        "other"
        if unclear
        else "nobody"
        if not troubled
        else "all"
        if troubled == set(DESIGNS)
        else "led"
        if "independent" not in troubled
        else "other"
    )
    assert happened == wanted, (troubled, sentences)
    assert "Independent had no leader to lose" in sentences
    struck = {
        outcome.design: outcome.target
        for each in log.changes
        if each.done is not None and each.done.order.do == "kill" and each.done.at_ms == killed_ms
        for outcome in each.done.outcomes
    }
    for name in ("raft", "zookeeper"):

        def is_led(design: Design) -> bool:
            return any((one.life, one.answers, one.role) == ("up", True, "leader") for one in design.servers)

        ms = settled_ms_of(since(log, killed_ms), name, is_led)
        if ms is None:  # the new leader failed, too, so there was no leader at the end of the lesson
            assert f"{NAMES[name]} had no new leader until the end" in sentences, sentences
            continue
        assert f"{NAMES[name]} had a new leader after {duration(ms)}" in sentences, (ms, sentences)
        leaders = {
            one.name
            for one in design_of(since(log, killed_ms)[-1][1], name).servers
            if one.role == "leader" and one.life == "up"
        }
        assert leaders
        assert struck[name] not in leaders


def tells_of_the_copies(log: Log, happened: str, sentences: str) -> None:
    """Check the choice that came true, and the times until clients' cached routes lacked broker 2."""
    begun_ms = max(each.mark.at_ms for each in log.changes if each.mark is not None)
    assert begun_ms <= instant_of(log, "stop")
    seen = since(log, begun_ms)

    def without(design: Design) -> list[bool]:
        kept = [
            [one.brokers for one in each.cached if one.topic == design.topics[-1]] for each in design.clients
        ]
        return [len(each) == 1 and each[0] is not None and "broker-2" not in each[0] for each in kept]

    last = {name: first_ms(seen, name, lambda each: all(without(each))) for name in DESIGNS}
    first = {name: first_ms(seen, name, lambda each: any(without(each))) for name in DESIGNS}
    ways = {
        name: {one.by for each in design_of(seen[-1][1], name).clients for one in each.cached}
        for name in DESIGNS
    }
    assert ways == {"independent": {"poll"}, "raft": {"poll"}, "zookeeper": {"watch"}}
    of_last, _, of_first = sentences.partition(". ")
    for name in DESIGNS:
        assert f"{after(last[name])} in {NAMES[name]} (they {min(ways[name])})" in of_last, last
        assert f"{after(first[name])} in {NAMES[name]}" in of_first, first
    polled, watched = max(last["independent"] or 0, last["raft"] or 0), last["zookeeper"] or 0
    wanted = "watch" if watched < polled / 2 else "poll" if polled < watched / 2 else "alike"
    assert happened == wanted, last


def on_the_smaller_side(log: Log) -> str:
    """Find the designs that answered client 0 for most of the partition, and return the choice that fits."""
    parted_ms, healed_ms = instant_of(log, "part"), instant_of(log, "heal")
    states = pictures(log)
    shown = [each for each in states if each.at_ms <= parted_ms][-1:]
    shown += [each for each in states if parted_ms < each.at_ms < healed_ms]
    instants = [parted_ms, *(each.at_ms for each in shown[1:]), healed_ms - 1]
    answered = set()
    for name in DESIGNS:
        without_ms = 0
        for state, begin_ms, end_ms in zip(shown, instants, instants[1:], strict=False):
            last = design_of(state, name).clients[0].last
            if last is None or last.verdict not in ("right", "stale", "wrong"):
                without_ms += end_ms - begin_ms
        if without_ms < (healed_ms - parted_ms) / 2:
            answered.add(name)
    if answered in ({"independent"}, set(DESIGNS), set()):
        return {1: "both", 3: "all-answer", 0: "none"}[len(answered)]
    return "other"


def duration(ms: int) -> str:
    if ms < 9_950:
        return f"{ms / 1000:.1f} s"
    if ms < 99_500:
        return f"{math.floor(ms / 1000 + 0.5)} s"
    return f"{math.floor(ms / 60_000 + 0.5)} min"


def after(ms: int | None) -> str:
    return "not until the end" if ms is None else f"after {duration(ms)}"


def shows_the_end_of(page: Shown, lesson: str) -> None:
    """Wait until the drawings show the state in which a lesson ends."""
    for name in DESIGNS:
        match lesson:
            case "restart-empty":
                page.see(f'{page.node("nameserver-1", name)}[data-lists="broker-0 broker-1 broker-2"]')
            case "leader-dies":
                page.see(f'[data-design="{name}"] .cl-server[data-state="down"]')
            case "network-parts":
                page.sees("client-0", "right", name)
            case "silence":
                page.sees("broker-1", "paused", name)
                page.sees("broker-2", "down", name)
            case _:
                page.sees("broker-2", "down", name)
                page.see(f'{page.node("client-3", name)}[data-lists="broker-0 broker-1"]')


def tells_of_the_silence(log: Log, happened: str, sentences: str) -> None:
    """Check the lesson's first sentence, which says how long clients got answers with the silent broker."""
    states = pictures(log)
    paused_ms, killed_ms = instant_of(log, "pause"), instant_of(log, "kill")
    silent = {name: settled_ms(states, name, "broker-1", paused_ms, killed_ms) for name in DESIGNS}
    of_silent, _, _ = sentences.partition(". ")
    for name, ms in silent.items():
        assert f"{after(ms)} in {NAMES[name]}" in of_silent, (silent, sentences)


def tells_of_the_partition(log: Log, happened: str, sentences: str) -> None:
    """Check that the session's log confirms the choice that came true (``happened``)."""
    assert happened == on_the_smaller_side(log), sentences


CHECKS: dict[str, Callable[[Log, str, str], None]] = {
    "restart-empty": tells_of_the_empty_server,
    "leader-dies": tells_of_the_new_leader,
    "network-parts": tells_of_the_partition,
    "silence": tells_of_the_silence,
    "poll-or-watch": tells_of_the_copies,
}


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_is_played_to_its_end_and_a_guess_compared_with_the_events(
    opened: Browser, three: Session, lesson: str
) -> None:
    """Play the last lesson with the keyboard in a narrow window, and all other lessons with the mouse."""
    by_keyboard = lesson == "poll-or-watch"
    with shown(opened, three, width=768 if by_keyboard else 1280) as page:
        guess = "poll" if by_keyboard else "unsure"
        # The test must pass even if the guess is wrong, because a busy machine may change the result of a
        # lesson.
        happened = play(page, lesson, guess, by_keyboard=by_keyboard)
        if by_keyboard:
            focused = page.page.evaluate("document.activeElement.textContent")
            assert "Lesson 5 of 5" in focused, "a screen reader goes on with the result"
        sentences = page.page.inner_text("#sentences")
        CHECKS[lesson](log_of(three, page), happened, sentences)
        assert all(name in sentences for name in NAMES.values()), sentences
        assert len(re.findall(r"\.(?: |$)", sentences)) == 2, sentences
        rows = page.page.locator("#verdicts li")
        assert [row.get_attribute("data-design") for row in rows.all()] == list(DESIGNS)
        assert all(" because " in text for text in rows.all_inner_texts())
        undisturbed = r"In the [\d.]+ (s|min|h) before, nothing was broken, |Something was broken before "
        assert re.match(undisturbed, page.page.inner_text("#quiet"))
        answer = "You made no guess."
        if guess != "unsure":
            answer = (
                "You expected this."
                if happened == guess
                else "You expected: Clients that poll drop it first."
            )
        assert answer in page.page.inner_text("#desk .outcome")
        shows_the_end_of(page, lesson)
        link = page.page.locator("#desk a").get_attribute("href") or ""
        path, _, section = link.partition("#")
        status, body = three.ask("GET", path)
        assert status == 200
        assert f'id="{section}"'.encode() in body
        assert "(seen)" in page.page.inner_text(f'[data-lesson="{lesson}"]')
