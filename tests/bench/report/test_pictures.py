"""The page of a full comparison works in a browser at three widths, in light and dark, and on paper.

It can also be used with the keyboard alone.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import pytest

from routekeeper.bench.__main__ import main
from routekeeper.bench.report import measures, picture
from routekeeper.bench.report.gold import Gold
from routekeeper.bench.report.page import page
from routekeeper.bench.report.picture import QUIET, WINDOW_MIN, browser
from tests.bench.report.full_size import full_size, longest_page
from tests.bench.report.in_browser import ANSWER_MAX_S, OPEN_FOLDS, Tab, scroll_width

needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
# Not "computes": those tests get only processor time that others leave, and a browser that gets hardly any
# time for minutes may fail.
pytestmark = [pytest.mark.bench, pytest.mark.timeout(1200)]

WIDTHS: Final = (360, 768, 1280)
HEIGHT: Final = 1600
KEPT_IN: Final = "ROUTEKEEPER_PICTURES"
"""Environment variable that names a folder. If it is set, images of the page stay there for people to see."""
PAPER: Final = {False: (0xFF, 0xFF, 0xFF), True: (0x14, 0x18, 0x1D)}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``mqbench picture`` wait long, because the browser may be slow beside other tests."""
    monkeypatch.setattr(picture, "TIME_MAX_S", ANSWER_MAX_S)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Gold:
    return full_size(tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def whole(full: Gold, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("whole") / "report.html"
    file.write_text(page(full, measures.values(full)))
    return file


@pytest.fixture(scope="module")
def longest(full: Gold, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return longest_page(full, tmp_path_factory.mktemp("longest"))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a page that compares our brokers with RocketMQ's own. Its cells have long texts."""
    root = tmp_path_factory.mktemp("real")
    gold = full_size(root, "real")
    gold = replace(
        gold,
        recoveries=[
            replace(
                row,
                recovered_ns=None if number % 5 == 0 else 1_234_567_890_123 + number * 10**9,
                slowest_ns=987_654_321_987 - number * 10**9,
            )
            for number, row in enumerate(gold.recoveries)
        ],
    )
    file = root / "report.html"
    file.write_text(page(gold, measures.values(gold)))
    return file


@needs_chromium
@pytest.mark.parametrize("width", WIDTHS)
def test_page_of_rocketmqs_own_brokers_fits_every_width_even_with_the_longest_texts(
    real: Path, width: int, tab: Tab
) -> None:
    """Use a page that has one more table column than other pages, because it compares four arms (designs)."""
    assert "independent: never in either" in real.read_text()
    assert scroll_width(tab, real, width) <= width


@pytest.mark.slow
def test_page_of_a_full_comparison_is_below_two_megabytes(whole: Path) -> None:
    """Use a page on which requests fail at almost every instant."""
    html = whole.read_text()
    assert html.count("<svg") > 190  # charts of all scenarios and cases
    assert html.count('class="run"') > 1600
    assert len(html.encode()) < 2_000_000


def first_pixel(png: bytes) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Return the width and height of a PNG, and the colour of its first pixel.

    PNG's filters subtract earlier pixels. No pixel comes before the first pixel, so its colour is stored
    unchanged.
    """
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert (depth, kind) in ((8, 2), (8, 6))  # 8 bits per colour channel, and type 2 (RGB) or type 6 (RGBA)
    data, place = b"", 8
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        if png[place + 4 : place + 8] == b"IDAT":
            data += png[place + 8 : place + 8 + length]
        place += 12 + length
    return (width, height), tuple(zlib.decompress(data)[1:4])


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_picture_is_made_by_command_at_each_width_light_and_dark(
    longest: Path, width: int, dark: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(os.environ.get(KEPT_IN) or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"report-{width}-{'dark' if dark else 'light'}.png"
    options = ["--width", str(width), "--height", str(HEIGHT), *(["--dark"] if dark else [])]
    assert main(["picture", str(longest), str(file), *options]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    size, colour = first_pixel(file.read_bytes())
    assert size == (max(width, WINDOW_MIN), HEIGHT)
    assert colour == PAPER[dark]
    assert len(file.read_bytes()) > 20_000  # the image of an empty page would be a smaller file


#: JavaScript that returns elements whose text extends beyond their box or the screen. Charts are left out,
#: because a chart may cut off its content at its edges.
_OVERFLOWING: Final = """
[...document.querySelectorAll("main *")]
  .filter(each => !each.closest("svg, caption") && each.checkVisibility())
  .map(each => [each, each.getBoundingClientRect()])
  .filter(([each, box]) => box.left < -0.5 || box.right > innerWidth + 0.5 ||
    (each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).display.startsWith("table-cell")))
  .map(([each, box]) => `${each.tagName} ${box.left} to ${box.right}: ${each.textContent.slice(0, 60)}`)
"""


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_lies_outside_a_screen_of_this_width(longest: Path, width: int, dark: bool, tab: Tab) -> None:
    tab.open(longest, width=width, dark=dark)
    for folds in ("closed", "open"):
        assert tab.value("innerWidth") == width
        assert tab.value("document.documentElement.scrollWidth") <= width, folds
        assert tab.value("document.documentElement.clientWidth") == width, folds
        assert tab.value(_OVERFLOWING) == [], folds
        tab.value(OPEN_FOLDS)
    paper = tab.value("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb({}, {}, {})".format(*PAPER[dark])


@needs_chromium
def test_claims_and_what_to_choose_are_on_the_first_screen(whole: Path, tab: Tab) -> None:
    """Check that the claims and the advice end within HEIGHT pixels, the height of the docs' screenshot."""
    tab.open(whole, width=1280)
    assert tab.value("document.querySelectorAll('#claims tbody tr').length") > 10
    assert tab.value("document.querySelectorAll('#choose li').length") >= 3
    assert tab.value("document.querySelector('#choose').getBoundingClientRect().bottom") <= HEIGHT


@needs_chromium
@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_of_a_claims_figures_is_a_lone_unit(whole: Path, width: int, tab: Tab) -> None:
    """Check that no unit is alone on a line. An earlier page showed "s" and "ms" below their numbers."""
    lines = """
    [...document.querySelectorAll("#claims td, #claims td small")].flatMap(cell =>
      [...cell.childNodes].filter(node => node.nodeType === Node.TEXT_NODE).flatMap(text => {
        const found = new Map(), range = document.createRange();
        for (let at = 0; at < text.length; at++) {
          range.setStart(text, at); range.setEnd(text, at + 1);
          const top = Math.round(range.getBoundingClientRect().top);
          found.set(top, (found.get(top) ?? "") + text.data[at]);
        }
        return [...found.values()];
      }))
    """
    tab.open(whole, width=width)
    found = [line.strip() for line in tab.value(lines)]
    assert any(line.endswith("\N{NO-BREAK SPACE}s") for line in found)
    assert [line for line in found if re.fullmatch(r"[µm]?s|s/min|[KM]iB(/min)?", line)] == []


@needs_chromium
def test_picture_begins_with_the_section_that_was_asked_for(tmp_path: Path) -> None:
    page, file = tmp_path / "a.html", tmp_path / "a.png"
    page.write_text(
        '<body style="margin:0"><section id="above" style="background:#fff;height:3000px"></section>'
        '<section id="below" style="background:#f00;height:3000px"></section>'
    )
    assert main(["picture", str(page), str(file), "--height", "400", "--section", "below"]) == 0
    size, colour = first_pixel(file.read_bytes())
    assert (size, colour) == ((1280, 400), (255, 0, 0))


def test_section_that_the_page_has_not_is_named_with_those_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "a.html"
    page.write_text('<section id="claims"></section><section id="lines"></section>')
    assert main(["picture", str(page), str(tmp_path / "a.png"), "--section", "line"]) == 1
    assert "the page has no section line, but claims, lines" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--width", "199"], "argument --width: 199 is not a whole number from 200 to 4,000"),
        (["--width", "4001"], "argument --width: 4001 is not a whole number from 200 to 4,000"),
        (["--width", "wide"], "argument --width: wide is not a whole number from 200 to 4,000"),
        (["--width", "1_280"], "argument --width: 1_280 is not a whole number from 200 to 4,000"),
        (["--width", "+300"], "argument --width: +300 is not a whole number from 200 to 4,000"),
        (["--height", "20001"], "argument --height: 20001 is not a whole number from 200 to 20,000"),
    ],
)
def test_picture_of_a_size_that_cannot_be_is_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["picture", "a.html", "a.png", *options])
    assert said in capsys.readouterr().err


