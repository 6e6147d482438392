"""Program that measures how long the console needs for its first screen (100,000 topics, 300 brokers).

``python -m tests.pictures.first_screen`` prints medians of nine measurements, in ms:

- the time of each answer that the first screen needs
- the time that the browser needs to show a page of two letters, without style or script
- the time from the browser's navigation to the first row, and to all rows

Each measurement begins when the browser is idle, because people open the console in a browser that is already
running. A new Chromium is busy for about a second, because it loads 400 files of its own.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

import psutil

from routekeeper.remoting.transport.blocking import BlockingClient
from tests.browser import chromium, page_of
from tests.nameserver.http.consoles import Server, registered, servers
from tests.waiting import WITHIN_S, wait_until

TOPICS: Final = 100_000
BROKERS: Final = 300
TIMES: Final = 9
PATHS: Final = (
    "/",
    "/v1/console/cluster",
    "/v1/console/pulse",
    "/v1/topics?contains=orders-0&limit=100",
    "/v1/console/topics/orders-000007",
)
#: Script that returns the times in ms from navigation to the page's first row, and to all rows.
_SHOWN: Final = """() => new Promise((resolve) => {
  let begun = 0;
  const look = () => {
    const rows = document.querySelectorAll("table.matrix tbody tr").length;
    if (rows > 0 && begun === 0) begun = performance.now();
    if (rows === %d) resolve([begun, performance.now()]);
    else requestAnimationFrame(look);
  };
  look();
})"""
_EMPTY: Final = "() => new Promise((resolve) => requestAnimationFrame(() => resolve(performance.now())))"
#: The browser is idle if all its processes together use less than IDLE_S of CPU time within LOOK_S.
LOOK_S: Final = 0.3
IDLE_S: Final = 0.015


def await_idle() -> None:
    """Wait until all programs that this process started, among them the browser, are idle."""

    def is_idle() -> bool:
        before = _used_s()
        time.sleep(LOOK_S)
        return _used_s() - before < IDLE_S

    wait_until(is_idle, "the browser is idle")


def _used_s() -> float:
    """Return the CPU time in seconds of all processes that this process has started."""
    used_s = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            used_s += sum(process.cpu_times()[:2])
    return used_s


def main() -> None:
    names = [f"orders-{number:06}" for number in range(TOPICS)]
    share = TOPICS // BROKERS + 1
    with tempfile.TemporaryDirectory() as folder, BlockingClient() as client:
        server = Server(Path(folder), "--console-peers", "off")
        with servers(server):
            for number in range(BROKERS):
                topics = names[number * share : (number + 1) * share] + names[:100]
                request = registered(f"broker-{number:03}", *dict.fromkeys(topics))
                assert client.invoke(server.wire, request, timeout_s=WITHIN_S).code == 0
            for path in PATHS:
                times = []
                for _ in range(TIMES):
                    begun = time.perf_counter()
                    wanted = urllib.request.Request(
                        f"http://{server.http}{path}", headers={"Accept-Encoding": "gzip"}
                    )
                    with urllib.request.urlopen(wanted) as answer:
                        size = len(answer.read())
                    times.append((time.perf_counter() - begun) * 1000)
                print(f"{statistics.median(times):8.1f} ms {size:8} bytes  {path}")
            with chromium() as opened:
                times, empty = [], []
                for _ in range(TIMES):
                    with page_of(opened) as (page, _errors):
                        await_idle()
                        page.goto(f"http://{server.http}/healthz", wait_until="commit")
                        empty.append(page.evaluate(_EMPTY))
                    with page_of(opened) as (page, _errors):
                        await_idle()
                        page.goto(f"http://{server.http}/", wait_until="commit")
                        times.append(page.evaluate(_SHOWN % BROKERS))
                print(f"{statistics.median(empty):8.1f} ms  a page of two letters in the browser")
                for words, found in zip(
                    ("first screen", f"all {BROKERS} rows"), zip(*times, strict=True), strict=True
                ):
                    print(f"{statistics.median(found):8.1f} ms  {words} in the browser")


if __name__ == "__main__":
    main()
