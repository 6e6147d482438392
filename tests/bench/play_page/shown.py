"""Helpers for tests that open the page of a real playground in a browser."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from playwright.sync_api import Browser, Locator, Page

from tests.bench.play.sessions import Session
from tests.browser import page_of


class Shown:
    """A page that shows a playground.

    Attributes:
        hosts: ``host:port`` of each request that the page has sent.
    """

    def __init__(self, page: Page, errors: list[str], addr: str) -> None:
        self.page = page
        self.errors = errors
        self.hosts: set[str] = set()
        page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        page.goto(f"http://{addr}/")
        self.see('#live[data-live="yes"]')
        self.see(".cl-client")

    def see(self, selector: str) -> Locator:
        """Wait until an element that matches the selector is visible, and return it."""
        found = self.page.locator(selector).first
        found.wait_for()
        return found

    def node(self, name: str, design: str = "independent", state: str | None = None) -> str:
        """Return a selector that matches a process in a design's drawing.

        If `state` is given, the selector matches only while the drawing shows the process in this state.
        """
        shown = "" if state is None else f'[data-state="{state}"]'
        return f'[data-design="{design}"] [data-id="{name}"]{shown}'

    def sees(self, name: str, state: str, design: str = "independent") -> None:
        """Wait until the drawing of a design shows a process in this state."""
        self.see(self.node(name, design, state))

    def link(self, dialler: str, acceptor: str, state: str, design: str = "independent") -> str:
        """Return a selector that matches a link in a design's drawing while the link is in this state."""
        return f'[data-design="{design}"] [data-link="{dialler}>{acceptor}"][data-state="{state}"]'

    def drawn(self) -> None:
        """Wait for two frames of the browser, so that the page has drawn all data that it has received."""
        frame = "new Promise((end) => requestAnimationFrame(end))"
        self.page.evaluate(f"async () => {{ await {frame}; await {frame}; }}")

    def there(self, selector: str) -> None:
        """Wait until an element is in the page, even if it has no visible area, like a line in a drawing."""
        self.page.locator(selector).first.wait_for(state="attached")

    def press(self, of: str, do: str, **choices: str) -> None:
        """Select values in the form for faults, and press one of the form's buttons.

        Args:
            of: Part of the form, for example ``server``.
            do: Command of the button, for example ``kill``.
            choices: Values to select, by name of the field.
        """
        for name, value in choices.items():
            self.page.select_option(f"#{of}-{name}", value)
        self.page.click(f'#faults button[data-of="{of}"][data-do="{do}"]')

    def focus_by_tab(self, selector: str, *, most: int = 80) -> None:
        """Press Tab until an element that matches the selector has the focus."""
        for _ in range(most):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
                return
        raise AssertionError(f"{most} times Tab did not reach {selector}")


@contextlib.contextmanager
def shown(opened: Browser, at: Session | str, *, width: int = 1280, dark: bool = False) -> Iterator[Shown]:
    """Open the page of a playground.

    At the end, check that the page logged no error and sent no request to another host.
    """
    addr = at if isinstance(at, str) else at.addr
    with page_of(opened, width=width, dark=dark) as (page, errors):
        seen = Shown(page, errors, addr)
        yield seen
        assert seen.errors == []
        assert seen.hosts == {addr}
