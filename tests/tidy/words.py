"""Program that searches for text that may be hard to read.

``python -m tests.tidy.words`` lists all findings; a test fails if there is any finding.

The search finds private metaphors, and docstrings and comments that begin with a word like "What" or "Who"
without a noun. Other text may be hard to read, too. HACKING.md has all rules.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
HEADLESS = re.compile(r"(What|Who|Whom|Whose|Whoever|Whatever|That which|Where|Whether|How)\b(?!.*\?)")
METAPHORS = re.compile(
    r"\b(in chorus|office|farewell|stands? still|gives? up on|(?:is|are) told of|beats? of|lets? go|put off"
    r"|so far away|whoever|whatever|matter of)\b",
    re.IGNORECASE,
)
#: Files that quote the forbidden words, or that describe former versions.
LEFT_OUT = ("HACKING.md", "CHANGELOG.md", "docs/results/", "tests/golden/", "tests/tidy/words.py")


class Found(NamedTuple):
    kind: str
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.kind}: {self.text[:100]}"


def texts(name: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each docstring and comment of a module, or of each line of a page."""
    content = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".md"):
        yield from enumerate(content.splitlines(), 1)
        return
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type == tokenize.COMMENT:
            begins = token.start[0] != last + 1  # False if the comment continues that of the line before
            last = token.start[0]
            text = token.string.lstrip("#: ")
            yield token.start[0], text if begins else f"... {text}"


def candidates() -> Iterator[Found]:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.split():
        if name.startswith(LEFT_OUT) or not (ROOT / name).is_file():
            continue
        for line, text in texts(name):
            first = text.splitlines()[0] if text else ""
            if not name.endswith(".md") and HEADLESS.match(first):
                yield Found("headless", f"{name}:{line}", first)
            for found in METAPHORS.finditer(text):
                yield Found("metaphor", f"{name}:{line}", found[0])


if __name__ == "__main__":
    for each in candidates():
        print(each)
