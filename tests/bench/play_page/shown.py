"""The playground's page in a browser, in front of a real playground."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from playwright.sync_api import Browser, Locator, Page

from tests.bench.play.sessions import Session
from tests.browser import page_of


class Shown:
    """A page that shows a playground.

    Attributes:
        hosts: Every host that the page has asked.
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
        """Wait until there is such an element to be seen; return it."""
        found = self.page.locator(selector).first
        found.wait_for()
        return found

    def node(self, name: str, design: str = "independent", state: str | None = None) -> str:
        """Return the selector of a process in a drawing."""
        shown = "" if state is None else f'[data-state="{state}"]'
        return f'[data-design="{design}"] [data-id="{name}"]{shown}'

    def sees(self, name: str, state: str, design: str = "independent") -> None:
        """Wait until a drawing shows a process in this state."""
        self.see(self.node(name, design, state))

    def link(self, dialler: str, acceptor: str, state: str, design: str = "independent") -> str:
        """Return the selector of a link in this state."""
        return f'[data-design="{design}"] [data-link="{dialler}>{acceptor}"][data-state="{state}"]'

    def drawn(self) -> None:
        """Wait until the page has drawn what it has been told so far: it draws once in a frame."""
        frame = "new Promise((end) => requestAnimationFrame(end))"
        self.page.evaluate(f"async () => {{ await {frame}; await {frame}; }}")

    def there(self, selector: str) -> None:
        """Wait until there is such an element; a line in a drawing has no area that could be seen."""
        self.page.locator(selector).first.wait_for(state="attached")

    def press(self, of: str, do: str, **choices: str) -> None:
        """Choose in the form of the faults, and press a button of it."""
        for name, value in choices.items():
            self.page.select_option(f"#{of}-{name}", value)
        self.page.click(f'#faults button[data-of="{of}"][data-do="{do}"]')

    def focus_by_tab(self, selector: str, *, most: int = 80) -> None:
        """Press Tab until this element has the focus."""
        for _ in range(most):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
                return
        raise AssertionError(f"{most} times Tab did not reach {selector}")


@contextlib.contextmanager
def shown(opened: Browser, at: Session | str, *, width: int = 1280, dark: bool = False) -> Iterator[Shown]:
    """Open the page of a playground; in the end it has printed no error and asked nobody else."""
    addr = at if isinstance(at, str) else at.addr
    with page_of(opened, width=width, dark=dark) as (page, errors):
        seen = Shown(page, errors, addr)
        yield seen
        assert seen.errors == []
        assert seen.hosts == {addr}
