"""Tests that the site of the documents builds without a warning.

So all links work, and the navigation has each page.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def build(out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = build(tmp_path / "site")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    page = (tmp_path / "site" / "operations.html").read_text()
    assert 'href="security.html' in page


def test_a_link_that_leaves_the_documents_names_its_file_and_leads_nowhere(tmp_path: Path) -> None:
    assert build(tmp_path / "site").returncode == 0
    page = (tmp_path / "site" / "benchmark-guide.html").read_text()
    assert "bench/java/Sender.java" in page
    assert "../bench/java/Sender.java" not in page
