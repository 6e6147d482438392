"""A page in a headless browser."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path


def scroll_width(html: str, width: int, scratch: Path) -> int:
    """Return how wide the page is, all folds open, where it may be ``width`` pixels wide."""
    probe = "<script>document.title = document.documentElement.scrollWidth + ' ' + innerWidth</script>"
    # A headless window is at least 500 px wide: the page stands in a frame of the width that is wanted.
    inner = scratch / "page.html"
    inner.write_text(html.replace("<details", "<details open").replace("</body>", probe + "</body>"))
    outer = scratch / "frame.html"
    outer.write_text(
        f'<iframe id="f" src="page.html" style="width:{width}px;height:900px;border:0"></iframe>'
        "<script>f.onload = () => { document.body.dataset.found = f.contentDocument.title }</script>"
    )
    dom = subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={scratch / 'profile'}", "--allow-file-access-from-files"),
            *("--window-size=1400,1000", "--virtual-time-budget=5000", "--dump-dom", f"file://{outer}"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    found = re.search(r'data-found="(\d+) (\d+)"', dom)
    assert found is not None, dom[-500:]
    assert int(found[2]) == width
    return int(found[1])
