"""Pages in the Chromium that is installed on this machine, for tests with playwright and axe-core."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from routekeeper.bench.report.picture import QUIET, browser

#: Longest time in ms that a test waits for a content of a page. It is long, because machines may be busy.
WITHIN_MS: Final = 60_000
expect.set_options(timeout=WITHIN_MS)
_SERIOUS: Final = ("serious", "critical")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser that sends only the requests of its pages, and none of its own."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=browser(), args=[*QUIET], chromium_sandbox=False, timeout=WITHIN_MS
        )
        try:
            yield opened
        finally:
            opened.close()


@contextlib.contextmanager
def page_of(
    opened: Browser, *, width: int = 1280, height: int = 900, dark: bool = False
) -> Iterator[tuple[Page, list[str]]]:
    """Yield an empty page, and a list to which the errors of the page are added."""
    context = opened.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", locale="en-GB"
    )
    context.set_default_timeout(WITHIN_MS)
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        yield page, errors
    finally:
        context.close()


def faults(page: Page) -> list[str]:
    """Return the serious accessibility violations that axe-core finds, each with its elements."""
    found: list[dict[str, Any]] = Axe().run(page).response["violations"]
    return [
        f"{fault['id']} ({fault['impact']}): {[node['target'] for node in fault['nodes']][:5]}"
        for fault in found
        if fault["impact"] in _SERIOUS
    ]
