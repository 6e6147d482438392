"""Pictures of a page, made by a headless Chromium: ``mqbench picture PAGE FILE.png``."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
WINDOW_MIN: Final = 500
"""Smallest width of a headless browser's window in pixels. A frame in the window shows a narrower page."""
TIME_MAX_S: Final = 120.0

QUIET: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--allow-file-access-from-files", "--hide-scrollbars"),
)
"""Options with which a browser shows one local file and sends no requests to other machines."""


class NoPicture(Exception):
    """No picture was made: there is no browser, the browser failed, or the file cannot be written."""


def browser() -> str:
    """Return the command of the browser.

    Raises:
        NoPicture: If there is no browser.
    """
    for name in BROWSERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise NoPicture(f"no browser is installed, one of these is needed: {', '.join(BROWSERS)}")


def picture(
    page: Path, file: Path, *, width: int, height: int, dark: bool = False, section: str | None = None
) -> None:
    """Show the page in a browser window of this size, and write the window's content as PNG.

    If ``width`` is below ``WINDOW_MIN``, the picture is ``WINDOW_MIN`` wide, and the page fills only its left
    part.

    Args:
        section: Name of the section at which the picture begins, such as ``trust`` of ``report.html#trust``.
            The name of a scenario, such as ``partition``, means the section of this scenario. None means the
            page's top.

    Raises:
        NoPicture: If there is no such section or no browser, if the browser fails, or if the file cannot be
            written.
    """
    shown = page.resolve().as_uri()
    if section is not None:
        known = re.findall(r'<section id="([^"]+)"', page.read_text(encoding="utf-8"))
        section = next((each for each in (section, f"scenario-{section}") if each in known), section)
        if section not in known:
            raise NoPicture(f"the page has no section {section}, but {', '.join(known) or 'none at all'}")
        shown += f"#{section}"
    with tempfile.TemporaryDirectory() as scratch:
        # A new window always shows the top of a page. To show a section, put the page into a frame, because a
        # frame can be scrolled.
        if width < WINDOW_MIN or section is not None:
            frame = Path(scratch) / "frame.html"
            style = f"width:{width}px;height:{height}px;border:0;display:block"
            frame.write_text(
                f'<!doctype html><meta name="color-scheme" content="light dark"><body style="margin:0">'
                f'<iframe src="{html.escape(shown)}" style="{style}"></iframe>'
            )
            shown = frame.as_uri()
        command = [browser(), *QUIET, f"--user-data-dir={scratch}/profile"]
        command += [f"--window-size={max(width, WINDOW_MIN)},{height}", "--virtual-time-budget=3000"]
        command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
        # Let the browser write a new file, and copy this file to FILE. Otherwise an older picture at FILE
        # could hide that the browser wrote nothing.
        made = Path(scratch) / "picture.png"
        command += [f"--screenshot={made}", shown]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_MAX_S, check=False)
        except subprocess.TimeoutExpired:
            raise NoPicture(f"the browser did not end within {TIME_MAX_S:g} s") from None
        if done.returncode or not made.is_file():
            raise NoPicture(f"the browser made no picture: {done.stderr.strip()[-300:]}")
        try:
            file.write_bytes(made.read_bytes())
        except OSError as error:
            raise NoPicture(f"{file} cannot be written: {error.strerror}") from None