def test_picture_of_no_page_and_without_a_browser_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["picture", str(tmp_path / "none.html"), str(tmp_path / "a.png")]) == 2
    assert "no such page" in capsys.readouterr().err
    (tmp_path / "a.html").write_text("<p>page")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["picture", str(tmp_path / "a.html"), str(tmp_path / "a.png")]) == 1
    assert "no browser is installed, one of these is needed: chromium" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("browser_does", "file", "said"),
    [
        ("echo no screen >&2", "a.png", "the browser made no picture: no screen"),
        ("echo crashed >&2; exit 133", "a.png", "the browser made no picture: crashed"),
        (
            'for word; do case "$word" in --screenshot=*) echo PNG > "${word#*=}";; esac; done',
            "none/a.png",
            "none/a.png cannot be written: No such file or directory",
        ),
    ],
)
def test_picture_that_was_not_made_is_told_and_an_older_one_stays(
    browser_does: str,
    file: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "a.html").write_text("<p>page")
    (tmp_path / "a.png").write_bytes(b"older")
    program = tmp_path / "chromium"
    program.write_text(f"#!/bin/sh\n{browser_does}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert main(["picture", str(tmp_path / "a.html"), str(tmp_path / file)]) == 1
    assert said in capsys.readouterr().err
    assert (tmp_path / "a.png").read_bytes() == b"older"


def printed_pages(html: Path, scratch: Path) -> int:
    file = scratch / f"{html.stem}.pdf"
    command = [browser(), *QUIET, f"--user-data-dir={scratch / 'profile'}", "--no-pdf-header-footer"]
    subprocess.run([*command, f"--print-to-pdf={file}", html.as_uri()], check=True, capture_output=True)
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", file.read_bytes()))


@needs_chromium
def test_on_paper_what_is_folded_is_open(whole: Path, tmp_path: Path) -> None:
    """Check that collapsed sections are printed open, because a reader of paper cannot open them."""
    opened = tmp_path / "opened.html"
    opened.write_text(whole.read_text().replace("<details>", "<details open>"))
    folded = tmp_path / "folded.html"
    folded.write_text(whole.read_text())
    pages = printed_pages(folded, tmp_path)
    assert pages > 10
    assert pages == printed_pages(opened, tmp_path)
    style = whole.read_text()
    on_paper = style[style.index("@media print") : style.index("</style>")]
    assert "--paper: #fff" in on_paper  # white paper, also for a reader whose browser prefers dark pages
    assert "break-inside: avoid" in on_paper


class Stops(HTMLParser):
    """A parser that collects accessibility faults, and the elements that the Tab key reaches, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.stops: list[tuple[str, str]] = []
        self.faults: list[str] = []
        self.ids: set[str] = set()
        self.summaries = self.folded = 0
        self._opened = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids.add(str(found.get("id")))
        if tag == "summary":
            self.summaries += 1
            if self._opened != "details":
                self.faults.append("a summary that is not the first in its fold")
        self.folded += tag == "details"
        if tag in ("a", "summary", "button", "input", "select"):
            self.stops.append((tag, str(found.get("href", ""))))
        if "tabindex" in found or any(name.startswith("on") for name in found):
            self.faults.append(f"{tag} with {found}")
        if tag == "svg" and (found.get("role") != "img" or not found.get("aria-label")):
            self.faults.append("a picture without words")
        if tag == "th" and found.get("scope") not in ("col", "row"):
            self.faults.append("a heading of neither row nor column")
        self._opened = tag


def test_everything_is_reached_by_keyboard_and_the_first_stop_skips_to_the_answers(whole: Path) -> None:
    html = whole.read_text()
    reader = Stops()
    reader.feed(html)
    assert reader.faults == []
    assert reader.stops[0] == ("a", "#claims")
    assert reader.summaries == reader.folded > 20
    assert {href.removeprefix("#") for tag, href in reader.stops if tag == "a"} <= reader.ids
    assert ":focus-visible { outline: 3px solid" in html  # the focused element has a visible outline
    assert "outline: none" not in html
    assert "outline: 0" not in html


@needs_chromium
def test_tab_key_goes_through_the_page_and_enter_skips_and_unfolds(whole: Path, tab: Tab) -> None:
    at = "document.activeElement"
    tab.open(whole, width=1280)
    tab.press("Tab")
    assert tab.value(f"{at}.className") == "skip"
    assert tab.value(f"{at}.getBoundingClientRect().left") >= 0, "one sees it when it is reached"
    assert tab.value(f"parseFloat(getComputedStyle({at}).outlineWidth)") >= 2
    tab.press("Enter")
    assert tab.value("location.hash") == "#claims"
    tab.press("Tab")
    assert tab.value(f"{at}.closest('section').id") == "claims", "the next stop lies in the answers"

    reached = [tab.value(f"{at}.textContent")]
    folds = 0
    while (tag := tab.value(f"{at}.tagName")) != "BODY":
        assert tag in ("A", "SUMMARY")
        assert tab.value(f"parseFloat(getComputedStyle({at}).outlineWidth)") >= 2
        if tag == "SUMMARY":
            folds += 1
            for key, is_open in (("Enter", True), (" ", False)):
                tab.press(key)
                assert tab.value(f"{at}.parentElement.open") is is_open
        tab.press("Tab")
        reached.append(tab.value(f"{at}.textContent"))
    assert folds == tab.value("document.querySelectorAll('summary').length")
    stops = tab.value("document.querySelectorAll('main > :not(header) :is(a, summary)').length")
    assert len(reached) - 1 == stops
