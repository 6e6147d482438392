"""The verdicts of the lessons follow from measured values, and not from the reader's guess or from noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.bench.play.sessions import Session
from tests.bench.play_page import written
from tests.bench.play_page.shown import Shown, shown

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

RIGHT = {"since_ms": 0, "right": 9, "stale": 0, "wrong": 0, "refused": 0, "none": 0, "uncounted": 0}
NOTHING = {"wrong": 0, "stale": 0, "refused": 0, "none": 0}
NAMES = ("independent", "raft", "zookeeper")


@pytest.fixture(scope="module")
def page(opened: Browser, quiet: Session) -> Iterator[Shown]:
    """Yield the page of a replayed session without faults. Tests pass measured values to the page's code."""
    with shown(opened, quiet) as found:
        yield found


def judged(page: Shown, lesson: str, measures: Mapping[str, Any]) -> tuple[str | None, dict[str, Any], str]:
    """Return the choice (prediction) that came true, the verdict on each design, and the choice's text."""
    happened, verdicts, text = page.page.evaluate(
        """async ([id, measures, names]) => {
          const { LESSONS } = await import("/web/lessons.js");
          const lesson = LESSONS.find((one) => one.id === id);
          const verdicts = Object.fromEntries(names.map((name) => [name, lesson.verdict(measures, name)]));
          const happened = lesson.happened(verdicts);
          return [happened, verdicts, lesson.choices.find((one) => one.id === happened)?.text ?? ""];
        }""",
        [lesson, dict(measures), list(NAMES)],
    )
    for name in NAMES:
        assert "because" in verdicts[name]["text"]
    return happened, verdicts, text


def after_the_death(
    *, failed: Mapping[str, int], earlier: Mapping[str, int] | None = None, first: int | None = None
) -> dict[str, Any]:
    """Return invented measurements for the lesson in which the leader dies.

    Args:
        failed: Number of failed answers from the leader's death until the lesson's end, by design.
        earlier: Number of failed answers in the 4 s before the death, by design.
        first: Number of failed answers of each design in the first 4 s after the death. If None, all answers
            in `failed` came in these 4 s.
    """
    return {
        "leader": dict.fromkeys(NAMES, 500),
        "counters": {name: {**RIGHT, "none": failed.get(name, 0)} for name in NAMES},
        "compared": {
            name: {
                "ms": 4000,
                "before": {**NOTHING, "none": (earlier or {}).get(name, 0)},
                "since": {**NOTHING, "none": failed.get(name, 0) if first is None else first},
            }
            for name in NAMES
        },
    }


def test_a_design_with_only_right_answers_is_never_said_to_have_noticed_the_leaders_death(
    page: Shown,
) -> None:
    happened, verdicts, text = judged(page, "leader-dies", after_the_death(failed={"zookeeper": 4}))
    assert happened == "led"
    assert {name: each["is"] for name, each in verdicts.items()} == {
        "independent": "unnoticed",
        "raft": "unnoticed",
        "zookeeper": "noticed",
    }
    assert "every answer since then was right" in verdicts["raft"]["text"]
    assert "4 answers were not right (4 without an answer)" in verdicts["zookeeper"]["text"]
    assert "of Raft, of ZooKeeper or of both" in text


@pytest.mark.parametrize(
    ("failed", "wanted"),
    [
        ({}, "nobody"),
        ({"raft": 1}, "led"),
        ({"raft": 1, "zookeeper": 2}, "led"),
        ({"independent": 1, "raft": 1, "zookeeper": 1}, "all"),
        ({"independent": 1}, None),
        ({"independent": 1, "raft": 1}, None),
    ],
)
def test_the_choice_that_came_true_names_the_designs_that_noticed(
    page: Shown, failed: dict[str, int], wanted: str | None
) -> None:
    happened, verdicts, _ = judged(page, "leader-dies", after_the_death(failed=failed))
    assert happened == wanted
    assert {name for name, each in verdicts.items() if each["is"] == "noticed"} == set(failed)


def test_answers_that_fail_as_often_without_a_fault_are_no_effect_of_it(page: Shown) -> None:
    noisy = after_the_death(failed={"independent": 3, "zookeeper": 9}, earlier={"independent": 2})
    happened, verdicts, _ = judged(page, "leader-dies", noisy)
    assert happened is None, "a slow machine decides nothing"
    assert verdicts["independent"]["is"] == "unclear"
    assert "although nothing was broken (2 without an answer)" in verdicts["independent"]["text"]
    assert verdicts["zookeeper"]["is"] == "noticed"
    assert "before it none in as much time" in verdicts["zookeeper"]["text"]
    loud = after_the_death(failed={"zookeeper": 9}, earlier={"zookeeper": 2})
    happened, verdicts, _ = judged(page, "leader-dies", loud)
    assert (happened, verdicts["zookeeper"]["is"]) == ("led", "noticed")
    assert "before it fewer (2 without an answer) in as much time" in verdicts["zookeeper"]["text"]
    late = after_the_death(failed={"zookeeper": 9}, earlier={"zookeeper": 2}, first=3)
    assert judged(page, "leader-dies", late)[1]["zookeeper"]["is"] == "unclear", "equal times are compared"


