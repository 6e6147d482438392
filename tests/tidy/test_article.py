"""Tests that docs/why-not-zookeeper.md and the READMEs have the figures of the published run.

The figures must be the same in both languages.
"""

from __future__ import annotations

import pytest

from routekeeper.bench.costs.advice import RESTART_S
from routekeeper.bench.costs.units import DESIGNS, Design
from tests.tidy import article

#: Placeholders of the figures in the README's short answer to "Why not ZooKeeper?".
README_FIGURES = (
    *(
        f"{{{{{series}:nameserver-restarts/one-empty newcomer_right_s {design}}}}}"
        for series in ("equal", "equal-tenth")
        for design in ("independent", "raft")
    ),
    "{{leader-fails/kill announce_again_s raft}}",
    "{{leader-fails/kill announce_again_s zookeeper}}",
    "{{partition/1-2 disagree_s independent}}",
    "{{own:nameserver-restarts/one-empty newcomer_right_s independent}}",
    "{{own:nameserver-restarts/one-empty newcomer_right_s raft}}",
)


@pytest.mark.parametrize("name", article.ARTICLES)
def test_article_has_the_figures_of_the_published_run(name: str) -> None:
    """The article equals its template with the published figures.

    If this test fails, write the pages again: ``python -m tests.tidy.article``.
    """
    template = (article.DOCS / "article" / name).read_text(encoding="utf-8")
    assert (article.DOCS / name).read_text(encoding="utf-8") == article.written(
        template, chinese="zh" in name
    )


def test_both_languages_ask_for_the_same_figures() -> None:
    english, chinese = (
        sorted(article.PLACEHOLDER.findall((article.DOCS / "article" / name).read_text(encoding="utf-8")))
        for name in article.ARTICLES
    )
    assert english == chinese
    assert len(english) > 20


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
@pytest.mark.parametrize("figure", README_FIGURES)
def test_readme_has_the_figures_of_the_published_run(name: str, figure: str) -> None:
    text = (article.DOCS.parent / name).read_text(encoding="utf-8")
    assert article.written(figure, chinese="zh" in name) in text


@pytest.mark.parametrize("design", DESIGNS)
def test_advice_counts_with_the_published_time_after_a_restart(design: Design) -> None:
    published = article.written(
        f"{{{{own:nameserver-restarts/one-empty newcomer_right_s {design}}}}}", chinese=False
    )
    assert f"{RESTART_S[design]:g} s" == published


@pytest.mark.parametrize(
    ("rounds", "measure", "english", "chinese"),
    [
        ([(0.0, 0.25), (0.0, 0.25), (0.4, 0.25)], "right_again_s", "less than 250 ms", "不到 250 ms"),
        ([(0.5, 0.25), (0.62, 0.25), (0.7, 0.25)], "right_again_s", "0.62 s", "0.62 s"),
        ([(1.44, 0.0)], "newcomer_right_s", "1.4 s", "1.4 s"),
        ([(0.0, 0.0)], "disagree_s", "0 s", "0 s"),
        ([(36.2, 0.0)], "network_kib_per_s", "36 KiB/s", "36 KiB/s"),
        ([(446.3, 0.0)], "visible_clients_ms_p50", "446 ms", "446 ms"),
        ([(25.5, 0.0), (16.0, 0.0), (30.0, 0.0)], "failed_lookups", "26", "26"),
        ([(float("inf"), 0.25)], "left_by_clients_s", "never", "从未"),
    ],
)
def test_figure_is_the_median_with_its_unit(
    rounds: list[tuple[float, float]], measure: str, english: str, chinese: str
) -> None:
    assert article.figure_of(rounds, measure, chinese=False) == english
    assert article.figure_of(rounds, measure, chinese=True) == chinese
