"""Tests that both READMEs (English, Chinese) have the same commands, links and figures, in the same order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [("README.md", "README.zh-CN.md")]


def parts(page: str) -> dict[str, list[str]]:
    """Return the parts of a page that must be the same in each language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"(?m)^\[(?:English|中文)\]\(.*\)\n", "", text)
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    words = re.sub(r"\]\([^)]*\)|`[^`]*`", " ", outside)
    return {
        "commands and code": re.findall(r"```\w*\n(.*?)```", text, re.DOTALL),
        "links": re.findall(r"\]\(([^)]*)\)", outside),
        "names": sorted(re.findall(r"`([^`]+)`", outside)),
        "figures": sorted(re.findall(r"\d[\d.,]*\s?(?:ms|s|MB|%)(?![a-z])", words)),
        "headings": re.findall(r"(?m)^#+", outside),
    }


@pytest.mark.parametrize(("english", "chinese"), PAGES)
def test_both_languages_have_the_same_commands_links_and_figures(english: str, chinese: str) -> None:
    assert parts(chinese) == parts(english)
    assert parts(english)["figures"]