def answer(*brokers: str) -> list[dict[str, object]]:
    return [{"verdict": "right" if len(brokers) == 3 else "wrong", "brokers": list(brokers)}]


ALL = answer("broker-0", "broker-1", "broker-2")


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        ({"independent": answer(), "raft": ALL, "zookeeper": ALL}, "independent"),
        ({"independent": answer("broker-2"), "raft": ALL, "zookeeper": ALL}, "independent"),
        ({"independent": ALL, "raft": ALL, "zookeeper": ALL}, "all-know"),
        ({"independent": answer(), "raft": answer(), "zookeeper": answer()}, "none-knows"),
        ({"independent": ALL, "raft": answer(), "zookeeper": ALL}, None),
        ({"independent": answer(), "raft": [], "zookeeper": ALL}, None),
    ],
)
def test_an_empty_server_is_judged_by_its_first_answer(
    page: Shown, answers: dict[str, list[dict[str, object]]], wanted: str | None
) -> None:
    happened, verdicts, _ = judged(page, "restart-empty", {"answers": answers})
    assert happened == wanted
    for name, each in answers.items():
        is_all = each and len(each[0]["brokers"]) == 3  # type: ignore[arg-type]
        assert verdicts[name]["is"] == ("all" if is_all else "lacking" if each else "unclear")


def test_other_lessons_judge_each_design_by_its_own_measure(page: Shown) -> None:
    parted = {"parted": 8000, "refused": {"independent": 300, "raft": 7000, "zookeeper": 6000}}
    happened, verdicts, _ = judged(page, "network-parts", parted)
    assert (happened, verdicts["raft"]["is"]) == ("both", "unserved")
    assert "for 7.0 s of the 8.0 s" in verdicts["raft"]["text"]

    times: dict[str, dict[str, int | None]] = {
        "silent": dict.fromkeys(NAMES, 2400),
        "killed": {"independent": 200, "raft": 300, "zookeeper": 2300},
    }
    happened, verdicts, _ = judged(page, "silence", times)
    assert (happened, verdicts["zookeeper"]["is"]) == ("killed-where-connected", "alike")
    times["killed"]["raft"] = None
    assert judged(page, "silence", times)[0] is None

    copies: dict[str, dict[str, Any]] = {
        "last": {"independent": 400, "raft": 500, "zookeeper": 30},
        "by": {"independent": "poll", "raft": "poll", "zookeeper": "watch"},
    }
    assert judged(page, "poll-or-watch", copies)[0] == "watch"
    copies["last"]["zookeeper"] = 450
    assert judged(page, "poll-or-watch", copies)[0] == "alike"


def test_a_quiet_time_ends_when_something_breaks_and_not_when_an_answer_is_late(page: Shown) -> None:
    """Check that a server's death, or a new fault, ends a quiet time, and that late answers do not end it."""
    found = page.page.evaluate(
        """async (design) => {
          const { Calm } = await import("/web/calm.js");
          const { apply } = await import("/web/picture.js");
          let state = { id: 0, at_ms: 0, designs: [design], mark: null };
          const calm = new Calm(state);
          const [client] = design.clients;
          const [server] = design.servers;
          const answer = (at, verdict) => ({
            at_ms: at + 40, design: design.name,
            client: { ...client, last: { ...client.last, verdict, done_ms: at } },
          });
          const changes = [
            answer(1000, "none"), answer(2500, "none"), answer(3000, "right"),
            { at_ms: 4010, design: design.name, server: { ...server, life: "down" } },
            { at_ms: 4020, done: {}, mark: { action: 6, at_ms: 4000 } },
            answer(4500, "refused"), { ...answer(4500, "refused"), at_ms: 4900 },
            { at_ms: 6000, design: design.name, server }, answer(6500, "right"),
            { at_ms: 9000, done: {}, mark: { action: 11, at_ms: 9000 } },
          ];
          const lasting = [];
          for (const [number, change] of changes.entries()) {
            state = apply(state, { id: number + 1, ...change });
            calm.add(change, state);
            lasting.push(calm.lasts(design.name, change.at_ms));
          }
          const { name } = design;
          const times = [[4000, 5000], [4000, 9000], [9000, 9500], [5000, 6000]];
          return [lasting, ...times.map(([fault, now]) => calm.compare(name, fault, now))];
        }""",
        written.as_json(written.design("raft")),
    )
    lasting, soon, late, again, broken = found
    assert lasting == [1040, 2540, 3040, 0, 0, 0, 0, 0, 0, 0]
    assert soon == {"ms": 1000, "before": NOTHING, "since": {**NOTHING, "refused": 1}}
    assert late == {"ms": 4000, "before": {**NOTHING, "none": 2}, "since": {**NOTHING, "refused": 1}}
    assert again == {"ms": 500, "before": NOTHING, "since": NOTHING}
    assert broken is None, "a server was down"
