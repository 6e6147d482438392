"""Tests that the coverage report counts exactly the lines that have run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .lines import Lines

SOURCE = '''
def chosen(yes):
    """A docstring is no line that runs."""
    if yes:
        return [
            number
            for number in (1, 2)
        ]
    other = 3
    return other


class Thing:
    value = 1

    def never(self):
        return self.value
'''


def test_lines_of_functions_count_once_they_have_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "covered.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path / "package"))
    import covered  # type: ignore[import-not-found]

    lines = Lines(tmp_path / "package")
    before = sys.gettrace()
    assert lines.report() == {"package/covered.py": (0, 7)}
    with lines.recording():
        covered.chosen(True)
    run, there = lines.report()["package/covered.py"]
    assert there == 7
    assert run == 4, "the condition and the three lines of the list"
    with lines.recording():
        covered.chosen(False)
    assert lines.report() == {"package/covered.py": (6, 7)}
    assert sys.gettrace() is before
    del sys.modules["covered"]
