"""Program that makes the picture of the playground in the documents.

The command is ``python -m tests.pictures.playground``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from routekeeper.bench.play.model import Order
from tests.bench.play.sessions import session
from tests.bench.play_page.shown import Shown
from tests.browser import chromium, page_of

FILE: Final = Path(__file__).resolve().parents[2] / "docs" / "playground.png"
WIDTH, HEIGHT = 1440, 1220
QUIET_MS = 12_000
"""Milliseconds from the start to the partition. In this time, the timeline shows correct answers."""
SEEN_MS = 5_000


def main() -> None:
    """Partition the network in three designs at the same time, then take a picture of the page."""
    with (
        tempfile.TemporaryDirectory() as out,
        session("--divisor", "30", out=Path(out)) as played,
        chromium() as opened,
        page_of(opened, width=WIDTH, height=HEIGHT) as (page, errors),
    ):
        played.await_started()
        shown = Shown(page, errors, played.addr)
        page.wait_for_timeout(QUIET_MS)
        played.do(Order(do="part", target="nameserver-2"))
        shown.there(shown.link("broker-1", "nameserver-2", "cut", "raft"))
        page.wait_for_timeout(SEEN_MS)
        page.screenshot(path=FILE)
        print(FILE)


if __name__ == "__main__":
    main()
