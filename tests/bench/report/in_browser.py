"""A headless browser that tests control with the devtools protocol.

The protocol runs over a pipe. Each message is JSON text that ends with a NUL byte.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from routekeeper.bench.report.picture import QUIET, browser

ANSWER_MAX_S: Final = 1200.0
"""Longest wait in s for the browser. It is long, because the browser may get little processor time."""
HEIGHT: Final = 900

KEYS: Final = {
    "Tab": {"code": "Tab", "windowsVirtualKeyCode": 9},
    "Enter": {"code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
    " ": {"code": "Space", "windowsVirtualKeyCode": 32, "text": " "},
}


class Tab:
    """A browser tab, as a context manager. Each tab has its own browser process."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._number = 0
        self._read = b""
        self._session: dict[str, str] = {}
        self._loaded: set[str] = set()

    def __enter__(self) -> Self:
        # With --remote-debugging-pipe the browser reads from descriptor 3 and writes to descriptor 4.
        with_pipes = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1'
        self._process = subprocess.Popen(
            [
                *("sh", "-c", with_pipes, "sh", browser(), *QUIET, "--remote-debugging-pipe"),
                f"--user-data-dir={self._scratch / 'profile'}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        made = self.call("Target.createTarget", url="about:blank")
        joined = self.call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        self._session = {"sessionId": joined["sessionId"]}
        self.call("Page.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if kind is None:
            self._session = {}
            self.call("Browser.close")
        else:
            self._process.kill()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(ANSWER_MAX_S)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the browser's debugging protocol, and return its result."""
        assert self._process.stdin is not None
        self._number += 1
        asked = {"id": self._number, "method": method, "params": params, **self._session}
        self._process.stdin.write(json.dumps(asked).encode() + b"\0")
        self._process.stdin.flush()
        number = self._number
        while (answer := self._next(method)).get("id") != number:
            pass
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, page: Path, *, width: int, dark: bool = False) -> None:
        """Load a page on a screen of this width in pixels, and return when the page is loaded."""
        size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        # Wait for the load event that has this page's loader id. The event may come before the answer to
        # Page.navigate, and load events of earlier pages may come after that answer.
        loader = self.call("Page.navigate", url=page.resolve().as_uri())["loaderId"]
        while loader not in self._loaded:
            self._next(f"that {page.name} is loaded")

    def value(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **KEYS[key])
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **KEYS[key])

    def _next(self, wanted: str) -> dict[str, Any]:
        """Return the browser's next message. If it reports that a page is loaded, remember the page."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + ANSWER_MAX_S
        while b"\0" not in self._read:
            left_s = max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select([self._process.stdout], [], [], left_s)
            assert readable, f"the browser said nothing for {ANSWER_MAX_S:g} s, wanted is {wanted}"
            more = os.read(self._process.stdout.fileno(), 1 << 20)
            assert more, "the browser ended"
            self._read += more
        message, _, self._read = self._read.partition(b"\0")
        said: dict[str, Any] = json.loads(message)
        if said.get("method") == "Page.lifecycleEvent" and said["params"]["name"] == "load":
            self._loaded.add(said["params"]["loaderId"])
        return said


OPEN_FOLDS: Final = "document.querySelectorAll('details').forEach(each => { each.open = true })"


def scroll_width(tab: Tab, file: Path, width: int) -> int:
    """Return the width in pixels that the page needs when all its ``<details>`` elements are open.

    Args:
        width: Width of the screen in pixels.
    """
    tab.open(file, width=width)
    tab.value(OPEN_FOLDS)
    assert tab.value("innerWidth") == width
    found = tab.value("document.documentElement.scrollWidth")
    assert isinstance(found, int)
    return found
